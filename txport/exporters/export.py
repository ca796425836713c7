"""Checkpoint -> the files of a bundle: graphs for one target, the tokenizer and other companion files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from txport.bundles.forms import Form
from txport.bundles.manifest import Manifest
from txport.checkpoints.adapters.adapted import Adapted
from txport.checkpoints.checkpoint import Checkpoint, smoothed
from txport.checkpoints.weights.streamed import emptied
from txport.errors import UnsupportedError
from txport.exporters.cpu.calibrate import Text
from txport.exporters.cpu.choose import NO_FORMS
from txport.exporters.exporter import exporter_of
from txport.exporters.fused import write as fused
from txport.exporters.portable import write as portable
from txport.exporters.single.rules import rules_of
from txport.models import architecture
from txport.system.packages import version_of
from txport.targets import target_of
from txport.version import __version__

DEFAULT_OPSET = 18
OPSETS = range(DEFAULT_OPSET, 26)


def _require_fit(checkpoint: Checkpoint, target: str, precision: str, opset: int | None, rows: int | None) -> None:
    """Raise `UnsupportedError` for options that can't be combined, or that the model does not support."""
    if opset is not None and opset not in OPSETS:
        raise UnsupportedError(f"opset must lie in {OPSETS.start} to {OPSETS.stop - 1}, got {opset}")
    made_for = target_of(target)
    made_for.offered(precision)
    if opset is not None and opset < (least := exporter_of(target).least_opset(precision)):
        raise UnsupportedError(
            f"the operators of {target} {precision} are in opset {least} and later, got {opset}; leave opset out"
        )
    if not made_for.is_standard and isinstance(checkpoint.outline, Adapted):
        why = f"the {target} target makes operators of parts that it knows, and your module has none of them"
        fix = "export it with target='portable', or write an architecture (docs/architectures.md)"
        raise UnsupportedError(f"an adapter exports to the portable target only: {why}; {fix}")
    if made_for.is_standard and made_for.quantises(precision) and isinstance(checkpoint.outline, Adapted):
        why = f"{precision} quantises parts that txport knows, and your module has none of them"
        raise UnsupportedError(f"an adapter exports in fp32 and fp16: {why}; leave precision out")
    if rows is not None and not made_for.has_choice(precision):
        what = "the kernels of int8 and int4 on the cpu target"
        raise UnsupportedError(f"rows chooses {what}; {target} {precision} has no choice")


def _require_single(checkpoint: Checkpoint, target: str, precision: str, *, weights: bool) -> None:
    """Raise `UnsupportedError` if the export can't have a single graph."""
    if isinstance(checkpoint.outline, Adapted):
        why = "its loop is made of what txport itself traces, and PyTorch's exporter traces adapters"
        raise UnsupportedError(f"single is for architectures, and this is an adapter: {why}; leave single out")
    if target_of(target).quantises(precision):
        raise UnsupportedError("single has a loop, where ONNX Runtime fuses no products of few bits; leave single out")
    if not weights:
        raise UnsupportedError("single reads the weights of the other graphs, and there are to be none; leave one out")
    target_of(target).require_single(checkpoint.facts)


def _quantised(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the manifest's entry of a checkpoint that another tool has quantised."""
    return {"quantised": checkpoint.quantised} if checkpoint.quantised else {}


def _no_weights(name: str) -> Tensor:
    raise UnsupportedError(f"this model's graphs depend on the numbers of {name}, so they can't be without weights")


def export_graphs(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    target: str = "portable",
    precision: str = "fp32",
    opset: int | None = None,
    rows: int | None = None,
    chosen: Mapping[str, Form] = NO_FORMS,
    texts: Sequence[Text] = (),
    external_above: int = portable.EXTERNAL_ABOVE,
    weights: bool = True,
    single: bool = False,
) -> Manifest:
    """Write and check all files of a bundle in `folder`, except the manifest; return the unsealed manifest.

    `opset`: default is `DEFAULT_OPSET`, or the later one that the target prefers for the model. `chosen`: the
    forms of some weights of a quantised cpu bundle. `texts`: those by which int4 of the cpu target rounds
    matrices. `rows`: use the fastest kernels of quantised weights for a step of this number of rows; None: use kernels
    for which no row depends on the others. `external_above`: bytes of weights above which the portable target stores
    weights in a separate file. `weights=False`: write graphs without weights, which state only
    the location of each weight. `single`: also write a single graph that contains the search. Raises
    `UnsupportedError` for options that can't be combined or that the model does not support.
    """
    _require_fit(checkpoint, target, precision, opset, rows)
    if single:
        _require_single(checkpoint, target, precision, weights=weights)
    made_by = exporter_of(target)
    manifest = Manifest(
        target=target,
        precision=precision,
        opset=opset or max(DEFAULT_OPSET, made_by.least_opset(precision), made_by.prefers(checkpoint.outline)),
        architecture=architecture.name_of(checkpoint.config),
        config=checkpoint.config.to_dict(),
        facts=checkpoint.facts,
        checkpoint={"name": checkpoint.name, "sha256": checkpoint.sha256, **_quantised(checkpoint)},
        tools={"txport": __version__, **{name: version_of(name) for name in ("torch", "onnx", "onnxscript")}},
        generation=dict(checkpoint.generation),
        not_followed=dict(checkpoint.not_followed),
        rows=made_by.rows_of(checkpoint.facts, precision, rows),
        weightless=not weights,
        single=single,
    )
    if single:
        rules_of(manifest)
    manifest = replace(manifest, smoothing=made_by.smoothing_of(checkpoint, manifest))
    checkpoint = smoothed(checkpoint, manifest.smoothing)
    if not weights:
        checkpoint = replace(checkpoint, outline=emptied(checkpoint.outline), read=_no_weights)
    (folder / "onnx").mkdir()
    for name, content in checkpoint.companions.items():
        if isinstance(content, Path):
            shutil.copyfile(content, folder / name)
        else:
            (folder / name).write_text(content, encoding="utf-8", newline="\n")
    if manifest.made_for.is_standard:
        return portable.write(checkpoint, manifest, folder, external_above)
    return fused.write(checkpoint, manifest, folder, chosen, texts)
