"""A report for people and for CI: rows of a table, Markdown for a pull request, and JUnit XML."""

from __future__ import annotations

import datetime
import re
import xml.etree.ElementTree as ET  # used only for writing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from txport.bundles.comparisons import RECORDED, describe_loss
from txport.proof.parity.measures import RUNS, WEIGHTS, Comparison, badness
from txport.proof.parity.quality import Quality
from txport.proof.parity.tokens import TokenComparison
from txport.proof.reports.report import Broken, Part, Report
from txport.system.markdown import code, line, plain
from txport.system.terminal import percent, printable

COLUMNS = ("case", "runtime", "largest difference", "of allowed", "where", "rows equal", "verdict")
UNMEASURED = "not measured; `txport parity --quality FILE`, lines of a text, a tab and its target, measures it"
SHOWN = 20  # failures in Markdown: a comment on a pull request has a size limit
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def title(report: Report) -> str:
    """Return the title: the bundle, the reference and the numbers of comparisons."""
    about = report.about
    summary = report.summary()
    what = f"{about['checkpoint']['name']}, {about['target']} {about['precision']}"
    counts = f"{len(report.tensors)} tensors and {summary['rows_searched']} searched rows in {summary['cases']} cases"
    return f"{what}, against PyTorch {about['versions']['torch']} in float64: {counts}, seed {about['seed']}"


def ran(report: Report) -> Iterator[str]:
    """Yield one line per runtime: the number of nodes that ran on each provider."""
    wheels = {name: each for name, each in report.about["versions"].items() if name.startswith("onnxruntime")}
    version = ", ".join(f"{name} {each}" for name, each in wheels.items())
    for label, graphs in report.about["ran"].items():
        providers = sorted({provider for counts in graphs.values() for provider in counts})
        nodes = [f"{sum(counts.get(each, 0) for counts in graphs.values())} nodes on {each}" for each in providers]
        yield f"{label} ran {', '.join(nodes)}" + (f" ({version})" if label.startswith("ort") else "")


def pytorch(report: Report) -> list[str]:
    """Return a line with the error of PyTorch in fp32 compared with float64; [] if it was not measured."""
    found = report.about["pytorch"]
    if not found:
        return []
    return [
        f"PyTorch in fp32 is off by up to {found['worst_logit_difference']:.2g} from float64, of "
        f"{' and '.join(report.about['outputs'])} up to {found['largest_logit']:.3g}"
    ]


def recorded(report: Report) -> list[str]:
    """Return a line with the comparison with the original that the bundle records; [] if it records none."""
    return [f"recorded at export: {report.about[RECORDED]}"] if RECORDED in report.about else []


def cost(report: Report) -> list[str]:
    """Return a line with what few bits cost; [] for a bundle that is not quantised."""
    line = describe_loss(report.about.get("loss", {}), report.about["precision"])
    return [line] if line else []


def quality(report: Report) -> list[str]:
    """Return one line per score, or one line which states that none was measured."""
    return [each.describe() for each in report.quality] or [UNMEASURED]


def rows(report: Report) -> list[tuple[str, ...]]:
    """Return one row per case and runtime, in the order of `COLUMNS`, worst first; all weights are in one row."""
    parts = [part for part in report.by_case() if part.case != WEIGHTS]
    weights = [each for each in report.tensors if each.case == WEIGHTS]
    if weights:
        parts.append(Part(WEIGHTS, "all graphs", weights))
    return [_row(part) for part in sorted(parts, key=lambda part: (part.passed, part.case == WEIGHTS, -part.badness))]


def _row(part: Part) -> tuple[str, ...]:
    worst = part.worst
    says_little = worst is None or (worst.case == WEIGHTS and worst.passed)  # rounding uses the whole tolerance
    share = "" if worst is None or says_little else _of_allowed(worst)
    return (
        part.case,
        part.runtime,
        f"{worst.max_abs:.1e}" if worst else "",
        share,
        _place(worst) if worst else "",
        _count(part.tokens),
        "pass" if part.passed else "FAIL",
    )


def _place(worst: Comparison) -> str:
    if worst.case == WEIGHTS:
        return worst.tensor if not worst.passed else "bit for bit" if not worst.allowed else "within its bits"
    return f"{worst.words}, {worst.place}"


def _of_allowed(worst: Comparison) -> str:
    """Return the share of the tolerance that an error uses."""
    if not worst.allowed and worst.max_abs and worst.allowed_relative is None:
        return "none is allowed"
    return percent(float(f"{worst.badness:.2f}"))


def _count(tokens: Iterable[TokenComparison]) -> str:
    tokens = list(tokens)
    ties = sum(each.near_ties for each in tokens)
    equal = f"{sum(each.equal for each in tokens)}/{sum(each.rows for each in tokens)}" if tokens else ""
    return equal + (f" + {ties} near-tie{'s' if ties > 1 else ''}" if ties else "")


def markdown(report: Report | Broken) -> str:
    """Return a Markdown summary for a pull request."""
    if isinstance(report, Broken):
        return f"### txport parity: FAIL\n\n{code(report.message)}\n"
    failures = report.failures()
    lines = [
        f"### txport parity: {'pass' if report.passed else 'FAIL'}",
        "",
        " ".join(f"{plain(each)}." for each in (title(report), *pytorch(report))),
        "",
    ]
    lines += [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += [line(row) for row in rows(report)]
    if failures:
        lines += ["", f"{len(failures)} failed:", "", *(f"- {code(each)}" for each in failures[:SHOWN])]
        lines += [f"- and {len(failures) - SHOWN} more"] if len(failures) > SHOWN else []
    else:
        lines += ["", f"Closest to its tolerance: {code(report.describe_worst())}"]
    lines += [
        "",
        *(f"Quality: {plain(each)}" for each in quality(report)),
        "",
        *(f"{plain(each)}.  " for each in (*ran(report), *recorded(report))),
    ]
    digest = report.about["checkpoint"]["sha256"]
    return "\n".join([*lines, f"Checkpoint SHA-256 `{digest}`."]) + "\n"


@dataclass(frozen=True)
class Test:
    """A JUnit test case: its position in the file, and the failure or the reason for a skip."""

    suite: str
    group: str
    name: str
    failure: str | None = None
    skipped: str | None = None


def junit(report: Report | Broken, seconds: float) -> str:
    """Return JUnit XML with one suite per runtime and one test case per tensor and search of each case.

    The failure of a tensor is that of its worst step. A comparison that could not be completed is one failure.
    `seconds` is the duration of the comparison.
    """
    if isinstance(report, Broken):
        return _xml({"parity": [Test("parity", "run", "a graph does not run", report.message)]}, [], seconds)
    suites: dict[str, list[Test]] = {}
    for test in _tests(report):
        suites.setdefault(test.suite, []).append(test)
    return _xml(suites, list(_properties(report)), seconds)


def _xml(suites: Mapping[str, list[Test]], facts: list[tuple[str, str]], seconds: float) -> str:
    totals = _totals([test for tests in suites.values() for test in tests])
    root = ET.Element("testsuites", {"name": "txport parity", **totals, "time": f"{seconds:.3f}"})
    for name, tests in suites.items():
        suite = ET.SubElement(root, "testsuite", {"name": name, **_totals(tests), "time": "0"})
        suite.set("timestamp", f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%dT%H:%M:%S}")
        properties = ET.SubElement(suite, "properties")
        for key, value in facts:
            ET.SubElement(properties, "property", name=key, value=_clean(value))
        for test in tests:
            _add_test(suite, test)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _totals(tests: list[Test]) -> dict[str, str]:
    failed, skipped = (sum(getattr(test, name) is not None for test in tests) for name in ("failure", "skipped"))
    return {"tests": str(len(tests)), "failures": str(failed), "errors": "0", "skipped": str(skipped)}


def _add_test(suite: ET.Element, test: Test) -> None:
    names = {"classname": _clean(f"{test.suite}.{test.group}"), "name": _clean(test.name), "time": "0"}
    element = ET.SubElement(suite, "testcase", names)
    if test.failure is not None:
        failure = ET.SubElement(element, "failure", message=_clean(test.failure), type="difference")
        failure.text = _clean(test.failure)
    if test.skipped is not None:
        ET.SubElement(element, "skipped", message=_clean(test.skipped))


def _clean(text: str) -> str:
    """Replace characters that are not valid in XML, and terminal control characters."""
    return NOT_XML.sub("?", printable(text, keep="\n\t"))


def _properties(report: Report) -> Iterator[tuple[str, str]]:
    about = report.about
    yield "checkpoint", f"{about['checkpoint']['name']} {about['checkpoint']['sha256']}"
    yield "bundle", f"{about['target']} {about['precision']}"
    yield "seed", str(about["seed"])
    yield from ((f"version.{name}", str(version)) for name, version in about["versions"].items())
    yield from (("ran", line) for line in ran(report))
    yield from (("original", line) for line in recorded(report))


def _tests(report: Report) -> Iterator[Test]:
    for part in report.by_case():
        suite = WEIGHTS if part.case == WEIGHTS else part.runtime
        group = part.runtime if part.case == WEIGHTS else part.case
        for name, steps in _by_tensor(part.tensors).items():
            failed = [each for each in steps if not each.passed]
            worst = max(failed, key=badness, default=None)
            yield Test(suite, group, name, worst.describe() if worst else None)
        for each in part.tokens:
            yield Test(suite, group, each.search, None if each.passed else each.describe())
    if not report.quality:
        yield Test("quality", "task", "error rate", skipped=UNMEASURED)
    for rate in report.quality:
        yield Test("quality", "task", rate.runtime, _failure(rate))
    yield from (Test("limits", "bundle", line, line) for line in report.beyond)
    yield from (Test("baseline", "drift", line, line) for line in report.drift)
    if report.bisected:
        yield Test("bisect", "graphs", "every part", report.culprit.describe() if report.culprit else None)


def _failure(rate: Quality) -> str | None:
    return None if rate.passed else rate.describe()


def _by_tensor(tensors: Iterable[Comparison]) -> dict[str, list[Comparison]]:
    """Group the comparisons of all steps by tensor; the outputs of complete runs are separate groups."""
    found: dict[str, list[Comparison]] = {}
    for each in tensors:
        found.setdefault(f"{each.tensor} ({each.kind})" if each.kind in RUNS else each.tensor, []).append(each)
    return found
