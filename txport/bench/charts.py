"""The plots of a report of `txport bench`, as SVG that takes the colours of its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from txport.bench.sections import (
    BATCHES,
    GROWTH,
    LATENCY,
    LIMITS,
    QUALITY,
    SERVER,
    SIZES,
    START,
    line_of,
    points,
    quality_name,
    rate_of,
    reached,
)
from txport.system.packages import needed

WIDTH, HEIGHT = 320, 210
LEAST_ERROR = 1.0  # percent at the top of an axis: smaller differences look small
STEPS = 100  # points of a distribution
COLOURS = 6  # of the page
LABEL = "datum.value ? datum.label : '0'"  # 0 has no unit
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
Json = dict[str, Any]
PAGE = {
    "ink": "var(--ink)",
    "soft": "var(--soft)",
    "line": "var(--line)",
    "kinds": [f"var(--k{at})" for at in range(6)],
}
PAPER = {
    "ink": "#1d2430",
    "soft": "#5b6675",
    "line": "#dfe4ea",
    "kinds": ["#4472c4", "#d9822b", "#3d9970", "#8a5cc7", "#c0476b", "#6b7785"],
}


def require() -> None:
    """Raise `UnavailableError` unless the packages that draw are installed."""
    with needed("txport[report]", "a page with plots"):
        import altair as altair
        import vl_convert as vl_convert


class Charts:
    """The plots of one report, in the colours of a page or of paper."""

    def __init__(self, report: Json, colours: Json = PAGE, *, legend: bool = False) -> None:
        """`legend`: in the charts themselves; a page has one for all."""
        require()
        self._legend = {"title": None} if legend else None
        self._report = report
        self._colours = colours
        self._labels = list(report["candidates"])

    def beside(self, *charts: Any) -> Any:
        """Return several charts as one, side by side."""
        import altair

        return altair.hconcat(*charts)

    def svg(self, chart: Any, background: str | None = None) -> str:
        """Return a chart as SVG."""
        import altair
        import vl_convert

        config = {
            "background": background,
            "font": "system-ui, sans-serif",
            "padding": {"left": 16, "top": 5, "right": 12, "bottom": 5},  # fonts of the reader may be wider
            "view": {"stroke": None},
            "axis": {
                "labelColor": self._colours["soft"],
                "titleColor": self._colours["ink"],
                "gridColor": self._colours["line"],
                "domainColor": self._colours["soft"],
                "tickColor": self._colours["line"],
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "titlePadding": 12,
                "tickCount": 5,
            },
        }
        spec = chart.to_dict() | {"config": config}
        version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
        return str(vl_convert.vegalite_to_svg(spec, vl_version=version))

    def of(self, key: str) -> list[Any]:
        """Return the charts of a kind of section."""
        makers = {
            QUALITY: self._quality,
            LATENCY: self._latency,
            BATCHES: self._batches,
            SERVER: self._server,
            LIMITS: self._limits,
            GROWTH: self._growth,
            START: self._memory,
        }
        return list(makers[key]()) if key in makers else []

    def _chart(self, rows: list[Json]) -> Any:
        import altair

        return altair.Chart(altair.InlineData(rows), width=WIDTH, height=HEIGHT)

    def _colour(self) -> object:
        """Return the colour of each candidate."""
        import altair

        kinds = [self._colours["kinds"][at % COLOURS] for at in range(len(self._labels))]
        return altair.Color("label:N", legend=self._legend, scale=altair.Scale(domain=self._labels, range=kinds))

    def _shape(self) -> object:
        import altair

        shapes = [SHAPES[at % COLOURS] for at in range(len(self._labels))]
        return altair.Shape("label:N", legend=self._legend, scale=altair.Scale(domain=self._labels, range=shapes))

    def _quality(self) -> Iterator[object]:
        """Yield the error against speed, and against megabytes; a line joins the front."""
        found = points(self._report)
        rows = [each._asdict() for each in found]
        for key, title in (("speed", f"{found[0].unit}, more is better" if found else ""), ("megabytes", "MB on disk")):
            known = [row for row in rows if row[key] is not None]
            if len(known) > 1:
                yield self._scatter(known, key, title)

    def _scatter(self, rows: list[Json], key: str, title: str) -> object:
        import altair

        x = altair.X(
            f"{key}:Q", title=title, scale=altair.Scale(zero=True), axis=altair.Axis(format="~s", labelExpr=LABEL)
        )
        top = 1.1 * max(LEAST_ERROR, *(row["error"] for row in rows))
        y = altair.Y("error:Q", title=quality_name(self._report), scale=altair.Scale(domain=[0, top]))
        front = self._chart([row for row in rows if row["on_front"]]).mark_line(
            color=self._colours["soft"], strokeDash=[4, 3], strokeWidth=1.5
        )
        dots = self._chart(rows).mark_point(filled=True, size=110, opacity=1)
        layers = [dots.encode(x, y, self._colour(), self._shape())]
        if key == "speed":
            layers.insert(0, front.encode(x, y))
        return altair.layer(*layers)

    def _latency(self) -> Iterator[object]:
        """Yield the share of the inputs that are answered within a time."""
        import altair
        import numpy as np

        rows: list[Json] = []
        for label in self._labels:
            samples = self._report["candidates"][label]["single"]["latency"]["samples"]
            times = np.percentile(samples, range(1, STEPS)).tolist()
            rows += [{"label": label, "share": share, "ms": time} for share, time in enumerate(times, 1)]
        x = altair.X("ms:Q", title="latency, ms (log scale)", scale=altair.Scale(type="log", nice=False))
        y = altair.Y("share:Q", title="% of the inputs answered", scale=altair.Scale(domain=[0, 100]))
        lines = self._chart(rows).mark_line(strokeWidth=2, interpolate="step-after")
        yield lines.encode(x, y, self._colour(), altair.Order("share:Q"))

    def _batches(self) -> Iterator[object]:
        found = {label: each["offline"]["tokens"] for label, each in self._report["candidates"].items()}
        rows = [{"label": label, **_range(each)} for label, each in found.items()]
        yield self._bars(rows, "tokens/s in batches, more is better")

    def _server(self) -> Iterator[object]:
        """Yield p99 of the latency against the rate of requests, and its bound."""
        import altair

        served = {label: each["server"] for label, each in self._report["candidates"].items()}
        rows = [
            {"label": label, "rate": run["rate"], "ms": run["p99"]}
            for label, each in served.items()
            for run in each["runs"]
        ]
        x = altair.X("rate:Q", title="requests/s", scale=altair.Scale(zero=True))
        y = altair.Y("ms:Q", title="p99 of the latency, ms (log scale)", scale=altair.Scale(type="log", nice=False))
        dots = self._chart(rows).mark_point(filled=True, size=70, opacity=1).encode(x, y, self._colour(), self._shape())
        bound = self._chart([{"ms": each["bound"]} for each in served.values()][:1])
        rule = bound.mark_rule(color=self._colours["soft"], strokeDash=[4, 3], strokeWidth=1.5).encode(altair.Y("ms:Q"))
        last = list({(row["label"], row["rate"]): row for row in rows}.values())  # the last run of each rate
        if rows:
            yield rule + self._chart(last).mark_line(strokeWidth=2).encode(x, y, self._colour()) + dots

    def _bars(self, rows: list[Json], title: str) -> object:
        """Return a bar for each candidate, with its quartiles."""
        import altair

        base = self._chart(rows).properties(height=altair.Step(30))
        y = altair.Y("label:N", title=None, sort=self._labels, axis=altair.Axis(labelLimit=130))
        bars = base.mark_bar(height=16).encode(
            altair.X("median:Q", title=title, axis=altair.Axis(format="~s", labelExpr=LABEL)), y, self._colour()
        )
        range_ = base.mark_rule(color=self._colours["ink"]).encode(altair.X("q1:Q"), altair.X2("q3:Q"), y)
        return bars + range_

    def _growth(self) -> Iterator[object]:
        """Yield, for each size that has several values, the rate against it, the other sizes at their first value."""
        sizes = self._report["sizes"]
        for name in SIZES:
            line = line_of(name, sizes)
            if len(line) > 1:
                yield self._against(name, line)

    def _against(self, name: str, sizes: list[Json]) -> object:
        import altair

        rate = rate_of(sizes[0]["figures"][self._labels[0]])
        rows = [
            {"label": label, name: size[name], "rate": size["figures"][label][rate]["median"]}
            for size in sizes
            for label in self._labels
        ]
        x = altair.X(f"{name}:Q", title=name, axis=altair.Axis(values=sorted({row[name] for row in rows})))
        y = altair.Y("rate:Q", title=f"{rate}/s, more is better", scale=altair.Scale(zero=True))
        lines = self._chart(rows).mark_line(strokeWidth=2).encode(x, y, self._colour())
        dots = self._chart(rows).mark_point(filled=True, size=70, opacity=1)
        return lines + dots.encode(x, y, self._colour(), self._shape())

    def _limits(self) -> Iterator[object]:
        """Yield, for each size, the share of the limit that each phase of each candidate reaches."""
        import altair

        rows = [{**each, "kinds": None} for each in reached(self._report)]
        for size in dict.fromkeys(each["size"] for each in rows):
            some = [each for each in rows if each["size"] == size]
            base = self._chart(some).properties(
                height=altair.Step(16), title=altair.Title(size, color=self._colours["ink"])
            )
            x = altair.X("share:Q", title="% of the limit, more is better", scale=altair.Scale(zero=True))
            y = altair.Y("phase:N", title=None, sort=list(dict.fromkeys(each["phase"] for each in some)))
            yield base.mark_bar().encode(x, y, self._colour(), altair.YOffset("label:N", sort=self._labels))

    def _memory(self) -> Iterator[object]:
        figures = {label: each["figures"] for label, each in self._report["candidates"].items()}
        for key, title in (("peak memory", "peak memory, MB"), ("load", "load, ms")):
            rows = [{"label": label, **_range(each[key])} for label, each in figures.items() if key in each]
            if rows:
                yield self._bars(rows, f"{title}, less is better")


def _range(figure: Json) -> Json:
    return {name: figure[name] for name in ("q1", "median", "q3")}
