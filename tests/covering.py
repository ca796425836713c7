"""Few pairs of a model and a plan (a target with a precision) that cover both; all with `TXPORT_EVERY_PAIR=1`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

Plan = tuple[str, str]  # target and precision
Model = TypeVar("Model")
Form = TypeVar("Form")
EVERY = bool(os.environ.get("TXPORT_EVERY_PAIR"))


def on_each_target(models: Iterable[Model], plans: Sequence[Plan]) -> list[tuple[Model, Plan]]:
    """Each model on each target, in one of its precisions, which take turns."""
    if EVERY:
        return list(itertools.product(models, plans))
    targets = dict.fromkeys(target for target, _ in plans)
    of_target = [[plan for plan in plans if plan[0] == target] for target in targets]
    return [(model, own[turn % len(own)]) for turn, model in enumerate(models) for own in of_target]


def in_turn(models: Iterable[Model], plans: Sequence[Form]) -> list[tuple[Model, Form]]:
    """Each model with one plan, which take turns."""
    if EVERY:
        return list(itertools.product(models, plans))
    return [(model, plans[turn % len(plans)]) for turn, model in enumerate(models)]
