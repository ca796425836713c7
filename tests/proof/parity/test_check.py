"""Parity passes what is right, fails what is wrong, and says which tensor it is."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

import txport
from tests.proof.faults import Edit, nodes, put, swapped, unmasked, weight
from tests.tiny import VOCABULARY, edit_graph, tiny_config, tiny_model, unproven, without_metadata
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.errors import BundleError, ParityError, UnsupportedError
from txport.models.architectures import transformer
from txport.models.architectures.transformer import TransformerConfig
from txport.models.names import MANIFEST
from txport.proof.bisect.culprit import bisect
from txport.proof.parity.cases import Case, draw_cases
from txport.proof.parity.check import check
from txport.proof.parity.exact import Exact
from txport.proof.parity.measures import FORCED, GRAPH, WEIGHTS, WHOLE, compare
from txport.proof.parity.noise import Noisy, Remembering
from txport.proof.parity.tokens import BEAMS, NOISY_RUNS, compare_search, near_tie, score_of, search_all
from txport.proof.parity.tolerances import Tolerance, tolerance_of
from txport.proof.parity.truth.generation import compare_forced
from txport.proof.reports.render import rows
from txport.proof.reports.report import Report
from txport.runtimes.base import Ints, Runtime, Scores, State
from txport.runtimes.portable import PortableRuntime
from txport.runtimes.pytorch import TorchRuntime
from txport.runtimes.reference import ReferenceEngine
from txport.search.generate import generate
from txport.search.options import Found, SearchOptions
from txport.system.documents import write_json
from txport.targets.ports import DECODER, ENCODER, IDS, LOGITS, SELECT, STEP

Array = NDArray[Any]
GREEDY = SearchOptions(max_new_tokens=24)


@pytest.fixture(scope="module")
def loaded(checkpoint: Path) -> Checkpoint:
    return load_checkpoint(str(checkpoint))


@pytest.fixture(scope="module")
def report(bundle: Bundle, loaded: Checkpoint) -> Report:
    return check(bundle, loaded, {"ort": "cpu", "reference": "cpu"})


def epsilon(number: int) -> Edit:
    """The right norm with another epsilon."""

    def edit(model: ModelProto) -> None:
        for attribute in nodes(model, "LayerNormalization")[number].attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-2

    return edit


def positions_ignore_past(model: ModelProto) -> None:
    """Every call of the decoder starts at position 0 again."""
    length = next(node for node in nodes(model, "Gather") if node.input[0].endswith("positions")).input[1]
    source = next(node for node in nodes(model, "Range") if node.output[0] == length)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "zero"))
    new = onnx.helper.make_node("Sub", [source.input[1], source.input[0]], ["new_tokens"])
    moved = onnx.helper.make_node("Range", ["zero", "new_tokens", source.input[2]], ["moved"])
    place = list(model.graph.node).index(source)
    for node in model.graph.node:
        if node.input and node.input[0].endswith("positions"):
            node.input[1] = "moved"
    model.graph.node.insert(place + 1, new)
    model.graph.node.insert(place + 2, moved)


# fault: the graph, what is done to it, which tensors may be the worst, which cases may show it
CROSS_ATTENTION = "cross_attentions.1"
PADDED = {"padded rows", "every row padded", "many rows", "longer than traced", "real"}
FAULTS: dict[str, tuple[str, Edit, set[str], set[str]]] = {
    "weight of the encoder": (
        ENCODER,
        weight("encoder.0.attention.key.weight", put(0.3)),
        {"encoder.0.attention.key.weight"},
        {WEIGHTS},
    ),
    "last bit of a weight": (
        DECODER,
        weight("decoder.0.attention.query.weight", lambda array: np.nextafter(array, np.float32(9))),
        {"decoder.0.attention.query.weight"},
        {WEIGHTS},
    ),
    "NaN weight": (
        DECODER,
        weight("decoder.0.attention.value.weight", put(math.nan)),
        {"decoder.0.attention.value.weight"},
        {WEIGHTS},
    ),
    "positions start anew in every call": (
        DECODER,
        positions_ignore_past,
        {CROSS_ATTENTION, "logits", "present.0.decoder.key", "present.0.decoder.value"},
        set(),
    ),
    "epsilon in the encoder": (ENCODER, epsilon(0), {"encoder.0.attention_residual.norm.epsilon"}, {WEIGHTS}),
    "causal mask dropped": (DECODER, unmasked(2), {CROSS_ATTENTION, "logits"}, set()),
    "source mask dropped": (DECODER, unmasked(3), {CROSS_ATTENTION, "logits"}, PADDED),
    "own cache swapped": (
        DECODER,
        swapped("past_key_values.1.decoder.key", "past_key_values.1.decoder.value"),
        {CROSS_ATTENTION, "present.1.decoder.key", "present.1.decoder.value"},
        set(),
    ),
}


CASES = {
    "one row",
    "length 1",
    "padded rows",
    "every row padded",
    "many rows",
    "longer than traced",
    "longest",
    "real",
}


def test_the_bundle_passes(report: Report) -> None:
    assert report.passed, report.describe_worst()
    assert 0 < report.worst_of("logits") < 1e-4
    assert report.summary()["verdict"] == "pass"
    assert report.summary()["runtimes"] == ["ort", "reference"]


def test_every_output_is_compared_in_every_case_on_every_runtime(report: Report, bundle: Bundle) -> None:
    graphs = bundle.manifest.graphs
    outputs = {port.name for role in (ENCODER, DECODER) for port in graphs[role].outputs}
    names = {each.case for each in report.tensors} - {WEIGHTS}
    assert names == CASES
    for name in names:
        for runtime in ("ort", "reference"):
            of_case = [each for each in report.tensors if (each.case, each.runtime) == (name, runtime)]
            assert {each.tensor for each in of_case if each.kind == GRAPH} == outputs
            assert {each.tensor for each in of_case if each.kind == FORCED} == {LOGITS}
            assert all(each.expected != 0 for each in of_case)
            searches = [each.search for each in report.tokens if (each.case, each.runtime) == (name, runtime)]
            assert searches == ["greedy", f"beam {BEAMS}"]


def test_every_weight_is_compared_bit_for_bit(report: Report, loaded: Checkpoint) -> None:
    compared = {each.tensor for each in report.tensors if each.case == WEIGHTS}
    epsilons = {name for name in compared if name.endswith(".epsilon")}
    compared -= {"source_embedding.positions", "target_embedding.positions", *epsilons}
    aliases = dict(loaded.model.named_parameters(remove_duplicate=False))
    assert {id(aliases[name]) for name in compared} == {id(parameter) for parameter in loaded.model.parameters()}
    assert {each.allowed for each in report.tensors if each.case == WEIGHTS} == {0.0}
    norms = {name for name, each in loaded.model.named_modules() if isinstance(each, torch.nn.LayerNorm)}
    assert epsilons == {f"{name}.epsilon" for name in norms}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("facts", "target", "start"), 7),
        (("facts", "target", "ends"), [3]),
        (("facts", "source", "pad"), 5),
        (("facts", "source", "after"), []),
        (("facts", "source", "longest"), 23),
        (("facts", "has_plain_logits"), False),
        (("config", "norm_epsilon"), 0.5),
        (("architecture",), "t5"),
    ],
    ids=lambda each: ".".join(each) if isinstance(each, tuple) else "",
)
def test_a_manifest_that_tells_of_another_model_is_named(
    path: tuple[str, ...], value: Any, copied: Path, checkpoint: Path, loaded: Checkpoint
) -> None:
    without_metadata(copied)
    values = json.loads((copied / MANIFEST).read_text())
    inner = values
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    write_json(copied / MANIFEST, values)
    told = load_bundle(copied)
    what = rf"txport\.json says {re.escape('.'.join(path))} .*, its checkpoint .*; export it again$"
    for proof in (lambda: check(told, loaded, {"ort": "cpu"}), lambda: bisect(told, loaded)):
        with pytest.raises(ParityError, match=what):
            proof()
    with pytest.raises(BundleError, match=what):
        txport.load(copied, runtime="torch", checkpoint=checkpoint)


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found_and_named(fault: str, copied: Path, loaded: Checkpoint) -> None:
    role, edit, tensors, cases = FAULTS[fault]
    result = check(edit_graph(copied, role, edit), loaded, {"ort": "cpu"})
    assert not result.passed
    worst = result.to_dict()["worst"]
    assert worst["tensor"] in tensors
    assert not cases or worst["case"] in cases
    assert worst["tensor"] in result.describe_worst()
    # A fault in one graph is no fault of the other, since each is fed what PyTorch computed.
    failed = {each.tensor for each in result.tensors if not each.passed and each.kind == GRAPH}
    assert ("last_hidden_state" in failed) == (role == ENCODER)
    assert ("logits" in failed) == (role == DECODER and fault != "last bit of a weight")


@pytest.mark.usefixtures("few_cases")
def test_each_runtime_is_judged_by_itself(copied: Path, loaded: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    import txport.runtimes.reference as module

    whole = module.ReferenceEngine.run

    def faulty(self: Any, role: str, inputs: dict[str, Array], outputs: list[str]) -> dict[str, Array]:
        results = whole(self, role, inputs, outputs)
        return {name: array + np.float32(0.01) if name == "logits" else array for name, array in results.items()}

    monkeypatch.setattr(module.ReferenceEngine, "run", faulty)
    result = check(load_bundle(copied), loaded, {"ort": "cpu", "reference": "cpu"})
    assert (result.worst.runtime, result.worst.tensor) == ("reference", "logits")
    verdicts = {(case["runtime"], case["verdict"]) for case in result.to_dict()["cases"] if case["case"] != WEIGHTS}
    assert verdicts == {("ort", "pass"), ("reference", "fail")}


def test_a_driver_that_does_not_run_is_a_failure_with_a_place(copied: Path, loaded: Checkpoint) -> None:
    """The graph that picks rows is run by no call of its own."""

    def edit(model: ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array(1000), "far"))
        model.graph.node.insert(0, onnx.helper.make_node("Add", ["rows", "far"], ["moved"]))
        for node in list(model.graph.node)[1:]:
            node.input[:] = ["moved" if name == "rows" else name for name in node.input]

    bundle = edit_graph(copied, SELECT, edit)
    with pytest.raises(ParityError, match=r"^ort, case .*: a search does not run: "):
        check(bundle, loaded, {"ort": "cpu"})


@pytest.mark.usefixtures("few_cases")
def test_a_choice_of_other_tokens_is_found(checkpoint: Path, loaded: Checkpoint, tmp_path: Path) -> None:
    """Where scores are right, and stand beside the tokens next to theirs."""

    def edit(model: ModelProto) -> None:
        for node in model.graph.node:
            node.output[:] = ["chosen" if name == IDS else name for name in node.output]
        model.graph.initializer.append(numpy_helper.from_array(np.array(1), "planted.one"))
        model.graph.initializer.append(numpy_helper.from_array(np.array(len(VOCABULARY)), "planted.size"))
        model.graph.node.append(onnx.helper.make_node("Add", ["chosen", "planted.one"], ["next"]))
        model.graph.node.append(onnx.helper.make_node("Mod", ["next", "planted.size"], [IDS]))

    bundle = unproven(checkpoint, tmp_path / "toy", target="cpu")
    report = check(edit_graph(bundle.path, STEP, edit), loaded, {"ort": "cpu"})
    assert {each.tensor for each in report.tensors if each.kind == GRAPH and not each.passed} == {IDS}


def test_table_has_a_row_a_case_the_worst_first(report: Report) -> None:
    shown = rows(report)
    assert {row[-1] for row in shown} == {"pass"}
    assert len(shown) == 1 + 2 * len(CASES)
    assert {row[:2] for row in shown} >= {("padded rows", "ort"), ("padded rows", "reference"), (WEIGHTS, "all graphs")}
    assert all(row[5] == "8/8" for row in shown if row[0] == "padded rows")
    shares = [float(row[3].removesuffix(" %") or 0) for row in shown]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.usefixtures("few_cases")
def test_same_seed_same_report(bundle: Bundle, loaded: Checkpoint) -> None:
    again = [check(bundle, loaded, {"ort": "cpu"}, seed=seed).to_dict() for seed in (7, 7, 8)]
    assert again[0] == again[1]
    assert again[0]["cases"] != again[2]["cases"]


def test_another_checkpoint_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(), seed=1))
    with pytest.raises(UnsupportedError, match="was not made from this toy: their hashes differ"):
        check(bundle, load_checkpoint(str(tmp_path / "toy")), {"ort": "cpu"})


class Exchanged:
    """A runtime that takes one token for another."""

    def __init__(self, runtime: Runtime, first: int, second: int) -> None:
        self._runtime = runtime
        self._order = np.arange(len(VOCABULARY))
        self._order[[first, second]] = second, first

    def start(self, source: Ints, source_lengths: Ints, *, max_length: int) -> State:
        return self._runtime.start(source, source_lengths, max_length=max_length)

    def step(
        self, tokens: Ints, state: State, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, State]:
        scores, state = self._runtime.step(tokens, state, top=top, normalise=normalise)
        assert scores.ids is not None
        return Scores(scores.values, self._order[scores.ids]), state

    def select(self, state: State, rows: Ints) -> State:
        return self._runtime.select(state, rows)


@pytest.mark.parametrize(("gap", "tied"), [(0.0, True), (1e-6, True), (0.1, False)])
def test_near_ties_are_told_apart_from_errors(gap: float, tied: bool) -> None:
    """Two tokens that PyTorch scores alike may stand for each other; two that it tells apart may not."""
    model = tiny_model(tiny_config(tied="none"))
    common = 19  # this model's most frequent token
    twin = 6
    with torch.no_grad():
        model.target_embedding.tokens.weight[twin] = model.target_embedding.tokens.weight[common]
        model.projection.weight[twin] = model.projection.weight[common] * (1 + gap)
    exact = Exact.of(model)
    runtime = TorchRuntime(model)
    case = Case("case", [[7, 8, 9, 2], [10, 2], [4, 4, 2]], ())
    arguments = (search_all(case, runtime, model.facts), exact, tolerance_of("fp32"))
    same = list(compare_search(case, "same", runtime, *arguments))
    assert [(each.equal, each.near_ties, each.passed) for each in same] == [(3, 0, True)] * 2
    other = list(compare_search(case, "other", Exchanged(runtime, common, twin), *arguments))
    assert all(each.equal < 3 for each in other), "the search never met the two tokens"
    for each in other:
        assert each.passed == tied
        assert (each.near_ties == 3 - each.equal) == tied
        assert (each.wrong is None) == tied
        if each.wrong is not None:
            assert each.wrong["expected"] != each.wrong["actual"]


def found(tokens: list[int]) -> Found:
    return Found(tuple(tokens), 0.0)


def test_a_greedy_tie_is_at_the_first_token_that_differs() -> None:
    """What the whole target is worth does not excuse a token that PyTorch would not have said."""
    exact = Exact.of(tiny_model(tiny_config()))
    source = [7, 8, 9, 2]
    said = list(generate(TorchRuntime(exact.model), [source], exact.model.facts, GREEDY)[0][0].tokens)
    other = [*said[:-1], 5 if said[-1] != 5 else 6]
    assert near_tie(exact, source, found(said), found(other), 1, tolerance_of("fp32")) is None
    gap = score_of(exact, source, said)[-1] - score_of(exact, source, other)[-1]
    assert gap > 0
    tie = near_tie(exact, source, found(said), found(other), 1, moving(exact, source, [said, other], gap))
    assert tie is not None
    assert tie.margin == pytest.approx(gap)
    strict = moving(exact, source, [said, other], gap / 2.1)
    assert near_tie(exact, source, found(said), found(other), 1, strict) is None


def test_the_last_bit_of_a_log_prob_is_a_tie_where_logits_are_nearly_0() -> None:
    model = tiny_model(tiny_config(tied="none"))
    source = [7, 8, 9, 2]
    with torch.no_grad():
        model.projection.weight *= 1e-8
    exact = Exact.of(model)
    said, other = ([5, 6, 7], [5, 6, 8])
    beams = (1, BEAMS)
    margin = abs(float(np.subtract(*(score_of(exact, source, each) for each in (said, other)))[-1]))
    assert margin > 2 * tolerance_of("fp32").noise_of(1e-7, 0.0)
    for width in beams:
        assert near_tie(exact, source, found(said), found(other), width, tolerance_of("fp32")) is not None


def moving(exact: Exact, source: list[int], targets: list[list[int]], by: float, precision: str = "fp32") -> Tolerance:
    """One by which a logit of these targets may move by so much."""
    share = by / max(float(np.abs(each).max()) for each in exact.logits([source] * len(targets), targets))
    return replace(tolerance_of(precision), own=0.0, noise=share, largest=share)


def test_sources_are_encoded_once_for_searches_that_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tiny_config()).eval()
    encoded = list[int]()
    plain = TorchRuntime.start

    def start(self: TorchRuntime, source: Any, lengths: Any, *, max_length: int) -> Any:
        encoded.append(len(source))
        return plain(self, source, lengths, max_length=max_length)

    one = [7, 8, 9, 2]
    two = [5, 2]
    searches = [([one, one, two], 1), ([two, one], 3), ([one], 1)]
    wanted = [generate(TorchRuntime(model), sources, model.facts, SearchOptions(beams=beams, max_new_tokens=6))
              for sources, beams in searches]  # fmt: skip
    monkeypatch.setattr(TorchRuntime, "start", start)
    runtime = Remembering(TorchRuntime(model))
    for (sources, beams), expected in zip(searches, wanted, strict=True):
        options = SearchOptions(beams=beams, max_new_tokens=6)
        for _ in range(2):
            assert generate(runtime, sources, model.facts, options) == expected
    assert encoded == [2, 2, 1]


def test_a_beam_that_was_dropped_at_a_tie_is_found_by_shaking() -> None:
    """What PyTorch says when its logits move by the noise passes; what it never says does not."""
    exact = Exact.of(tiny_model(tiny_config()))
    source = [7, 8, 9, 2]
    facts = exact.model.facts
    runtime = TorchRuntime(exact.model)
    options = SearchOptions(max_new_tokens=24, beams=BEAMS)
    plain = generate(runtime, [source], facts, options)[0][0]
    strict = moving(exact, source, [list(plain.tokens)], 0.5)
    shaken = [generate(Noisy(runtime, strict.largest, seed), [source], facts, options) for seed in range(NOISY_RUNS)]
    others = [each[0][0] for each in shaken if each[0][0].tokens != plain.tokens]
    assert others, "the noise changed nothing"
    monotone = replace(plain, tokens=(5,) * 24)
    assert all(near_tie(exact, source, plain, other, BEAMS, strict) is not None for other in others)
    assert near_tie(exact, source, plain, monotone, BEAMS, strict) is None
    assert near_tie(exact, source, plain, others[0], BEAMS, tolerance_of("fp32")) is None
    few_bits = moving(exact, source, [list(plain.tokens)], 0.5, "int8")
    assert all(near_tie(exact, source, plain, other, BEAMS, few_bits) is not None for other in others)
    assert near_tie(exact, source, plain, monotone, BEAMS, few_bits) is None


def test_more_cases_are_drawn_by_seed_and_change_none_of_the_others(bundle: Bundle) -> None:
    usual = draw_cases(bundle, 3)
    more = draw_cases(bundle, 3, 12)
    assert more[: len(usual)] == usual
    assert more[len(usual) : -2] == draw_cases(bundle, 3, 10)[len(usual) :]
    assert more[len(usual) :] != draw_cases(bundle, 4, 12)[len(usual) :]
    longest = bundle.manifest.facts.writes.longest
    for case in more:
        assert sum(case.steps) <= longest
        assert max(map(len, case.sources)) + case.padding <= longest
        assert not case.targets or len(case.targets) == len(case.sources)
        assert all(1 <= len(target) <= longest for target in case.targets)
    assert any(case.padding for case in more[len(usual) :])
    assert len({len(case.sources) for case in more}) > 4


def test_a_fault_that_only_the_running_cache_shows_is_found(bundle: Bundle, loaded: Checkpoint) -> None:
    """Every graph is right, but the runtime loses a place of its cache on the way."""

    class Forgetful(PortableRuntime[Any]):
        def step(self, tokens: Ints, state: State, **options: Any) -> tuple[Scores, State]:
            if state.length == 6:
                swapped = {name: state.tensors[name] for name in state.tensors}
                name = "past_key_values.0.decoder.key"
                swapped[name] = swapped[name][:, :, ::-1].copy()
                state = replace(state, tensors=swapped)
            return super().step(tokens, state, **options)

    runtime = Forgetful(ReferenceEngine(bundle), bundle.manifest)
    case = next(case for case in draw_cases(bundle, 0) if case.name == "longest")
    compared = compare_forced(case, "ort", runtime, Exact.of(loaded.model), tolerance_of("fp32"))
    failed = [each for each in compared if not each.passed]
    assert failed[0].step == 6
    assert failed[0].describe().startswith("ort, case longest, target position 6: logits[0, ")


def test_wrong_tokens_fail_even_if_every_tensor_passes(report: Report) -> None:
    wrong = {"row": 1, "expected": (4, 2), "actual": (5, 2)}
    tokens = [*report.tokens, replace(report.tokens[0], equal=report.tokens[0].rows - 1, wrong=wrong)]
    failed = replace(report, tokens=tokens)
    assert not failed.passed
    assert failed.describe_worst() == f"ort, case one row: greedy tokens differ: {wrong}"
    assert failed.to_dict()["verdict"] == "fail"


def test_other_shapes_fail_and_nothing_equals_nothing() -> None:
    zeros = np.zeros((2, 3), dtype=np.float32)
    cut, empty = (compare("case", "ort", 0, "x", *pair, 1e-4) for pair in ((zeros, zeros[:1]), (zeros[:0], zeros[:0])))
    assert (cut.max_abs, cut.index, cut.passed) == (math.inf, (), False)
    assert (empty.max_abs, empty.index, empty.passed) == (0.0, (), True)


def test_a_tolerance_is_no_larger_where_values_are() -> None:
    expected = np.full((2, 3), 1e4, np.float32)
    actual = expected.copy()
    actual[1, 2] += 0.5
    found = compare("case", "ort", 0, "x", expected, actual, 1e-4)
    assert (found.max_abs, found.index, found.passed) == (0.5, (1, 2), False)


@pytest.mark.parametrize("max_length", [1, 2, 3, 7, 24, 100])
@pytest.mark.parametrize("vocabulary", [3, 4, 50])
def test_cases_fit_every_model(max_length: int, vocabulary: int, tmp_path: Path) -> None:
    config = TransformerConfig(
        source_vocab_size=vocabulary, target_vocab_size=vocabulary, d_model=8, heads=2, max_length=max_length
    )
    made = {"checkpoint": {}, "tools": {}, "target": "portable", "precision": "fp32", "opset": 18}
    facts = transformer.facts(config)
    bundle = Bundle(tmp_path, Manifest(architecture="transformer", config=config.to_dict(), facts=facts, **made))
    cases = {case.name: case for case in draw_cases(bundle, 0)}
    for case in cases.values():
        assert case.sources
        assert sum(case.steps) <= max_length
        for source in case.sources:
            assert 1 <= len(source) <= max_length
            assert source[-1] == config.eos_id
            assert all(0 <= token < vocabulary for token in source)
    assert len(cases["longest"].sources[0]) == sum(cases["longest"].steps) == max_length
    assert len({len(source) for source in cases["padded rows"].sources}) == min(4, max(1, max_length // 2))


class Jumbled(TorchRuntime):
    """PyTorch whose logits are a little off everywhere, and those of one place those of other tokens."""

    off = 0.0
    wrong_at = -1

    def step(self, tokens: Ints, state: State, **options: Any) -> tuple[Scores, State]:
        found, after = super().step(tokens, state, **options)
        place = next(tensor.shape[2] for each, tensor in state.state.items() if each.owner == "row")
        noise = np.random.default_rng(place).standard_normal(found.values.shape).astype(np.float32)
        values = found.values + self.off * noise * np.sqrt(np.mean(np.square(found.values)))
        return Scores(np.roll(values, 1, axis=1) if place == self.wrong_at else values, None), after


@pytest.mark.parametrize(("off", "wrong_at", "failing"), [(0.1, -1, []), (0.2, -1, [WHOLE]), (0.01, 13, [13])])
def test_in_few_bits_whole_targets_count_and_yet_a_wrong_place_shows(
    off: float, wrong_at: int, failing: list[int], bundle: Bundle, loaded: Checkpoint
) -> None:
    runtime = Jumbled(loaded.model)
    runtime.off = off
    runtime.wrong_at = wrong_at
    case = next(case for case in draw_cases(bundle, 0) if case.name == "longest")
    compared = list(compare_forced(case, "ort", runtime, Exact.of(loaded.model), tolerance_of("int8")))
    failed = [each for each in compared if not each.passed]
    assert set(failing) <= {each.step for each in failed}
    assert bool(failing) == bool(failed)
    assert compared[-1].describe().startswith("ort, case longest, whole targets: logits")
