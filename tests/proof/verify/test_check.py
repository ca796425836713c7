"""Verify passes what computes as PyTorch did, on any machine, and names what does not; it loads no torch."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

import txport
from tests.proof.faults import put, unmasked, weight
from tests.proof.few import draw_few
from tests.runtimes.driven import ENGINES
from tests.tiny import edit_graph, reseal
from txport import cli, runtimes
from txport.api.release import load_checkpoint
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.manifest import FORMAT
from txport.errors import BundleError, UnavailableError
from txport.models.names import GOLDEN, MANIFEST
from txport.proof.parity.exact import Exact
from txport.proof.parity.noise import Noisy
from txport.proof.parity.tolerances import tolerance_of
from txport.proof.verify import check
from txport.proof.verify.check import (
    BATCH,
    FILES,
    FIRST,
    GENERATING,
    LOGITS,
    PORTS,
    TOKENIZER,
    Verification,
    compare,
    compare_batches,
    verify,
)
from txport.proof.verify.gaps import gap_of
from txport.proof.verify.golden import BEAM, GREEDY, GRID, SUMS, Golden, fold, load_golden, record, save_golden, shorten
from txport.runtimes.base import Ints, Runtime, State
from txport.runtimes.pytorch import TorchRuntime
from txport.search.scoring import logits
from txport.system.documents import write_json
from txport.targets.ports import DECODER, ENCODER, STEP
from txport.text.file import FileTokenizer

NAMES = (*FIRST, *GENERATING.names)
KINDS = [("portable", "fp16"), ("cpu", "fp32"), ("cpu", "int8"), ("cpu", "int4"), ("cuda", "fp16")]


@pytest.fixture(scope="module", params=KINDS, ids=" ".join)
def kind(request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    target, precision = request.param
    with pytest.MonkeyPatch.context() as patch:
        draw_few(patch)
        return txport.export(checkpoint, tmp_path_factory.mktemp("kinds") / "toy", target=target, precision=precision)


def verdicts(result: Verification) -> dict[str, str]:
    return {check.name: check.verdict for check in result.checks}


def detail(result: Verification, name: str) -> str:
    return next(check.detail for check in result.checks if check.name == name)


def run(*arguments: object) -> Result:
    """The command in this process; errors of ours are left for the caller to look at."""
    return CliRunner().invoke(cli.cli, ["verify", *(str(argument) for argument in arguments)])


# ------------------------------------------------------------------------------------------------ what is right


@pytest.mark.parametrize("runtime", ["ort", "reference"])
def test_the_bundle_passes_on_every_runtime(bundle: Bundle, runtime: str) -> None:
    result = verify(bundle.path, runtime=runtime)
    unlike = {BATCH: "not run"} if runtime == "reference" else {}
    assert verdicts(result) == dict.fromkeys(NAMES, "pass") | unlike
    assert detail(result, GREEDY) == detail(result, BEAM) == "8 of 8 rows are equal"


def test_every_kind_of_bundle_passes(kind: Bundle) -> None:
    runtime = ENGINES[kind.manifest.target]
    result = verify(kind.path, runtime=runtime, threads=1)
    unlike = {} if runtime == "ort" else {BATCH: "not run"}
    assert verdicts(result) == dict.fromkeys(NAMES, "pass") | unlike
    assert (kind.path / GOLDEN).stat().st_size < 50_000


def test_real_input_and_all_lengths_are_among_the_goldens(bundle: Bundle) -> None:
    golden = load_golden(bundle)
    tokenizer = txport.load(bundle.path).tokenizer
    assert golden.sources[: len(bundle.samples)] == [tuple(tokenizer.encode(text)) for text in bundle.samples]
    lengths = {len(source) for source in golden.sources}
    assert {1, bundle.manifest.facts.writes.longest} <= lengths
    assert {len(stored.values) for stored in golden.logits} == {len(target) for target in golden.targets}


def test_goldens_come_from_pytorch_in_float64_not_from_the_bundle(bundle: Bundle, checkpoint: Path) -> None:
    golden = load_golden(bundle)
    exact = Exact.of(load_checkpoint(checkpoint).model)
    found = logits(TorchRuntime(exact.model), golden.sources, golden.targets, exact.model.facts)
    for stored, values in zip(golden.logits, found, strict=True):
        np.testing.assert_allclose(stored.sums, fold(values), rtol=0, atol=stored.largest * 2.0**-GRID)
        assert np.abs(stored.sums - fold(values)).max() > 0
        assert stored.largest * 2.0**-GRID < stored.noise / 20


def test_the_same_goldens_are_the_same_bytes(bundle: Bundle, tmp_path: Path) -> None:
    save_golden(tmp_path / "again.npz", load_golden(bundle))
    assert (tmp_path / "again.npz").read_bytes() == (bundle.path / GOLDEN).read_bytes()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_noise_that_is_allowed_is_no_fault_and_twice_as_much_is(
    bundle: Bundle, checkpoint: Path, precision: str
) -> None:
    exact = Exact.of(load_checkpoint(checkpoint).model, precision)
    manifest = replace(bundle.manifest, precision=precision)
    tolerance = tolerance_of(precision)
    runtime = TorchRuntime(exact.model)
    errors_of = lambda *pair: [0.0] * len(pair[0])  # noqa: E731
    golden = record(runtime, manifest.facts, [], exact.logits, errors_of, tolerance.lasting_noise)
    share = min(each.noise / each.largest for each in golden.logits)
    for seed in range(100, 110):  # half of it, for what is drawn anew in each run
        checks = list(compare(golden, Noisy(runtime, share / 2, seed), manifest, "noise is drawn each time"))
        assert [check.verdict for check in checks] == [*["pass"] * 3, "not run"], checks
    louder = replace(golden, logits=[replace(each, values=each.values + 2.1 * each.noise) for each in golden.logits])
    (check, *_) = compare(louder, Noisy(runtime, share, 0), manifest)
    assert check.verdict == "fail"


def test_the_errors_of_targets_that_searches_find_count_too(bundle: Bundle, checkpoint: Path) -> None:
    """A trained model meets a value that its precision hardly holds in the row that it writes, not in random tokens."""
    facts = bundle.manifest.facts
    exact = Exact.of(load_checkpoint(str(checkpoint)).model)
    golden = load_golden(bundle)
    fragile = golden.found[GREEDY][-1].tokens
    assert fragile not in golden.targets

    def errors_of(sources: Any, targets: Any) -> list[float]:
        return [7.0 if tuple(target) == fragile else 0.0 for target in targets]

    recorded = record(TorchRuntime(exact.model), facts, [], exact.logits, errors_of, lambda _largest, error: error)
    assert recorded.logits[-1].noise == 7.0
    assert recorded.logits[0].noise == 0.0


# ------------------------------------------------------------------------------------------------ planted faults


def renamed(old: str, new: str) -> Callable[[ModelProto], None]:
    def edit(model: ModelProto) -> None:
        for value in (*model.graph.input, *model.graph.output):
            value.name = new if value.name == old else value.name
        for node in model.graph.node:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]

    return edit


@pytest.mark.parametrize(
    ("role", "edit"),
    [
        (ENCODER, weight("encoder.0.attention.key.weight", put(3.0))),
        (DECODER, weight("decoder.1.feed_forward.inner.weight", put(-3.0))),
        (DECODER, weight("projection.weight", lambda array: array * np.float32(1.001))),
        (DECODER, weight("decoder.0.attention.value.weight", put(np.nan))),
        (ENCODER, weight("source_embedding.positions", lambda table: np.roll(table, -1, 0))),
        (ENCODER, unmasked(1)),
    ],
    ids=["encoder", "decoder", "scaled", "NaN", "positions", "mask"],
)
def test_a_graph_that_computes_otherwise_fails(copied: Path, role: str, edit: Callable[[ModelProto], None]) -> None:
    edit_graph(copied, role, edit)
    result = verify(copied)
    assert not result.passed
    assert verdicts(result)[FILES] == verdicts(result)[PORTS] == "pass", "the hashes must not be what finds it"
    assert verdicts(result)[LOGITS] == "fail"
    assert "source " in detail(result, LOGITS)
    assert "expected " in detail(result, LOGITS)
    assert result.wrong == f"logits: {detail(result, LOGITS)}"


@pytest.mark.parametrize("kind", [each for each in KINDS if each[0] != "portable"], ids=" ".join, indirect=True)
def test_a_weight_of_a_fused_graph_fails(kind: Bundle, tmp_path: Path) -> None:
    """The last bias, which is not quantised in any precision, and lies in the graph."""
    path = Path(shutil.copytree(kind.path, tmp_path / "bundle"))
    model = onnx.load(str(kind.file(STEP)), load_external_data=False)
    weight("decoder_norm.bias", lambda array: array[::-1])(model)
    onnx.save(model, str(path / kind.manifest.graphs[STEP].file))
    reseal(path)
    result = verify(path, runtime=ENGINES[kind.manifest.target])
    assert verdicts(result)[LOGITS] == "fail", detail(result, LOGITS)


@pytest.mark.parametrize(
    ("role", "old", "new", "side"),
    [
        (ENCODER, "attention_mask", "mask", "input"),
        (DECODER, "past_key_values.1.encoder.key", "past_key", "input"),
        (DECODER, "present.0.decoder.value", "value", "output"),
    ],
)
def test_a_port_that_was_renamed_is_named(copied: Path, role: str, old: str, new: str, side: str) -> None:
    file = edit_graph(copied, role, renamed(old, new)).manifest.graphs[role].file
    result = verify(copied)
    assert verdicts(result)[PORTS] == "fail"
    assert f"{file}: {side} {old} is missing; {file}: {side} {new} was not expected" in detail(result, PORTS)
    assert {verdicts(result)[name] for name in (TOKENIZER, LOGITS, GREEDY, BEAM)} == {"not run"}


def test_files_that_are_not_what_the_manifest_says_are_named(copied: Path) -> None:
    (copied / "onnx/select_rows.onnx").unlink()
    file = copied / "onnx/encoder_model.onnx"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    result = verify(copied)
    assert verdicts(result) == {FILES: "fail", **dict.fromkeys(NAMES[1:], "not run")}
    assert "onnx/select_rows.onnx is missing" in detail(result, FILES)
    assert "onnx/encoder_model.onnx was altered" in detail(result, FILES)


def altered(golden: Golden, part: str) -> Golden:
    if part == LOGITS:
        values = golden.logits[2].values.copy()
        values[1, 0] += 0.01
        return replace(
            golden, logits=[*golden.logits[:2], replace(golden.logits[2], values=values), *golden.logits[3:]]
        )
    found = list(golden.found[part])
    tokens = found[0].tokens
    found[0] = replace(found[0], tokens=((tokens[0] + 1) % 20, *tokens[1:]))
    return replace(golden, found={**golden.found, part: found}, steady=[True] * len(golden.steady))


@pytest.mark.parametrize("part", [LOGITS, GREEDY, BEAM])
def test_a_golden_that_was_altered_is_found(copied: Path, part: str) -> None:
    save_golden(copied / GOLDEN, altered(load_golden(load_bundle(copied)), part))
    assert verdicts(verify(copied)) == {FILES: "fail", **dict.fromkeys(NAMES[1:], "not run")}
    reseal(copied)
    result = verify(copied)
    assert {name for name, verdict in verdicts(result).items() if verdict == "fail"} == {part}
    assert {LOGITS: "source 2, step 1: the logit of token"}.get(part, "source 0: [") in detail(result, part)


def test_a_score_that_is_wrong_is_found(copied: Path) -> None:
    golden = load_golden(load_bundle(copied))
    golden.found[BEAM][3] = replace(golden.found[BEAM][3], score=golden.found[BEAM][3].score + 0.001)
    save_golden(copied / GOLDEN, golden)
    reseal(copied)
    result = verify(copied)
    assert {name for name, verdict in verdicts(result).items() if verdict == "fail"} == {BEAM}
    assert "source 3: [" in detail(result, BEAM)


class Forgetful:
    """A runtime that lets rows stay where they are when beams change places."""

    def __init__(self, runtime: Runtime) -> None:
        self.start = runtime.start
        self.step = runtime.step
        self._runtime = runtime

    def select(self, state: State, rows: Ints) -> State:
        grows = len(rows) > len(set(rows.tolist())) and rows.max() < 8
        return self._runtime.select(state, rows if grows else np.arange(len(rows)))


@pytest.mark.parametrize("steady", [True, False])
def test_rows_that_are_mixed_up_fail_even_where_noise_may_decide(bundle: Bundle, steady: bool) -> None:
    golden = load_golden(bundle)
    golden = replace(golden, steady=[steady] * len(golden.steady))
    checks = {
        check.name: check.verdict for check in compare(golden, Forgetful(runtimes.load("ort", bundle)), bundle.manifest)
    }
    assert checks[BEAM] == "fail"


def test_a_bundle_whose_export_failed_is_refused(copied: Path) -> None:
    values = json.loads((copied / MANIFEST).read_text())
    write_json(copied / MANIFEST, {**values, "parity": {**values["parity"], "verdict": "fail"}})
    assert verify(copied).wrong == "export: verdict fail; export it again"


def test_a_tokenizer_that_splits_otherwise_is_found(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileTokenizer, "encode", lambda self, text: [5, 2])
    assert verify(bundle.path).wrong.startswith("tokenizer: 'bad' is [5, 2], expected [")


def test_a_package_that_is_missing_here_is_no_fault_of_the_bundle(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UnavailableError, match="needs tokenizers, which is not installed"):
        verify(bundle.path)


# ------------------------------------------------------------------------------------------------ what is refused


def without_golden(path: Path) -> None:
    (path / GOLDEN).unlink()
    values = json.loads((path / MANIFEST).read_text())
    del values["files"][GOLDEN]
    write_json(path / MANIFEST, values)


def test_a_bundle_without_goldens_is_refused(copied: Path) -> None:
    without_golden(copied)
    with pytest.raises(BundleError, match=r"holds no golden\.npz to be verified with; export it again"):
        verify(copied)


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"\x93NUMPY", "pickle", "other", "short", "foreign"], ids=lambda each: str(each)
)
def test_goldens_that_are_damaged_are_refused(copied: Path, content: bytes | str) -> None:
    with np.load(copied / GOLDEN) as file:
        arrays = dict(file)
    if content == "pickle":
        np.savez(copied / GOLDEN, **{**arrays, "ids": np.array([{}], dtype=object)})
    elif content == "other":
        np.savez(copied / GOLDEN, **{name: array for name, array in arrays.items() if name != "sums"})
    elif content == "short":
        np.savez(copied / GOLDEN, **{**arrays, "ids": arrays["ids"][1:]})
    elif content == "foreign":
        np.savez(copied / GOLDEN, **{**arrays, "targets": arrays["targets"] + 1000})
    else:
        assert isinstance(content, bytes)
        (copied / GOLDEN).write_bytes(content)
    reseal(copied)
    with pytest.raises(BundleError, match=r"golden\.npz is damaged: .*; export the bundle again"):
        verify(copied)


def test_sources_are_held_against_the_longest_source(bundle: Bundle) -> None:
    facts = bundle.manifest.facts
    assert facts.source is not None
    other = replace(facts, source=replace(facts.source, longest=5))
    with pytest.raises(BundleError, match="is no sequence of this model"):
        load_golden(replace(bundle, manifest=replace(bundle.manifest, facts=other)))


@pytest.mark.parametrize("kind", [("cpu", "int8")], ids=" ".join, indirect=True)
def test_a_batch_that_differs_is_told_without_a_supposed_reason(kind: Bundle) -> None:
    golden = load_golden(kind)
    runtime = runtimes.load("ort", kind)
    found = logits(runtime, golden.sources, golden.targets, kind.manifest.facts)
    problem = compare_batches(golden, found, Noisy(runtime, 0.5, 0), kind.manifest)
    assert problem.verdict == "fail"
    assert "--rows" not in problem.detail


@pytest.mark.parametrize("kind", [("cpu", "int4")], ids=" ".join, indirect=True)
def test_batches_of_small_blocks_are_not_compared_where_kernels_depend_on_them(
    kind: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Arm, ONNX Runtime sums each number of rows of 4-bit blocks of 16 in an order of its own."""
    monkeypatch.setattr(check, "is_x86", lambda: False)
    assert detail(verify(kind.path), BATCH) == "kernels for 4-bit blocks of 16 depend on the batch on this processor"
    draw_few(monkeypatch)
    large = txport.export("preset:gpt2-tiny", tmp_path / "large", target="cpu", precision="int4")
    assert verdicts(verify(large.path))[BATCH] == "pass"


# ------------------------------------------------------------------------------------------------ the parts


@given(st.integers(1, 700), st.data())
def test_every_logit_counts(size: int, data: st.DataObject) -> None:
    values = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32)
    place = data.draw(st.integers(0, size - 1))
    changed = values.copy()
    changed[1, place] += 1
    difference = np.abs(fold(changed) - fold(values))
    assert difference.shape == (2, min(size, SUMS))
    count = 1 if size <= SUMS else -(-size // SUMS)
    assert difference[1, place % SUMS] == pytest.approx(count**-0.5, abs=1e-5)
    assert np.count_nonzero(difference) == 1


@pytest.mark.parametrize(("share", "passes"), [(0.03, True), (0.1, True), (0.2, False)])
def test_in_few_bits_large_numbers_of_a_hidden_state_have_larger_errors(share: float, passes: bool) -> None:
    """As those of RoBERTa: two numbers of each token are 60 times as large as the others."""
    rng = np.random.default_rng(0)
    right = rng.standard_normal((9, 256)).astype(np.float32)
    right[:, [7, 90]] *= 60
    found = right * (1 + share * rng.standard_normal(right.shape)).astype(np.float32)
    assert (gap_of(shorten(right, 0.1), found, "int8", hidden=True)[0] <= 1) == passes


def test_in_few_bits_the_likeliest_tokens_have_errors_of_all_logits() -> None:
    rng = np.random.default_rng(0)
    right = rng.standard_normal((5, 50_000)).astype(np.float32)
    found = right.copy()
    np.put_along_axis(found, right.argsort(axis=1)[:, -8:], np.sort(right, axis=1)[:, -8:] - 0.3, axis=1)
    stored = shorten(right, 0.1)
    assert gap_of(stored, found, "int8")[0] > 1 > gap_of(stored, found, "int8", hidden=True)[0]


def test_what_all_logits_have_in_common_goes() -> None:
    values = np.zeros((1, 4 * SUMS), np.float32)
    np.testing.assert_array_equal(fold(values + 7), np.zeros((1, SUMS)))


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_shows_every_check(bundle: Bundle) -> None:
    done = run(bundle.path)
    assert (done.exit_code, done.stderr) == (0, "")
    assert all(f"{name} " in done.stdout for name in NAMES)
    assert "verdict: pass; portable fp32 on ort cpu, " in done.stdout
    assert done.stdout.endswith(f"next: txport run {bundle.path}\n")


def test_the_compared_values_can_be_kept(bundle: Bundle, tmp_path: Path) -> None:
    assert run(bundle.path, "--save", tmp_path / "values.npz").exit_code == 0
    golden = load_golden(bundle)
    with np.load(tmp_path / "values.npz") as values:
        for row, (source, target) in enumerate(zip(golden.sources, golden.targets, strict=True)):
            own = f"source_{row}"
            assert source
            assert np.array_equal(values[f"{own}.logits.token_ids"], golden.logits[row].ids)
            expected, actual = values[f"{own}.logits.expected"], values[f"{own}.logits.actual"]
            assert len(expected) == len(target)
            np.testing.assert_allclose(actual, expected, atol=1e-3)
            assert values[f"{own}.beam_4.expected"].tolist() == list(golden.found["beam 4"][row].tokens)


def test_the_command_that_follows_a_failure_depends_on_what_failed(copied: Path) -> None:
    edit_graph(copied, ENCODER, renamed("attention_mask", "mask"))
    done = run(copied)
    assert re.search(r"\nnext: txport export \S+ \S+ --target portable --precision fp32 --force\n$", done.stdout)


def test_the_command_prints_json_and_fails_by_its_exit_code(copied: Path) -> None:
    edit_graph(copied, ENCODER, renamed("attention_mask", "mask"))
    done = run(copied, "--json", "--threads", 1)
    assert (done.exit_code, done.stderr) == (1, "")
    values = json.loads(done.stdout)
    assert list(values) == [
        "verdict",
        "checkpoint",
        "target",
        "precision",
        "runtime",
        "provider",
        "versions",
        "seconds",
        "checks",
    ]
    assert values["verdict"] == "fail"
    assert [each["name"] for each in values["checks"]] == list(NAMES)
    assert "verdict: FAIL" in run(copied).stdout


def edited(**changes: Any) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        write_json(path / MANIFEST, {**json.loads((path / MANIFEST).read_text()), **changes})

    return edit


@pytest.mark.parametrize(
    ("damage", "options", "code", "message"),
    [
        (lambda path: None, ["--provider", "coreml"], 3, "was built without CoreMLExecutionProvider; install a wheel"),
        (lambda path: None, ["--provider", "npu"], 2, "unknown provider 'npu'"),
        (without_golden, [], 2, "holds no golden.npz to be verified with; export it again"),
        (edited(format=2), [], 2, f"has bundle format 2, this txport reads format {FORMAT}; export it again"),
        (lambda path: (path / MANIFEST).unlink(), [], 2, "was exported by others, and holds no goldens to be held to"),
        (lambda path: shutil.rmtree(path), [], 2, "there is no bundle "),
        (lambda path: (path / "onnx/encoder_model.onnx").write_bytes(b"0"), [], 1, ""),
    ],
)
def test_each_end_has_its_exit_code(
    copied: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    options: list[str],
    code: int,
    message: str,
) -> None:
    damage(copied)
    with pytest.raises(SystemExit) as end:
        cli.main(["verify", str(copied), *options])
    out, err = capsys.readouterr()
    assert end.value.code == code
    assert message in err
    assert bool(out) == (code == 1)
    assert err.count("\n") == (code != 1)
