"""What is measured: bundles, and their checkpoint in PyTorch, on runtimes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from txport import runtimes
from txport.bench.plan import Plan
from txport.bench.rounds import require_protocol
from txport.bundles.bundle import Bundle
from txport.bundles.foreign.manifest import ForeignManifest
from txport.checkpoints.folder import code_name, digest, label
from txport.errors import UnsupportedError

TORCH = "torch"


class Candidate(NamedTuple):
    """A bundle, or the checkpoint in PyTorch, on a runtime. `label` names it in the report."""

    label: str
    runtime: str
    bundle: Bundle
    checkpoint: str | None

    @property
    def variant(self) -> str | None:
        """The variant of a folder that other tools exported."""
        manifest = self.bundle.manifest
        return manifest.variant or None if isinstance(manifest, ForeignManifest) else None

    @property
    def reads_bundle(self) -> bool:
        """Whether the runtime computes the graphs in the bundle's precision."""
        return self.runtime != TORCH and not runtimes.RUNTIMES[self.runtime].computes


def candidates(
    bundles: Sequence[tuple[str, Bundle]], names: Sequence[str], checkpoint: str | None = None
) -> list[Candidate]:
    """Return each runtime of `names` with each bundle, given with its name; PyTorch once for a checkpoint.

    Labels name what differs between candidates. Raises `UnsupportedError` for bundles that read or write other
    tokens, or of another task.
    """
    first = bundles[0][1].manifest.facts
    for name, bundle in bundles:
        facts = bundle.manifest.facts
        if (facts.task, facts.reads, facts.writes) != (first.task, first.reads, first.writes):
            raise UnsupportedError(f"{name} has another task or vocabulary than {bundles[0][0]}; measure it by itself")
    about = [(name, bundle.manifest.target, bundle.manifest.precision) for name, bundle in bundles]
    varying = [at for at in range(3) if len({each[at] for each in about}) > 1]
    found: dict[str, Candidate] = {}
    for runtime in dict.fromkeys(names):
        for (_, bundle), parts in zip(bundles, about, strict=True):
            words = [parts[at] for at in varying] if runtime != TORCH else []
            if runtime == TORCH and len({each.manifest.checkpoint["sha256"] for _, each in bundles}) > 1:
                words = [parts[0]]
            one = " ".join([*words, runtime])
            found.setdefault(one, Candidate(one, runtime, bundle, checkpoint))
    return list(found.values())


def require(candidates: Sequence[Candidate], plan: Plan, trust_code: bool) -> None:
    """Raise `UnsupportedError` for a plan that the model does not support, or a checkpoint of another model."""
    for size in plan.sizes():
        require_protocol(candidates[0].bundle.manifest.facts, size)
    checkpoint = candidates[0].checkpoint
    if trust_code and (checkpoint is None or not code_name(checkpoint)):
        raise UnsupportedError("trust_code=True is for a checkpoint that is a file and its adapter, model.py:NAME")
    if checkpoint is not None and not trust_code:
        for each in candidates:
            each.bundle.require_source(label(checkpoint), digest(checkpoint))
