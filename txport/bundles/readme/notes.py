"""Notes on batches, beams and attention for a program that runs the graphs of a bundle."""

from __future__ import annotations

from collections.abc import Sequence

from txport.bundles.manifest import Manifest
from txport.bundles.ports import DECODER, GROW_ROWS, SELECT, SELECT_ROWS, STEP, screens
from txport.models.audio import Features
from txport.system.markdown import code


def around(before: Sequence[int], after: Sequence[int]) -> str:
    """Return the special ids before and after the ids of a text, as words."""
    return ", then ".join(part for part in (numbers(before), "the ids of the text", numbers(after)) if part)


def numbers(ids: Sequence[int]) -> str:
    """Return ids separated by commas."""
    return ", ".join(map(str, ids))


def notes(manifest: Manifest) -> list[str]:
    """Return notes on batches, beams and attention, as Markdown."""
    facts = manifest.facts
    found = [f"**Batches**: {_batches(manifest)}."]
    if not facts.generates:
        return found
    found.append(f"**Beams**: {_beams(manifest)}.")
    if manifest.made_for.on_gpu:
        found.append(
            "**Without the host**: bind `next_ids` to the memory of `input_ids`, `present_lengths` to that of "
            "`past_lengths`, and greedy search goes on by itself: no input changes its place, so a CUDA graph replays "
            "it."
        )
    if manifest.made_for.on_request:
        exact = screens(facts, manifest.precision)
        found.append(
            "**The best tokens**: with `k` above 0, the graph gives the k best tokens of each row in `ids`, and their "
            "`log_probs`."
            + (" Do not use `k` below 0: what it gives is exact on some processors alone." if exact else "")
        )
    if facts.attention is not None:
        name = manifest.graphs[STEP if STEP in manifest.graphs else DECODER].attention
        asked = ", if `align` is true" if manifest.made_for.on_request else ""
        found.append(f"**Alignment**: {code(str(name))} is the attention of each token over the source{asked}.")
    return found


def _batches(manifest: Manifest) -> str:
    facts = manifest.facts
    pad = facts.vocabulary.pad
    if isinstance(facts.source, Features):
        return "several sources are rows of `input_features`; all have the same length"
    if facts.is_causal:
        return {
            "portable": f"pad shorter prompts at the left with {pad}; `attention_mask` is 0 there, and `position_ids` "
            "count from the first real token",
            "cpu": f"pad shorter prompts at the right with {pad}. `last_places` and `past_lengths` are each row's own, "
            "`prompt_size` is the longest",
            "cuda": f"pad shorter prompts at the right with {pad}; in steps, `past_lengths` are each row's own, and "
            "what padding left in the caches is written over",
        }[manifest.target]
    where = (
        "`attention_mask` is 0 there" if manifest.made_for.is_standard else "`source_lengths` says how many are real"
    )
    return f"pad shorter rows at the right with {pad}; {where}"


def _beams(manifest: Manifest) -> str:
    graphs = manifest.graphs
    shared = (
        "`input_ids` may be (batch_size, beams); the beams of one source stand side by side and share its keys and "
    )
    shared += "values. "
    if SELECT in graphs:
        return f"`{graphs[SELECT].file}` picks `rows` of the state by their numbers; each `selected.X` becomes `X`"
    if manifest.made_for.on_gpu:
        return (shared if manifest.facts.is_encoder_decoder else "") + (
            f"`{graphs[SELECT_ROWS].file}` picks rows of the caches by their numbers, `{graphs[GROW_ROWS].file}` gives "
            "them more places, and `onnx/admit_rows.onnx` puts those of others in their place"
        )
    if manifest.facts.is_causal:
        return "rows of the caches may be copied from one to another; all rows are independent"
    return f"{shared}When beams change places, copy their rows in the caches"
