"""Drift from a baseline, an older report or its summary: everything that became worse, even within tolerance.

The rules:

- Both reports must have the same checkpoint, target, precision, providers, tolerances, seed and number of random cases;
  otherwise they are not compared.
- A tensor of a case drifts if its worst step uses more than `FACTOR` times the share of its tolerance that it used
  before, and more than `FLOOR` of the tolerance. Below `FLOOR`, other processors and versions round differently. Only
  the worst of all steps is compared, because it is not the same step each time.
- Rows that were equal and are now near-ties or wrong count as drift, with one line per kind of search.
- A case, tensor or search that was compared before and is no longer compared counts as drift.
- A score of the same texts by the same metric drifts if it is worse by more than `POINTS` points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from txport.errors import TextError, UnsupportedError, quoted
from txport.proof.parity.measures import FORMAT
from txport.proof.parity.quality import EXACT
from txport.system.documents import DocumentError, read_json
from txport.system.terminal import percent

FACTOR = 3.0
FLOOR = 0.1
POINTS = 0.1
BOUNDS = ("largest", "rms", "place", "atol", "rtol")  # fields of a tolerance that must be equal
SAME = ("target", "precision", "providers", "seed", "random_cases")

Key = tuple[str, ...]
Json = dict[str, Any]


def read_baseline(path: Path) -> Json:
    """Read an older report of `txport parity --report`; raise `TextError` if the file is not a report."""
    try:
        report: Json = read_json(path)
        known = report["format"]
        if known == FORMAT:
            drift(report, report)  # reads all values that are compared
    except DocumentError as error:
        raise TextError(f"{error}; give what `txport parity --save-baseline` wrote") from error
    except (AttributeError, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise TextError(f"{path} is not a baseline of `txport parity`, nor a report") from error
    if known != FORMAT:
        raise TextError(
            f"{path} is a report of format {quoted(known)}, this txport reads format {FORMAT}; write it again"
        )
    return report


def summary(report: Json) -> Json:
    """Return what of a report is compared, a few KB for a small model; a summary stays as it is."""
    kept = {name: report[name] for name in ("format", "checkpoint", *SAME, "tolerances", "texts", "quality")}
    return {**kept, "cases": [_summary(case) for case in report["cases"]]}


def _summary(case: Json) -> Json:
    """Return, of a case, the largest share of its tolerance that any step of a tensor uses, and the equal rows."""
    if "shares" in case:
        return case
    shares: dict[str, float] = {}
    for each in case["tensors"]:
        share = float(each["badness"])
        name = f"{each['tensor']} ({each['kind']})"
        shares[name] = max(shares.get(name, 0.0), math.inf if math.isnan(share) else float(f"{share:.3g}"))
    shown = {name: str(share) if share == math.inf else share for name, share in shares.items()}
    rows = [{name: each[name] for name in ("search", "equal", "rows")} for each in case["tokens"]]
    return {"runtime": case["runtime"], "case": case["case"], "shares": shown, "tokens": rows}


def require_same(old: Json, new: Json) -> None:
    """Raise `UnsupportedError` unless two reports have the same checkpoint, settings and tolerances."""
    was, now = (f"{report['checkpoint']['name']} {report['checkpoint']['sha256'][:16]}" for report in (old, new))
    if old["checkpoint"]["sha256"] != new["checkpoint"]["sha256"]:
        raise UnsupportedError(f"the baseline is of another checkpoint: {was}, this is {now}; write a new one")
    for name in SAME:
        if old[name] != new[name]:
            differs = f"{name.replace('_', ' ')} {quoted(old[name])}, now {quoted(new[name])}"
            raise UnsupportedError(f"the baseline was made with another setting: {differs}; compare in the same way")
    for runtime, was_allowed in old["tolerances"].items():
        for name in BOUNDS:
            before = was_allowed.get(name)
            now_allowed = new["tolerances"].get(runtime, {}).get(name)
            if before != now_allowed:
                differs = f"{name} of {runtime} {before}, now {now_allowed}"
                raise UnsupportedError(f"the baseline was made with other tolerances: {differs}; write a new one")


def drift(old: Json, new: Json) -> list[str]:
    """Return one line for each value that became worse; both reports are JSON values.

    Raises `UnsupportedError` if they can't be compared.
    """
    require_same(old, new)
    old, new = summary(old), summary(new)
    return [*_grown(dict(_shares(old)), dict(_shares(new))), *_lost_rows(old, new), *_worse_rates(old, new)]


def _grown(old: dict[Key, float], new: dict[Key, float]) -> Iterator[str]:
    for key, before in old.items():
        where = "{}, case {}: {}".format(*key)
        if key not in new:
            yield f"{where} was compared in the baseline and is no longer"
        elif new[key] > FLOOR and not new[key] <= FACTOR * before:
            yield f"{where} uses {percent(new[key], 'its tolerance')}, in the baseline {percent(before)}"


def _lost_rows(old: Json, new: Json) -> Iterator[str]:
    now = dict(_rows(new))
    for key, (equal, rows) in _rows(old):
        where = "{}, case {}: {}".format(*key)
        if key not in now:
            yield f"{where} was compared in the baseline and is no longer"
        elif rows - equal < now[key][1] - now[key][0]:
            yield f"{where} finds {now[key][0]} of {now[key][1]} rows equal, in the baseline {equal} of {rows}"


def _worse_rates(old: Json, new: Json) -> Iterator[str]:
    if old["texts"] is not None and new["texts"] is None:
        yield "error rates are no longer measured"
    if old["texts"] != new["texts"] or old["texts"] is None:
        return
    now = _scores(new)
    for key, (before, _) in _scores(old).items():
        label = f"{key[0]}: {'error rate' if key[1] == EXACT else key[1]}"
        unit = " %" if key[1] == EXACT else ""
        if key not in now:
            yield f"{label} was measured in the baseline and is no longer"
            continue
        after, lower_is_better = now[key]
        if (after - before if lower_is_better else before - after) > POINTS:
            yield f"{label} {after:.2f}{unit}, in the baseline {before:.2f}{unit}"


def _scores(report: Json) -> dict[Key, tuple[float, bool]]:
    """Return each score by runtime and metric, and whether a lower one is better."""
    rows = report["quality"] if report["texts"] is not None else []
    return {
        (each["runtime"], each.get("metric", EXACT)): (float(each["rate"]), each.get("lower_is_better", True))
        for each in rows
    }


def _shares(report: Json) -> Iterator[tuple[Key, float]]:
    """Yield, for each tensor of each case, the largest share of its tolerance that any step uses."""
    for case in report["cases"]:
        yield from (((case["runtime"], case["case"], name), float(share)) for name, share in case["shares"].items())


def _rows(report: Json) -> Iterator[tuple[Key, tuple[int, int]]]:
    for case in report["cases"]:
        for each in case["tokens"]:
            yield (case["runtime"], case["case"], each["search"]), (int(each["equal"]), int(each["rows"]))
