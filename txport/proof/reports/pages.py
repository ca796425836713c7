"""A matrix for people: rows of a table, Markdown, and one HTML file without scripts."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import replace

from txport.proof.matrix import NOT_AVAILABLE, Cell, Matrix
from txport.system.markdown import line, plain
from txport.system.terminal import one_line

COLUMNS = (
    "target",
    "precision",
    "size",
    "runtime",
    "verdict",
    "logits differ by",
    "near-ties",
    "loss",
    "export",
    "parity",
    "why",
)
VERDICT = COLUMNS.index("verdict")
WORDS = {"pass": "pass", "near-tie": "near-tie", "fail": "FAIL", "not available": "not available"}

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ border-bottom: 1px solid #8888; padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }}
.pass {{ color: light-dark(#176b2c, #7ddc94); }}
.near-tie {{ color: light-dark(#7a5200, #f0c060); }}
.fail {{ color: light-dark(#b00020, #ff8a95); font-weight: bold; }}
.not {{ opacity: .75; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
<div>
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>
<p>{about}</p>
</body>
</html>
"""


def title(matrix: Matrix) -> str:
    """Return the title of the matrix."""
    return f"{matrix.about['checkpoint']['name']} compared with PyTorch"


def summary(matrix: Matrix) -> str:
    """Return a line with the number of cells per verdict."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in matrix.counts.items())
    return f"{len(matrix.cells)} cells: {counts}"


def about(matrix: Matrix) -> str:
    """Return a line with the machine, the versions and the hash of the checkpoint."""
    versions = ", ".join(f"{name} {version}" for name, version in matrix.about["versions"].items())
    return f"{matrix.about['machine']}; {versions}; checkpoint SHA-256 {matrix.about['checkpoint']['sha256']}"


def compared(matrix: Matrix) -> Matrix:
    """Return the matrix without the cells that are not available."""
    return replace(matrix, cells=[cell for cell in matrix.cells if cell.verdict != NOT_AVAILABLE])


def unavailable(matrix: Matrix) -> dict[str, tuple[str, int]]:
    """Return the runtimes, and the number of cells, that are not available for each reason."""
    cells: dict[str, list[Cell]] = {}
    for cell in (each for each in matrix.cells if each.verdict == NOT_AVAILABLE):
        cells.setdefault(" ".join(cell.why.split()), []).append(cell)
    return {
        why: (", ".join(dict.fromkeys(f"{cell.runtime} {cell.provider}" for cell in each)), len(each))
        for why, each in cells.items()
    }


def rows(matrix: Matrix) -> Iterator[tuple[str, ...]]:
    """Yield one row per cell, in the order of `COLUMNS`; values that were not measured are empty."""
    for cell in matrix.cells:
        yield (
            cell.target,
            cell.precision,
            "" if cell.bytes is None else f"{cell.bytes / 1e6:.1f} MB",
            f"{cell.runtime} {cell.provider}",
            WORDS[cell.verdict],
            "" if cell.worst_logit_difference is None else f"{cell.worst_logit_difference:.1e}",
            _near_ties(cell),
            "" if cell.loss is None else f"{cell.loss:.2g}",
            *("" if each is None else f"{each:.1f} s" for each in (cell.export_seconds, cell.parity_seconds)),
            " ".join(cell.why.split()),
        )


def _near_ties(cell: Cell) -> str:
    return "" if cell.near_ties is None else f"{cell.near_ties} of {cell.rows_searched} rows"


def markdown(matrix: Matrix) -> str:
    """Return a Markdown page with one table."""
    lines = [line(COLUMNS), line(["---"] * len(COLUMNS)), *map(line, rows(matrix))]
    parts = [f"# {plain(title(matrix))}", summary(matrix), "\n".join(lines), plain(about(matrix))]
    return "\n\n".join(parts) + "\n"


def page(matrix: Matrix) -> str:
    """Return one self-contained HTML file."""
    body = "\n".join(
        f"<tr>{''.join(_cell(number, text, cell) for number, text in enumerate(row))}</tr>"
        for row, cell in zip(rows(matrix), matrix.cells, strict=True)
    )
    head = "".join(f"<th>{html.escape(column)}</th>" for column in COLUMNS)
    texts = {"title": title(matrix), "summary": summary(matrix), "about": about(matrix)}
    return PAGE.format(head=head, body=body, **{name: html.escape(one_line(text)) for name, text in texts.items()})


def _cell(number: int, text: str, cell: Cell) -> str:
    kind = f' class="{cell.verdict.split()[0]}"' if number == VERDICT else ""
    return f"<td{kind}>{html.escape(one_line(text))}</td>"
