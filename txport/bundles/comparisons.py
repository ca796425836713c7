"""The manifest's records of two comparisons: with the original model, and of few bits with fp32 (`loss`).

`export` compares with the original before it writes anything, and with fp32 what it wrote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import UnionType
from typing import Any

from txport.errors import quoted
from txport.system.terminal import percent

NOT_COMPARED = "not_compared_because"
TEXTS = "texts"  # the key of the tokenizer's record
COMPARED: Mapping[str, type | UnionType] = {
    "name": str,
    "outputs": list,
    "within": float,
    "dtype": str,
    "tokens": int,
    "not_reached": list,
    "not_compared": list,
}
COMPARED_TEXTS: Mapping[str, type | UnionType] = {"name": str, "lines": int, "differing": list}
RECORDED = "recorded_at_export"  # the key of a record's line in reports
LISTS = ("outputs", "not_reached", "not_compared", "differing")


def require_original(record: Any) -> None:
    """Raise `TypeError` or `KeyError` if this is not a record."""
    _require_types(record, COMPARED)
    if TEXTS in record:
        _require_types(record[TEXTS], COMPARED_TEXTS)


def _require_types(record: object, compared: Mapping[str, type | UnionType]) -> None:
    if not isinstance(record, dict):
        raise TypeError(f"original must be dict, got a {type(record).__name__}")
    types = {NOT_COMPARED: str} if NOT_COMPARED in record else compared
    for key, kind in types.items():
        if not isinstance(record[key], kind) or isinstance(record[key], bool):
            raise TypeError(f"{key} of original must be {kind}, got a {type(record[key]).__name__}")
        if key in LISTS and not all(isinstance(each, str) for each in record[key]):
            raise TypeError(f"{key} of original must be a list of texts")


def describe_original(record: Mapping[str, Any]) -> str:
    """Return a record in one line; "" for a checkpoint that has no original but txport's own module."""
    if not record:
        return ""
    texts = describe_texts(record.get(TEXTS, {}))
    if reason := record.get(NOT_COMPARED):
        return "; ".join([f"not compared with the original: {reason}", *texts])
    outputs = " and ".join(record["outputs"])
    close = f"{outputs} within {record['within']:.0e} of the largest value, in {record['dtype']}"
    missing = (f"{each} not compared" for each in record["not_compared"])
    reached = f"up to {record['tokens']} tokens"
    return f"equal to {record['name']}: {'; '.join([f'{close}, {reached}', *record['not_reached'], *missing, *texts])}"


def describe_texts(record: Mapping[str, Any]) -> list[str]:
    """Return the record of a tokenizer as a part of a line; [] without one."""
    if not record:
        return []
    if reason := record.get(NOT_COMPARED):
        return [f"tokens not compared: {reason}"]
    if not (differing := record["differing"]):
        return [f"the tokens of its {record['name']} in {record['lines']} lines"]
    count = f"{len(differing)} of {record['lines']} lines"
    return [f"OTHER TOKENS than its {record['name']} in {count}, such as {quoted(differing[0])}"]


def recorded_original(record: Mapping[str, object]) -> dict[str, str]:
    """Return the entry of a report for a record; {} for a checkpoint that has no original."""
    return {RECORDED: line} if (line := describe_original(record)) else {}


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
KEPT: Mapping[str, type] = {  # what `export --auto` stores in wider forms
    "kept": list,  # weights in fp32
    "wider": dict,  # other weights -> the description of their form
    "share": float,  # of the quantised weights in fp32
    "limit": float,
    "bytes": int,
    "bytes_before": int,
    "loss_before": float,  # the share of `LOSS`
    "divergence": float,  # mean Kullback-Leibler divergence from fp32; of vectors, 1 - cosine
    "divergence_before": float,
}
# What `export --auto` aims at without a limit: a divergence of tokens and labels, and 1 - cosine of vectors. At the
# first, about one of 200 tokens is not that of fp32 (docs/few-bits.md).
AUTO_DIVERGENCE, AUTO_DISTANCE = 0.0002, 0.001
CALIBRATED: Mapping[str, type] = {
    "texts": int,
    "tokens": int,
    "error": float,  # RMS of the change of products by rounding weights / RMS of the products, mean of the matrices
    "error_before": float,  # the same with each weight rounded to the nearest number
}
NEXT_TOKENS, VECTORS, LABELS, TOKENS = "next tokens", "vectors", "labels", "likeliest tokens"
PLACES = "likeliest places"


def require_loss(record: object) -> None:
    """Raise `TypeError` or `KeyError` if this is not a record."""
    if not isinstance(record, dict):
        raise TypeError(f"loss must be dict, got a {type(record).__name__}")
    entries = {**LOSS, **(OF_TOKENS if record["measure"] == NEXT_TOKENS else {})}
    for key, kind in entries.items():
        allowed = (float, int) if kind is float else kind
        if not isinstance(record[key], allowed) or isinstance(record[key], bool):
            raise TypeError(f"{key} of loss must be {kind.__name__}, got a {type(record[key]).__name__}")


def require_calibrated(record: Any) -> None:
    """Raise `TypeError` or `KeyError` if this is not a record of a calibration."""
    for key, kind in CALIBRATED.items():
        if isinstance(record[key], bool) or not isinstance(record[key], (float, int) if kind is float else kind):
            raise TypeError(f"{key} of calibrated must be {kind.__name__}, got a {type(record[key]).__name__}")


def describe_calibrated(record: Mapping[str, Any]) -> str:
    """Return a record in one line; "" for a bundle that is not calibrated."""
    if not record:
        return ""
    errors = f"{percent(record['error'])} in place of {percent(record['error_before'])}"
    return f"weights rounded by {record['texts']} texts of {record['tokens']} tokens: products change by {errors}"


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


def describe_kept(record: Mapping[str, Any]) -> str:
    """Describe how many weights have which wider form, and name those in fp32."""
    forms = Counter(map(str, record["wider"].values()))
    parts = [f"{count} {'weight' if count == 1 else 'weights'} as {form}" for form, count in sorted(forms.items())]
    if record["kept"]:
        share = f"{percent(record['share'])} of all, the limit being {percent(record['limit'])}"
        parts.append(f"in fp32 ({share}) {', '.join(map(str, record['kept']))}")
    return "; ".join(parts)
