"""A few of the random models on which parity must not raise an alarm; the command in that file runs 500."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.covering import in_turn
from tests.proof import random_models
from tests.proof.random_models import ON_CUDA, PLANS, TOO_SMALL, WEIGHTS, Kinds, Plan, draw_plan, examine
from txport import runtimes
from txport.errors import UnsupportedError
from txport.models import architecture
from txport.models.architectures.transformer import TransformerConfig

KINDS = [(name, *plan) for plan in PLANS for name in architecture.names()]

# number, target, precision, weights and sizes of what once raised a false alarm
ONCE_ALARMED: dict[str, tuple[int, str, str, str, dict[str, Any]]] = {
    "a beam that was dropped at a tie in fp16": (
        76,
        "portable",
        "fp16",
        "outliers",
        {
            "source_vocab_size": 17,
            "target_vocab_size": 300,
            "d_model": 48,
            "heads": 3,
            "feed_forward": 96,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "max_length": 40,
            "activation": "silu",
            "tied": "target",
        },
    ),
    "a best token whose logit is nearly 0": (
        108,
        "cpu",
        "int8",
        "outliers",
        {
            "source_vocab_size": 90,
            "target_vocab_size": 4,
            "d_model": 64,
            "heads": 4,
            "feed_forward": 48,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "max_length": 5,
            "norm_epsilon": 1e-3,
            "positions": "learned",
            "activation": "gelu",
            "tied": "target",
            "scale_embedding": False,
        },
    ),
    "scores of logits that are nearly 0": (
        162,
        "cpu",
        "fp32",
        "small",
        {
            "source_vocab_size": 4,
            "target_vocab_size": 4,
            "d_model": 8,
            "heads": 1,
            "feed_forward": 48,
            "encoder_layers": 3,
            "decoder_layers": 1,
            "max_length": 5,
            "norm": "pre",
            "norm_epsilon": 1e-3,
            "positions": "learned",
            "tied": "target",
        },
    ),
    "an int4 that does not suit its model": (
        229,
        "cpu",
        "int4",
        "outliers",
        {
            "source_vocab_size": 17,
            "target_vocab_size": 300,
            "d_model": 48,
            "heads": 2,
            "feed_forward": 48,
            "encoder_layers": 1,
            "decoder_layers": 3,
            "max_length": 70,
            "norm": "pre",
            "positions": "learned",
            "activation": "gelu",
            "tied": "none",
            "scale_embedding": False,
        },
    ),
}


def numbers_of(plans: Kinds, kinds: Iterable[tuple[str, tuple[str, str]]]) -> list[int]:
    """Some architectures with a target and precision, each with one kind of weights, not the same for all.

    The tests of each architecture draw a dozen more of its variants.
    """
    names = architecture.names()
    places = [names.index(name) * len(plans) + plans.index(plan) for name, plan in kinds]
    return [at + len(plans) * len(names) * (number % len(WEIGHTS)) for number, at in enumerate(sorted(places), 1)]


IN_TURN = in_turn([*architecture.names(), architecture.names()[0]], PLANS + ON_CUDA)  # as many as there are plans
ON_CPU, ONE_ON_CUDA = ([kind for kind in IN_TURN if kind[1] in plans] for plans in (PLANS, ON_CUDA))


def test_every_architecture_and_precision_is_among_those_that_are_tested() -> None:
    both = ((PLANS, ON_CPU), (ON_CUDA, ONE_ON_CUDA))
    drawn = [draw_plan(number, plans) for plans, kinds in both for number in numbers_of(plans, kinds)]
    assert {architecture.name_of(plan.config) for plan in drawn} == {*architecture.names()}
    assert {(plan.target, plan.precision) for plan in drawn} == {*PLANS, *ON_CUDA}
    assert {plan.weights for plan in drawn} == {*WEIGHTS}


def test_only_a_model_that_is_too_small_may_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = draw_plan(next(at for at, (_, precision) in enumerate(ON_CUDA) if precision == "int4"), ON_CUDA)
    reasons = iter([f"int4 on cuda {random_models.TOO_SMALL} of 16 inputs", "an operator without a kernel"])

    def refuse(*_: object) -> None:
        raise UnsupportedError(next(reasons))

    monkeypatch.setattr(random_models, "examine", refuse)
    passed, said = random_models.judge(plan)
    assert passed
    assert said.startswith(f"{random_models.REFUSED}: int4 on cuda")
    with pytest.raises(UnsupportedError, match="without a kernel"):
        random_models.judge(plan)


def test_the_models_are_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_models, "draw_config", lambda rng, name, target: name)
    plans: list[Any] = [draw_plan(number) for number in range(len(KINDS) * len(WEIGHTS))]
    kinds = {(plan.config, plan.target, plan.precision, plan.weights) for plan in plans}
    assert kinds == {(*kind, weights) for kind in KINDS for weights in WEIGHTS}


def test_the_models_have_parts_of_every_kind_and_are_the_same_in_every_run() -> None:
    plans = [draw_plan(number) for number in range(8 * len(KINDS))]
    assert plans[:20] == [draw_plan(number) for number in range(20)]
    for name in architecture.names():
        configs = [plan.config for plan in plans if architecture.name_of(plan.config) == name]
        for field, allowed in architecture.find(name).config.choices().items():
            assert len({getattr(config, field) for config in configs}) >= min(2, len(allowed)), (name, field)


@pytest.fixture
def briefly_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer and larger steps than the command takes: its own are a quarter of a test's time."""
    monkeypatch.setattr(random_models, "STEPS", 150)
    monkeypatch.setattr(random_models, "RATE", 5e-3)


@pytest.mark.usefixtures("briefly_trained")
@pytest.mark.parametrize("number", numbers_of(PLANS, ON_CPU))
def test_no_false_alarm(number: int, tmp_path: Path) -> None:
    report = examine(draw_plan(number), tmp_path)
    assert report.passed, report.failures()


@pytest.mark.usefixtures("briefly_trained")
@pytest.mark.parametrize("number", numbers_of(ON_CUDA, ONE_ON_CUDA))
def test_no_false_alarm_on_cuda(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "home", lambda target: ("cuda-stand-in", "cpu"))  # there may be a GPU
    every = len(ON_CUDA) * len(architecture.names()) * len(WEIGHTS)
    for turn in range(5):  # of the same kind, one whose matrices the target can have in few bits
        try:
            report = examine(draw_plan(number + turn * every, ON_CUDA), tmp_path / str(turn))
            break
        except UnsupportedError as error:
            if TOO_SMALL not in str(error):
                raise
    assert report.passed, report.failures()


@pytest.mark.parametrize("name", ONCE_ALARMED)
def test_what_once_raised_a_false_alarm(name: str, tmp_path: Path) -> None:
    number, target, precision, weights, sizes = ONCE_ALARMED[name]
    report = examine(Plan(number, TransformerConfig(**sizes), weights, target, precision), tmp_path)
    assert report.passed, report.failures()
