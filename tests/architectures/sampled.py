"""The ways to sample whose tokens transformers was asked for, by our names; tests/hugging_face records the tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from txport.models.facts import Facts
from txport.runtimes.base import Runtime
from txport.search.generate import generate
from txport.search.options import SearchOptions

SEEDS = (1, 7)
HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "warm": {"temperature": 1.8},
    "the best few": {"top_k": 5},
    "a share": {"top_p": 0.8},
    "none unlikely": {"min_p": 0.1},
    "all at once": {"temperature": 1.4, "top_k": 8, "top_p": 0.9, "min_p": 0.05, "nbest": 3},
}
SAMPLES: dict[str, dict[str, Any]] = {
    f"{name}, seed {seed}": {"do_sample": True, "seed": seed, "max_new_tokens": 12, **how}
    for name, how in HOW.items()
    for seed in SEEDS
}
Tokens = dict[str, list[list[list[int]]]]  # of each way to sample: of each text, of each sample


def recorded(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def sampled(runtime: Runtime, texts: list[list[int]], facts: Facts) -> Tokens:
    """What txport samples, all texts in one batch."""
    found = {name: generate(runtime, texts, facts, SearchOptions(**how)) for name, how in SAMPLES.items()}
    return {name: [[list(each.tokens) for each in row] for row in rows] for name, rows in found.items()}
