"""Draw docs/limits.svg from the record of `python -m benchmarks.limits`: `python -m docs.limits_picture`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.limits import RESULTS

PICTURE = Path(__file__).with_name("limits.svg")
WIDTH, STEP = 460, 15


def render(lines: Sequence[dict[str, Any]]) -> str:
    """Return the share of the limit by line as SVG on white."""
    import altair

    from txport.bench.charts import PAPER, Charts

    rows = [{"line": each["name"].removeprefix("folder "), "share": each["share"], "by": each["by"]} for each in lines]
    base = altair.Chart(altair.InlineData(rows), width=WIDTH, height=altair.Step(STEP))
    axis = altair.Axis(labelLimit=320, domain=False)
    bars = base.mark_bar(size=STEP - 5).encode(
        altair.X("share:Q", title="share of the limit, %", scale=altair.Scale(domain=[0, 100], clamp=True)),
        altair.Y("line:N", title=None, sort=[each["line"] for each in rows], axis=axis),
        altair.Color("by:N", title="limited by", scale=altair.Scale(range=PAPER["kinds"][:2])),
    )
    return Charts({"candidates": {}}, PAPER).svg(bars, background="#ffffff") + "\n"


if __name__ == "__main__":
    PICTURE.write_text(render(json.loads(RESULTS.read_text(encoding="utf-8"))["lines"]), encoding="utf-8")
