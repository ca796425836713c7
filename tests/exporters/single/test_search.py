"""What the graph finds is what txport's own search finds over the other graphs, whatever is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txport import runtimes
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.models.architectures.gpt2 import GPT2, GPT2Config
from txport.models.facts import Facts
from txport.proof.parity.cases import Draw
from txport.proof.proven import write
from txport.runtimes.base import Runtime
from txport.runtimes.single import SingleRuntime
from txport.search.generate import generate
from txport.search.options import Found, SearchOptions
from txport.search.single import generate_at_once

NEAR = 1e-4  # of scores
FOUR = {"beams": 4, "max_new_tokens": 10, "length_penalty": 1.0}
TIE = 1e-6
MODELS = [
    "tiny", "t5-tiny", "additive-tiny", "annotated-tiny", "relative-tiny", "whisper-mini-tiny",
    "gpt2-tiny", "opt-tiny", "llama-tiny", "llama-windows-tiny", FEW := "few words",
]  # fmt: skip
RULES: dict[str, dict[str, Any]] = {
    "early": {"beams": 4, "early_stopping": True},
    "never": {"beams": 4, "early_stopping": "never", "min_new_tokens": 3},
    "forced": {"forced_bos_token_id": 7, "forced_eos_token_id": 2, "begin_suppress_tokens": [9, 2]},
    "words": {"bad_words_ids": [[0], [5, 6], [11, 11], [8, 9, 8]], "suppress_tokens": list(range(12, 30))},
    "no repeats": {"no_repeat_ngram_size": 2, "min_new_tokens": 2},
    "no tokens twice": {"no_repeat_ngram_size": 1},
    "penalty": {"repetition_penalty": 1.7, "no_repeat_ngram_size": 3, "min_new_tokens": 1},
    "nothing left": {"suppress_tokens": list(range(64))},
}


class Pair(NamedTuple):
    """A bundle, run step by step and at once."""

    facts: Facts
    driver: Runtime
    single: SingleRuntime[Any]


def few_words(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A causal model with fewer tokens than there may be beams."""
    config = GPT2Config(vocab_size=4, d_model=8, heads=2, decoder_layers=1, max_length=32, pad_id=0, eos_id=1)
    folder = tmp_path_factory.mktemp("few")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_checkpoint(folder, GPT2(config).eval())
    return load_checkpoint(str(folder))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    @cache
    def make(name: str, rules: str | None = None, precision: str = "fp32", engine: str = "ort") -> Pair:
        checkpoint = few_words(tmp_path_factory) if name == FEW else load_checkpoint(f"preset:{name}")
        checkpoint = replace(checkpoint, generation=RULES.get(rules or "", {}))
        bundle = write(checkpoint, tmp_path_factory.mktemp(name), precision=precision, single=True)
        return Pair(checkpoint.facts, runtimes.load(engine, bundle), runtimes.load_single(engine, bundle))

    return make


class Asked(NamedTuple):
    """What hypothesis draws: how long sources and prefixes are, a seed for their tokens, and how to search."""

    lengths: list[int]
    prefixes: list[int]
    seed: int
    how: dict[str, Any]


def asked(most: int = 4) -> st.SearchStrategy[Asked]:
    how = st.fixed_dictionaries(
        {
            "beams": st.integers(1, 6),
            "max_new_tokens": st.integers(1, 12),
            "length_penalty": st.sampled_from([1.0, 0.0, 0.6, 2.0, -1.0]),
        }
    )
    rows = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=most)
    return st.builds(
        lambda rows, seed, how: Asked([one for one, _ in rows], [two for _, two in rows], seed, how),
        rows, st.integers(0, 1 << 30), how,
    )  # fmt: skip


def search(pair: Pair, asked: Asked, *, prefixed: bool) -> tuple[list[list[Found]], list[list[Found]]]:
    """By the driver and at once, all hypotheses."""
    facts = pair.facts
    rng = np.random.default_rng(asked.seed)
    sources = Draw(facts, rng).sources(*asked.lengths)
    words = [token for token in range(facts.writes.size) if token not in facts.writes.ends]
    sizes = asked.prefixes if prefixed and facts.task == "seq2seq" else [0] * len(sources)
    prefixes = [tuple(rng.choice(words, size).tolist()) for size in sizes[: len(sources)]]
    how = {**pair.single.defaults, **asked.how}
    if how["beams"] == 1:
        how.pop("early_stopping", None)
    how["max_new_tokens"] = max(how["max_new_tokens"], how.get("min_new_tokens", 1))
    options = SearchOptions(**how, nbest=how["beams"])
    driven = generate(pair.driver, sources, facts, options, prefixes)
    return driven, generate_at_once(pair.single, sources, options, prefixes)


def assert_same(driven: list[list[Found]], at_once: list[list[Found]]) -> None:
    """Tokens and scores of all hypotheses; only what scores alike may stand in another order."""
    for ones, others in zip(driven, at_once, strict=True):
        assert len(ones) == len(others)
        for one, other in zip(ones, others, strict=True):
            assert abs(one.score - other.score) <= NEAR * max(1.0, abs(one.score))
            near = [each for each in ones if abs(each.score - one.score) <= TIE * max(1.0, abs(one.score))]
            assert other.tokens in [each.tokens for each in near]


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_finds_the_same(name: str, pair: Callable[..., Pair]) -> None:
    @settings(max_examples=5)
    @given(asked())
    def hold(asked: Asked) -> None:
        assert_same(*search(pair(name), asked, prefixed=True))

    hold()


@pytest.mark.parametrize("name", ["tiny", "gpt2-tiny"])
@pytest.mark.parametrize("rules", RULES)
def test_what_a_checkpoint_says_of_search_is_built_in(name: str, rules: str, pair: Callable[..., Pair]) -> None:
    if name == "gpt2-tiny" and "forced_bos_token_id" in RULES[rules]:
        pytest.skip("a causal model has no first token")

    @settings(max_examples=5)
    @given(asked())
    def hold(asked: Asked) -> None:
        prefixed = "forced_bos_token_id" not in RULES[rules]  # the driver has no prefix beside it
        assert_same(*search(pair(name, rules), asked, prefixed=prefixed))

    hold()


@pytest.mark.parametrize("name", ["tiny", "gpt2-tiny"])
def test_in_half_precision_the_same_is_found(name: str, pair: Callable[..., Pair]) -> None:
    asked = Asked([5, 2, 7], [0, 1, 0], 0, {"beams": 3, "max_new_tokens": 9, "length_penalty": 1.0})
    for engine in ("ort", "reference"):  # which computes both alike, and so tells whether scores are in float32
        driven, at_once = search(pair(name, precision="fp16", engine=engine), asked, prefixed=True)
        assert [[each.tokens for each in one] for one in driven] == [[each.tokens for each in one] for one in at_once]
        scores = [[[each.score for each in one] for one in side] for side in (driven, at_once)]
        assert np.ravel(scores[0]) == pytest.approx(np.ravel(scores[1]), abs=TIE if engine == "reference" else 1e-3)


@pytest.mark.parametrize("name", ["tiny", "gpt2-tiny"])
def test_a_row_finds_alone_what_it_finds_beside_others(name: str, pair: Callable[..., Pair]) -> None:
    together = search(pair(name), asked := Asked([8, 1, 5], [0] * 3, 3, FOUR), prefixed=False)[1]
    facts = pair(name).facts
    rng = np.random.default_rng(asked.seed)
    sources = Draw(facts, rng).sources(*asked.lengths)
    options = SearchOptions(**FOUR, nbest=4)
    alone = [generate_at_once(pair(name).single, [source], options)[0] for source in sources]
    assert_same(alone, together)


def test_padding_of_prompts_may_be_anywhere(pair: Callable[..., Pair]) -> None:
    single = pair("gpt2-tiny").single
    left = np.array([[0, 0, 9, 12, 7]])
    among = np.array([[9, 0, 12, 0, 7]])
    found = []
    for ids in (np.array([[9, 12, 7]]), left, among):
        given = {"input_ids": ids, "attention_mask": (ids != 0).astype(np.int64)}
        given |= {"max_new_tokens": np.array([8]), "num_beams": np.array([2])}
        given["length_penalty"] = np.ones(1, np.float32)
        found.append(single._engine.run("generate", {k: ort(v) for k, v in given.items()}, ["sequences"])["sequences"])
    assert all(np.array_equal(found[0].numpy(), each.numpy()) for each in found)


def test_no_room_is_no_hypothesis(pair: Callable[..., Pair]) -> None:
    """What a caller without txport may give: the driver refuses it, the graph can only give nothing."""
    prompts = np.full((1, 64), 5)
    prefixes = np.zeros((1, 0), np.int64)
    found = pair("gpt2-tiny").single.search(prompts, np.array([64]), prefixes, max_new_tokens=5)
    assert found.ids.shape == (1, 1, 0)
    assert found.lengths.tolist() == [[0]]
    assert found.scores.tolist() == [[-np.inf]]


def ort(array: np.ndarray[Any, Any]) -> Any:
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)
