"""The manifest's record of the comparison with the original model, which `export` made before it wrote anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any

from txport.errors import quoted

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


def require_record(record: Any) -> None:
    """Raise `TypeError` or `KeyError` if this is not a record."""
    _require_types(record, COMPARED)
    if TEXTS in record:
        _require_types(record[TEXTS], COMPARED_TEXTS)


def _require_types(record: Any, compared: Mapping[str, type | UnionType]) -> None:
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


def recorded_original(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the entry of a report for a record; {} for a checkpoint that has no original."""
    return {RECORDED: line} if (line := describe_original(record)) else {}
