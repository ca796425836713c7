"""What holds for every architecture in every target and precision: one more needs no word here to be held to it.

Each is tried by its smallest preset, whose name is `tiny` or ends in `-tiny`, and by what others vary of that one, on
each target in one of its precisions; in all of them with `TXPORT_EVERY_PAIR=1`.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.covering import in_turn, on_each_target
from tests.proof.bisect.anyparts import faulty, times
from tests.proof.few import draw_few
from tests.seeded import saved
from txport import runtimes
from txport.audio.spectrogram import drawn_features
from txport.bundles.bundle import Bundle
from txport.bundles.graphs import read_ir
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import UnsupportedError
from txport.models import architecture
from txport.models.architecture import Architecture
from txport.models.audio import Features
from txport.models.config import Config
from txport.models.facts import LENGTH, Facts
from txport.models.parts import FeedForward, GatedFeedForward
from txport.proof.bisect import culprit
from txport.proof.faults.words import describe
from txport.proof.parity.check import check, exact_of
from txport.proof.parity.exact import Exact, one_pass
from txport.proof.proven import prove, write
from txport.runtimes.base import EncoderRuntime, Runtime
from txport.runtimes.inputs import Source, batch
from txport.runtimes.pytorch import TorchRuntime
from txport.search.generate import first_tokens
from txport.targets import TARGETS

Array = NDArray[Any]

PAGES = Path(__file__).parents[3] / "docs" / "architectures"
KNOWN = [(target, precision) for target, each in TARGETS.items() for precision in each.precisions]
PLANS = [*KNOWN[2:], *KNOWN[:2]]  # in an order in which no precision meets only presets that its target refuses
WITH_GOLDENS = {("portable", "fp32"), ("cpu", "int8"), ("cuda", "fp16")}  # searched, and verified by them
LENGTHS = (5, 1, 9, 3)
STEPS = 6
OWN_INPUTS = {"QGemm": (3, 5), "DynamicQuantizeMatMul": (1, 3), "MatMulInteger": (1, 3)}  # weights and zero points
TOO_LARGE = 1.5  # times what a weight should be: more than the rounding of any precision explains
# What the root of the mean square of errors may be, over that of the logits: from PyTorch in float64, and from the
# same bundle with other rows beside.
CLOSE = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 5e-2, "int8": 0.2, "int4": 0.2}
APART = {"fp32": 1e-6, "fp16": 1e-2, "bf16": 1e-6, "int8": 1e-6, "int4": 1e-6}


def smallest(name: str) -> list[str]:
    """The presets that stand for an architecture."""
    found = [each for each in architecture.find(name).presets if each == "tiny" or each.endswith("-tiny")]
    assert found, f"the architecture {name} has no preset called tiny or *-tiny"
    return [found[0], *(each for each in found[1:] if re.fullmatch(rf"{name}-\w+-tiny", each))]


PRESETS = [preset for name in architecture.names() for preset in smallest(name)]


# By the target, which has no form of its attention.
REFUSED = {(preset, "cuda") for preset in ("deberta-tiny", "deberta-wide-tiny", "llama-sinks-tiny")}


def taken(pairs: list[tuple[str, tuple[str, str]]]) -> list[tuple[str, tuple[str, str]]]:
    return [(preset, plan) for preset, plan in pairs if (preset, plan[0]) not in REFUSED]


def described(pair: tuple[str, tuple[str, str]]) -> str:
    preset, plan = pair
    return " ".join((preset, *plan))


def configs() -> Iterator[tuple[str, Config]]:
    """A small model of each kind, and one whose layers are the same."""
    known = architecture.presets()
    yield from ((preset, known[preset]) for preset in PRESETS)
    yield "shared layers", dataclasses.replace(known["bert-tiny"], distinct_layers=1)


@pytest.mark.parametrize(
    ("known", "form"),
    in_turn(configs(), [("int8", None), ("int8", 4), ("int4", None)]),
    ids=lambda pair: f"{pair[0]}-{pair[1]}" if isinstance(pair[1], int) else pair[0],
)
def test_8_bit_products_of_a_graph_share_no_weights(
    known: tuple[str, Config], form: tuple[str, int | None], tmp_path: Path
) -> None:
    """Nor zero points: on x86 without VNNI, ONNX Runtime 1.31 would not load it (`session.x64quantprecision`)."""
    name, config = known
    precision, rows = form
    written = write(saved(config, tmp_path / name), tmp_path, target="cpu", precision=precision, rows=rows)
    for role in written.manifest.graphs:
        nodes = read_ir(written.file(role)).graph
        read = [node.inputs[at] for node in nodes for at in OWN_INPUTS.get(node.op_type, ()) if len(node.inputs) > at]
        names = [each.name for each in read if each is not None]
        assert len(names) == len(set(names))


@pytest.fixture(scope="module", params=taken(on_each_target(PRESETS, PLANS)), ids=described)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """An export that is compared with PyTorch."""
    preset, plan = request.param
    target, precision = plan
    checkpoint = load_checkpoint(f"preset:{preset}")
    folder = tmp_path_factory.mktemp("conformance")
    written = write(checkpoint, folder, target=target, precision=precision)
    if plan in WITH_GOLDENS:
        written, report = prove(written, checkpoint)
        assert written.manifest.parity["verdict"] == "pass"
    else:
        name, provider = runtimes.home(target)
        report = check(written, checkpoint, {name: provider}, searches=False)
    assert report.passed, report.failures()
    return written


@pytest.fixture(scope="module")
def runtime(bundle: Bundle) -> Runtime:
    name, provider = runtimes.home(bundle.manifest.target)
    return runtimes.load(name, bundle, provider=provider)


def sources(facts: Facts) -> list[Source]:
    """Sources or prompts of unequal lengths, or features."""
    rng = np.random.default_rng(7)
    if isinstance(facts.reads, Features):
        return [drawn_features(facts.reads, number) for number in range(len(LENGTHS))]
    return [rng.integers(0, facts.reads.size, length).tolist() for length in LENGTHS]


def targets(facts: Facts) -> list[list[int]]:
    """What is said for each of them."""
    target_ids: list[list[int]] = (
        np.random.default_rng(8).integers(0, facts.writes.size, (len(LENGTHS), STEPS)).tolist()
    )
    return target_ids


def step_through(runtime: Runtime, facts: Facts, given: Sequence[Source], target_ids: Sequence[list[int]]) -> Array:
    """The logits before each token of each target, token by token: (R, T, V)."""
    ids, lengths = batch(given, facts)
    tokens = np.column_stack([first_tokens(given, facts), np.array(target_ids)[:, :-1]])
    state = runtime.start(ids, lengths, max_length=STEPS + int(lengths.max()))
    found = []
    for each in tokens.T:
        scores, state = runtime.step(np.ascontiguousarray(each), state)
        found.append(scores.values.copy())
    return np.stack(found, axis=1)


def infer(runtime: Runtime, facts: Facts, given: Sequence[Source]) -> list[dict[str, Array]]:
    """The outputs of an encoder-only model for each source, without its padding."""
    assert isinstance(runtime, EncoderRuntime)
    ids, lengths = batch(given, facts)
    found = runtime.infer(ids, lengths)
    counted = {each.name: LENGTH in each.dims for each in facts.outputs}
    return [
        {name: found[name][row, :length] if counted[name] else found[name][row] for name in counted}
        for row, length in enumerate(lengths)
    ]


def error(actual: Array, expected: Array) -> float:
    """The root of the mean squares of what differs, over that of what is expected."""
    off, size = (np.sqrt(np.mean(np.square(each, dtype=np.float64))) for each in (actual - expected, expected))
    return float(off / size)


def test_every_preset_target_and_precision_is_among_those_that_are_tested() -> None:
    pairs = taken(on_each_target(PRESETS, PLANS))
    assert {plan for _, plan in pairs} == {plan for _, plan in taken(in_turn(PRESETS, PLANS))} == {*PLANS}
    assert {(preset, target) for preset, (target, _) in pairs} == {*itertools.product(PRESETS, TARGETS)} - REFUSED


@pytest.mark.parametrize(("preset", "target"), sorted(REFUSED))
def test_a_target_that_can_not_compute_a_preset_refuses_it(preset: str, target: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"the {target} target has no form of attention"):
        write(load_checkpoint(f"preset:{preset}"), tmp_path, target=target, precision="fp32")


@pytest.mark.parametrize("name", architecture.names())
def test_it_is_registered_whole(name: str) -> None:
    """A config that comes back from its JSON, drawn ones that are of this architecture, and presets of it alone."""
    found: Architecture = architecture.find(name)
    configs = [*found.presets.values(), *(found.draw(np.random.default_rng(seed)) for seed in range(10))]
    for config in configs:
        assert found.config.from_dict(config.to_dict()) == config
        assert architecture.name_of(config) == name
    assert len({repr(config) for config in configs}) > len(found.presets)
    assert found.hugging_face(found.presets[smallest(name)[0]])["model_type"]


@pytest.mark.parametrize("name", architecture.names())
def test_a_page_tells_of_it(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    presets = architecture.find(name).presets
    assert [each for each in presets if not re.search(rf"[`:]{re.escape(each)}`", page)] == []


@pytest.mark.parametrize("name", architecture.names())
def test_its_page_names_every_field_and_target(name: str) -> None:
    """Fields that a config inherits are on the page of the architecture that has them first."""
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    fields = inspect.get_annotations(architecture.find(name).config)
    assert [field for field in fields if f"`{field}`" not in page] == []
    assert [target for target in TARGETS if not re.search(rf"\b{target}\b", page)] == []


def test_its_proof_has_passed(bundle: Bundle) -> None:
    assert Facts.from_dict(bundle.manifest.facts.to_dict()) == bundle.manifest.facts
    assert bundle.manifest.architecture in architecture.names()
    if TARGETS[bundle.manifest.target].quantises(bundle.manifest.precision):
        assert any(stored.is_quantised for stored in bundle.manifest.weights.values())


@pytest.mark.parametrize("preset", PRESETS)
def test_cached_equals_uncached_in_pytorch(preset: str) -> None:
    """In float64, so that nothing but a fault sets them apart."""
    model = Exact.of(load_checkpoint(f"preset:{preset}").model).model
    if model.facts.task == "encode":
        return
    given = sources(model.facts)
    target_ids = targets(model.facts)
    cached = step_through(TorchRuntime(model), model.facts, given, target_ids)
    np.testing.assert_allclose(cached, np.stack(one_pass(model, given, target_ids)), rtol=1e-5, atol=1e-6)


def test_cached_equals_uncached(bundle: Bundle, runtime: Runtime) -> None:
    """What a bundle says token by token is what PyTorch says in one pass over the whole target."""
    facts = bundle.manifest.facts
    if facts.task == "encode":
        return
    exact = exact_of(bundle, load_checkpoint(bundle.manifest.checkpoint["name"]))
    given = sources(facts)
    target_ids = targets(facts)
    cached = step_through(runtime, facts, given, target_ids)
    assert error(cached, np.stack(exact.logits(given, target_ids))) < CLOSE[bundle.manifest.precision]


def test_a_row_alone_equals_the_row_in_a_batch(bundle: Bundle, runtime: Runtime) -> None:
    facts = bundle.manifest.facts
    limit = APART[bundle.manifest.precision]
    given = sources(facts)
    if facts.task == "encode":
        for together, source in zip(infer(runtime, facts, given), given, strict=True):
            (alone,) = infer(runtime, facts, [source])
            assert all(error(together[each], alone[each]) <= limit for each in alone)
        return
    target_ids = targets(facts)
    together = step_through(runtime, facts, given, target_ids)
    for row, (source, target) in enumerate(zip(given, target_ids, strict=True)):
        alone = step_through(runtime, facts, [source], [target])[0]
        assert error(together[row], alone) <= limit


def test_rows_that_change_places_take_their_state_along(bundle: Bundle, runtime: Runtime) -> None:
    """Beam search reorders, drops and repeats rows."""
    facts = bundle.manifest.facts
    if facts.task == "encode":
        return
    given = sources(facts)
    target_ids = np.array(targets(facts))
    chosen = np.array([2, 0, 0])
    ids, lengths = batch(given, facts)
    state = runtime.start(ids, lengths, max_length=STEPS + int(lengths.max()))
    _, state = runtime.step(first_tokens(given, facts), state)
    _, state = runtime.step(target_ids[:, 0].copy(), state)
    found, _ = runtime.step(target_ids[chosen, 1], runtime.select(state, chosen))
    expected = step_through(runtime, facts, given, target_ids.tolist())[chosen, 2]
    assert error(found.values, expected) <= APART[bundle.manifest.precision]


@pytest.mark.parametrize("pair", taken(in_turn(PRESETS, PLANS)), ids=described)
def test_a_planted_fault_is_found_and_named(
    pair: tuple[str, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight of the last feed-forward of the module that is exported is too large, the checkpoint's is not."""
    draw_few(monkeypatch)
    monkeypatch.setattr(culprit, "origin", lambda *_: "")  # exporting again has tests of its own
    preset, (target, precision) = pair
    checkpoint = load_checkpoint(f"preset:{preset}")
    kinds = (FeedForward, GatedFeedForward)
    *_, last = (name for name, part in checkpoint.model.named_modules() if isinstance(part, kinds))
    planted = faulty(checkpoint, times(f"{last}.outer.weight", TOO_LARGE))
    where = f"{last}.outer"
    bundle = write(planted, tmp_path, target=target, precision=precision)
    name, provider = runtimes.home(target)
    report = check(bundle, checkpoint, {name: provider}, searches=False)
    assert not report.passed
    wrong = {each.tensor.partition(", ")[0] for each in report.tensors if not each.passed}  # "..., columns in fp32"
    assert f"{where}.weight" in wrong
    found = culprit.bisect(bundle, checkpoint)
    assert found is not None
    assert (found.where, found.kind) == (describe(checkpoint.model, [where]), "weight"), found.what
    assert f"{where}.weight" in found.what
