"""Write docs/peers.md and draw docs/peers.svg from the record of `make bench-peers`: `python -m docs.peers_picture`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.__main__ import RESULTS, TABLE
from benchmarks.peers.report import Record, group, hardest, letter_of, machines_of, markdown, short

PICTURE = Path(__file__).with_name("peers.svg")
WORK = {"batch 1": "circle", "larger batches": "square", "up to the first token": "triangle-up"}
TICKS = (0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10)
WIDTH, STEP = 460, 21


def work_of(record: Record) -> str:
    """Return the kind of a line's task, one of `WORK`."""
    task = record["task"]
    if task["tokens"] == 1:
        return "up to the first token"
    return "batch 1" if task["batch"] == 1 else "larger batches"


def rows_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a row of data for each line."""
    machines = machines_of(records)
    return [
        {
            "group": group(record),
            "processor": f"{letter_of(machines, record)}: {short(record)}",
            "work": work_of(record),
            "ratio": record["ratio"]["median"],
        }
        for record in hardest(records)
    ]


def render(records: Sequence[Record]) -> str:
    """Return the ratios by model as SVG on white."""
    import altair

    from txport.bench.charts import PAPER, Charts

    rows = rows_of(records)
    processors = sorted({row["processor"] for row in rows})
    base = altair.Chart(altair.InlineData(rows), width=WIDTH, height=altair.Step(STEP))
    ratios = [row["ratio"] for row in rows]
    scale = altair.Scale(type="log", domain=[0.9 * min(ratios), 1.1 * max(ratios)], nice=False)
    axis = altair.Axis(values=TICKS, format="~r", tickCount=len(TICKS) * 10, grid=True)
    x = altair.X("ratio:Q", title="speed of txport / speed of the fastest peer (log scale)", scale=scale, axis=axis)
    order = list(dict.fromkeys(row["group"] for row in rows))
    y = altair.Y("group:N", title=None, sort=order, axis=altair.Axis(labelLimit=220, grid=True, domain=False))
    colours = altair.Scale(domain=processors, range=PAPER["kinds"][: len(processors)])
    shapes = altair.Scale(domain=list(WORK), range=list(WORK.values()))
    dots = base.mark_point(filled=True, size=70, opacity=0.8).encode(
        x, y, altair.Color("processor:N", title=None, scale=colours), altair.Shape("work:N", title=None, scale=shapes)
    )
    one = altair.Chart(altair.InlineData([{"ratio": 1}])).mark_rule(color=PAPER["ink"], strokeWidth=1.5)
    return Charts({"candidates": {}}, PAPER).svg(one.encode(altair.X("ratio:Q")) + dots, background="#ffffff") + "\n"


if __name__ == "__main__":
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    PICTURE.write_text(render(result["lines"]), encoding="utf-8")
    TABLE.write_text(markdown(result), encoding="utf-8")
