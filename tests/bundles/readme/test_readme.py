"""The README of a bundle: its example in Python gives what `txport run` gives, and it says what the bundle is."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement

import txport
from tests.bundles import drivers
from tests.bundles.readme import metadata_driver
from txport.bundles.bundle import Bundle, load_bundle, seal
from txport.bundles.readme.page import readme
from txport.errors import BundleError
from txport.targets import TARGETS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", params=drivers.PLANS, ids="-".join)
def plan(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(scope="module", params=drivers.CASES)
def made(request: pytest.FixtureRequest, plan: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return drivers.made(request.param, *plan, tmp_path_factory.mktemp("readme"))


def blocks(bundle: Bundle) -> list[str]:
    page = (bundle.path / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_example_in_python_gives_what_txport_gives(made: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made.path)
    functions: dict[str, object] = {}
    exec(blocks(made)[0], functions)  # noqa: S102
    run = functions[made.manifest.facts.ability or "generate"]
    assert callable(run)
    found = run(drivers.source_of(made))
    expected = drivers.right(made)
    assert drivers.same(found, expected, made), (found, expected)


def test_a_driver_that_reads_the_metadata_alone_gives_what_txport_gives(made: Bundle) -> None:
    found = metadata_driver.run(made.path / "onnx", drivers.source_of(made))
    expected = drivers.right(made)
    assert drivers.same(found, expected, made), (found, expected)


def test_the_page_is_whole_and_says_no_path(made: Bundle) -> None:
    page = (made.path / "README.md").read_text(encoding="utf-8")
    assert "README.md" in made.manifest.files
    for graph in made.manifest.graphs.values():
        assert f"### {graph.file}" in page
    assert str(made.path.parent) not in page
    assert "$" not in page
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    assert "<b>" not in prose
    assert "None" not in prose
    rows = [line for line in prose.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {3, 6}
    assert max(map(len, "".join(blocks(made)).split("\n"))) <= 110


def test_the_same_manifest_gives_the_same_bytes(made: Bundle) -> None:
    before = (made.path / "README.md").read_bytes()
    assert (seal(made.path, made.manifest).path / "README.md").read_bytes() == before
    assert (
        readme(load_bundle(made.path).manifest, [name for name in made.manifest.files if name != "README.md"]).encode()
        == before
    )


def test_an_altered_page_is_refused(copied: Path) -> None:
    page = copied / "README.md"
    page.write_text(page.read_text(encoding="utf-8").replace("transformer", "transformed"), encoding="utf-8")
    with pytest.raises(BundleError, match=r"README\.md "):
        load_bundle(copied)


def test_proof_is_told_with_what_it_found(bundle: Bundle) -> None:
    page = (bundle.path / "README.md").read_text(encoding="utf-8")
    assert re.search(r"\| parity with PyTorch \| pass: \d+ cases, \d+ rows ", page)
    assert "`txport verify" in page


def test_the_oldest_runtime_is_the_one_that_the_package_asks_for() -> None:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        needed = [Requirement(each) for each in tomllib.load(stream)["project"]["dependencies"]]
    asked = {str(each.specifier) for each in needed if each.name.startswith("onnxruntime")}
    assert asked == {f">={TARGETS['cpu'].least_runtime}"}


@settings(max_examples=20)
@given(
    name=st.text(min_size=1, max_size=40),
    generation=st.fixed_dictionaries({}, optional={"suppress_tokens": st.lists(st.integers(0, 20), max_size=80)}),
)
def test_no_name_breaks_the_page(bundle: Bundle, name: str, generation: dict[str, object]) -> None:
    manifest = dataclasses.replace(
        bundle.manifest, checkpoint={"name": name, "sha256": "0" * 64}, generation=generation, architecture=name
    )
    page = readme(manifest, ["tokenizer.json"])
    head = page.split("## How to run it")[0]
    assert re.search(r"(?<!\\)<\w", head) is None
    assert len(re.findall("^# ", head, re.MULTILINE)) == 1
    compile(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], "README.md", "exec")


def test_the_example_needs_numpy_and_onnxruntime_alone(bundle: Bundle) -> None:
    code = blocks(bundle)[0] + "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules})\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=bundle.path, capture_output=True, text=True, check=True)
    assert not {"torch", "onnx", "txport", "tokenizers", "transformers"} & set(done.stdout.split())
    assert onnxruntime.__name__ in done.stdout.split()


def test_a_text_becomes_the_ids_that_txport_makes_of_it(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bundle.path)
    names: dict[str, Any] = {}
    example, reading = blocks(bundle)
    exec(example + reading.replace("TEXT", "chief"), names)  # noqa: S102
    found = next(iter(txport.load(bundle.path).generate(["chief"])))
    assert names["generate"](names["ids"]) == list(found.hypotheses[0].tokens)


def test_graphs_without_weights_have_no_examples(checkpoint: Path, tmp_path: Path) -> None:
    made = txport.export(checkpoint, tmp_path / "out", weights=False)
    page = (made.path / "README.md").read_text(encoding="utf-8")
    assert "The graphs have no weights" in page
    assert "InferenceSession" not in page
    assert "## The graphs" in page
