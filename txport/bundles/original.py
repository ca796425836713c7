"""The manifest's record of the comparison with the original model, which `export` made before it wrote anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any

NOT_COMPARED = "not_compared_because"
COMPARED: Mapping[str, type | UnionType] = {
    "name": str,
    "outputs": list,
    "within": float,
    "dtype": str,
    "tokens": int,
    "not_reached": list,
    "not_compared": list,
}
RECORDED = "recorded_at_export"  # the key of a record's line in reports
LISTS = ("outputs", "not_reached", "not_compared")


def require_record(record: Any) -> None:
    """Raise `TypeError` or `KeyError` if this is not a record."""
    if not isinstance(record, dict):
        raise TypeError(f"original must be dict, got a {type(record).__name__}")
    types = {NOT_COMPARED: str} if NOT_COMPARED in record else COMPARED
    for key, kind in types.items():
        if not isinstance(record[key], kind) or isinstance(record[key], bool):
            raise TypeError(f"{key} of original must be {kind}, got a {type(record[key]).__name__}")
    if types is COMPARED and not all(isinstance(each, str) for name in LISTS for each in record[name]):
        raise TypeError(f"{', '.join(LISTS)} of original must be lists of texts")


def describe_original(record: Mapping[str, Any]) -> str:
    """Return a record in one line; "" for a checkpoint that has no original but txport's own module."""
    if not record:
        return ""
    if reason := record.get(NOT_COMPARED):
        return f"not compared with the original: {reason}"
    outputs = " and ".join(record["outputs"])
    close = f"{outputs} within {record['within']:.0e} of the largest value, in {record['dtype']}"
    missing = (f"{each} not compared" for each in record["not_compared"])
    reached = f"up to {record['tokens']} tokens"
    return f"equal to {record['name']}: {'; '.join([f'{close}, {reached}', *record['not_reached'], *missing])}"


def recorded_original(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the entry of a report for a record; {} for a checkpoint that has no original."""
    return {RECORDED: line} if (line := describe_original(record)) else {}
