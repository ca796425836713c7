"""Tiny bundles of the targets that have a driver of their own, with what runs them on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.tiny import tiny_config, tiny_model
from txport import runtimes
from txport.api.model import Model
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.checkpoints.weights.streamed import converted
from txport.proof import proven
from txport.runtimes.base import Ints
from txport.runtimes.pytorch import TorchRuntime
from txport.runtimes.slots import Seating, seat
from txport.search.generate import generate
from txport.search.options import Found, SearchOptions
from txport.text.numbers import NumberTokenizer

ENGINES = {"portable": "ort", "cpu": "ort", "cuda": "cuda-stand-in"}  # by target
TYPES = {"fp16": torch.half, "bf16": torch.bfloat16, "fp32": torch.float32}
LONGEST = 80  # tokens of the toy: more than caches hold at first
VOCABULARIES = {"target_vocab_size": 27, "tied": "none"}  # unlike sizes: an id of one may be out of the other's range
SEED = 4  # of a model whose targets end after unequal lengths, so that batches shrink
ENDS = [2, 5, 8, 11]
SEARCHES: list[dict[str, Any]] = [
    {},
    {"scores": False, "min_new_tokens": 9},
    {"no_repeat_ngram_size": 2, "suppress_tokens": [5, 6]},
    {"repetition_penalty": 1.3},
    {"beams": 3, "nbest": 3},
    {"beams": 4, "beam_groups": 2, "diversity_penalty": 0.5, "nbest": 2, "early_stopping": True},
    {"do_sample": True, "nbest": 3, "seed": 3, "top_k": 4, "eos_token_id": ENDS, "min_new_tokens": 2},
    {"do_sample": True, "nbest": 2, "seed": 3, "eos_token_id": ENDS, "min_new_tokens": 2},
]


class Driven(NamedTuple):
    """A bundle, its driver, and PyTorch with the weights that the bundle holds."""

    bundle: Bundle
    runtime: Any
    reference: TorchRuntime

    def model(self, workers: int = 1) -> Model:
        """What users load, which reads ids in place of text."""
        facts = self.bundle.manifest.facts
        return Model(self.runtime, NumberTokenizer(facts, exact=True), facts, workers)


def written(name: str, target: str, precision: str, folder: Path) -> Driven:
    """The bundle of a preset, or of a toy, without a proof."""
    if name == "toy":
        save_checkpoint(folder / "toy", tiny_model(tiny_config(max_length=LONGEST, **VOCABULARIES), SEED))
    checkpoint = load_checkpoint(str(folder / "toy") if name == "toy" else f"preset:{name}")
    (folder / "out").mkdir()
    bundle = proven.write(checkpoint, folder / "out", target=target, precision=precision)
    held = converted(converted(checkpoint.model, TYPES[precision]), torch.float32)
    return Driven(bundle, runtimes.load(ENGINES[target], bundle, threads=1), TorchRuntime(held))


@pytest.fixture(scope="session")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Driven]:
    """What `written` makes, once for all that ask for it. Read only."""
    known: dict[tuple[str, str, str], Driven] = {}

    def make(name: str, target: str, precision: str) -> Driven:
        kind = name, target, precision
        if kind not in known:
            known[kind] = written(*kind, tmp_path_factory.mktemp("driven"))
        return known[kind]

    return make


def sources_of(bundle: Bundle, count: int = 7) -> list[list[int]]:
    """Of many lengths, in no order."""
    rng = np.random.default_rng(5)
    size = min(bundle.manifest.facts.reads.size, 20)  # type: ignore[union-attr]
    return [rng.integers(4, size, length).tolist() for length in rng.permutation(np.arange(count) * 3 % 19 + 2)]


def found(runtime: Any, sources: list[list[int]], bundle: Bundle, new: int = 40, **options: Any) -> list[list[Found]]:
    """What a search finds in one batch."""
    return generate(runtime, sources, bundle.manifest.facts, SearchOptions(max_new_tokens=new, **options))


def tokens(found: list[list[Found]]) -> list[list[tuple[int, ...]]]:
    """Those of all hypotheses."""
    return [[one.tokens for one in each] for each in found]


def numbers(found: list[list[Found]]) -> list[float]:
    """The scores of all hypotheses."""
    return [one.score for each in found for one in each]


def seat_mixed(wanted: Ints, count: int, width: int) -> Seating:
    """As `seat`, with a fault: where sources have unequally many rows left, these go on from those of others."""
    seated = seat(wanted, count, width)
    if count > 1 < seated.width and len(wanted) < count * seated.width:
        return seated._replace(old=seated.old[::-1].copy())
    return seated
