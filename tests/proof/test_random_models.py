"""A few of the random models on which parity must not raise an alarm; the command in that file runs 300."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.proof.random_models import ON_CUDA, PLANS, WEIGHTS, Kinds, Plan, draw_plan, examine, is_right, names_of
from txport import runtimes
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
    "a model that PyTorch in fp16 gets 0.28 wrong": (
        116,
        "portable",
        "fp16",
        "trained",
        {
            "source_vocab_size": 300,
            "target_vocab_size": 300,
            "d_model": 8,
            "heads": 2,
            "feed_forward": 24,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "max_length": 16,
            "norm_epsilon": 1e-6,
            "activation": "gelu",
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


def drawn(plans: Kinds, is_taken: Callable[[int], bool]) -> list[int]:
    """Some architectures, targets and precisions, each with one kind of weights, not the same for all.

    The tests of each architecture draw a dozen more of its variants.
    """
    count = len(plans) * len(names_of(plans))
    return sorted(at + count * (at % len(WEIGHTS)) for at in range(count) if is_taken(at))


def test_the_models_are_of_every_kind_and_the_same_in_every_run() -> None:
    plans = [draw_plan(number) for number in range(len(KINDS) * len(WEIGHTS))]
    assert plans[:20] == [draw_plan(number) for number in range(20)]
    kinds = {(architecture.name_of(plan.config), plan.target, plan.precision, plan.weights) for plan in plans}
    assert kinds == {(*kind, weights) for kind in KINDS for weights in WEIGHTS}
    for name in architecture.names():
        configs = [plan.config for plan in plans if architecture.name_of(plan.config) == name]
        for field, allowed in architecture.find(name).config.choices().items():
            assert len({getattr(config, field) for config in configs}) >= min(2, len(allowed)), (name, field)


@pytest.mark.parametrize("number", drawn(PLANS, lambda at: at % 9 < 8))
def test_no_false_alarm(number: int, tmp_path: Path) -> None:
    report = examine(draw_plan(number), tmp_path)
    assert is_right(report), report.failures()


@pytest.mark.parametrize("number", drawn(ON_CUDA, lambda at: at % 4 == 1))
def test_no_false_alarm_on_cuda(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "home", lambda target: ("cuda-stand-in", "cpu"))  # there may be a GPU
    report = examine(draw_plan(number, ON_CUDA), tmp_path)
    assert is_right(report), report.failures()


@pytest.mark.parametrize("name", ONCE_ALARMED)
def test_what_once_raised_a_false_alarm(name: str, tmp_path: Path) -> None:
    number, target, precision, weights, sizes = ONCE_ALARMED[name]
    report = examine(Plan(number, TransformerConfig(**sizes), weights, target, precision), tmp_path)
    assert is_right(report), report.failures()
