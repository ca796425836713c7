"""What is found for a text is the same, to the last bit, whatever else is in its batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import txport
from tests.covering import in_turn
from tests.runtimes.driven import seat_mixed
from tests.seeded import bundle_of, drawn, saved
from tests.tiny import edit_graph, tiny_config, tiny_model
from txport import runtimes
from txport.bundles.bundle import Bundle
from txport.bundles.forms import INVARIANT, PLAIN, blocks_of
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.exporters.check import operators
from txport.models.architectures.llama import LlamaConfig
from txport.models.architectures.opt import OPTConfig
from txport.models.names import MANIFEST
from txport.proof.proven import write
from txport.proof.verify.check import BATCH, Check, verify
from txport.runtimes import portable
from txport.runtimes.base import ContinuousRuntime, GraphRuntime
from txport.runtimes.ort import fused
from txport.runtimes.ort.sessions import Sessions
from txport.search.continuous import Scheduler
from txport.search.generate import generate
from txport.search.options import SearchOptions
from txport.search.scoring import logits
from txport.system.documents import write_json
from txport.targets.ports import ENCODER, INPUT_IDS, STEP

LONGEST = 23  # no multiple of what the kernels sum over at a time
KINDS: dict[str, dict[str, Any]] = {
    "all tied": {},
    "post, learned, untied": {
        "norm": "post",
        "positions": "learned",
        "tied": "none",
        "activation": "gelu",
        "feed_forward": 64,  # so that int4 could take blocks of 64, whose kernels sum a last odd row otherwise
    },
}
QUANTISED = ["int8", "int4"]
OFFERED = [("cpu", "fp32"), ("cpu", "int8"), ("cpu", "int4"), ("portable", "fp32")]
ALL = [(kind, *offered) for kind in KINDS for offered in OFFERED]
# Each with one kind of model: what searches and the scheduler ask of a graph does not depend on the kind.
EACH = [
    ("post, learned, untied", "cpu", "fp32"),
    ("all tied", "cpu", "int8"),
    ("post, learned, untied", "cpu", "int4"),
    ("all tied", "portable", "fp32"),
]
CONTINUOUS = [each for each in EACH if each[1] == "cpu"]
ENDS = [2, 5, 8, 11]  # so that samples and groups of one source end after unequal lengths
SEARCHES: list[dict[str, Any]] = [
    {},
    {"scores": False},
    {"beams": 3, "nbest": 3},
    {"do_sample": True, "nbest": 4, "seed": 3, "eos_token_id": ENDS, "min_new_tokens": 2},
    {"do_sample": True, "nbest": 3, "seed": 3, "top_k": 4, "eos_token_id": ENDS, "min_new_tokens": 2},
    {"beams": 3, "beam_groups": 3, "diversity_penalty": 0.5, "nbest": 3, "min_new_tokens": 2},
    {"beams": 4, "beam_groups": 2, "diversity_penalty": 0.5, "nbest": 2, "early_stopping": True, "min_new_tokens": 2},
]
LENGTHS = {"min_new_tokens": 6, "max_new_tokens": 12}
OTHERS = [1, 6, 30]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Bundle]:
    """A bundle with its proof, made where a test first needs it."""

    @cache
    def export(kind: str, target: str, precision: str) -> Bundle:
        folder = tmp_path_factory.mktemp("toys")
        save_checkpoint(folder / "toy", tiny_model(tiny_config(max_length=LONGEST, **KINDS[kind])))
        return txport.export(folder / "toy", folder / "out", target=target, precision=precision)

    return export


@pytest.fixture(scope="module")
def bundle(request: pytest.FixtureRequest, exported: Callable[[str, str, str], Bundle]) -> Bundle:
    return exported(*request.param)


def sources(bundle: Bundle, count: int = 31) -> list[list[int]]:
    """Of every length that the model takes, in no order."""
    rng = np.random.default_rng(5)
    longest = bundle.manifest.facts.reads.longest
    lengths = rng.permutation(np.arange(count) % longest + 1)
    return [[*rng.integers(4, 13, length - 1).tolist(), 2] for length in lengths]


def opened(bundle: Bundle) -> GraphRuntime:
    return runtimes.load("ort", bundle)


def found(bundle: Bundle, runtime: GraphRuntime, texts: list[list[int]], **options: Any) -> list[str]:
    """All that is found for each text, as Python writes it: to the last bit, and no score (NaN) equals none."""
    chosen = SearchOptions(**{**LENGTHS, **options})
    return [repr(each) for each in generate(runtime, texts, bundle.manifest.facts, chosen)]


# Groups ask of a graph what beams and samples do.
@pytest.mark.parametrize(("options", "bundle"), in_turn(SEARCHES[:5], EACH), ids=str, indirect=["bundle"])
def test_what_is_found_for_a_text_is_the_same_beside_any_others(bundle: Bundle, options: dict[str, Any]) -> None:
    texts = sources(bundle)
    runtime = opened(bundle)
    alone = [found(bundle, runtime, [text], **options)[0] for text in texts]
    for others in OTHERS:
        for start in range(0, len(texts), others + 1):
            part = slice(start, start + others + 1)
            assert found(bundle, runtime, texts[part], **options) == alone[part]
    order = np.random.default_rng(6).permutation(len(texts))
    assert found(bundle, runtime, [texts[at] for at in order], **options) == [alone[at] for at in order]


@pytest.mark.parametrize(
    ("options", "bundle"), in_turn([*SEARCHES[2:4], SEARCHES[-1]], CONTINUOUS), ids=str, indirect=["bundle"]
)
def test_what_is_found_is_the_same_in_continuous_batches(bundle: Bundle, options: dict[str, Any]) -> None:
    texts = sources(bundle)
    runtime = opened(bundle)
    assert isinstance(runtime, ContinuousRuntime)

    def continuous(texts: list[list[int]], slots: int) -> list[str]:
        chosen = SearchOptions(**{**LENGTHS, **options})
        found = Scheduler(runtime, [(text, ()) for text in texts], bundle.manifest.facts, chosen, slots).run()
        return [repr(each) for each in found]

    together = found(bundle, runtime, texts, **options)
    assert continuous(texts, 2) == continuous(texts, 7) == together
    assert [continuous([text], 1)[0] for text in texts[:5]] == together[:5]


@pytest.mark.parametrize("bundle", CONTINUOUS, ids=" ".join, indirect=True)
@settings(max_examples=15)
@given(options=st.sampled_from(SEARCHES), data=st.data())
def test_any_texts_in_any_order_change_nothing(bundle: Bundle, options: dict[str, Any], data: st.DataObject) -> None:
    """A text among any others, whose rows leave earlier and later than its own."""
    texts = sources(bundle)
    runtime = opened(bundle)
    batch = data.draw(st.lists(st.sampled_from(texts), min_size=2, max_size=9))
    at = data.draw(st.integers(0, len(batch) - 1))
    assert found(bundle, runtime, batch, **options)[at] == found(bundle, runtime, [batch[at]], **options)[0]


@pytest.mark.parametrize("bundle", CONTINUOUS[:2], ids=" ".join, indirect=True)
def test_rows_that_go_on_from_others_fail_the_check(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that shows only where sources have unequally many rows left, which given targets never have."""
    assert looked_at(bundle).verdict == "pass"
    monkeypatch.setattr(fused, "seat", seat_mixed)
    check = looked_at(bundle)
    assert check.verdict == "fail"
    assert "alone has other samples" in check.detail


@pytest.mark.parametrize("bundle", ALL, ids=" ".join, indirect=True)
def test_logits_are_the_same_beside_any_others(bundle: Bundle) -> None:
    assert differing(bundle) == 0
    assert looked_at(bundle) == Check(BATCH, "pass", "4 rows are the same alone and together, to the last bit")


@pytest.mark.parametrize("precision", QUANTISED)
def test_matrices_that_stay_in_fp32_depend_on_no_others_either(precision: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(max_length=LONGEST)))
    checkpoint = load_checkpoint(str(tmp_path / "toy"))
    out = tmp_path / "out"
    out.mkdir()
    names = [name for name, _ in checkpoint.model.named_parameters() if "feed_forward" in name or "query" in name]
    bundle = write(checkpoint, out, target="cpu", precision=precision, chosen=dict.fromkeys(names, PLAIN))
    assert {PLAIN, INVARIANT} <= set(bundle.manifest.forms.values())
    assert differing(bundle) == 0


@pytest.mark.parametrize("precision", QUANTISED)
def test_with_kernels_for_some_rows_logits_depend_on_the_others(tmp_path: Path, precision: str) -> None:
    """Else nothing above could fail, nor the check of it where a bundle runs."""
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(max_length=LONGEST)))
    fast = txport.export(tmp_path / "toy", tmp_path / "out", target="cpu", precision=precision, rows=8)
    assert differing(fast) > 0
    assert looked_at(fast) == Check(BATCH, "not run", "kernels for 8 rows depend on the batch")
    edited = json.loads((fast.path / MANIFEST).read_text())
    edited["rows"] = None
    write_json(fast.path / MANIFEST, edited)
    check = looked_at(fast)
    assert check.verdict == "fail"
    assert "alone has other logits from step " in check.detail


@pytest.mark.parametrize(("precision", "dtype", "most"), [("fp32", "float32", 0), ("fp16", "float16", 2)])
def test_without_padding_logits_of_portable_bundles_depend_on_the_others(
    precision: str, dtype: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp16 ONNX Runtime's sums also depend on where a row lies, which one text in hundreds shows."""
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(max_length=24)))
    (tmp_path / "out").mkdir()
    bundle = write(load_checkpoint(str(tmp_path / "toy")), tmp_path / "out", precision=precision)
    assert differing(bundle, 124) <= most
    monkeypatch.setitem(portable.TOGETHER, dtype, 1)
    assert differing(bundle, 124) > most


CAUSAL: dict[str, Any] = {
    "llama": LlamaConfig(vocab_size=40, d_model=32, heads=2, decoder_layers=2, max_length=60, pad_id=0, eos_ids=(2,)),
    "opt": OPTConfig(  # what reads the last norm alone is in 4 bits, too
        vocab_size=40, d_model=32, embedding_width=24, heads=2, decoder_layers=2, max_length=60, pad_id=0, eos_id=2
    ),
}


@pytest.mark.parametrize("kind", [*CAUSAL, "seq2seq"])
def test_no_row_runs_alone_where_its_sums_would_differ(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ONNX Runtime's kernels for one row of 4-bit blocks of 32 on x86 without AVX-512 VNNI."""
    config = CAUSAL.get(kind) or tiny_config(max_length=60, d_model=32, feed_forward=64)
    bundle = bundle_of(saved(config, tmp_path / "model"), tmp_path / "out", "cpu", "int4")
    for role in bundle.manifest.graphs:
        bundle = edit_graph(bundle.path, role, sum_one_row_apart)
    monkeypatch.setattr(fused, "sums_one_row_apart", lambda: False)
    apart = [differing(bundle, by_step=by_step) for by_step in (False, True)]
    assert any(apart)
    monkeypatch.setattr(fused, "sums_one_row_apart", lambda: True)
    assert [differing(bundle, by_step=by_step) for by_step in (False, True)] == [0, 0]
    texts = sources(bundle)[:9]
    for options in SEARCHES[:4]:
        runtime = opened(bundle)
        together = found(bundle, runtime, texts, **options)
        assert together == [found(bundle, runtime, [text], **options)[0] for text in texts]
        chosen = SearchOptions(**{**LENGTHS, **options})
        for slots in (1, 2):
            scheduler = Scheduler(runtime, [(text, ()) for text in texts], bundle.manifest.facts, chosen, slots)
            assert [repr(each) for each in scheduler.run()] == together


def test_an_unused_row_leaves_nothing_to_a_row_that_takes_its_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rows go from two to one, and to two again: the second slot had the same content, and was written since."""
    monkeypatch.setattr(fused, "sums_one_row_apart", lambda: True)
    bundle = bundle_of(saved(CAUSAL["llama"], tmp_path / "model"), tmp_path / "out", "cpu", "int4")
    runtime = opened(bundle)
    prompts, lengths = np.array([[5, 6, 7], [8, 9, 10]]), np.array([3, 3])
    state = runtime.start(prompts, lengths, max_length=20)
    _, state = runtime.step(prompts[:, -1], state)
    state = runtime.select(state, np.array([1]))
    _, state = runtime.step(np.array([11]), state)
    state = runtime.select(state, np.array([0, 0]))
    scores, state = runtime.step(np.array([12, 12]), state)
    assert np.array_equal(scores.values[0], scores.values[1])


def test_a_source_whose_attention_sums_a_rest_has_padding(tmp_path: Path) -> None:
    """Attention with relative positions is no fused operator, and sums positions beyond a multiple of 4 apart."""
    for seed in range(3):
        bundle = bundle_of(saved(drawn("relative", seed), tmp_path / f"model {seed}"), tmp_path / f"out {seed}")
        facts = bundle.manifest.facts
        rng = np.random.default_rng(seed)
        texts = [
            rng.integers(0, facts.reads.size, size + 1).tolist() for size in range(min(facts.reads.longest, LONGEST))
        ]
        target = rng.integers(0, facts.writes.size, 3).tolist()
        together = logits(opened(bundle), texts, [target] * len(texts), facts)
        alone = [logits(opened(bundle), [text], [target], facts)[0] for text in texts]
        assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))


def test_texts_of_encoders_have_padding_as_sources_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Arm, their attention sums a rest apart, and on x86 that of some models."""
    runtime = opened(bundle_of(load_checkpoint("preset:bert-tiny"), tmp_path / "out"))
    longest = runtime.facts.reads.longest
    run, widths = fused.run_session, set[int]()

    def spied(sessions: Sessions, role: str, names: list[str], inputs: dict[str, Any]) -> dict[str, Any]:
        widths.add(inputs[INPUT_IDS].shape[1])
        return run(sessions, role, names, inputs)

    monkeypatch.setattr(fused, "run_session", spied)
    for size in (1, 2, 5, 8, longest - 1, longest):
        outputs = runtime.infer(np.full((1, size), 5), np.array([size]))
        assert {each.shape[1] for each in outputs.values()} == {size}
    assert widths == {4, 8, longest}
    assert longest % 4 == 0


def sum_one_row_apart(model: onnx.ModelProto) -> None:
    """Add a hundredth to each product in 4-bit blocks that has a single row."""
    nodes = list[onnx.NodeProto]()
    for node in model.graph.node:
        values = {each.name: each.i for each in node.attribute}
        nodes.append(node)
        if node.op_type != "MatMulNBits" or values["bits"] != 4:
            continue
        name = node.output[0]
        node.output[0] = exact = f"{name}.exact"
        outputs = numpy_helper.from_array(np.array(values["N"], np.int64), f"{name}.outputs")
        hundredth = numpy_helper.from_array(np.array(0.01, np.float32), f"{name}.hundredth")
        model.graph.initializer.extend([outputs, hundredth])
        nodes += [
            helper.make_node("Size", [exact], [f"{name}.size"]),
            helper.make_node("Equal", [f"{name}.size", outputs.name], [f"{name}.alone"]),
            helper.make_node("Cast", [f"{name}.alone"], [f"{name}.times"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}.times", hundredth.name], [f"{name}.more"]),
            helper.make_node("Add", [exact, f"{name}.more"], [name]),
        ]
    nodes = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def looked_at(bundle: Bundle) -> Check:
    (check,) = (check for check in verify(bundle.path).checks if check.name == BATCH)
    return check


def differing(bundle: Bundle, count: int = 31, *, by_step: bool = False) -> int:
    """How many texts have other logits before given targets in some batch than alone."""
    runtime = opened(bundle)
    facts = bundle.manifest.facts
    texts = sources(bundle, count)
    targets = [[4 + len(text) % 8, 7, 9, 5, 2] for text in texts]
    pairs = zip(texts, targets, strict=True)
    alone = [logits(runtime, [text], [target], facts, by_step=by_step)[0] for text, target in pairs]
    other = set()
    for size in (each + 1 for each in OTHERS):
        for start in range(0, len(texts), size):
            part = slice(start, start + size)
            together = logits(runtime, texts[part], targets[part], facts, by_step=by_step)
            for at, values in enumerate(together, start):
                if not np.array_equal(values, alone[at]):
                    other.add(at)
    return len(other)


@pytest.mark.parametrize("bundle", [each for each in ALL if each[-1] in QUANTISED], ids=" ".join, indirect=True)
def test_every_matrix_has_a_form_and_no_operator_quantises_all_rows_at_once(bundle: Bundle) -> None:
    manifest = bundle.manifest
    precision = manifest.precision
    config = manifest.config
    forms = set(manifest.forms.values())
    blocks = {blocks_of(4, block, zeros=zeros) for block in (16, 32) for zeros in (False, True)}  # of tables: no zeros
    assert INVARIANT in forms
    assert forms <= {INVARIANT} | (blocks if precision == "int4" else set())
    products = 0
    for role in (ENCODER, STEP):
        counts = operators(bundle.file(role))
        assert not {"DynamicQuantizeLinear", "com.microsoft.DynamicQuantizeMatMul", "Gemm"} & set(counts)
        products += counts.get("com.microsoft.QGemm", 0) + counts.get("com.microsoft.MatMulNBits", 0)
    assert products == 6 * config["encoder_layers"] + 8 * config["decoder_layers"] + 1
