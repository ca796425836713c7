"""The comparison with the original as a part of `export`: an error if they differ, else the manifest's record."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from txport.bundles.comparisons import NOT_COMPARED, TEXTS
from txport.checkpoints.adapters.adapted import Adapted
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.folder import code_name
from txport.checkpoints.sources.source import read_source
from txport.errors import CheckpointError, ParityError, UnavailableError, UnsupportedError
from txport.models.config import read_config
from txport.models.names import CONFIG, NO_ORIGINAL, TRANSFORMERS
from txport.proof.against.batches import Reach
from txport.proof.against.hold import hold, memory_for, require_original
from txport.proof.against.texts import compare_texts
from txport.proof.against.verdict import Verdict
from txport.system import memory
from txport.system.packages import version_of

WORK = 1e12  # maximum number of multiply-adds of the long row: half a minute
CONFIGURED = 32  # tokens of the long row of a folder: its config names each length at which its model changes


def compare_original(checkpoint: Checkpoint, against: str | None, *, trust_code: bool = False) -> dict[str, Any]:
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
        record = {NOT_COMPARED: "; ".join([str(error).replace(str(folder), folder.name), *advice])}
    else:
        if not verdict.passed:
            raise ParityError("; ".join(_difference(verdict, checkpoint.name, folder, chosen)))
        record = verdict.record()
    texts = compare_texts(checkpoint, folder) if chosen == TRANSFORMERS else {}
    return record | {TEXTS: texts} if texts else record


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
