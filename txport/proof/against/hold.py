"""Load the original that `--against` names and compare the import of a checkpoint with it, also during `export`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from txport.bundles.comparisons import NOT_COMPARED, TEXTS
from txport.checkpoints.adapters.adapted import Adapted
from txport.checkpoints.adapters.load import at_home
from txport.checkpoints.checkpoint import Checkpoint, build_empty, is_large, load_checkpoint
from txport.checkpoints.folder import Lora, code_name, find_folder
from txport.checkpoints.sources.fitting import fitted
from txport.checkpoints.sources.lora import merged
from txport.checkpoints.sources.source import read_source
from txport.checkpoints.weights.plan import Plan
from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, ConfigError, ParityError, UnavailableError, UnsupportedError, quoted
from txport.models.config import read_config
from txport.models.facts import Facts
from txport.models.model import Model
from txport.models.names import CONFIG, NO_ORIGINAL, TRANSFORMERS
from txport.models.parts import Attention
from txport.proof.against.batches import SHORT, Reach, least_long
from txport.proof.against.original import Original, load_module, require_used
from txport.proof.against.pairing import files_read
from txport.proof.against.verdict import Verdict, compare
from txport.system import memory
from txport.system.packages import version_of
from txport.system.paths import require_possible

# number of copies in memory at once
LARGEST_COPIES = 2  # of the largest tensor, while its numbers are followed to the files; later there are, in its place,
VALUES_COPIES = 8  # of the inputs and outputs of linear layers, in the records of both models
OUTPUT_COPIES = 8  # of the outputs of the models
SCORES_COPIES = 2  # of the attention weights, which an original may return
NAMED = 3  # tensors that an error names
WORK = 1e12  # maximum number of multiply-adds of the long row: half a minute
CONFIGURED = 32  # tokens of the long row of a folder: its config names each length at which its model changes


def hold_against(name: str, against: str, *, trust_code: bool = False) -> Verdict:
    """Run the import of the checkpoint `name` and its original, layer by layer.

    `against`: `model.py:NAME` (only with `trust_code`), "transformers" to run the same folder, or another folder that
    transformers runs. Raises `UnsupportedError` for another `against`, and `CheckpointError` or `ConfigError` if a
    model can't be loaded or the original has other tensors.
    """
    require_original(against, trust_code=trust_code)
    folder = find_folder(name)
    outline = build_empty(read_source(folder).config)
    memory.require(memory_for(outline), f"the comparison of {folder} with {against}")
    return hold(load_checkpoint(name), folder, against)


def hold(checkpoint: Checkpoint, folder: Path, against: str, **how: Any) -> Verdict:
    """As `hold_against`, for a checkpoint that was loaded from `folder` and stays as it is; `how`: see `compare`."""
    source = merged(read_source(folder), checkpoint.loras)
    weights, made = fitted(source, build_empty(source.config))
    model = checkpoint.model
    if (code := code_name(against)) is not None:
        with at_home(code[0]):
            original = load_module(against, weights, model.facts, source.place)
            require_used(original, files_read(made), source.place)
            return compare(model, made, original, **how)
    if against == TRANSFORMERS:
        names = dict(zip(source.weights().shapes, weights.shapes, strict=True))
        renamed = {name: new for name, new in names.items() if name != new}
        original = _by_transformers(folder, weights, model.facts, renamed, checkpoint.loras)
    else:
        theirs = find_folder(against)
        weights, made = _of_other(theirs, source.place, weights, made)
        original = _by_transformers(theirs, weights, model.facts)
    return compare(model, made, original, **how)


def memory_for(model: Model) -> int:
    """Return the bytes needed by a model and its original, with the activations of both.

    Weights of a small model are twice in float64; of a large one, in the files and in float32.
    """
    sizes = [each.numel() for each in model.parameters()]
    length = least_long(model)
    facts = model.facts
    large = is_large(model)
    maps = (each for each in model.modules() if isinstance(each, nn.Linear))
    heads = sum(each.core.heads for each in model.modules() if isinstance(each, Attention))
    values = VALUES_COPIES * (SHORT if large else length) * sum(each.in_features + each.out_features for each in maps)
    outputs = OUTPUT_COPIES * length * (facts.writes.size if facts.generates else facts.width)
    scores = SCORES_COPIES * length * length * heads
    weights = (4 if large else 2 * 8) * sum(sizes)
    return weights + 8 * (scores + outputs + max(LARGEST_COPIES * max(sizes), values))


def require_original(against: str, *, trust_code: bool) -> None:
    """Raise `UnsupportedError` if `against` names no original, or if `trust_code` does not fit it.

    Raise `CheckpointError` if the file of code does not exist.
    """
    require_possible(against, CheckpointError)
    code = code_name(against)
    is_code = code is not None
    if not is_code and against != TRANSFORMERS and not Path(against).is_dir():
        ways = "a file and the class or function in it that gives the module, model.py:NAME"
        raise UnsupportedError(
            f"there is no original {quoted(against)}; give {ways}, {TRANSFORMERS}, or a folder that it runs"
        )
    if is_code and not trust_code:
        raise UnsupportedError(f"{against} is code, which runs only if you trust it: give trust_code=True")
    if code is not None and not code[0].is_file():
        raise CheckpointError(f"there is no file {code[0]}")
    if trust_code and not is_code:
        raise UnsupportedError(f"trust_code=True is for an original that is a file of code; {against} is none")


def _by_transformers(
    folder: Path,
    weights: Weights,
    facts: Facts,
    renamed: Mapping[str, str] | None = None,
    loras: Sequence[Lora] = (),
) -> Original:
    from txport.proof.against.hugging_face import load_transformers

    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder} has no {CONFIG}, by which transformers would know what it is")
    return load_transformers(folder, weights, facts, renamed, loras)


def _of_other(folder: Path, place: Path, weights: Weights, made: Plan) -> tuple[Weights, Plan]:
    """Return the tensors of another folder, and the plan that imports them: the given one, or that of its family.

    Raises `CheckpointError` if tensors of the same name have other numbers, and `ConfigError` if the models differ.
    """
    source = read_source(folder)
    theirs = source.weights()
    used = files_read(made)
    if all(weights.shapes[name] == theirs.shapes.get(name) for name in used):
        other = [name for name in used if not torch.equal(weights[name].float(), theirs[name].float())]
        if other:
            more = f" and {len(other) - NAMED} more" if len(other) > NAMED else ""
            raise CheckpointError(f"{folder} and {place} have other numbers for {', '.join(other[:NAMED])}{more}")
        return theirs, made
    theirs, found = fitted(source, build_empty(source.config))
    if found.expected != made.expected:
        strange = sorted(found.expected.items() ^ made.expected.items())
        told = ", ".join(dict.fromkeys(f"{name} {shape}" for name, shape in strange[:NAMED]))
        raise ConfigError(f"{folder} is another model than the import of {place}: only one of them has {told}")
    return theirs, found


# ------------------------------------------------------------------------------------------ as a part of export
def compare_original(checkpoint: Checkpoint, against: str | None, *, trust_code: bool = False) -> dict[str, object]:
    """Compare a checkpoint with its original and return the manifest's record; {} if txport's module is the original.

    `against` is that of `hold_against`, "none" for no comparison, or None for transformers if it can run the
    checkpoint's folder. With None, a comparison that can't be made is recorded with the reason; otherwise, it raises
    `CheckpointError`, `ConfigError` or `UnavailableError`. Raises `ParityError`, with the cause, if they differ.
    """
    folder = checkpoint.folder
    if folder is None or isinstance(checkpoint.outline, Adapted):
        if against not in (None, NO_ORIGINAL):
            raise UnsupportedError(
                f"only folders with weights are compared with an original; {checkpoint.name} is its own original"
            )
        return {}
    if against is not None and against != NO_ORIGINAL:
        require_original(against, trust_code=trust_code)
    chosen = read_source(folder).original if against is None else against
    if chosen == NO_ORIGINAL:
        return {} if against is None else {NOT_COMPARED: "that was not wanted"}
    if not chosen:
        return {NOT_COMPARED: "no original was named; `txport export --against` names it"}
    if against is None and importlib.util.find_spec(TRANSFORMERS) is None:
        return {NOT_COMPARED: f"{TRANSFORMERS} is not installed"}
    try:
        verdict = _hold(checkpoint, folder, chosen)
    except (CheckpointError, UnavailableError) as error:
        if against is not None:
            raise
        advice = _other_version(folder, chosen) if isinstance(error, CheckpointError) else ()
        record: dict[str, object] = {NOT_COMPARED: "; ".join([str(error).replace(str(folder), folder.name), *advice])}
    else:
        if not verdict.passed:
            raise ParityError("; ".join(_difference(verdict, checkpoint.name, folder, chosen)))
        record = verdict.record()
    if chosen == TRANSFORMERS:
        from txport.proof.against.hugging_face import compare_texts

        if texts := compare_texts(checkpoint, folder):
            record[TEXTS] = texts
    return record


def _hold(checkpoint: Checkpoint, folder: Path, against: str) -> Verdict:
    """Compare both; raise `OutOfMemoryError` if memory is too short for that."""
    memory.require(memory_for(checkpoint.outline), "the comparison")
    reach = Reach(work=WORK) if code_name(against) is not None else Reach(CONFIGURED, WORK)
    return hold(checkpoint, folder, against, reach=reach)


def _difference(verdict: Verdict, name: str, folder: Path, against: str) -> Iterator[str]:
    """Yield the parts of the error: the difference, where it begins, its cause, and the way out."""
    outputs = ", ".join(each.describe() for each in verdict.outputs if not each.passed)
    yield f"{name} as it was read does not compute what {verdict.original} does: {outputs or 'its outputs differ'}"
    if verdict.parting is not None:
        yield from (f"{word} {text}" for word, text in verdict.parting.lines())
    yield from _other_version(folder, against)
    yield f"against='{NO_ORIGINAL}' exports it without this comparison"


def _other_version(folder: Path, against: str) -> Iterator[str]:
    """Yield the way out if another version of transformers saved the folder than the one that runs it."""
    saved = read_config(folder / CONFIG).get("transformers_version") if against == TRANSFORMERS else None
    if saved is not None and saved != (here := version_of(TRANSFORMERS)):
        yield f"transformers {saved} saved the folder and {here} is installed: install transformers {saved}"
