"""The manifest's record of what few bits cost: outputs of a quantised bundle beside those in fp32 (`loss`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txport.system.terminal import percent

LOSS: Mapping[str, type] = {
    "inputs": str,  # what the outputs are of
    "measure": str,  # what `share` is
    "rows": int,
    "places": int,  # tokens or vectors
    "share": float,  # of the places whose token or label is another; of vectors, the mean of 1 - cosine
    "worst": float,  # the same for the worst row
    "error": float,  # RMS of the error of a place / RMS of its numbers around their mean, mean over places
    "worst_error": float,
}
OF_TOKENS: Mapping[str, type] = {  # further entries of models that generate
    "equal_rows": int,
    "equal_until": float,  # tokens of a row before the first difference, mean
    "perplexity_ratio": float,  # exp of the mean Kullback-Leibler divergence from fp32
}
# The loss that `export --auto` aims at if the user sets none: of tokens and labels, and of vectors.
AUTO_LOSS, AUTO_LOSS_OF_VECTORS = 0.05, 0.002
NEXT_TOKENS, VECTORS, LABELS, TOKENS = "next tokens", "vectors", "labels", "likeliest tokens"


def require_loss(record: Any) -> None:
    """Raise `TypeError` or `KeyError` if this is not a record."""
    if not isinstance(record, dict):
        raise TypeError(f"loss must be dict, got a {type(record).__name__}")
    entries = {**LOSS, **(OF_TOKENS if record["measure"] == NEXT_TOKENS else {})}
    for key, kind in entries.items():
        allowed = (float, int) if kind is float else kind
        if not isinstance(record[key], allowed) or isinstance(record[key], bool):
            raise TypeError(f"{key} of loss must be {kind.__name__}, got a {type(record[key]).__name__}")


def describe_loss(record: Mapping[str, Any], precision: str) -> str:
    """Return a record in one line; "" for a bundle that is not quantised."""
    if not record:
        return ""
    error = f"numbers differ by {percent(record['error'])}, at worst {percent(record['worst_error'])}"
    source = f"{record['rows']} {record['inputs']}"
    if record["measure"] == VECTORS:
        cosines = f"1 - cosine to fp32 is {record['share']:.2g}, at worst {record['worst']:.2g}"
        return f"cost of {precision}: {cosines}; {error} ({source})"
    equal = f"{percent(1 - record['share'])} of {record['places']} {record['measure']} are those of fp32"
    if record["measure"] != NEXT_TOKENS:
        return f"cost of {precision}: {equal}; {error} ({source})"
    rows = f"{record['equal_rows']} of {record['rows']} rows, and {record['equal_until']:.3g} tokens of a row"
    ratio = f"perplexity x {record['perplexity_ratio']:.4g}"
    return f"cost of {precision}: {equal} ({rows} before the first other one), {ratio}; logits: {error} ({source})"
