"""Texts of the page for a folder exported by other tools: how to run its graphs, and facts about it."""

from __future__ import annotations

from txport.bundles.foreign.files import LATER
from txport.bundles.foreign.manifest import ForeignManifest
from txport.bundles.readme.tables import KINDS
from txport.models.audio import Features
from txport.targets.ports import DECODER

LAYOUTS = {
    "merged": "one decoder for all steps",
    "apart": "a decoder for the first step, one for the others",
    "one": "",
}


def about(manifest: ForeignManifest) -> list[str]:
    """Return short descriptions of a folder, in addition to its task and its precision."""
    layout = LAYOUTS.get(manifest.layout) or f"{len(manifest.read)} graph{'s' if len(manifest.read) > 1 else ''}"
    variant = [f"variant {manifest.variant}"] if manifest.variant else []
    return ["exported by others", f"model_type {manifest.architecture}", f"layout: {layout}", *variant]


def kind(manifest: ForeignManifest, role: str) -> str:
    """Return the purpose of the graph of a role."""
    if role == LATER or (role == DECODER and LATER in manifest.read):
        return "all steps but the first" if role == LATER else "the first step"
    return KINDS[role]


def notes(manifest: ForeignManifest) -> list[str]:
    """Return notes on batches, on running the folder and on comparing it with PyTorch, as Markdown."""
    apart = "run apart, for its graphs take no padding"
    rows = "may stand in one batch, padded" if manifest.pads else apart
    return [
        f"**Batches**: rows of unequal lengths {rows}.",
        _running(manifest),
        "**Parity**: nothing says what the folder was exported from; `txport parity FOLDER --checkpoint CHECKPOINT` "
        "compares it with PyTorch.",
    ]


def _running(manifest: ForeignManifest) -> str:
    if not manifest.facts.generates:
        return "**Running**: `txport run FOLDER TEXT` does all of this."
    given = "AUDIO" if isinstance(manifest.facts.source, Features) else "TEXT"
    return f"**Search**: `txport run FOLDER {given}` does all of this, with beams, samples and streams."
