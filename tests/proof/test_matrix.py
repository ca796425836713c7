"""The matrix shows what passed, what failed and why, and never takes what could not run for a success."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner, Result

from tests.proof.few import draw_few
from tests.tiny import tiny_config, tiny_model
from txport import cli, runtimes
from txport.api import release
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint, save_checkpoint
from txport.errors import ParityError, UnavailableError, UnsupportedError
from txport.exporters import export as exporter
from txport.proof.matrix import FAIL, NEAR_TIE, NOT_AVAILABLE, PASS, Cell, Matrix, compare, engines, kinds, require_run
from txport.proof.reports.pages import COLUMNS, markdown, page, rows
from txport.targets import TARGETS
from txport.targets.ports import ENCODER

BUNDLES = [(target, precision) for target, each in TARGETS.items() for precision in each.precisions]
FEWER = [
    bundle for bundle in BUNDLES if bundle[1] not in ("fp16", "bf16")
]  # random weights in 16 bits are no sound model


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.cli, ["matrix", *(str(argument) for argument in arguments)])


def cells_of(result: Matrix) -> dict[tuple[str, str, str, str], Cell]:
    return {(cell.target, cell.precision, cell.runtime, cell.provider): cell for cell in result.cells}


@pytest.fixture(scope="module")
def sound(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Matrix, Path]:
    """On the runtimes that are surely here and a provider that surely is not; the bundles are kept."""
    keep = tmp_path_factory.mktemp("matrix") / "bundles"
    how: dict[str, Any] = {"precisions": ["fp32", "int8", "int4"], "providers": ["cpu", "coreml"], "keep": keep}
    with pytest.MonkeyPatch.context() as patch:
        draw_few(patch)
        return release.matrix(checkpoint, **how), keep


def test_a_sound_matrix_has_every_bundle_on_every_runtime(sound: tuple[Matrix, Path]) -> None:
    result, _ = sound
    cells = cells_of(result)
    usual = [name for name in runtimes.GRAPH_RUNTIMES if not runtimes.RUNTIMES[name].computes]
    tried = [("ort", "coreml"), *((name, "cpu") for name in usual)]
    engines = {
        bundle: [runtimes.home(bundle[0]), *(each for each in tried if each != ("ort", "cpu"))] for bundle in FEWER
    }
    assert set(cells) == {(*bundle, *engine) for bundle in FEWER for engine in engines[bundle]}
    assert result.passed
    for (target, precision, runtime, provider), cell in cells.items():
        if provider == "coreml":
            assert cell.verdict == NOT_AVAILABLE
            assert "was built without CoreMLExecutionProvider; install a wheel that has it" in cell.why
        elif (target, runtime) == ("portable", "tract") and precision != "fp32":
            assert cell.verdict == NOT_AVAILABLE
            assert cell.why == f"tract has no operators for {precision}; take the ort runtime"
        elif target != "portable" and (runtime, provider) != runtimes.home(target):
            assert cell.verdict == NOT_AVAILABLE
            assert cell.why.startswith(f"the {runtime} runtime can't run bundles of the {target} target; ort can, and")
        else:
            assert cell.verdict in (PASS, NEAR_TIE)
            assert cell.why == ""
            assert cell.worst_logit_difference is not None
            assert 0 < cell.worst_logit_difference < 1
            assert cell.verdict == (NEAR_TIE if cell.near_ties else PASS)
            assert cell.rows_searched
    assert sum(result.counts.values()) == len(cells)
    others = sum(target != "portable" for target, _ in FEWER)
    assert result.counts[NOT_AVAILABLE] == len(FEWER) + others * (len(usual) - 1) + 2  # int8 and int4 on tract


def test_bundles_that_are_kept_are_what_export_writes(sound: tuple[Matrix, Path]) -> None:
    result, keep = sound
    assert {path.name for path in keep.iterdir()} == {"-".join(bundle) for bundle in FEWER}
    for cell in result.cells:
        bundle = load_bundle(keep / f"{cell.target}-{cell.precision}")
        assert bundle.manifest.parity["verdict"] == "pass"
        assert bundle.size == cell.bytes


@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny"])
@pytest.mark.usefixtures("few_cases")
def test_models_that_are_no_encoder_decoders_have_a_matrix_too(name: str, tmp_path: Path) -> None:
    """A decoder alone and an encoder alone, through the command."""
    report = tmp_path / "out.json"
    narrowed = ["--target", "portable", "--target", "cpu", "--precision", "fp32"]
    engines = ["--runtime", "ort", "--runtime", "reference", "--provider", "cpu"]
    done = run(f"preset:{name}", *narrowed, *engines, "--report", report)
    assert (done.exit_code, done.stderr) == (0, "")
    values = json.loads(report.read_text())
    assert values["verdict"] == "pass"
    cells = {(cell["target"], cell["precision"], cell["runtime"], cell["provider"]): cell for cell in values["cells"]}
    unable = ("cpu", "fp32", "reference", "cpu")
    proven = [(target, "fp32", "ort", "cpu") for target in ("portable", "cpu")]
    assert set(cells) == {*proven, ("portable", "fp32", "reference", "cpu"), unable}
    assert cells[unable]["verdict"] == NOT_AVAILABLE
    for cell in (cell for engine, cell in cells.items() if engine != unable):
        assert (cell["verdict"], cell["near_ties"], cell["why"]) == (PASS, 0, "")
        assert 0 < cell["worst_logit_difference"] < 1e-4
        assert cell["rows_searched"] > 0
        assert cell["bytes"] > 0
    assert "verdict: pass; 4 cells: 3 pass, 0 near-tie, 0 fail, 1 not available" in done.stdout


@pytest.fixture
def one_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter whose portable fp16 bundles have one weight wrong."""
    export = exporter.export_graphs

    def export_graphs(checkpoint: Checkpoint, folder: Path, **options: Any) -> Manifest:
        manifest = export(checkpoint, folder, **options)
        if (options["target"], options["precision"]) == ("portable", "fp16"):
            file = folder / manifest.graphs[ENCODER].file
            model = onnx.load(str(file))
            tensor = next(each for each in model.graph.initializer if each.name.endswith("inner.weight"))
            array = onnx.numpy_helper.to_array(tensor).copy()
            array[1, 2] = 5
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
            onnx.save(model, str(file))
        return manifest

    monkeypatch.setattr(exporter, "export_graphs", export_graphs)


@pytest.mark.usefixtures("one_fault", "few_cases")
def test_a_fault_in_one_target_fails_there_and_nowhere_else(checkpoint: Path, tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    html = tmp_path / "out.html"
    text = tmp_path / "out.md"
    files = ["--report", report, "--html", html, "--markdown", text, "--keep", tmp_path / "keep"]
    engines = ["--runtime", "ort", "--runtime", "reference", "--provider", "cpu"]
    kinds = ["--target", "portable", "--precision", "fp32", "--precision", "fp16"]
    done = run(checkpoint, *kinds, *engines, *files)
    assert (done.exit_code, done.stderr) == (1, "")
    assert "verdict: FAIL; 4 cells: 2 pass, 0 near-tie, 2 fail, 0 not available" in done.stdout
    values = json.loads(report.read_text())
    assert values["verdict"] == "fail"
    failed = [cell for cell in values["cells"] if cell["verdict"] == "fail"]
    assert {(cell["precision"], cell["runtime"]) for cell in failed} == {("fp16", "ort"), ("fp16", "reference")}
    for cell in failed:
        assert re.fullmatch(r"encoder, case weights, step 0: encoder\.0\..*inner\.weight\[1, 2\] is 5, .*", cell["why"])
    assert all("inner.weight" in file.read_text() for file in (html, text))
    assert {path.name for path in (tmp_path / "keep").iterdir()} == {"portable-fp32", "portable-fp16-failed"}


def test_a_graph_that_the_runtime_does_not_load_is_a_failure(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is missing here but in the file."""
    export = exporter.export_graphs

    def export_graphs(checkpoint: Checkpoint, folder: Path, **options: Any) -> Manifest:
        manifest = export(checkpoint, folder, **options)
        file = folder / manifest.graphs[ENCODER].file
        model = onnx.load(str(file))
        model.graph.node[3].op_type = "Unheard"
        onnx.save(model, str(file))
        return manifest

    monkeypatch.setattr(exporter, "export_graphs", export_graphs)
    result = release.matrix(checkpoint, targets=["portable"], precisions=["fp32"], names=["ort"], providers=["cpu"])
    assert [cell.verdict for cell in result.cells] == [FAIL]
    assert "can't load" in result.cells[0].why
    with pytest.raises(ParityError, match="can't load"):
        release.export(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_target_that_is_none_is_refused_by_its_name() -> None:
    with pytest.raises(UnsupportedError, match="tpu"):
        kinds(["tpu"])


def test_a_checkpoint_that_a_target_refuses_is_not_available_there(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "odd", tiny_model(tiny_config(d_model=12, heads=2, feed_forward=16)))
    keep = tmp_path / "keep"
    result = release.matrix(tmp_path / "odd", targets=["cpu"], precisions=["int8"], providers=["cpu"], keep=keep)
    assert {(cell.runtime, cell.verdict) for cell in result.cells} == {
        (name, NOT_AVAILABLE) for name, entry in runtimes.RUNTIMES.items() if entry.targets and not entry.computes
    }
    for cell in result.cells:
        assert "multiple of 8" in cell.why
        assert (cell.bytes, cell.parity_seconds) == (None, None)
    assert list(keep.iterdir()) == []
    with pytest.raises(UnavailableError, match=r"precision int8 ran nowhere: .*multiple of 8"):
        require_run(result, {"precision": ["int8"]})


def test_a_runtime_that_breaks_down_fails(bundle: Bundle, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from txport.runtimes.reference import ReferenceEngine

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    blank = replace(CELL, runtime="reference")
    monkeypatch.setattr(ReferenceEngine, "run", broken)
    cell = compare(blank, bundle, release.load_checkpoint(checkpoint))
    assert cell.verdict == FAIL
    assert cell.why.startswith("reference, case one row, step 0: the encoder graph does not run")
    monkeypatch.setattr(ReferenceEngine, "__init__", broken)
    assert compare(blank, bundle, release.load_checkpoint(checkpoint)).why == "ZeroDivisionError"


def test_names_narrow_it() -> None:
    assert kinds() == BUNDLES
    assert kinds(["cpu"], ["int8", "int4"]) == [("cpu", "int8"), ("cpu", "int4")]
    with pytest.raises(UnsupportedError, match="target portable does not support precision 'bf16'"):
        kinds(["portable", "cpu"], ["bf16"])
    with pytest.raises(UnsupportedError, match="target cpu does not support precision 'fp16'"):
        kinds(["cpu"], ["fp16", "fp32"])
    assert engines(["ort"], ["cpu"]) == [("ort", "cpu")]
    assert engines([], ["cuda", "CUDAExecutionProvider"]) == [("ort", "cpu"), ("ort", "cuda")]
    assert engines(["reference"], ["cuda"]) == [("ort", "cpu"), ("reference", "cuda")]
    assert {("ort", "cuda"), ("reference", "cpu")} <= set(engines())
    with pytest.raises(UnsupportedError, match="unknown provider 'npu'"):
        engines([], ["npu"])


ABOUT = {"checkpoint": {"name": "<b>x|y</b>", "sha256": "0" * 64}, "versions": {"txport": "1"}, "machine": "x86_64"}
CELL = Cell("portable", "fp32", "ort", "cpu", PASS, "", 22_500_000, 2e-5, 0, 66, 5.0, 6.0)
CELLS = [
    CELL,
    replace(CELL, provider="cuda", verdict=NOT_AVAILABLE, why="no <GPU> | here\n& now", parity_seconds=None),
    replace(CELL, runtime="reference", verdict=FAIL, worst_logit_difference=float("nan"), why="logits[0]"),
    replace(CELL, precision="fp16", verdict=NEAR_TIE, near_ties=2),
]


def test_what_ran_nowhere_is_told_by_its_own_field() -> None:
    matrix = Matrix(ABOUT, [CELL, replace(CELL, target="cpu", verdict=NOT_AVAILABLE, why="too odd")])
    require_run(matrix, {"target": ["portable"], "provider": ["cpu"]})
    with pytest.raises(UnavailableError, match="target cpu ran nowhere: too odd"):
        require_run(matrix, {"target": ["portable", "cpu"]})
    with pytest.raises(UnavailableError, match="runtime tract ran nowhere: no bundle of these targets is compared "):
        require_run(matrix, {"runtime": ["tract"]})


@pytest.mark.parametrize("provider", ["cuda", "CUDAExecutionProvider"])
def test_the_command_exits_3_if_what_was_named_ran_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], provider: str
) -> None:
    monkeypatch.setattr(release, "matrix", lambda *arguments, **options: Matrix(ABOUT, CELLS[:2]))
    with pytest.raises(SystemExit) as end:
        cli.main(["matrix", "toy", "--provider", provider])
    out, err = capsys.readouterr()
    assert end.value.code == 3
    assert "2 cells: 1 pass, 0 near-tie, 0 fail, 1 not available" in out
    assert "\nnot available: ort cuda, 1 cell: no <GPU> | here & now\n" in out
    assert err == f"txport: provider {provider} ran nowhere: no <GPU> | here & now\n"
    cli.main(["matrix", "toy"])  # what was not asked for by name may be missing


def test_json_has_no_nan() -> None:
    values = json.loads(json.dumps(Matrix(ABOUT, CELLS).to_dict(), allow_nan=False))
    assert values["cells"][2]["worst_logit_difference"] == "nan"
    assert values["counts"] == {"pass": 1, "near-tie": 1, "fail": 1, "not available": 1}


def test_markdown_is_one_table_whatever_the_words() -> None:
    text = markdown(Matrix(ABOUT, CELLS))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(CELLS)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(COLUMNS) + 1}
    assert "no &lt;GPU&gt; \\| here &amp; now" in text


class Page(HTMLParser):
    """The text of each cell, and every tag."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = [""]
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onclick", "onload", "style"}
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.tags[-1] == "td":
            self.cells[-1] += data


def test_html_is_small_whole_and_escaped() -> None:
    matrix = Matrix(ABOUT, CELLS)
    text = page(matrix)
    parsed = Page()
    parsed.feed(text)
    assert not {"script", "link", "img", "b", "iframe"} & set(parsed.tags)
    assert [cell.strip() for cell in parsed.cells] == [text for row in rows(matrix) for text in row]
    assert "color-scheme: light dark" in text
    assert "http" not in text
    assert len(text) < 10_000
    assert "&lt;b&gt;x|y" in text
