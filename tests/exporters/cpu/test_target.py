"""The cpu target computes what PyTorch computes, in every precision; tests/runtimes/test_drivers.py drives it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import txport
from tests.tiny import tiny_config, tiny_model, unproven, unread
from txport import runtimes
from txport.bench import bandwidth
from txport.bundles.bundle import Bundle
from txport.bundles.forms import DYNAMIC, INVARIANT, ROWS, Form, blocks_of, with_columns
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.cli import cli
from txport.errors import UnsupportedError
from txport.exporters.check import operators
from txport.exporters.cpu.screening import BLOCK, shorten
from txport.exporters.fused.quantize import dequantize, quantize, steps
from txport.proof.parity.cases import Case
from txport.proof.parity.exact import Exact
from txport.proof.parity.replay import Reference
from txport.runtimes.ort import fused, providers, sessions
from txport.runtimes.ort.caches import Rows, move
from txport.runtimes.slots import seat
from txport.search.generate import generate
from txport.search.options import SearchOptions
from txport.system import machine
from txport.system.arrays import Hold
from txport.targets.cpu import LARGE_VOCABULARY
from txport.targets.ports import COUNT, ENCODER, IDS, LOG_PROBS, LOGITS, PAST_LENGTHS, STEP

SOURCES = [[5, 9, 7, 2], [6, 2], [4, 8, 8, 10, 12, 5, 2], [11, 2], [7, 6, 5, 2]]
KINDS = {
    "pre": {"norm": "pre"},
    "post, learned, untied": {"norm": "post", "positions": "learned", "tied": "none", "activation": "gelu"},
    "target tied": {"tied": "target", "activation": "silu", "heads": 1, "decoder_layers": 1},
}
# Each kind in fp32 and in few bits, and each way to quantise with some kind
MADE = [
    *((kind, "fp32", None) for kind in KINDS),
    *zip(KINDS, ("int8", "int8", "int8"), (None, 1, 32), strict=True),
    *zip(KINDS, ("int4", "int4", "int4"), (32, None, 1), strict=True),
]

SCREENED = pytest.mark.skipif(
    sessions.may_saturate(), reason="sums of 8-bit products may saturate here, so all logits are computed"
)
WARNING = 2  # of ONNX Runtime's levels


@pytest.fixture(scope="module", params=MADE, ids=str)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    kind, precision, rows = request.param
    folder = tmp_path_factory.mktemp("exported")
    save_checkpoint(folder / "toy", tiny_model(tiny_config(**KINDS[kind])))
    return unproven(folder / "toy", folder / "out", target="cpu", precision=precision, rows=rows)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Bundle]:
    folder = tmp_path_factory.mktemp("plain")
    save_checkpoint(folder / "toy", tiny_model(tiny_config()))
    bundle = unproven(folder / "toy", folder / "bundle", target="cpu")
    return load_checkpoint(str(folder / "toy")), bundle


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Bundle]:
    """With a vocabulary that is worth screening, and no whole number of blocks."""
    folder = tmp_path_factory.mktemp("large")
    save_checkpoint(folder / "toy", tiny_model(tiny_config(target_vocab_size=LARGE_VOCABULARY + 7, tied="target")))
    bundle = txport.export(folder / "toy", folder / "bundle", target="cpu")
    return load_checkpoint(str(folder / "toy")), bundle


def test_each_weight_lies_once_on_disk(exported: Bundle) -> None:
    files = {path.name: path.stat().st_size for path in (exported.path / "onnx").iterdir()}
    assert set(files) == {"encoder.onnx", "step.onnx", "weights.bin"}
    regions: dict[int, int] = {}
    for role in (ENCODER, STEP):
        for tensor in onnx.load(str(exported.file(role)), load_external_data=False).graph.initializer:
            entry = {each.key: each.value for each in tensor.external_data}
            if entry:
                assert regions.setdefault(int(entry["offset"]), int(entry["length"])) == int(entry["length"])
    ends = sorted((start, start + size) for start, size in regions.items())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


@pytest.mark.parametrize(
    ("kind", "precision", "rows"),
    [("pre", "int8", 1), ("post, learned, untied", "int4", 32), ("target tied", "int8", 32)],
)
def test_what_is_for_some_rows_is_proven(kind: str, precision: str, rows: int, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(**KINDS[kind])))
    bundle = txport.export(tmp_path / "toy", tmp_path / "out", target="cpu", precision=precision, rows=rows)
    assert bundle.manifest.parity["verdict"] == "pass"


def test_no_graph_holds_what_it_does_not_read(exported: Bundle, capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime warns of it when a session begins."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = WARNING
    for role in (ENCODER, STEP):
        assert unread(onnx.load(str(exported.file(role)), load_external_data=False).graph) == set()
        onnxruntime.InferenceSession(str(exported.file(role)), options, providers=["CPUExecutionProvider"])
    assert "initializer" not in capfd.readouterr().err


def test_inspect_says_for_how_many_rows_the_kernels_are(exported: Bundle) -> None:
    said = CliRunner().invoke(cli, ["inspect", str(exported.path), "--brief"]).output
    rows = exported.manifest.rows
    assert re.findall(r"kernels for (\d+) rows", said) == ([str(rows)] if rows else [])


def test_every_part_is_fused_and_said_so(exported: Bundle) -> None:
    layers = exported.manifest.config["decoder_layers"]
    passes = exported.manifest.passes
    counts = operators(exported.file(STEP))
    assert counts["com.microsoft.GroupQueryAttention"] == layers
    assert counts["com.microsoft.MultiHeadAttention"] == layers
    assert passes[STEP]["pack projections"] == layers
    quantized = exported.manifest.precision != "fp32"
    assert bool(exported.manifest.quantization) == quantized
    assert counts["Gemm"] == (0 if quantized else 6 * layers + 1)


@SCREENED
def test_screening_finds_what_all_logits_find(large: tuple[Checkpoint, Bundle]) -> None:
    """Over random rows; the logits of those found are PyTorch's."""
    checkpoint, bundle = large
    runtime = runtimes.load("ort", bundle)
    reference = Reference(Exact.of(checkpoint.model), bundle.manifest)
    for call in list(reference.replay(Case("", SOURCES, (1,) * 12), 0))[1:]:
        every = runtime.run_graph(STEP, {**call.inputs, COUNT: np.array([0])})[LOGITS]
        for count in (1, 2, 5):
            found = runtime.run_graph(STEP, {**call.inputs, COUNT: np.array([-count])})
            assert found[LOGITS].size == 0  # else nothing was saved
            np.testing.assert_array_equal(found[IDS], np.argsort(-every, axis=1, kind="stable")[:, :count])
            np.testing.assert_allclose(found[LOG_PROBS], -np.sort(-every, axis=1)[:, :count], atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"min_new_tokens": 9}, {"no_repeat_ngram_size": 1}, {"suppress_tokens": range(100, 300)}]
)
def test_tokens_without_scores_are_those_of_pytorch(large: tuple[Checkpoint, Bundle], options: dict[str, Any]) -> None:
    """Also where they ask for more candidates than screening gives."""
    checkpoint, bundle = large
    search = SearchOptions(max_new_tokens=20, scores=False, **options)
    both = [runtimes.load_torch(checkpoint), runtimes.load("ort", bundle)]
    expected, actual = (generate(runtime, SOURCES, checkpoint.facts, search) for runtime in both)
    assert [each[0].tokens for each in actual] == [each[0].tokens for each in expected]


@SCREENED
@pytest.mark.parametrize("kind", ["equal", "doubled", "steep"])
def test_where_screening_leaves_too_many_all_logits_decide(kind: str, tmp_path: Path) -> None:
    model = tiny_model(tiny_config(target_vocab_size=LARGE_VOCABULARY, tied="none"))
    with torch.no_grad():
        weight = model.projection.weight.clone()
        model.projection.weight.copy_(
            {"equal": weight[:1], "doubled": weight[torch.arange(len(weight)) // 2], "steep": 20 * weight}[kind]
        )
    save_checkpoint(tmp_path / "toy", model)
    bundle = unproven(tmp_path / "toy", tmp_path / "out", target="cpu")
    runtime = runtimes.load("ort", bundle)
    for call in list(Reference(Exact.of(model), bundle.manifest).replay(Case("", SOURCES[:1], (1, 1, 1)), 0))[1:]:
        every = runtime.run_graph(STEP, {**call.inputs, COUNT: np.array([0])})[LOGITS]
        found = runtime.run_graph(STEP, {**call.inputs, COUNT: np.array([-2])})
        assert (found[LOGITS].size > 0) == (kind == "equal")
        best = np.take_along_axis(every, found[IDS], axis=1)
        np.testing.assert_allclose(best, -np.sort(-every, axis=1)[:, :2], rtol=1e-5)


@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(1e-3, 1e3), size=st.integers(9, 300))
def test_no_logit_lies_beyond_its_bound(seed: int, spread: float, size: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = (spread ** rng.standard_normal((size, 1)) * rng.standard_normal((size, 24))).astype(np.float32)
    x = rng.standard_normal(24).astype(np.float32)
    step = np.ptp(np.append(x, 0)) / 255
    near = np.rint(x / step) * step
    screening = shorten(matrix)
    coarse = (screening.values * screening.scales[:, None])[:size] @ near
    bound = (screening.largest * np.linalg.norm(x - near) + screening.deviation * np.linalg.norm(x)) / 2
    assert np.abs(matrix @ x - coarse).max() <= bound
    assert len(screening.values) % BLOCK == 0 <= len(screening.values) - size < BLOCK


def test_where_sums_may_saturate_there_is_no_screening(
    large: tuple[Checkpoint, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bound would not hold: the session option for exact sums does not reach into the branches of a graph."""
    asked: list[int] = []
    run = fused.Binding.run

    def record(self: Any, tokens: Any, count: int, align: bool) -> Any:
        asked.append(count)
        return run(self, tokens, count, align)

    monkeypatch.setattr(fused.Binding, "run", record)
    search = SearchOptions(max_new_tokens=2, scores=False, suppress_tokens=[2])
    for saturates in (False, True):
        monkeypatch.setattr(fused, "may_saturate", lambda saturates=saturates: saturates)
        generate(runtimes.load("ort", large[1]), SOURCES, large[0].facts, search)
    assert asked == [-2, -2, 0, 0]


def test_where_sums_may_saturate_parity_and_bandwidth_leave_the_screening_out_too(
    large: tuple[Checkpoint, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, bundle = large
    seen = []
    for saturates in (False, True):
        monkeypatch.setattr(sessions, "may_saturate", lambda saturates=saturates: saturates)
        calls = list(Reference(Exact.of(checkpoint.model), bundle.manifest).replay(Case("", SOURCES, (1,)), 0))[1:]
        seen.append(([int(call.inputs[COUNT][0]) for call in calls], bandwidth.step_bytes(bundle)))
    assert [counts for counts, _ in seen] == [[5, -2], [5]]
    assert (seen[0][1] or 0) < (seen[1][1] or 0)


def test_a_row_with_nan_takes_no_tokens_of_others(large: tuple[Checkpoint, Bundle]) -> None:
    checkpoint, bundle = large
    runtime = runtimes.load("ort", bundle)
    call = list(Reference(Exact.of(checkpoint.model), bundle.manifest).replay(Case("", SOURCES, (2,)), 0))[1]
    inputs = {**call.inputs, COUNT: np.array([-1])}
    name = list(bundle.manifest.graphs[STEP].past("row").values())[1]
    inputs[name] = inputs[name].copy()
    inputs[PAST_LENGTHS] = np.ones_like(inputs[PAST_LENGTHS])
    inputs[name][1] = np.nan
    found = runtime.run_graph(STEP, inputs)
    assert found[LOGITS].size > 0  # all were computed
    every = runtime.run_graph(STEP, {**inputs, COUNT: np.array([0])})[LOGITS]
    sound = [0, 2, 3, 4]
    np.testing.assert_array_equal(found[IDS][sound, 0], every[sound].argmax(axis=1))


@given(data=st.data())
def test_moved_rows_are_those_chosen_and_equal_places_stay(data: st.DataObject) -> None:
    """Rows that share beginnings, in any order, circles included: what moves is what a plain copy would give."""
    count = data.draw(st.integers(1, 6))
    length = 4
    ids = data.draw(st.lists(st.integers(0, count - 1), min_size=count * length, max_size=count * length))
    origin = np.array(ids).reshape(count, length)
    places = np.broadcast_to(100 * np.arange(length), origin.shape)
    caches = np.broadcast_to((origin + places)[None, :, None, :, None], (2, count, 3, length, 5)).astype(np.float32)
    rows = Rows(Hold(), caches.copy(), origin.copy())
    chosen = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count)))
    move(rows, chosen, length)
    np.testing.assert_array_equal(rows.caches[:, : len(chosen)], caches[:, chosen])
    np.testing.assert_array_equal(rows.origin[: len(chosen)], origin[chosen])


@given(width=st.integers(1, 4), data=st.data())
def test_a_source_keeps_its_slots_whatever_its_neighbours_do(width: int, data: st.DataObject) -> None:
    """Rows of each source, by slot: where they are to lie beside others, in any order, is where they lie alone."""
    rows = st.lists(st.integers(0, width - 1), min_size=1, max_size=width)
    each = data.draw(st.lists(rows, min_size=1, max_size=4))
    wanted = np.array(data.draw(st.permutations([(number, row) for number, its in enumerate(each) for row in its])))
    together = seat(wanted @ [width, 1], len(each), width)
    assert together.width == width
    assert len(set(together.slots.tolist())) == len(wanted)
    for number in range(len(each)):
        own = wanted[:, 0] == number
        alone = seat(wanted[own, 1], 1, width)
        np.testing.assert_array_equal(together.slots[own], number * width + alone.slots)


@given(
    seed=st.integers(0, 2**32 - 1),
    form=st.sampled_from([DYNAMIC, ROWS, INVARIANT, with_columns((0, 9, 47)), blocks_of(8, 16), blocks_of(4, 16)]),
)
def test_quantised_weights_come_back_within_their_steps(seed: int, form: Form) -> None:
    matrix = np.random.default_rng(seed).standard_normal((5, 48)).astype(np.float32)
    matrix[2] = 0
    quantized = quantize(matrix, form)
    error = np.abs(dequantize(quantized) - matrix) / np.maximum(steps(quantized), 1e-30)  # in fp32 there are no steps
    assert error.max() <= (2.1 if form.bits == 4 else 0.501)


def test_what_cannot_be_fused_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(d_model=12)))
    with pytest.raises(
        UnsupportedError, match=r"head size that is a multiple of 8, .* is 6; export it with target='portable'"
    ):
        txport.export(tmp_path / "toy", tmp_path / "out", target="cpu")
    with pytest.raises(UnsupportedError, match="target portable does not support precision 'bf16'"):
        txport.export(tmp_path / "toy", tmp_path / "out", precision="bf16")
    for chosen in {"precision": "fp32", "target": "cpu"}, {"precision": "fp16"}:
        with pytest.raises(UnsupportedError, match="rows chooses the kernels of int8 and int4 on the cpu target"):
            txport.export(tmp_path / "toy", tmp_path / "out", rows=8, **chosen)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("processor", "flags", "expected"),
    [
        ("x86_64", "avx2 avx512f", True),
        ("AMD64", "avx_vnni", False),
        ("x86_64", "avx512_vnni", False),
        ("x86_64", "", True),
        ("aarch64", "", False),
    ],
)
def test_exact_products_are_asked_for_only_where_they_may_overflow(
    processor: str, flags: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: processor)
    monkeypatch.setattr(machine, "flags", lambda: frozenset(flags.split()))
    assert sessions.may_saturate() is expected


@pytest.mark.parametrize(("target", "asked"), [("cpu", "1"), ("portable", "0")])
def test_weights_are_made_unsigned_only_where_integers_are_multiplied(
    target: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On x86 without VNNI, ONNX Runtime 1.31 would make those of DequantizeLinear unsigned, and then not run them."""
    bundle = unproven("preset:tiny", tmp_path / "out", target=target, precision="int8")
    monkeypatch.setattr(sessions, "may_saturate", lambda: True)
    for session in sessions.start_sessions(bundle, "cpu", 1).values():
        options = session.get_session_options()
        assert options.get_session_config_entry("session.x64quantprecision") == asked


@pytest.mark.parametrize(
    ("processor", "flags", "expected"),
    [
        ("x86_64", "avx2 avx_vnni", True),
        ("AMD64", "", True),
        ("x86_64", "avx512f avx512_vnni", False),
        ("aarch64", "asimd", True),
        ("aarch64", "asimd asimddp", False),
        ("arm64", "", False),
    ],
)
def test_which_processors_have_a_kernel_for_one_row(
    processor: str, flags: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: processor)
    for module in (machine, sessions):
        monkeypatch.setattr(module, "flags", lambda: frozenset(flags.split()))
    assert sessions.sums_one_row_apart() is expected


def test_parity_takes_the_runtimes_that_can_run_it(plain: tuple[Checkpoint, Bundle]) -> None:
    arguments = ["parity", str(plain[1].path), "--checkpoint", str(plain[1].path.parent / "toy")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    with pytest.raises(
        UnsupportedError, match="the reference runtime can't run bundles of the cpu target; ort can, and "
    ):
        runtimes.load("reference", plain[1])


@pytest.mark.parametrize("provider", ["cuda", "coreml", "AzureExecutionProvider"])
def test_only_the_cpu_provider_runs_it(
    provider: str, plain: tuple[Checkpoint, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "missing", lambda name: None)
    with pytest.raises(
        UnsupportedError, match=f"runs on provider cpu, got provider '{provider}'; export it with target="
    ):
        runtimes.load("ort", plain[1], provider=provider)
