"""The report for people: one file that loads nothing, with a table beneath each plot, and the same as Markdown."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.javascript import chromium
from txport.bench import charts, page
from txport.bench.sections import SIZES, _slopes, points, sections
from txport.errors import UnavailableError

RECORD = Path(__file__).parents[2] / "docs" / "bench.json"


@pytest.fixture(scope="module")
def record() -> Any:
    """The measurement that docs/bench.md shows."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


class Reader(HTMLParser):
    """The tags of a page, and what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_the_page_is_one_file_with_a_table_beneath_each_plot(record: Any) -> None:
    pytest.importorskip("altair")
    text = page.page(record)
    reader = Reader()
    reader.feed(text)
    assert reader.loads == []
    assert "script" not in reader.tags
    assert "url(" not in text
    assert reader.tags.count("table") == len(list(sections(record)))
    assert reader.tags.count("figure") >= 6
    assert all(label in text for label in record["candidates"])
    for svg in re.findall(r"<figure>(<svg.*?</svg>)</figure>", text, re.DOTALL):
        ET.fromstring(svg)  # noqa: S314 - we wrote it
    assert "prefers-color-scheme: dark" in text
    assert "#" not in "".join(re.findall(r'(?:fill|stroke)="([^"]*)"', text)), "colours are those of the page"


def test_names_of_a_report_are_escaped(record: Any) -> None:
    pytest.importorskip("altair")
    label = "<script>alert(1)</script>"
    changed = json.loads(json.dumps(record).replace('"torch"', json.dumps(label)))
    assert "<script" not in page.page(changed)


def test_markdown_has_every_table(record: Any) -> None:
    text = page.markdown(record)
    for each in sections(record):
        assert f"## {each.title}" in text
        assert sum(len(each.rows) + 2 for each in sections(record)) == sum(
            line.startswith("|") for line in text.splitlines()
        )


def test_csv_has_a_row_for_each_figure(record: Any) -> None:
    found = list(csv.DictReader(io.StringIO(page.render(record, Path("out.csv")))))
    for size in record["sizes"]:
        for label, phases in size["figures"].items():
            place = {name: str(size[name]) for name in SIZES}
            here = [row for row in found if row["candidate"] == label and place.items() <= row.items()]
            assert {row["figure"]: float(row["median"]) for row in here} == {
                phase: each["median"] for phase, each in phases.items()
            }
    for label, each in record["candidates"].items():
        (latency,) = [row for row in found if (row["candidate"], row["figure"]) == (label, "single p99")]
        assert (float(latency["median"]), latency["unit"]) == (each["single"]["p99"], "ms")


def test_joules_are_joules(record: Any) -> None:
    label, each = next(iter(record["candidates"].items()))
    each = {**each, "offline": {**each["offline"], "joules": {"q1": 1.0, "median": 2.0, "q3": 3.0}}}
    found = csv.DictReader(io.StringIO(page.rows({**record, "candidates": {label: each}, "sizes": []})))
    assert [row["unit"] for row in found if row["figure"] == "offline joules"] == ["J"]


def test_what_grows_faster_than_linearly_is_named(record: Any) -> None:
    """Times that are 2 + 3 x tokens, and times that grow with the square of them, with noise of 1 %."""
    rng = np.random.default_rng(0)
    sizes = []
    for tokens in (16, 32, 64, 128):
        noise = np.exp(rng.normal(0, 0.01, (2, 9)))
        figures = {
            "first token": {"samples": (noise[0] * (2 + 3 * tokens)).tolist()},
            "further token": {"samples": (noise[1] * tokens**2).tolist()},
        }
        sizes.append({"batch": 1, "beams": 1, "source": 16, "tokens": tokens, "figures": {"ort": figures}})
    line, square = _slopes(sizes, record["units"])
    assert (line[:3], line[5]) == (("ort", "tokens", "first token"), "")
    slope, half = map(float, line[3].split(" ± "))
    assert abs(slope - 3) <= half < 0.3
    assert square[5] == "faster than linearly"
    exponent, width = map(float, square[4].split(" ± "))
    assert abs(exponent - 2) <= width + 0.01
    assert list(_slopes(sizes[:2], record["units"])) == [], "a line through two values has no interval"


def test_what_no_other_beats_is_on_the_front(record: Any) -> None:
    found = points(record)
    front = sorted((each for each in found if each.on_front), key=lambda each: each.speed)
    assert front
    assert [each.error for each in front] == sorted(each.error for each in front), "faster is worse, on the front"
    for each in found:
        better = [other for other in found if other.speed > each.speed and other.error < each.error]
        assert not (each.on_front and better)


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(UnavailableError, match=r"a page with plots needs altair, .*: pip install 'txport\[report\]'"):
        page.require(Path("out.html"))
    page.require(Path("out.json"))
    page.require(Path("out.md"))


def test_the_picture_of_the_page_is_that_of_the_record(record: Any) -> None:
    pytest.importorskip("altair")
    from docs import bench_picture

    assert bench_picture.PICTURE.read_text(encoding="utf-8") == bench_picture.render(record)


def test_a_phone_shows_the_page_without_scrolling_sideways(record: Any, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    browser = chromium()
    text = page.page(record).replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';")
    script = "<script>document.title = document.documentElement.scrollWidth + ' ' + innerWidth</script>"
    (tmp_path / "page.html").write_text(text.replace("</body>", f"{script}</body>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,800", "--dump-dom"]
    said = subprocess.run([browser, *flags, str(tmp_path / "page.html")], capture_output=True, text=True, check=True)
    found = re.search(r"<title>(\d+) (\d+)</title>", said.stdout)
    assert found is not None
    assert int(found[1]) <= int(found[2])


def test_each_kind_of_plot_has_a_colour_for_each_candidate(record: Any) -> None:
    pytest.importorskip("altair")
    drawn = charts.Charts(record, charts.PAPER)
    for each in {section.key for section in sections(record)}:
        for chart in drawn.of(each):
            svg = drawn.svg(chart)
            used = sum(colour in svg for colour in charts.PAPER["kinds"])
            assert used >= min(len(record["candidates"]) - 1, charts.COLOURS)
