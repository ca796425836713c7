"""Draw docs/bench.svg, the picture of docs/bench.md, from docs/bench.json: `python -m docs.bench_picture`.

`txport bench --report docs/bench.json` measures again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORD, PICTURE = (Path(__file__).with_name(name) for name in ("bench.json", "bench.svg"))


def render(record: dict[str, Any]) -> str:
    """Return the plots of speed beside quality and of latency as SVG on white."""
    from txport.bench.charts import PAPER, Charts
    from txport.bench.sections import LATENCY, QUALITY

    charts = Charts(record, PAPER, legend=True)
    return charts.svg(charts.beside(charts.of(QUALITY)[0], *charts.of(LATENCY)), background="#ffffff") + "\n"


if __name__ == "__main__":
    PICTURE.write_text(render(json.loads(RECORD.read_text(encoding="utf-8"))), encoding="utf-8")
