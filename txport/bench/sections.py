"""The tables of a report of `txport bench`, for the terminal, Markdown and the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from txport.bench.compare import RATES, UNTIMED

Json = dict[str, Any]
QUALITY, LATENCY, BATCHES = "Speed beside quality", "One input at a time", "In batches"
GROWTH, PHASES, START = "Growth with the size", "Phases", "Start and memory"
MAX_ADDED = 50.0  # nats, whose exponential is a number
SIZES = ("batch", "beams", "source", "tokens")


class Section(NamedTuple):
    """A table, and a sentence about what its figures are. `key` is the kind of its plots."""

    key: str
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Point(NamedTuple):
    """A candidate in the plot of speed beside quality: `speed` per second, `error` in percent."""

    label: str
    speed: float
    unit: str
    error: float
    megabytes: float | None
    on_front: bool


def sections(report: Json) -> Iterator[Section]:
    """Yield the sections of a report in the order in which they are read."""
    yield _quality(report)
    candidates: Mapping[str, Json] = report["candidates"]
    if all(each["single"] for each in candidates.values()):
        yield _latency(candidates)
    if all(each["offline"] for each in candidates.values()):
        yield _batches(candidates)
    timed = [size for size in report["sizes"] if any(map(rate_of, size["figures"].values()))]
    if len(timed) > 1:
        yield _growth(timed)
    for size in timed:
        yield _phases(size, report["units"])
    yield _start(candidates)


def points(report: Json) -> list[Point]:
    """Return each candidate's speed and error; those that no other one beats in both are on the front."""
    found = []
    for label, each in report["candidates"].items():
        speed, unit = _speed(report, label)
        error = _error(report, each["quality"])
        if error is not None:
            size = each["bytes"] and each["bytes"] / 1e6
            found.append(Point(label, speed, unit, error, size, False))
    sign = -1 if _is_better_when_higher(report) else 1
    return [each._replace(on_front=not any(_beats(other, each, sign) for other in found)) for each in found]


def quality_name(report: Json) -> str:
    """Return what the error of a candidate is."""
    quality = next(iter(report["candidates"].values()))["quality"]
    if "score" in quality:
        return "wrong answers, %" if quality["metric"] == "exact" else str(quality["metric"])
    if "loss" in quality:
        return f"perplexity above that of {quality['reference']}, %"
    return f"not as {quality['reference']}, %"


def about(report: Json) -> list[str]:
    """Return the machine, the versions and the inputs, in sentences."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    busy = report["busy rounds"]
    noise = [f"Other programs used the processor in {busy} rounds: measure again on a quiet machine."] if busy else []
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    return [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}{gpu}.",
        f"{versions}.",
        f"Inputs: {report['inputs']['what']}, {report['inputs']['count']}.",
        *noise,
    ]


def _error(report: Json, quality: Json) -> float | None:
    """Return the score, else by how many percent the perplexity is above the reference's, else the other outputs."""
    if "score" in quality:
        return float(quality["score"])
    if "loss" in quality:
        added = quality["loss"] - report["candidates"][quality["reference"]]["quality"]["loss"]
        return max(0.0, round(100 * math.expm1(min(added, MAX_ADDED)), 2))  # below 0.01 % it is rounding in fp32
    return None if quality["error"] is None else 100 * float(quality["error"])


def _is_better_when_higher(report: Json) -> bool:
    from txport.proof.metrics import METRICS

    metric = next(iter(report["candidates"].values()))["quality"].get("metric")
    return metric is not None and not METRICS[metric].lower_is_better


def _beats(one: Point, other: Point, sign: int) -> bool:
    pair = (one.speed - other.speed, sign * (other.error - one.error))
    return min(pair) >= 0 and max(pair) > 0


def rate_of(phases: Mapping[str, Json]) -> str:
    """Return the rate that says how fast a size was generated or encoded; "" if it was not timed."""
    return next((rate for rate in reversed(RATES) if rate in phases), "")


def _speed(report: Json, label: str) -> tuple[float, str]:
    """Return the tokens a second in batches, else those of the last size, else inputs a second one at a time."""
    each = report["candidates"][label]
    if each["offline"]:
        return each["offline"]["tokens"]["median"], "tokens/s"
    phases = report["sizes"][-1]["figures"][label]
    if rate := rate_of(phases):
        return phases[rate]["median"], f"{rate}/s"
    return 1e3 / each["single"]["p50"], "inputs/s"


def _quality(report: Json) -> Section:
    found = points(report)
    unit = found[0].unit if found else "tokens/s"
    rows = []
    for each in found:
        quality = report["candidates"][each.label]["quality"]
        other = short(100 * quality["error"])
        loss = short(quality["loss"]) if "loss" in quality else ""
        size = "" if each.megabytes is None else short(each.megabytes)
        front = "yes" if each.on_front else ""
        rows.append((each.label, short(each.speed), size, short(each.error), other, loss, front))
    columns = ("candidate", unit, "MB on disk", quality_name(report), "other tokens, %", "loss, nats", "on the front")
    note = "A candidate is on the front if no other one is both faster and better."
    return Section(QUALITY, QUALITY, note, columns, rows)


def _latency(candidates: Mapping[str, Json]) -> Section:
    keys = ("p50", "p90", "p99", "tokenise", "answer", "detokenise")
    rows = [
        (label, str(each["single"]["count"]), *(short(each["single"][key]) for key in keys))
        for label, each in candidates.items()
    ]
    columns = ("candidate", "inputs", *(f"{key}, ms" for key in keys))
    note = "Percentiles of the time from a text to its answer; the parts are medians."
    return Section(LATENCY, LATENCY, note, columns, rows)


def _batches(candidates: Mapping[str, Json]) -> Section:
    rows = [
        (label, figure(each["offline"]["inputs"]), figure(each["offline"]["tokens"]))
        for label, each in candidates.items()
    ]
    batch = next(iter(candidates.values()))["offline"]["batch"]
    note = f"Batches of {batch} inputs of similar length; medians (quartiles) of several passes."
    return Section(BATCHES, BATCHES, note, ("candidate", "inputs/s", "tokens/s"), rows)


def _growth(sizes: Sequence[Json]) -> Section:
    names = list(sizes[0]["figures"])
    rate = rate_of(sizes[0]["figures"][names[0]])
    rows = [
        (*(str(size[name]) for name in SIZES), *(figure(size["figures"][label][rate]) for label in names))
        for size in sizes
    ]
    note = f"{rate.capitalize()} a second of all rows; medians (quartiles)."
    return Section(GROWTH, GROWTH, note, (*SIZES, *names), rows)


def _phases(size: Json, units: Mapping[str, str]) -> Section:
    figures = size["figures"]
    names = list(figures)
    rows = []
    for phase, unit in units.items():
        values = [figures[name].get(phase) for name in names]
        if any(values):
            ratios = [_gain(phase, values[0], each) for each in values[1:]]
            rows.append((phase, unit, *(figure(each) if each else "" for each in values), *ratios))
    equal = [(100 * size["equal tokens"][name]) for name in names]
    rows.append(("equal tokens", "%", *map(short, equal), *("" for _ in names[1:])))
    columns = ("phase", "unit", *names, *(f"{name} beside {names[0]}" for name in names[1:]))
    title = f"Batch {size['batch']}, beams {size['beams']}, source {size['source']}, tokens {size['tokens']}"
    return Section(PHASES, title, "Medians (quartiles) of the rounds, the candidates in turns.", columns, rows)


def _start(candidates: Mapping[str, Json]) -> Section:
    keys = ("load", "first run", "peak memory")
    rows = [
        (
            label,
            *(figure(each["figures"][key]) if key in each["figures"] else "" for key in keys),
            "" if each["bytes"] is None else short(each["bytes"] / 1e6),
        )
        for label, each in candidates.items()
    ]
    columns = ("candidate", "load, ms", "first run, ms", "peak memory, MB", "on disk, MB")
    note = "Loading and the first run are measured in new processes."
    return Section(START, START, note, columns, rows)


def _gain(phase: str, base: Json | None, other: Json | None) -> str:
    """Return how a figure compares with the first candidate's, as in `2.1 x faster`."""
    if not base or not other or phase in UNTIMED[1:]:
        return ""
    ratio = base["median"] / other["median"]
    gain = 1 / ratio if phase in RATES else ratio
    better, worse = ("less", "more") if phase == "peak memory" else ("faster", "slower")
    if f"{gain:.2f}" == "1.00":
        return "equal"
    return f"{gain:.2f} x {better}" if gain >= 1 else f"{1 / gain:.2f} x {worse}"


def figure(values: Mapping[str, float]) -> str:
    """Return a median with its quartiles."""
    low, middle, high = (short(values[key]) for key in ("q1", "median", "q3"))
    return middle if low == high else f"{middle} ({low} to {high})"


def short(value: float) -> str:
    """Return a number with three digits, or as a whole number."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
