"""The printed tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with aligned columns for a terminal."""
    lines = [list(headers), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) for cells in lines]
    return "\n".join(line.rstrip() for line in aligned)


def speed(records: Iterable[Record]) -> str:
    """Return the table of speeds, one row per line and side."""
    rows = []
    for record in records:
        share = f"{100 * record['share of bandwidth']['median']:.0f} %"
        for name, side in record["sides"].items():
            ratio = record["ratios"].get(name)
            times = f"{ratio['median']:.2f} ({ratio['q1']:.2f} to {ratio['q3']:.2f})" if ratio else ""
            equal = record["equal targets"].get(name)
            rows.append(
                (record["name"] if name == "txport" else "", name, f"{side['ms a token']['median']:.3f}",
                 f"{side['tokens a second']['median']:.0f}", times, share if name == "txport" else "",
                 "" if equal is None else f"{equal} of {record['targets']}")
            )  # fmt: skip
    return table(("line", "side", "ms a token", "tokens/s", "txport is times as fast", "of bandwidth", "equal"), rows)


def verdicts(found: Iterable[Record]) -> str:
    """Return the table of requirements and their verdicts."""
    rows = [
        (each["verdict"], each["what"], "" if each["found"] is None else f"{each['found']:.4g}",
         f"{each['is']} {each['wanted']:g}")
        for each in found
    ]  # fmt: skip
    return table(("verdict", "requirement", "found", "wanted"), rows)


def proofs(found: Iterable[Record]) -> str:
    """Return the table of parity, placement of nodes and number of kernels of a step, one row per bundle."""
    rows = []
    for each in found:
        step = each.get("step") or {}
        parity = each.get("parity") or {}
        nodes = ", ".join(f"{count} on {name}" for name, count in step.get("nodes", {}).items())
        kernels = step.get("kernels")
        rows.append((each["bundle"], parity.get("verdict", "not measured"), each.get("verify", ""), nodes,
                     "" if kernels is None else str(kernels)))  # fmt: skip
    return table(("bundle", "parity", "verify", "nodes of a step", "kernels"), rows)


def whole(result: Record) -> str:
    """Return all tables, followed by the missing measurements."""
    parts = [proofs(result["bundles"]), speed(result["lines"]), verdicts(result["requirements"])]
    missing = [*(f"left out, for time: {name}" for name in result["left out"])]
    missing += [f"failed: {name}: {why}" for name, why in {**result["failed"], **result["absent"]}.items()]
    return "\n\n".join([*parts, *(["\n".join(missing)] if missing else [])])
