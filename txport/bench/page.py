"""A report of `txport bench` as one self-contained page, as Markdown, as CSV, or as JSON."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from txport.bench import charts
from txport.bench.plan import OFFLINE, SERVER, SINGLE
from txport.bench.sections import SIZES, Section, about, sections
from txport.inspection.drawings import text_of
from txport.inspection.page import document, table
from txport.system.markdown import code, line, plain
from txport.system.terminal import one_line

Json = dict[str, Any]
PAGE, MARKDOWN, TABLE = ".html", ".md", ".csv"
STREAM_UNITS = {
    "rate": "1/s",
    "inputs": "1/s",
    "tokens": "1/s",
    "generator": "%",
    "joules": "J",
    "count": "",
    "batch": "",
}  # others: ms


def require(path: Path) -> None:
    """Raise `UnavailableError` if a package is missing that draws the page."""
    if path.suffix == PAGE:
        charts.require()


def render(report: Json, path: Path) -> str:
    """Return the text of a report for a file: a page for `.html`, `.md` and `.csv` as named, otherwise JSON."""
    if path.suffix == PAGE:
        return page(report)
    if path.suffix == MARKDOWN:
        return markdown(report)
    if path.suffix == TABLE:
        return rows(report)
    return json.dumps(report, indent=1, allow_nan=False) + "\n"


def title(report: Json) -> str:
    """Return the title: the checkpoints that were measured."""
    names = {each["checkpoint"]["name"] for each in report["candidates"].values()}
    return f"Speed and quality of {', '.join(sorted(names))}"


def page(report: Json) -> str:
    """Return one HTML file that loads nothing: plots as SVG, and the table beneath each."""
    return document(text_of(title(report)), _body(report))


def markdown(report: Json) -> str:
    """Return a Markdown page with the tables."""
    parts = [f"# {plain(title(report))}", *map(plain, about(report)), code(report["command"])]
    for each in sections(report):
        rows = [line(each.columns), line(["---"] * len(each.columns)), *map(line, each.rows)]
        parts += [f"## {plain(each.title)}", each.note, "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def rows(report: Json) -> str:
    """Return CSV with a row for each figure; figures of no size have no batch, beams, source and tokens."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("candidate", *SIZES, "figure", "unit", "q1", "median", "q3"))
    for label, each in report["candidates"].items():
        nowhere = ("",) * len(SIZES)
        writer.writerows(_figures(label, nowhere, each["figures"], report["units"]))
        for name in (SINGLE, OFFLINE, SERVER):
            found = (each[name] or {}).get("best", {}) if name == SERVER else each[name] or {}
            units = {f"{name} {key}": STREAM_UNITS.get(key, "ms") for key in found}
            figures = {f"{name} {key}": value for key, value in found.items()}
            writer.writerows(_figures(label, nowhere, figures, units))
    for size in report["sizes"]:
        for label, phases in size["figures"].items():
            writer.writerows(_figures(label, [size[name] for name in SIZES], phases, report["units"]))
    return out.getvalue()


def _figures(
    label: str, place: Sequence[object], figures: Mapping[str, Any], units: Mapping[str, str]
) -> Iterator[tuple[object, ...]]:
    for name, value in figures.items():
        values = [value[key] for key in ("q1", "median", "q3")] if isinstance(value, dict) else ("", value, "")
        yield (label, *place, name, units.get(name, ""), *values)


def _body(report: Json) -> Iterator[str]:
    facts = "".join(f"<li>{html.escape(one_line(each))}</li>" for each in about(report))
    yield f'<header><h1>{text_of(title(report))}</h1><ul class="facts">{facts}</ul></header>'
    yield _legend(report)
    drawn = charts.Charts(report)
    seen: set[str] = set()
    for each in sections(report):
        plots = [] if each.key in seen else [drawn.svg(chart) for chart in drawn.of(each.key)]
        seen.add(each.key)
        yield _section(each, plots, report["command"])


def _legend(report: Json) -> str:
    swatch = '<svg viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" rx="2" class="k{}"/></svg>'
    items = (
        f"<li>{swatch.format(at % charts.COLOURS)}{text_of(label)}</li>"
        for at, label in enumerate(report["candidates"])
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _section(section: Section, plots: list[str], command: str) -> str:
    figures = "".join(f"<figure>{svg}</figure>" for svg in plots)
    rows = [tuple(html.escape(one_line(cell)) for cell in row) for row in section.rows]
    numbers = range(1, len(section.columns))
    shown = f'<div class="plots">{figures}</div>' if plots else ""
    made = f'<p class="soft"><code>{html.escape(one_line(command))}</code></p>' if plots else ""
    head = f"<h2>{text_of(section.title)}</h2><p>{html.escape(section.note)}</p>"
    return f"{head}{shown}{table(section.columns, rows, numbers)}{made}"
