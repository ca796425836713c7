"""Every planted fault is found where it was planted and called by its kind; what is sound is not accused."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from tests.covering import in_turn
from tests.proof.faults import (
    Edit,
    attribute,
    embedding_scaled,
    logarithm,
    put,
    scaled,
    shifted,
    swapped,
    swapped_outputs,
    unmasked,
    weight,
    without_residual,
    without_summand,
)
from tests.tiny import edit_graph, tiny_config, tiny_model
from txport.bundles.bundle import Bundle, seal
from txport.bundles.forms import DYNAMIC, INVARIANT, Form, blocks_of
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.cli import cli
from txport.errors import ParityError, UnsupportedError
from txport.exporters.cpu import exporter
from txport.exporters.cpu.operators import FUSED_FORMS
from txport.exporters.export import export_graphs
from txport.exporters.exporter import Job, Stage
from txport.exporters.fused import quantize as quantizer
from txport.exporters.fused import rewrite
from txport.exporters.tracing.symbols import Symbol, Tracer
from txport.proof.bisect import culprit as module
from txport.proof.bisect import isolation
from txport.proof.bisect.culprit import bisect
from txport.proof.bisect.isolation import Runner
from txport.proof.bisect.matrices import Rounding, badly_quantised
from txport.proof.parity.check import check
from txport.proof.parity.replays import cpu
from txport.targets.ports import DECODER, ENCODER, STEP

Array = NDArray[Any]

KINDS: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm": "post", "positions": "learned", "tied": "none", "activation": "gelu"},
}
H = 8  # the head size of tiny models


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    folder = tmp_path_factory.mktemp("checkpoints")
    for kind, changes in KINDS.items():
        save_checkpoint(folder / kind, tiny_model(tiny_config(**changes)))
    return {kind: load_checkpoint(str(folder / kind)) for kind in KINDS}


def made(checkpoint: Checkpoint, folder: Path, **options: Any) -> Bundle:
    """An export without the comparison that would refuse a faulty one."""
    folder.mkdir(parents=True)
    return seal(folder, export_graphs(checkpoint, folder, **options))


@pytest.fixture(scope="module")
def sound(
    checkpoints: dict[str, Checkpoint], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Bundle]:
    folder = tmp_path_factory.mktemp("sound")
    return {
        (kind, target): made(checkpoint, folder / f"{kind}-{target}", target=target)
        for kind, checkpoint in checkpoints.items()
        for target in ("portable", "cpu")
    }


@pytest.fixture(scope="module")
def quantised(checkpoints: dict[str, Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("quantised")
    return {
        precision: made(checkpoints["pre"], folder / precision, target="cpu", precision=precision)
        for precision in ("int8", "int4")
    }


@pytest.fixture
def no_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporting again takes seconds, and has tests of its own."""
    monkeypatch.setattr(module, "origin", lambda *_: "")


# --- faults that can be planted into a file ---------------------------------------------------------------------


Fault = tuple[str, str, Edit, str, str, str]  # target, graph, what is done, where, kind, words
NORM = "LayerNormalization"
FAULTS: dict[str, Fault] = {
    "weight, encoder 0": (
        "portable",
        ENCODER,
        weight("encoder.0.attention.key.weight", put(0.3)),
        "encoder layer 0, self-attention, key",
        "weight",
        "encoder.0.attention.key.weight[2, 5] is 0.3, the checkpoint has",
    ),
    "last bit of a weight": (
        "portable",
        DECODER,
        weight("decoder.0.attention.query.weight", lambda array: np.nextafter(array, np.float32(9))),
        "decoder layer 0, self-attention, query",
        "weight",
        "256 of its 256 values differ",
    ),
    "packed weight, step 1": (
        "cpu",
        STEP,
        weight("decoder.1.attention.{query,key,value}.weight", put(0.3)),
        "decoder layer 1, self-attention, query and key and value",
        "weight",
        "decoder.1.attention.query.weight[2, 5] is 0.3",
    ),
    "NaN weight": (
        "portable",
        DECODER,
        weight("decoder.1.cross_attention.value.weight", put(math.nan)),
        "decoder layer 1, cross-attention, value",
        "NaN",
        "decoder.1.cross_attention.value.weight[2, 5] is nan",
    ),
    "NaN from a node": (
        "portable",
        DECODER,
        logarithm(3),
        "decoder layer 1, cross-attention",
        "NaN",
        "values are no finite numbers",
    ),
    "mask of the source, encoder 1": (
        "portable",
        ENCODER,
        unmasked(1),
        "encoder layer 1, self-attention",
        "mask",
        "the mask is dropped: padding of the source is seen",
    ),
    "causal mask, decoder 0": (
        "portable",
        DECODER,
        unmasked(0),
        "decoder layer 0, self-attention",
        "mask",
        "the mask is dropped: future tokens are seen",
    ),
    "lengths dropped, step 1": (
        "cpu",
        STEP,
        unmasked(1),
        "decoder layer 1, cross-attention",
        "mask",
        "the mask is dropped: padding of the source is seen",
    ),
    "lengths off by one": (
        "cpu",
        STEP,
        shifted("source_lengths", -1, "MultiHeadAttention"),
        "decoder layer 0, cross-attention",
        "mask",
        "the mask is off by one: one position too few is visible",
    ),
    "scale, encoder 1": (
        "cpu",
        ENCODER,
        attribute("MultiHeadAttention", 1, scale=0.99 / math.sqrt(H)),
        "encoder layer 1, self-attention",
        "scale",
        "scores are scaled by 0.99 of what they should be",
    ),
    "scale, step 0": (
        "cpu",
        STEP,
        attribute("GroupQueryAttention", 0, scale=0.99 / math.sqrt(H)),
        "decoder layer 0, self-attention",
        "scale",
        "scores are scaled by 0.99 of what they should be",
    ),
    "scale, decoder 1": (
        "portable",
        DECODER,
        scaled("Softmax", 3),
        "decoder layer 1, cross-attention",
        "scale",
        "scores are scaled by 0.99 of what they should be",
    ),
    "embedding, cpu": (
        "cpu",
        STEP,
        embedding_scaled,
        "decoder, embedding",
        "scale",
        "the embedding of a token is scaled by 1.01 of what it should be",
    ),
    "epsilon, encoder 1": (
        "portable",
        ENCODER,
        attribute(NORM, 2, epsilon=1e-2),
        "encoder layer 1, norm of self-attention",
        "epsilon",
        "epsilon is 0.01, the model's is 1e-05",
    ),
    "epsilon that no output shows": (
        "portable",
        ENCODER,
        attribute(NORM, 0, epsilon=1e-6),
        "encoder layer 0, norm of self-attention",
        "epsilon",
        "epsilon is 1e-06, the model's is 1e-05",
    ),
    "own caches swapped": (
        "portable",
        DECODER,
        swapped("past_key_values.1.decoder.key", "past_key_values.1.decoder.value"),
        "decoder layer 1, self-attention, cached keys",
        "cache",
        "it goes on from past_key_values.1.decoder.value in place of past_key_values.1.decoder.key",
    ),
    "outputs swapped": (
        "cpu",
        ENCODER,
        swapped_outputs("cross.0.key", "cross.1.key"),
        "decoder layer 1, cross-attention, cached keys",  # the graph computes first what is named last now
        "cache",
        "it holds what belongs in cross.0.key",
    ),
    "source's keys and values swapped": (
        "cpu",
        STEP,
        swapped("cross.1.key", "cross.1.value"),
        "decoder layer 1, cross-attention",
        "cache",
        "keys and values are swapped",
    ),
    "written a place too early": (
        "cpu",
        STEP,
        shifted("past_lengths", -1, "GroupQueryAttention"),
        "decoder layer 0, self-attention, cached keys",
        "cache",
        "a new position is written one before its own",
    ),
    "position, step": (
        "cpu",
        STEP,
        shifted("past_lengths", 1, "Gather"),
        "decoder, embedding",
        "position",
        "positions are off by +1",
    ),
    "residual, encoder 1": (
        "portable",
        ENCODER,
        without_residual(3),
        "encoder layer 1, self-attention, residual sum",
        "sum",
        "is not added",
    ),
    "result of feed-forward, encoder 0": (
        "cpu",
        ENCODER,
        without_summand(1, 1),
        "encoder layer 0, feed-forward, residual sum",
        "sum",
        "what encoder layer 0, feed-forward, second linear layer gives is not added",
    ),
    "an attention of another kind": (
        "cpu",
        STEP,
        attribute("GroupQueryAttention", 1, softcap=1.0),
        "decoder layer 1, self-attention",
        "cap",
        "scores are capped at 1, the model's are not",
    ),
}
UNSEEN = ("last bit of a weight", "epsilon that no output shows")
BOTH = ("norm of", "sum", "embedding", "cross-attention")  # where the placement of norms may matter
POST = {"residual, encoder 1": "encoder layer 1, feed-forward, residual sum"}  # the fourth norm there ends a layer


def pairs() -> list[tuple[str, str]]:
    """Each fault in a model of one kind in turn, those that norms may matter for in both."""
    return [
        (fault, kind)
        for at, fault in enumerate(FAULTS)
        for number, kind in enumerate(KINDS)
        if at % 2 == number or any(word in FAULTS[fault][3] for word in BOTH)
    ]


WITH_ALL_CASES = {fault[4]: name for name, fault in FAULTS.items()}.values()  # one of each kind


@pytest.mark.usefixtures("no_origin")
@pytest.mark.parametrize(("fault", "kind"), pairs())
def test_fault_is_found_where_it_was_planted(
    fault: str,
    kind: str,
    sound: dict[tuple[str, str], Bundle],
    checkpoints: dict[str, Checkpoint],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if fault not in WITH_ALL_CASES:
        request.getfixturevalue("few_cases")
    target, role, edit, where, expected, words = FAULTS[fault]
    copy = Path(shutil.copytree(sound[kind, target].path, tmp_path / "bundle"))
    culprit = bisect(edit_graph(copy, role, edit), checkpoints[kind])
    assert culprit is not None
    where = POST.get(fault, where) if kind == "post" else where
    assert (culprit.where, culprit.kind) == (where, expected)
    assert words in culprit.what
    assert culprit.figures or fault in UNSEEN
    assert json.loads(json.dumps(culprit.to_dict(), allow_nan=False))["kind"] == expected


CPU_FAULTS = [fault for fault in FAULTS if FAULTS[fault][0] == "cpu"]
FAINT = {"scale, encoder 1", "scale, step 0", "embedding, cpu"}  # of a percent
# The first of each kind, but for weights, which are packed otherwise in 8 bits: tests of quantised bundles alter those.
OF_EACH_KIND = {FAULTS[fault][4]: fault for fault in reversed(CPU_FAULTS) if fault not in FAINT}
OF_EACH_KIND.pop("weight")


def passes(bundle: Bundle, checkpoint: Checkpoint) -> bool:
    try:
        return check(bundle, checkpoint, {"ort": "cpu"}).passed
    except ParityError:  # it does not run
        return False


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize(
    ("fault", "plan"), in_turn([*sorted(FAINT), *OF_EACH_KIND.values()], [("cpu", "int8"), ("cpu", "int4")])
)
def test_in_few_bits_a_fault_is_found_that_is_smaller_than_rounding(
    fault: str, plan: tuple[str, str], quantised: dict[str, Bundle], checkpoints: dict[str, Checkpoint], tmp_path: Path
) -> None:
    _, role, edit, *_ = FAULTS[fault]
    copy = Path(shutil.copytree(quantised[plan[1]].path, tmp_path / "bundle"))
    assert not passes(edit_graph(copy, role, edit), checkpoints["pre"])


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_what_is_sound_is_not_accused(
    target: str, sound: dict[tuple[str, str], Bundle], checkpoints: dict[str, Checkpoint]
) -> None:
    for kind, checkpoint in checkpoints.items():
        assert bisect(sound[kind, target], checkpoint, seed=1) is None


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_quantised_bundle_is_not_accused_of_rounding(
    precision: str, quantised: dict[str, Bundle], checkpoints: dict[str, Checkpoint]
) -> None:
    assert bisect(quantised[precision], checkpoints["pre"]) is None


def test_fp16_is_not_accused_of_rounding(checkpoints: dict[str, Checkpoint], tmp_path: Path) -> None:
    assert bisect(made(checkpoints["post"], tmp_path / "out", precision="fp16"), checkpoints["post"]) is None


@pytest.mark.usefixtures("no_origin", "few_cases")
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_quantised_weight_that_is_off_by_few_steps_is_named(
    precision: str, quantised: dict[str, Bundle], checkpoints: dict[str, Checkpoint], tmp_path: Path
) -> None:
    """Two steps in 8 bits; eight in 4, where rounding alone may cut two."""
    name = "decoder.1.cross_attention.query.weight"
    bundle = quantised[precision]
    stored = next(value for value, each in bundle.manifest.weights.items() if name in each.weights)

    def step(array: Array) -> Array:
        array.flat[3] ^= 0x88 if precision == "int4" else 2
        return array

    copy = Path(shutil.copytree(bundle.path, tmp_path / "bundle"))
    altered = edit_graph(copy, STEP, weight(stored, step))
    assert not passes(altered, checkpoints["pre"])
    culprit = bisect(altered, checkpoints["pre"])
    assert culprit is not None
    assert (culprit.where, culprit.kind) == ("decoder layer 1, cross-attention, query", "weight")


def coarse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter that takes steps for one matrix that are eight times as long as they need be."""
    store = rewrite._store
    quantize = quantizer.quantize

    def rounded(matrix: Array, form: Form, scales_in: Any) -> quantizer.Quantized:
        scales = 8 * quantize(matrix, form).scales
        if form == INVARIANT:
            return quantizer.Quantized(form, np.rint(matrix / scales[:, None]).astype(np.int8), scales)
        blocks = matrix.reshape(*scales.shape, -1)
        return quantizer.Quantized(form, (np.rint(blocks / scales[..., None]) + 128).astype(np.uint8), scales)

    class Coarse(rewrite.Matrix):
        def _quantize(self) -> Array:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(rewrite, "quantize", rounded)
                return super()._quantize()

    def patched(model: ir.Model, given: ir.Value, form: Form, matrix: rewrite.Matrix, **how: Any) -> Any:
        if given.name == name:
            assert given.const_value is not None
            matrix = Coarse(given.const_value, form, ir.DataType.FLOAT)
        return store(model, given, form, matrix, **how)

    monkeypatch.setattr(rewrite, "_store", patched)


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize(
    ("name", "rows", "where"),
    [
        ("encoder.1.feed_forward.inner.weight", None, "encoder layer 1, feed-forward, first linear layer"),
        ("decoder.0.cross_attention.query.weight", 1, "decoder layer 0, cross-attention, query"),
    ],
)
def test_a_badly_quantised_matrix_is_named(
    name: str,
    rows: int | None,
    where: str,
    checkpoints: dict[str, Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each value is the nearest on its grid, so that nothing but the grid itself is wrong."""
    coarse(name, monkeypatch)
    bundle = made(checkpoints["pre"], tmp_path / "out", target="cpu", precision="int8", rows=rows)
    culprit = bisect(bundle, checkpoints["pre"])
    assert culprit is not None
    assert (culprit.where, culprit.kind) == (where, "quantisation")
    assert f"rounding {name} changes its product by" in culprit.what


def test_matrices_are_held_against_others_of_as_many_bits() -> None:
    """What is usual in 4 bits would be much in 8."""
    eight = [Rounding(f"eight {number}", DYNAMIC, 0.005, 0.005) for number in range(9)]
    four = [Rounding(f"four {number}", blocks_of(4, 16), 0.105, 0.1) for number in range(3)]
    assert badly_quantised([*four, *eight]) is None
    spoilt = Rounding("spoilt", blocks_of(4, 16), 0.9, 0.9)
    assert badly_quantised([spoilt, *four, *eight]) is spoilt
    coarse = Rounding("coarse", DYNAMIC, 0.02, 0.005)
    assert badly_quantised([spoilt, *four, coarse, *eight]) is coarse


@pytest.mark.usefixtures("few_cases")
def test_a_fault_in_the_file_alone_is_told_from_one_of_the_exporter(
    sound: dict[tuple[str, str], Bundle], checkpoints: dict[str, Checkpoint], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(sound["pre", "cpu"].path, tmp_path / "bundle"))
    culprit = bisect(edit_graph(copy, STEP, unmasked(0)), checkpoints["pre"])
    assert culprit is not None
    assert culprit.origin.startswith("not in a fresh export of the checkpoint")
    assert culprit.node.startswith("MultiHeadAttention ")


def with_stage(name: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the cpu target have one more stage, or another in place of one."""
    cpu = exporter.EXPORTER
    monkeypatch.setattr(exporter, "EXPORTER", dataclasses.replace(cpu, stages={**cpu.stages, name: stage}))


@pytest.mark.usefixtures("few_cases")
def test_a_faulty_pass_is_named(
    checkpoints: dict[str, Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fusion that loses the epsilon of one norm."""

    def fuse_norms(model: ir.Model, job: Job) -> int:
        norms = [node for node in model.graph if node.op_type == NORM]
        norms[1].attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-2)
        return 1

    with_stage("fuse norms", fuse_norms, monkeypatch)
    culprit = bisect(made(checkpoints["post"], tmp_path / "out", target="cpu"), checkpoints["post"])
    assert culprit is not None
    assert (culprit.graph, culprit.kind) == (ENCODER, "epsilon")
    assert culprit.where == "encoder layer 0, norm of feed-forward"
    assert culprit.origin == "brought in by the pass 'fuse norms'"


def test_what_only_padding_beyond_all_rows_shows_is_found(
    sound: dict[tuple[str, str], Bundle], checkpoints: dict[str, Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases are replayed as parity replays them."""
    padded: list[int] = []
    batch = cpu.batch

    def noted(sources: Any, facts: Any, padding: int = 0) -> tuple[Array, Array]:
        padded.append(padding)
        return batch(sources, facts, padding)

    monkeypatch.setattr(cpu, "batch", noted)
    assert bisect(sound["pre", "cpu"], checkpoints["pre"], more=3) is None
    assert max(padded) > 0
    usual = len(padded)
    padded.clear()
    assert bisect(sound["pre", "cpu"], checkpoints["pre"]) is None
    assert len(padded) < usual


@pytest.mark.usefixtures("few_cases")
def test_a_mask_dropped_by_the_trace_is_named(
    checkpoints: dict[str, Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = FUSED_FORMS["multi_head_attention"]

    def without_lengths(tracer: Tracer, *arguments: Any) -> Symbol:
        mixed = form(tracer, *arguments)
        tracer.nodes[-1].replace_input_with(4, None)
        return mixed

    monkeypatch.setitem(FUSED_FORMS, "multi_head_attention", without_lengths)
    culprit = bisect(made(checkpoints["pre"], tmp_path / "out", target="cpu"), checkpoints["pre"])
    assert culprit is not None
    assert (culprit.where, culprit.kind) == ("encoder layer 0, self-attention", "mask")
    assert culprit.origin == "brought in by the trace of the model"
    assert "encoder layer 1, self-attention" in culprit.also
    assert "decoder layer 0, cross-attention" in culprit.also


def test_a_graph_that_never_runs_is_a_crash(
    sound: dict[tuple[str, str], Bundle], checkpoints: dict[str, Checkpoint], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(sound["pre", "portable"].path, tmp_path / "bundle"))
    bundle = edit_graph(copy, ENCODER, weight("source_embedding.positions", lambda table: table[:-1]))
    culprit = bisect(bundle, checkpoints["pre"])
    assert culprit is not None
    assert (culprit.graph, culprit.kind) == (ENCODER, "crash")
    assert "step 0: the encoder graph does not run: " in culprit.what


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("options", [{"precision": "fp16"}, {"target": "cuda", "precision": "bf16"}], ids=str)
def test_a_graph_whose_weights_are_larger_than_a_message_is_probed(
    options: dict[str, Any], checkpoints: dict[str, Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of protobuf has less than 2 GB."""
    bundle = made(checkpoints["pre"], tmp_path / "out", **options)
    start = ort.InferenceSession

    def session(content: bytes, *arguments: Any, **more: Any) -> Any:
        if len(content) > 40_000:
            raise ValueError("Failed to serialize proto")
        return start(content, *arguments, **more)

    monkeypatch.setattr("txport.proof.bisect.isolation.ort.InferenceSession", session)
    monkeypatch.setattr(isolation, "LARGE", 256)
    assert bisect(bundle, checkpoints["pre"]) is None


@pytest.mark.usefixtures("few_cases")
def test_the_optimiser_of_the_runtime_is_told_from_the_graph(
    sound: dict[tuple[str, str], Bundle], checkpoints: dict[str, Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits that are wrong from the extended level on."""
    start = Runner.__init__
    run = Runner.run
    optimised: set[int] = set()
    wrong = (ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)

    def note(self: Runner, model: ir.Model, folder: Path, level: Any = None, **options: Any) -> None:
        start(self, model, folder, level, **options)
        optimised.update({id(self)} if level in wrong else ())

    def faulty(self: Runner, inputs: dict[str, Array]) -> dict[str, Array]:
        off = 0.01 if id(self) in optimised else 0
        return {name: value + np.float32(off * (name == "logits")) for name, value in run(self, inputs).items()}

    monkeypatch.setattr(Runner, "__init__", note)
    monkeypatch.setattr(Runner, "run", faulty)
    culprit = bisect(sound["pre", "portable"], checkpoints["pre"])
    assert culprit is not None
    assert (culprit.graph, culprit.kind) == (DECODER, "optimiser")
    assert "wrong from its level 'extended' on" in culprit.what


def test_another_checkpoint_is_refused(
    sound: dict[tuple[str, str], Bundle], checkpoints: dict[str, Checkpoint]
) -> None:
    with pytest.raises(UnsupportedError, match="their hashes differ"):
        bisect(sound["pre", "portable"], checkpoints["post"])


@pytest.mark.usefixtures("few_cases")
def test_the_command_prints_the_culprit_after_the_table_and_reports_it(
    bundle: Bundle, checkpoint: Path, copied: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    edit_graph(copied, DECODER, unmasked(3))
    arguments = ["--checkpoint", str(checkpoint), "--runtime", "ort", "--bisect", "--report", str(report)]
    done = CliRunner().invoke(cli, ["parity", str(copied), *arguments])
    assert done.exit_code == 1
    table, found = done.stdout.split("culprit: ")
    assert "verdict: FAIL" in table
    lines = found.splitlines()
    assert lines[0] == "decoder layer 1, cross-attention (the decoder graph)"
    assert [line.split(":")[0] for line in lines[1:]] == ["kind", "what", "figures", "node", "origin"]
    assert json.loads(report.read_text(encoding="utf-8"))["culprit"]["kind"] == "mask"
    done = CliRunner().invoke(cli, ["parity", str(bundle.path), *arguments])
    assert done.exit_code == 0
    assert "culprit: none;" in done.stdout
    assert json.loads(report.read_text(encoding="utf-8"))["culprit"] is None


@pytest.mark.usefixtures("few_cases")
def test_the_command_names_a_culprit_also_where_a_graph_does_not_run(copied: Path, checkpoint: Path) -> None:
    edit_graph(copied, DECODER, weight("target_embedding.positions", lambda table: table[1:]))
    done = CliRunner().invoke(cli, ["parity", str(copied), "--checkpoint", str(checkpoint), "--bisect"])
    assert done.exit_code == 1
    assert "what:    positions are off by +1" in done.stdout
