"""Scores that are no numbers end a search: there is no best among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.fakes import SeatedRuntime, TableRuntime, Tokens
from tests.tiny import tiny_facts
from txport.errors import RunError
from txport.runtimes.base import Floats
from txport.search.continuous import Scheduler
from txport.search.generate import generate
from txport.search.numbers import ContinuousNumbers, numbers_only
from txport.search.options import SearchOptions
from txport.search.scoring import score

FACTS = tiny_facts()


def table(source: Tokens, prefix: Tokens) -> Floats:
    """NaN from the third token on."""
    values = np.linspace(0, 1, FACTS.writes.size, dtype=np.float32)
    return np.full_like(values, np.nan) if len(prefix) >= 2 else values


def one(options: SearchOptions) -> Any:
    return generate(numbers_only(TableRuntime(table)), [[5, 6]], FACTS, options)


def continuous(options: SearchOptions) -> Any:
    return Scheduler(ContinuousNumbers(SeatedRuntime(table, options.beams)), [([5, 6], ())], FACTS, options, 1).run()


@pytest.mark.parametrize("how", [one, continuous])
@pytest.mark.parametrize("changes", [{}, {"beams": 3}, {"do_sample": True}, {"scores": False}], ids=str)
def test_a_search_among_nan_ends(how: Callable[[SearchOptions], Any], changes: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="the model's scores are NaN; look for NaN or infinity in its weights"):
        how(SearchOptions(max_new_tokens=8, min_new_tokens=5, **changes))


def test_a_target_is_not_scored_by_nan() -> None:
    with pytest.raises(RunError, match="the model's scores are NaN"):
        score(numbers_only(TableRuntime(table)), [[5, 6]], [[7, 8, 9, FACTS.writes.end]], FACTS)
