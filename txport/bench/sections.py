"""The tables of a report of `txport bench`, for the terminal, Markdown and the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from txport.bench.compare import CERTAIN, RATES, UNTIMED

Json = dict[str, Any]
QUALITY, LATENCY, BATCHES = "Speed beside quality", "One input at a time", "In batches"
SERVER, LIMITS, PROFILE = "Requests at random times", "Share of the limit", "Time by operator"
SLOPES = "Slopes"
GROWTH, PHASES, START = "Growth with the size", "Phases", "Start and memory"
MAX_ADDED = 50.0  # nats, whose exponential is a number
FITTED = 3  # values of a size, at least, for a slope
KINDS = 6  # of operators in a profile
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
    if any(each["server"] for each in candidates.values()):
        yield _server(candidates)
    timed = [size for size in report["sizes"] if any(map(rate_of, size["figures"].values()))]
    if len(timed) > 1:
        yield _growth(timed)
    if slopes := list(_slopes(timed, report["units"])):
        columns = ("candidate", "size", "phase", "ms per unit", "exponent", "grows")
        note = "Least squares over all rounds, with 99 % intervals; the other sizes have their first value."
        yield Section(SLOPES, SLOPES, note, columns, slopes)
    for size in timed:
        yield _phases(size, report["units"])
    if reached(report):
        yield _limits(report)
    if any(each["limits"] for each in candidates.values()):
        yield _profile(report)
    yield _start(candidates)


def reached(report: Json) -> list[Json]:
    """Return the limit of each phase that was timed: its milliseconds, what sets it, and the share that is reached."""
    rows: list[Json] = []
    varied = [name for name in SIZES if len({size[name] for size in report["sizes"]}) > 1]
    for label, each in report["candidates"].items():
        limits = each["limits"] or {"sizes": []}
        for size, phases in zip(report["sizes"], limits["sizes"], strict=bool(limits["sizes"])):
            for phase, figures in phases.items():
                if taken := size["figures"][label].get(phase):
                    limit, by = _limit(figures, limits["rates"])
                    where = ", ".join([phase, *(f"{name} {size[name]}" for name in varied)])
                    about = {
                        "label": label,
                        "size": size_name(size),
                        "phase": phase,
                        "where": where,
                        "ms": taken["median"],
                    }
                    rows.append({**about, **figures, "limit": limit, "by": by, "share": 100 * limit / taken["median"]})
    return rows


def size_name(size: Json) -> str:
    """Return a size as the title of its table."""
    return ", ".join(f"{name} {size[name]}" for name in SIZES).capitalize()


def points(report: Json) -> list[Point]:
    """Return each candidate's speed and error; those that no other one beats in both are on the front."""
    found = []
    for label, each in report["candidates"].items():
        speed, unit = _speed(report, label)
        error = _error(report, each["quality"])
        if speed is not None and error is not None:
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


def _speed(report: Json, label: str) -> tuple[float | None, str]:
    """Return tokens a second in batches, else those of the last size, else inputs a second one at a time, or served."""
    each = report["candidates"][label]
    if each["offline"]:
        return each["offline"]["tokens"]["median"], "tokens/s"
    phases = report["sizes"][-1]["figures"][label]
    if rate := rate_of(phases):
        return phases[rate]["median"], f"{rate}/s"
    if each["single"]:
        return 1e3 / each["single"]["p50"], "inputs/s"
    return ((each["server"] or {}).get("best") or {}).get("rate"), "requests/s"


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
    first = next(iter(candidates.values()))["offline"]
    keys = {"inputs": "inputs/s", "tokens": "tokens/s", "joules": "J an input"}
    keys = {key: column for key, column in keys.items() if key in first}
    rows = [(label, *(figure(each["offline"][key]) for key in keys)) for label, each in candidates.items()]
    note = f"Batches of {first['batch']} inputs of similar length; medians (quartiles) of several passes."
    return Section(BATCHES, BATCHES, note, ("candidate", *keys.values()), rows)


def _server(candidates: Mapping[str, Json]) -> Section:
    keys = ("rate", "p50", "p90", "p99", "count", "late", "generator")
    rows = []
    for label, each in candidates.items():
        best = each["server"].get("best", {})
        alone = short(each["server"]["alone"]) if "alone" in each["server"] else ""
        rows.append((label, *(short(best[key]) if best else "" for key in keys), alone))
    columns = (
        "candidate",
        "requests/s",
        "p50, ms",
        "p90, ms",
        "p99, ms",
        "requests",
        "late, ms",
        "generator, %",
        "alone, ms",
    )
    bound = short(next(iter(candidates.values()))["server"]["bound"])
    reasons = "".join(f" {label}: {why}." for label, each in candidates.items() if (why := each["server"]["reason"]))
    note = (
        f"The highest rate of random arrivals at which p99 of the latency is at most {bound} ms. late: p99 of how late"
        f" requests were submitted; generator: its share of a core; alone: median of one request at a time.{reasons}"
    )
    return Section(SERVER, SERVER, note, columns, rows)


def _growth(sizes: Sequence[Json]) -> Section:
    names = list(sizes[0]["figures"])
    rate = rate_of(sizes[0]["figures"][names[0]])
    rows = [
        (*(str(size[name]) for name in SIZES), *(figure(size["figures"][label][rate]) for label in names))
        for size in sizes
    ]
    note = f"{rate.capitalize()} a second of all rows; medians (quartiles)."
    return Section(GROWTH, GROWTH, note, (*SIZES, *names), rows)


def line_of(name: str, sizes: Sequence[Json]) -> list[Json]:
    """Return the sizes that differ from the first one in the size `name` alone."""
    return [size for size in sizes if all(size[other] == sizes[0][other] for other in SIZES if other != name)]


def _slopes(sizes: Sequence[Json], units: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each candidate, phase and size with enough values: its slope, and the exponent of its growth."""
    for name in SIZES:
        line = line_of(name, sizes)
        if len({size[name] for size in line}) < FITTED:
            continue
        for label, phases in line[0]["figures"].items():
            for phase in (each for each in phases if units[each] == "ms"):
                samples = [(size[name], time) for size in line for time in size["figures"][label][phase]["samples"]]
                x, y = np.array(samples, np.float64).T
                (slope, half), (exponent, width) = fit(x, y), fit(np.log(x), np.log(y))
                grows = "faster than linearly" if exponent - width > 1 else ""
                shown = (f"{short(slope)} ± {short(half)}", f"{exponent:.2f} ± {width:.2f}")
                yield (label, name, phase, *shown, grows)


def fit(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Return the slope of a line through points by least squares, and half the width of its 99 % interval."""
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    return float(slope), CERTAIN * float(np.sqrt(covariance[0, 0]))


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
    return Section(
        PHASES, size_name(size), "Medians (quartiles) of the rounds, the candidates in turns.", columns, rows
    )


def _limit(phase: Json, rates: Mapping[str, float]) -> tuple[float, str]:
    """Return the least milliseconds that a phase can take, and what sets it: memory, or products."""
    memory = phase["bytes"] / phase["bandwidth"]
    products = sum(phase[kind] / rate for kind, rate in rates.items())
    return 1e3 * max(memory, products), "memory" if memory > products else "products"


def _limits(report: Json) -> Section:
    rows = [
        (
            each["label"],
            each["where"],
            *map(
                short,
                (each["ms"], each["bytes"] / 1e6, each["bandwidth"] / 1e9, each["fp32"] / 1e6, each["int8"] / 1e6),
            ),
            short(each["limit"]),
            each["by"],
            short(each["share"]),
        )
        for each in reached(report)
    ]
    columns = (
        "candidate",
        "phase",
        "ms",
        "weights, MB",
        "reads, GB/s",
        "fp32, MOp",
        "int8, MOp",
        "limit, ms",
        "by",
        "share, %",
    )
    rates = next(each["limits"]["rates"] for each in report["candidates"].values() if each["limits"])
    fp32, int8 = (short(rates[kind] / 1e9) for kind in ("fp32", "int8"))
    note = (
        "The limit is the larger of the time to read the weights once and of the time of the products, at the rates of"
        f" large products in fp32 and int8, {fp32} and {int8} GOp/s. Caches and attention's operators are not counted."
    )
    return Section(LIMITS, LIMITS, note, columns, rows)


def _profile(report: Json) -> Section:
    """Return the share of each kind of operator in the time of all, at the first size."""
    first = {label: each["limits"]["sizes"][0] for label, each in report["candidates"].items() if each["limits"]}
    shares = {
        (phase, label): {kind: 100 * ms / sum(figures["kinds"].values()) for kind, ms in figures["kinds"].items()}
        for label, phases in first.items()
        for phase, figures in phases.items()
    }
    rows = []
    for phase in dict.fromkeys(phase for phase, _ in shares):
        all_ = [shares.get((phase, label), {}) for label in first]
        kinds = sorted(
            {kind for each in all_ for kind in each}, key=lambda kind: -max(each.get(kind, 0) for each in all_)
        )
        rows += [(phase, kind, *(short(each.get(kind, 0)) for each in all_)) for kind in kinds[:KINDS]]
    size = size_name(report["sizes"][0]).lower()
    note = f"% of the time of all operators, in ONNX Runtime's profile at {size}; the {KINDS} largest."
    return Section(PROFILE, PROFILE, note, ("phase", "operator", *first), rows)


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
