"""The command line as users meet it: what it prints where, how it ends, and what every mistake costs: one line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import txport
from tests.called import Cli, Ended
from tests.cli.processes import ENVIRONMENT, SCRIPT, start
from tests.tiny import SAMPLES, VOCABULARY, edit_graph
from txport import cli, runtimes
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint
from txport.cli.commands import generation
from txport.errors import UnavailableError
from txport.exporters import export as exporter
from txport.models import architecture
from txport.models.names import MANIFEST

ID = {token: number for number, token in enumerate(VOCABULARY)}
WORDS = ["bad", "chief", "a", "di'ed", "badge", "cabbage", "hi"]


def ended(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=300)
    return Ended(process.returncode, out or "", err or "")


def tree(folder: Path) -> dict[str, bytes | None]:
    """All that lies below a folder, hidden or not."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.fixture
def model(bundle: Bundle) -> txport.Model:
    return txport.load(bundle.path)


# ------------------------------------------------------------------------------------------------ good paths


def test_run_prints_one_line_a_text(call: Cli, bundle: Bundle, model: txport.Model) -> None:
    expected = "".join(f"{each.output}\n" for each in model.generate(WORDS))
    assert call("run", bundle.path, *WORDS) == Ended(0, expected, "")
    assert call("run", bundle.path, stdin="\r\n".join(WORDS).encode()) == Ended(0, expected, "")


def test_the_script_does_the_same(call: Cli, bundle: Bundle) -> None:
    assert ended(start("run", bundle.path, *WORDS)) == call("run", bundle.path, *WORDS)


def test_json_lines_have_a_contract(call: Cli, bundle: Bundle, model: txport.Model) -> None:
    options = ("--beams", 3, "--nbest", 2, "--unknown", "skip")
    done = call("run", bundle.path, "bad", "É a", "--json", *options, "--max-new-tokens", 5)
    assert (done.code, done.err) == (0, "")
    assert '"É a"' in done.out, "people read these lines too"
    lines = [json.loads(line) for line in done.out.splitlines()]
    for line, text in zip(lines, ["bad", "É a"], strict=True):
        assert list(line) == ["input", "output", "score", "hypotheses"]
        assert line["input"] == text
        assert len(line["hypotheses"]) == 2
        for each in line["hypotheses"]:
            assert list(each) == ["output", "score", "tokens", "token_scores", "finish"]
            assert all(isinstance(token, int) for token in each["tokens"])
        assert (line["output"], line["score"]) == (line["hypotheses"][0]["output"], line["hypotheses"][0]["score"])
    expected = model.generate(["bad", "É a"], beams=3, nbest=2, max_new_tokens=5, unknown="skip")
    assert lines == [json.loads(json.dumps(each.to_dict())) for each in expected]


def test_each_text_has_its_lines_whatever_an_output_holds(
    call: Cli, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = "a\n-0.1\tforged\r\x1b[2J\u2028\\n"
    monkeypatch.setattr(txport.Model, "_text", lambda *_: output)
    shown = "a\\n-0.1{tab}forged\\r\x1b[2J\\u2028\\n"
    assert call("run", bundle.path, "bad", "hi").out.splitlines() == [shown.format(tab="\t")] * 2
    rows = call("run", bundle.path, "bad", "hi", "--beams", 2, "--nbest", 2).out.splitlines()
    assert [row.split("\t")[1:] for row in rows] == [[shown.format(tab=r"\t")]] * 4
    assert call("run", bundle.path, "bad", "hi", "--raw").out == f"{output}\n" * 2
    lines = call("run", bundle.path, "bad", "hi", "--json").out.splitlines()
    assert [json.loads(line)["output"] for line in lines] == [output] * 2
    assert "--raw writes text and --json writes JSON" in call("run", bundle.path, "bad", "--raw", "--json").err


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--do-sample", "--seed", 3], {}),
        (["--do-sample", "--seed", 3, "--nbest", 2], {"nbest": 2}),
        (["--alignment", "soft"], {"alignment": "soft"}),
        (["--alignment", "hard"], {"alignment": "hard"}),
        (["--do-sample", "--seed", 3, "--temperature", 3], {"temperature": 3.0}),
        (["--do-sample", "--seed", 3, "--top-k", 2], {"top_k": 2}),
        (["--do-sample", "--seed", 3, "--top-p", 0.2], {"top_p": 0.2}),
        (["--do-sample", "--seed", 3, "--min-p", 0.9], {"min_p": 0.9}),
        (["--min-new-tokens", 8], {"min_new_tokens": 8}),
        (["--no-repeat-ngram-size", 1], {"no_repeat_ngram_size": 1}),
        (["--repetition-penalty", 1.5], {"repetition_penalty": 1.5}),
        (["--prefixes", "AA B"], {"prefixes": "AA B"}),
        (["--forced-bos-token", "CH"], {"forced_bos_token_id": ID["CH"]}),
        (["--forced-eos-token", "CH", "--max-new-tokens", "2"], {"forced_eos_token_id": ID["CH"], "max_new_tokens": 2}),
        (["--suppress-tokens", "AA B CH"], {"suppress_tokens": (ID["AA"], ID["B"], ID["CH"])}),
        (["--bad-words", "CH CH", "--bad-words", "F"], {"bad_words_ids": ((ID["CH"], ID["CH"]), (ID["F"],))}),
        (["--eos-token", "</s>", "--eos-token", "HH"], {"eos_token_id": (ID["</s>"], ID["HH"])}),
    ],
)
def test_every_search_option_reaches_the_search(
    call: Cli, bundle: Bundle, model: txport.Model, options: list[object], wanted: dict[str, Any]
) -> None:
    sampling = {"do_sample": True, "seed": 3} if "--do-sample" in options else {}
    expected = model.generate(WORDS, **sampling, **wanted)
    done = call("run", bundle.path, *WORDS, "--json", *options)
    assert (done.code, done.err) == (0, "")
    assert [json.loads(line) for line in done.out.splitlines()] == [
        json.loads(json.dumps(each.to_dict())) for each in expected
    ]
    assert expected != model.generate(WORDS)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--patience", 2], {"patience": 2.0}),
        (["--coverage-penalty", 3], {"coverage_penalty": 3.0}),
        (["--beam-groups", 2, "--diversity-penalty", 3], {"beam_groups": 2, "diversity_penalty": 3.0}),
    ],
)
def test_every_option_of_beams_reaches_the_search(
    call: Cli, bundle: Bundle, model: txport.Model, options: list[object], wanted: dict[str, Any]
) -> None:
    beams = {"beams": 4, "nbest": 4}
    expected = model.generate(WORDS, **beams, **wanted)
    done = call("run", bundle.path, *WORDS, "--json", "--beams", 4, "--nbest", 4, *options)
    assert [json.loads(line) for line in done.out.splitlines()] == [
        json.loads(json.dumps(each.to_dict())) for each in expected
    ]
    assert expected != model.generate(WORDS, **beams)


@pytest.mark.parametrize("options", [[], ["--beams", 3], ["--prefixes", "AA"]])
def test_a_stream_ends_as_what_run_prints(call: Cli, bundle: Bundle, options: list[object]) -> None:
    assert call("run", bundle.path, *WORDS, "--stream", *options) == call("run", bundle.path, *WORDS, *options)


def test_score_tells_how_likely_a_target_is(call: Cli, bundle: Bundle, model: txport.Model, tmp_path: Path) -> None:
    (best,) = model.generate("bad", beams=3)[0].hypotheses
    target = " ".join(
        model.tokenizer.tokens(best.tokens[:-1] if best.tokens[-1] == model.facts.writes.end else best.tokens)
    )
    done = call("score", bundle.path, "bad", target, "--json")
    assert (done.code, done.err) == (0, "")
    line = json.loads(done.out)
    assert list(line) == ["input", "target", "score", "tokens", "token_scores"]
    known = len(best.tokens) - 1
    assert line["token_scores"][:known] == pytest.approx(best.token_scores[:known], abs=1e-5)
    pairs = tmp_path / "pairs"
    pairs.write_text(f"bad\t{target}\nchief\tAA B\n", encoding="utf-8")
    from_file = call("score", bundle.path, "--input", pairs)
    assert from_file == call("score", bundle.path, stdin=pairs.read_bytes())
    assert from_file.out.splitlines()[0] == f"{line['score']:.4f}\tbad\t{target}"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("bad", "give TEXT and TARGET, or --input, or lines on standard input"),
        ("bad AA --input {tmp}/x", "give TEXT and TARGET, or --input"),
        ("bad 'AA QQ'", "'QQ' is not a token of the vocabulary"),
        ("bad AA --length-penalty nan", "txport: --length-penalty must lie in -20 to 20, got nan"),
        ("--input {bundle}/config.json", "line 1: expected two texts with a tab between them, got '{{'"),
    ],
)
def test_score_refuses(call: Cli, place: Place, command: str, message: str) -> None:
    refuse(call, place, f"score {{bundle}} {command}", message)


def test_files_in_and_out_keep_the_order(call: Cli, bundle: Bundle, model: txport.Model, tmp_path: Path) -> None:
    """Batches are made of texts of similar length, from both files; nobody sees it."""
    one = tmp_path / "one"
    two = tmp_path / "two"
    out = tmp_path / "out"
    one.write_text("\n".join(WORDS))
    two.write_bytes("".join(f"{word}\r\n" for word in reversed(WORDS)).encode())
    options = ("--batch-size", 2, "--json", "--max-new-tokens", 6)
    assert call("run", bundle.path, "--input", one, "--input", two, "--output", out, *options) == Ended(0, "", "")
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["input"] for line in lines] == [*WORDS, *reversed(WORDS)]
    for line in lines:
        (alone,) = model.generate(line["input"], max_new_tokens=6)
        assert (line["output"], line["score"]) == (alone.output, pytest.approx(alone.score, abs=1e-5))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "out", "two"]


@dataclass(frozen=True)
class Proved:
    """How a proof of the bundle ended, and the files that it wrote, which later proofs may be held to."""

    arguments: tuple[object, ...]
    out: str
    err: str
    report: Path
    junit: Path
    markdown: Path


@pytest.fixture(scope="module")
def proved(bundle: Bundle, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Proved:
    """One proof for all tests of what it prints and writes: it takes longer than they do together."""
    folder = tmp_path_factory.mktemp("proved")
    files = {name: folder / f"{name}.out" for name in ("report", "junit", "markdown")}
    written = [each for name, file in files.items() for each in (f"--{name}", file)]
    runtime = ("--runtime", "ort")
    tolerance = ("--atol", 5e-5)
    arguments = ("parity", bundle.path, "--checkpoint", checkpoint, *runtime, *tolerance, "--cases", 1, "--seed", 3)
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        cli.main([str(each) for each in (*arguments, *written)])
    return Proved(arguments, out.getvalue(), err.getvalue(), **files)


def test_parity_holds_and_reports(bundle: Bundle, proved: Proved) -> None:
    assert proved.err == ""
    assert re.search(r"^verdict: pass; worst: ", proved.out, flags=re.MULTILINE)
    values = json.loads(proved.report.read_text(encoding="utf-8"))
    assert (values["verdict"], values["seed"], values["providers"]) == ("pass", 3, {"ort": "cpu"})
    assert values["checkpoint"] == bundle.manifest.checkpoint
    assert values["files"] == bundle.manifest.files
    assert {case["verdict"] for case in values["cases"]} == {"pass"}


def alter_weight(value: float) -> Callable[[onnx.ModelProto], None]:
    def edit(model: onnx.ModelProto) -> None:
        weight = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("output.weight"))
        array = onnx.numpy_helper.to_array(weight).copy()
        array[0, 0] = value
        weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))

    return edit


@pytest.mark.parametrize("value", [3.0, np.nan])
def test_parity_finds_a_weight_that_was_altered_under_a_mended_hash(
    call: Cli, copied: Path, checkpoint: Path, tmp_path: Path, value: float
) -> None:
    edit_graph(copied, "encoder", alter_weight(value))
    assert call("inspect", copied, "--json").code == 0, "the hashes must not be what finds it"
    report = tmp_path / "report.json"
    done = call("parity", copied, "--checkpoint", checkpoint, "--runtime", "ort", "--report", report)
    assert (done.code, done.err) == (1, "")
    assert "verdict: FAIL; worst: encoder, case weights, step 0: " in done.out
    assert "output.weight[0, 0] is" in done.out
    values = json.loads(report.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert values["verdict"] == "fail"
    assert values["worst"]["tensor"].endswith("output.weight")


def test_parity_writes_what_ci_reads(call: Cli, proved: Proved) -> None:
    assert "<failure" not in proved.junit.read_text(encoding="utf-8")
    assert "| random 1 | ort |" in proved.markdown.read_text(encoding="utf-8")
    values = json.loads(proved.report.read_text(encoding="utf-8"))
    assert (values["tolerances"]["ort"]["atol"], values["random_cases"]) == (5e-5, 1)
    assert values["machine"]["cores"] >= 1
    again = call(*proved.arguments, "--baseline", proved.report)
    assert (again.code, again.err) == (0, "")


def test_parity_writes_what_ci_reads_also_where_a_graph_does_not_run(
    call: Cli, copied: Path, checkpoint: Path, tmp_path: Path
) -> None:
    def edit(model: onnx.ModelProto) -> None:
        table = next(each for each in model.graph.initializer if each.name == "target_embedding.positions")
        table.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(table)[:-1], table.name))

    edit_graph(copied, "decoder", edit)
    files = [tmp_path / name for name in ("out.xml", "out.md", "out.json")]
    written = ["--junit", files[0], "--markdown", files[1], "--report", files[2]]
    done = call("parity", copied, "--checkpoint", checkpoint, "--runtime", "ort", *written)
    assert (done.code, done.out) == (1, "")
    assert json.loads(files[2].read_text(encoding="utf-8"))["verdict"] == "fail"
    assert "the decoder graph does not run" in done.err
    assert all("the decoder graph does not run" in file.read_text(encoding="utf-8") for file in files)


def test_parity_fails_on_drift_within_tolerance(call: Cli, proved: Proved, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    junit = tmp_path / "out.xml"
    values = json.loads(proved.report.read_text(encoding="utf-8"))
    values["cases"].append({**values["cases"][-1], "case": "one that is gone"})
    old.write_text(json.dumps(values), encoding="utf-8")
    done = call(*proved.arguments, "--baseline", old, "--junit", junit)
    assert done.code == 1
    assert re.search("^verdict: FAIL; worst: ort, case one that is gone: .* is no longer$", done.out, re.MULTILINE)
    assert 'classname="baseline.drift"' in junit.read_text(encoding="utf-8")


def test_parity_measures_quality_where_there_are_targets(call: Cli, proved: Proved, tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("bad\tB AA\nbad\tB AA D\nchief\tCH\na\tAA\n", encoding="utf-8")
    done = call(*proved.arguments, "--quality", file, "--quality-texts", 2, "--metric", "f1")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^quality: ort: f1 [\d.]+ on 2 texts, PyTorch [\d.]+ ", done.out, re.MULTILINE)
    assert "quality: not measured" in proved.out


def test_inspect(call: Cli, bundle: Bundle) -> None:
    done = call("inspect", bundle.path)
    assert (done.code, done.err) == (0, "")
    for expected in [*bundle.manifest.files, "past_key_values.1.encoder.value", "MatMul", "opset: 18", "parity with"]:
        assert expected in done.out
    brief = call("inspect", bundle.path, "--brief")
    assert (brief.code, brief.err) == (0, "")
    assert "MatMul" not in brief.out
    assert done.out.endswith(brief.out)


def test_inspect_json_is_the_manifest_and_where_it_lies(call: Cli, bundle: Bundle) -> None:
    done = call("inspect", bundle.path, "--json")
    assert (done.code, done.err) == (0, "")
    manifest = json.loads((bundle.path / MANIFEST).read_text(encoding="utf-8"))
    assert json.loads(done.out) == {"path": str(bundle.path.resolve()), **manifest}


def test_doctor(call: Cli) -> None:
    done = call("doctor")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"CPUExecutionProvider +starts", done.out)
    assert "no problems found" in done.out
    assert done.out.endswith("fastest here: txport export CHECKPOINT OUT --target cpu --precision int8\n")
    values = json.loads(call("doctor", "--json").out)
    assert list(values) == ["versions", "runtimes", "providers", "gpu", "problems", "tuned"]
    assert values["versions"]["txport"] == txport.__version__
    assert values["providers"]["CPUExecutionProvider"] is None
    assert values["problems"] == []


def test_presets_are_listed_with_their_sizes(call: Cli) -> None:
    done = call("presets")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"preset:base +transformer +60\.5 M +512", done.out)
    found = json.loads(call("presets", "--json").out)
    assert found["whisper-tiny"] == {"architecture": "whisper", "weights": 37_765_248, "positions": 1500}
    assert list(found) == list(architecture.presets())


def test_help_of_run_lists_options_in_sections_and_ends_with_examples(call: Cli) -> None:
    lines = call("run", "--help").out.splitlines()
    titles = [line for line in lines if re.fullmatch(r"[A-Z][\w -]+:", line)]
    assert titles[0] == "Input and output:"
    assert titles[-1] == "Options:"
    assert sum(line.startswith("  --beams") for line in lines[lines.index("Search:") : lines.index("Texts:")]) == 1
    assert [line.split()[0] for line in lines[-3:]] == ["txport", "txport", "echo"]


def test_each_step_is_explained(call: Cli, bundle: Bundle) -> None:
    first, *lines = (shown := call("run", bundle.path, SAMPLES[0], "--explain").out).splitlines()
    with tempfile.TemporaryDirectory() as folder:
        assert call("run", bundle.path, SAMPLES[0], "--explain", "--output", Path(folder, "out")).code == 0
        assert Path(folder, "out").read_text(encoding="utf-8") == shown
    model = txport.load(bundle.path)
    found = model.generate(SAMPLES[0])[0]
    assert first == found.output
    tokens = found.hypotheses[0].tokens
    assert len(lines) == len(tokens)
    steps = model.explain(SAMPLES[0], tokens, top=model.facts.writes.size)
    for token, log_prob, line, step in zip(tokens, found.hypotheses[0].token_scores, lines, steps, strict=True):
        (name,) = model.tokenizer.tokens([token])
        assert step[0][0] == name, "greedy search takes the most probable token"
        assert line.split()[1:3] == [json.dumps(name, ensure_ascii=False), f"{step[0][1]:.2f}"]
        assert step[0][1] == pytest.approx(log_prob, abs=1e-5)
        assert np.exp([value for _, value in step]).sum() == pytest.approx(1, abs=1e-5)
    for option in ("--json", "--ids", "--stream", ("--nbest", 2, "--beams", 2)):
        given = option if isinstance(option, tuple) else (option,)
        done = call("run", bundle.path, SAMPLES[0], "--explain", *given)
        assert (done.code, done.out) == (2, "")
        assert f"--explain writes lines for people; it can't be combined with {given[0]}" in done.err


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_doctor_fails_where_wheels_overwrite_each_other(
    call: Cli, monkeypatch: pytest.MonkeyPatch, option: tuple[str]
) -> None:
    monkeypatch.setattr(runtimes, "versions", lambda: {"onnxruntime": "1", "onnxruntime-gpu": "2"})
    done = call("doctor", *option)
    assert (done.code, done.err) == (1, "")
    assert "2 ONNX Runtime wheels are installed (onnxruntime, onnxruntime-gpu), which replace each other's" in done.out


@pytest.mark.parametrize("name", [None, *cli.cli.commands])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help(call: Cli, name: str | None, option: str) -> None:
    done = call(*([name] if name else []), option)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: txport {name or ''}".rstrip())


def test_the_package_runs_as_the_script_does() -> None:
    """Also its mistakes, which speak of `txport`."""
    command = [sys.executable, "-m", "txport", "run"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: txport run [OPTIONS]")


def test_version(call: Cli) -> None:
    assert call("--version") == Ended(0, f"txport, version {txport.__version__}\n", "")


def test_export_prints_the_manifest_and_replaces_by_force(call: Cli, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").touch()
    done = call("export", checkpoint, out, "--force")
    assert (done.code, done.out) == (2, "")
    assert "out has no txport.json, so --force does not replace it; choose another place" in done.err
    assert tree(out) == {"old": b""}, "a folder that is no bundle may be anything"
    (out / MANIFEST).touch()
    done = call("export", checkpoint, out, "--force", "--json", "--opset", 20, "--precision", "fp16")
    assert (done.code, done.err) == (0, "")
    manifest = json.loads(done.out)
    assert manifest == load_bundle(out).manifest.to_dict()
    assert (manifest["opset"], manifest["precision"], manifest["parity"]["verdict"]) == (20, "fp16", "pass")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert (out / "old").exists(), "it is no file of the bundle"


def a_wrong_export(bundle: Bundle) -> Callable[..., Manifest]:
    """An exporter that gets one weight wrong."""

    def export_graphs(checkpoint: Checkpoint, folder: Path, **options: Any) -> Manifest:
        shutil.copytree(bundle.path, folder, dirs_exist_ok=True)
        return edit_graph(folder, "encoder", alter_weight(3.0)).manifest

    return export_graphs


def test_an_export_that_differs_from_pytorch_does_not_appear(
    call: Cli, bundle: Bundle, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "export_graphs", a_wrong_export(bundle))
    done = call("export", checkpoint, tmp_path / "out")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("txport: the export of toy differs from PyTorch: encoder, case weights, step 0: ")
    assert done.err.count("\n") == 1
    assert tree(tmp_path) == {}


# ------------------------------------------------------------------------------------------------ bad input


@dataclass(frozen=True)
class Place:
    """What a test may ruin: copies of a bundle and its checkpoint, beside a folder for files."""

    tmp: Path
    bundle: Path
    checkpoint: Path


@pytest.fixture
def place(copied: Path, checkpoint: Path, tmp_path: Path) -> Place:
    return Place(tmp_path, copied, Path(shutil.copytree(checkpoint, tmp_path / "checkpoint")))


def assert_refused(done: Ended, message: str, code: int = 2) -> None:
    """One line that says what was given and what to do; no traceback, no data."""
    assert done.out == ""
    assert done.err.startswith("txport: ")
    assert done.err.count("\n") == 1
    assert done.err.endswith("\n")
    assert message in done.err
    assert done.code == code


def refuse(call: Cli, place: Place, command: str, message: str, *, code: int = 2, stdin: bytes = b"") -> None:
    """Run a command with its places filled in: it is refused, and every file stays as it was."""
    before = tree(place.tmp)
    filled = [argument.format(**vars(place)) for argument in shlex.split(command)]
    assert_refused(call(*filled, stdin=stdin), message.format(**vars(place)), code)
    assert tree(place.tmp) == before


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("''", "the text is empty"),
        ("b@d", "'b@d' has characters outside the vocabulary: '@'; --unknown skip"),
        ("'x€d y' bad", "'x€d y' has characters outside the vocabulary: 'x', '€', ' ', 'y'"),
        ("'a\nz'", r"'a\nz' has characters outside the vocabulary: '\n', 'z'"),
        ("a\udcff", r"'a\udcff' is not UTF-8 text"),
        ("abcdefghiabcdefghiabcdef", "'abcdefghiabcdefghiabcdef' has 25 tokens, the model takes at most 24; split"),
        ("bad --max-new-tokens 25", "--max-new-tokens must not exceed the model's longest sequence, 24; got 25"),
        ("bad --beams 2 --nbest 3", "--nbest can't exceed --beams, got 3 of 2"),
        ("bad --length-penalty 3", "--length-penalty only changes scores here, which are shown with --json"),
        ("bad --temperature 2", "--temperature is for sampling; give --do-sample too"),
        ("bad --do-sample --beams 2", "--do-sample and --beams exclude each other; give one of them"),
        ("bad --patience 2", "--patience is for beam search; give --beams too"),
        ("bad --suppress-tokens 'AA QQ'", "'QQ' is not a token of the vocabulary"),
        ("bad --forced-bos-token 'AA B'", "--forced-bos-token must be one token, got 'AA B'"),
        ("bad --prefixes '</s>'", "a prefix must not hold an end token; got 2"),
        ("bad --stream --json", "--stream prints text by text; it can't be combined with --json"),
        ("bad --stream --continuous", "it can't be combined with --continuous"),
        ("bad --continuous", "continuous batching needs a cpu or cuda bundle; use `txport export --target cpu`"),
        ("bad --alignment hard", "--alignment needs --json"),
        ("bad --stream --batch-size 4 --batch-tokens 5", "it can't be combined with --batch-size, --batch-tokens"),
        ("bad --stream --beams 2 --nbest 2", "only one hypothesis can be streamed, got --nbest 2"),
        ("bad --forced-bos-token CH --bad-words CH", "--bad-words must not forbid what --forced-bos-token says"),
        ("bad --input {bundle}/config.json", "give TEXT or --input, not both"),
        ("--input {tmp}/missing", "{tmp}/missing can't be read: No such file or directory"),
        ("--input {tmp}", "{tmp} can't be read: Is a directory"),
        ("--input /dev/null", "/dev/null is empty; give at least one line of text"),
        ("--input {bundle}/onnx/encoder_model.onnx", "encoder_model.onnx, line "),
        ("bad --output {tmp}", "{tmp} is a folder, expected a file to write"),
        ("bad --output {tmp}/missing/out", "{tmp}/missing/out can't be written: No such file or directory"),
        ("bad --output {bundle}/txport.json/out", "out can't be written: Not a directory"),
        ("bad b@d --output {tmp}/out", "outside the vocabulary"),
        (
            "bad --checkpoint {checkpoint}",
            "checkpoint needs the torch runtime; ort runs the bundle without a checkpoint",
        ),
        ("bad --runtime torch --checkpoint {tmp}/missing", "there is no checkpoint {tmp}/missing"),
        ("bad --runtime torch --checkpoint preset:tiny", "was not made from this preset:tiny: their hashes differ"),
        ("bad --runtime reference --threads 2", "the reference runtime has one thread, got 2"),
        ("bad --runtime reference --provider cuda", "the reference runtime runs on the cpu only"),
        ("bad --provider npu", "unknown provider 'npu'; give one of cpu, cuda, "),
    ],
)
def test_run_refuses(call: Cli, place: Place, command: str, message: str) -> None:
    refuse(call, place, f"run {{bundle}} {command}", message)


def test_refusals_name_flags_that_there_are() -> None:
    flags = {flag for option in generation.run.params for flag in option.opts}
    assert set(generation.FLAGS.values()) <= flags
    assert set(generation.NOT_STREAMED.values()) <= flags


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        (b"", "standard input is empty; give at least one line of text"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "standard input, line 1: not UTF-8 text"),
        (b"bad\0", "standard input, line 1: binary data, expected UTF-8 text"),
        ("bäd\nbad\n".encode(), "'bäd' has characters outside the vocabulary: 'ä'"),
    ],
)
def test_run_refuses_standard_input(call: Cli, place: Place, stdin: bytes, message: str) -> None:
    refuse(call, place, "run {bundle}", message, stdin=stdin)


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        (b"bad\n\n", "standard input, line 2: the text is empty"),
        (b"bad\nb\xe4d\n", "standard input, line 2: not UTF-8 text"),
        ("bad\nbäd\n".encode(), "'bäd' has characters outside the vocabulary: 'ä'"),
    ],
)
def test_lines_before_a_bad_one_are_answered(
    call: Cli, bundle: Bundle, tmp_path: Path, stdin: bytes, message: str
) -> None:
    expected = call("run", bundle.path, "bad").out
    done = call("run", bundle.path, stdin=stdin)
    assert (done.code, done.out) == (2, expected)
    assert message in done.err
    assert call("run", bundle.path, "--output", tmp_path / "out", stdin=stdin).code == 2
    assert not (tmp_path / "out").exists(), "a file is whole or not there"


def numbers(call: Cli, bundle: Path, text: str, *options: str) -> Ended:
    """Run a bundle that has no tokenizer."""
    (bundle / "tokenizer.json").unlink()
    values = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
    del values["files"]["tokenizer.json"]
    (bundle / MANIFEST).write_text(json.dumps(values), encoding="utf-8")
    return call("run", bundle, text, *options)


@pytest.mark.parametrize("text", ["bad", "5 -1", "5 22", "5 1.5", "5 ٣", "9" * 5000])
def test_run_refuses_words_where_token_ids_stand_for_text(call: Cli, copied: Path, text: str) -> None:
    done = numbers(call, copied, text)
    assert_refused(done, "this model has no tokenizer, so text is token ids, numbers from 0 to 21; got")
    assert len(done.err) < 200


def test_run_takes_token_ids_where_there_is_no_tokenizer(call: Cli, copied: Path, model: txport.Model) -> None:
    (expected,) = model.generate("bad")
    ids = " ".join(str(VOCABULARY.index(letter)) for letter in "bad")
    done = numbers(call, copied, ids, "--json")
    assert json.loads(done.out)["hypotheses"][0]["tokens"] == expected.hypotheses[0].tokens


@pytest.mark.parametrize("command", ["run", "inspect", "parity"])
def test_a_checkpoint_is_no_bundle(call: Cli, place: Place, command: str) -> None:
    fix = "{checkpoint} is a checkpoint, not a bundle; `txport export {checkpoint} OUT` makes one"
    refuse(call, place, f"{command} {{checkpoint}}", fix)


@pytest.mark.parametrize("command", ["run", "inspect", "parity"])
def test_a_bundle_that_is_not_there(call: Cli, place: Place, command: str) -> None:
    refuse(call, place, f"{command} {{tmp}}/missing", "there is no bundle {tmp}/missing; give the folder")
    refuse(call, place, f"{command} '{{tmp}}/two\nlines'", "there is no bundle {tmp}/two lines; give the folder")
    refuse(call, place, f"{command} {{bundle}}/txport.json", "there is no bundle {bundle}/txport.json")
    refuse(call, place, f"{command} preset:huge", "unknown preset 'huge'; there are ")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("{bundle} --checkpoint preset:tiny", "was not made from this preset:tiny: their hashes differ"),
        ("{bundle} --checkpoint {tmp}/missing", "there is no checkpoint {tmp}/missing"),
        ("{bundle} --checkpoint {checkpoint} --precision fp16", "was exported in fp32; export it again for fp16"),
        ("{bundle} --checkpoint {checkpoint} --runtime ort --report {tmp}", "{tmp} is a folder, expected a file"),
        ("{bundle} --quality-texts 5", "--quality-texts needs --quality"),
        ("{bundle} --metric accuracy", "--metric needs --quality"),
        ("{bundle} --checkpoint {checkpoint} --rtol 1e-3", "--rtol 0.001 allows more than 0.0001, the most for fp32"),
        ("{bundle} --checkpoint {checkpoint} --baseline {checkpoint}/config.json", "is not a baseline of"),
        ("{bundle} --checkpoint {checkpoint} --quality {tmp}/missing", "{tmp}/missing can't be read"),
        (
            "{bundle} --checkpoint {checkpoint} --quality {checkpoint}/samples.txt",
            "expected two texts with a tab between them",
        ),
    ],
)
def test_parity_refuses(call: Cli, place: Place, command: str, message: str) -> None:
    refuse(call, place, f"parity {command}", message)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.safetensors"])
def test_a_pickle_runs_no_code(call: Cli, place: Place, name: str) -> None:
    marker = place.tmp / "marker"
    file = place.checkpoint / name
    (place.checkpoint / "model.safetensors").unlink()
    file.write_bytes(f"cos\nmkdir\n(V{marker}\ntR.".encode())
    subprocess.run([sys.executable, "-m", "pickle", file], check=True, capture_output=True)
    marker.rmdir()  # so it is armed
    hint = "is refused: it holds os.mkdir, which may run code"
    hint = "is not a whole safetensors file" if name == "model.safetensors" else f"{name} {hint}"
    refuse(call, place, "export {checkpoint} {tmp}/out", hint)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("export {checkpoint} {bundle}", "{bundle} exists; --force replaces it"),
        (
            "export {checkpoint} {bundle}/txport.json",
            "txport.json is a file, expected a folder to make; choose another",
        ),
        ("export {checkpoint} {bundle}/txport.json --force", "txport.json is a file, expected a folder to make"),
        ("export {checkpoint} {bundle}/txport.json/out", "txport.json/out can't be written: "),
        ("export {checkpoint} {tmp}/" + "x" * 300, "can't be written: File name too long; choose another place"),
        ("export {checkpoint} {checkpoint} --force", "{checkpoint} holds the checkpoint itself; choose another place"),
        ("export {checkpoint} {tmp} --force", "{tmp} holds the checkpoint itself; choose another place"),
        (
            "export {bundle} {tmp}/out",
            "{bundle} is a bundle, not a checkpoint; name the checkpoint that it was made from",
        ),
        ("export {tmp}/missing {tmp}/out", "there is no checkpoint {tmp}/missing; give a folder with config.json, or"),
        ("export preset:huge {tmp}/out", "unknown preset 'huge'; there are "),
        ("export {checkpoint} {tmp}/out --auto-limit 0.5", "--auto-limit needs --auto"),
        ("bench {bundle} --max-regression 5", "--max-regression needs --compare with an older report"),
    ],
)
def test_export_refuses(call: Cli, place: Place, command: str, message: str) -> None:
    refuse(call, place, command, message)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "frobnicate",
        "run",
        "export {checkpoint}",
        "run {bundle} bad --beams 0",
        "run {bundle} bad --runtime tvm",
        "run {bundle} bad --early-stopping sometimes",
        "run {bundle} bad --beam 2",
        "export {checkpoint} {tmp}/out --opset 17",
        "export {checkpoint} {tmp}/out --auto --auto-limit 1.5",
        "parity {bundle} --runtime torch",
        "inspect {bundle} extra",
    ],
)
def test_wrong_usage_is_click_s_to_explain(call: Cli, place: Place, command: str) -> None:
    before = tree(place.tmp)
    done = call(*(argument.format(**vars(place)) for argument in shlex.split(command)))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: txport ")
    assert "Traceback" not in done.err
    assert tree(place.tmp) == before


# ------------------------------------------------------------------------------------------------ not available here


def has_cuda() -> bool:
    try:
        runtimes.require("ort", "cuda")
    except UnavailableError:
        return False
    return True


@pytest.mark.skipif(has_cuda(), reason="CUDA works here")
@pytest.mark.parametrize("command", ["run {bundle} bad", "parity {bundle} --checkpoint {checkpoint}"])
def test_cuda_without_cuda_is_refused_with_the_fix(call: Cli, place: Place, command: str) -> None:
    message = "provider cuda can't run here: "
    refuse(call, place, f"{command} --provider cuda", message, code=3)
    refuse(call, place, f"{command} --provider CUDAExecutionProvider", "pip install 'txport[cuda]'", code=3)


def test_a_provider_that_the_wheel_lacks_is_refused_with_the_fix(call: Cli, place: Place) -> None:
    message = "was built without CoreMLExecutionProvider; install a wheel that has it"
    refuse(call, place, "run {bundle} bad --provider coreml", message, code=3)


def test_export_without_its_packages_is_refused_with_the_fix(place: Place) -> None:
    for package in ("onnxscript", "onnx_ir"):
        missing = f"raise ModuleNotFoundError('No module named {package}', name='{package}')\n"
        (place.tmp / f"{package}.py").write_text(missing)
    process = start("export", place.checkpoint, place.tmp / "out", env={**ENVIRONMENT, "PYTHONPATH": str(place.tmp)})
    assert_refused(ended(process), "which is not installed: pip install 'txport[export]'", 3)


# ------------------------------------------------------------------------------------------------ real processes


def test_a_mistake_in_a_real_process_is_one_line(place: Place) -> None:
    assert_refused(ended(start("run", place.bundle, b"a\xff".decode(errors="surrogateescape"))), "is not UTF-8 text")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """More lines than a pipe holds of their answers."""
    path = tmp_path / "many"
    path.write_text("bad\n" * 1000)
    return path


def test_a_reader_that_goes_away_ends_it_in_silence(bundle: Bundle, many: Path) -> None:
    process = start("run", bundle.path, "--input", many, "--json", "--max-new-tokens", 2)
    assert process.stdout is not None
    assert process.stdout.readline().startswith('{"input": "bad"')
    process.stdout.close()
    assert ended(process) == Ended(0, "", "")


@pytest.mark.parametrize("arguments", [["run", "bad"], ["inspect"], ["--help"]], ids=" ".join)
def test_a_reader_that_never_came_or_has_no_space(bundle: Bundle, arguments: list[str]) -> None:
    command = arguments if "--help" in arguments else [arguments[0], str(bundle.path), *arguments[1:]]
    reading, writing = os.pipe()
    os.close(reading)
    process = start(*command, stdout=writing)
    os.close(writing)
    assert ended(process) == Ended(0, "", "")
    if Path("/dev/full").exists():
        with Path("/dev/full").open("w") as full:
            assert ended(start(*command, stdout=full)) == Ended(
                2, "", "txport: No space left on device: standard output\n"
            )


@pytest.mark.parametrize("closed", ["<&- 2>&-", ">&-", ">&- 2>&-"])
def test_closed_streams_are_no_reason_to_fail(bundle: Bundle, closed: str) -> None:
    command = f"{shlex.quote(str(SCRIPT))} run {shlex.quote(str(bundle.path))} bad {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (">&-" not in closed.split())


def test_data_is_utf_8_whatever_the_locale(bundle: Bundle) -> None:
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    process = start("run", bundle.path, "aé", "--json", "--unknown", "skip", env=environment, text=False)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert b'"a\xc3\xa9"' in bytes(out)  # type: ignore[arg-type]


def wait_for(folder: Path, pattern: str) -> None:
    for _ in range(30000):
        if any(folder.glob(pattern)):
            return
        time.sleep(0.01)
    pytest.fail(f"{pattern} did not appear in {folder}")


INTERRUPTED = Ended(130, "", "txport: interrupted; nothing was left half-written\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_leaves_nothing(bundle: Bundle, tmp_path: Path, number: int) -> None:
    process = start("run", bundle.path, "--output", tmp_path / "out", stdin=subprocess.PIPE)
    wait_for(tmp_path, ".out.partial-*")
    process.send_signal(number)
    assert ended(process) == INTERRUPTED
    assert tree(tmp_path) == {}


@contextlib.contextmanager
def disk_of(size: int) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes."""
    resource = pytest.importorskip("resource", reason="limits are set where the system has them")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that it is an error and no end
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_fills_up_during_an_export(call: Cli, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST).write_text("old")
    with disk_of(20_000):
        done = call("export", checkpoint, out, "--force")
    assert_refused(done, f"{out} can't be written: File too large; nothing was left there")
    assert tree(tmp_path) == {"out": None, f"out/{MANIFEST}": b"old"}


def test_a_disk_that_fills_up_during_an_import(call: Cli, checkpoint: Path, tmp_path: Path) -> None:
    with disk_of(20_000):
        done = call("import", checkpoint, tmp_path / "out")
    assert done.code == 2
    assert re.fullmatch(r"txport: .*/out can't be written: .*File too large.*; nothing was left there\n", done.err)
    assert tree(tmp_path) == {}


def test_a_disk_that_fills_up_during_a_run(call: Cli, bundle: Bundle, many: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = tree(tmp_path)
    with disk_of(20_000):
        done = call("run", bundle.path, "--input", many, "--output", out, "--json", "--max-new-tokens", 2)
    assert_refused(done, f"{out} can't be written: File too large; choose another place")
    left = tree(tmp_path)
    assert left.pop("out.partial")  # for --resume
    assert left == before
