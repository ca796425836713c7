"""Token for token what Hugging Face's `generate` finds, over combinations of the options drawn by seed."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from tests.hugging_face.models import EOS, FAMILIES, PAD, START, VOCABULARY, HuggingFaceRuntime, facts_of, seeded
from txport.search.generate import generate
from txport.search.options import Found, SearchOptions

COMBINATIONS = 240
MODELS = 24  # a third of them of each family: to build one takes as long as to search it
NEAR = 1e-4  # of two scores that count as equal
TARGETS = 1541
OTHERS = [token for token in range(VOCABULARY) if token not in (PAD, EOS, START)]
Drawn = dict[str, Any]


def draw(rng: random.Random) -> Drawn:
    """Options by our names; each is left at its default about half of the time."""
    beams = rng.choice([1, 2, 3, 4, 5, 6, 7, 8])
    longest = rng.randint(1, 12)
    drawn: Drawn = {"max_new_tokens": longest, "beams": beams, "nbest": rng.randint(1, beams)}
    if beams > 1:
        drawn["length_penalty"] = rng.choice([-1.0, 0.0, 0.6, 1.0, 2.0])
        drawn["early_stopping"] = rng.choice([True, False, "never"])
    offers: Drawn = {
        "min_new_tokens": rng.randint(0, longest),
        "no_repeat_ngram_size": rng.randint(1, 3),
        "repetition_penalty": rng.choice([0.7, 1.2, 2.0]),
        "suppress_tokens": tuple(rng.sample(OTHERS, rng.randint(1, 6))),
        "bad_words_ids": tuple(tuple(rng.sample(OTHERS, rng.randint(1, 3))) for _ in range(rng.randint(1, 4))),
        "forced_bos_token_id": rng.choice(OTHERS),
        "forced_eos_token_id": rng.choice([EOS, *OTHERS]),
        "eos_token_id": (EOS, *rng.sample(OTHERS, rng.randint(1, 2))),
    }
    drawn.update({name: value for name, value in offers.items() if rng.random() < 0.4})
    ends = drawn.get("eos_token_id", (EOS,))
    words = tuple(each for each in drawn.pop("bad_words_ids", ()) if len(each) > 1 or each[0] not in ends)
    drawn = {**drawn, "bad_words_ids": words} if words else drawn
    forbidden = {*drawn.get("suppress_tokens", ()), *(each[0] for each in words if len(each) == 1)}
    forbidden.update(ends if drawn.get("min_new_tokens") else ())
    if drawn.get("forced_bos_token_id") in forbidden:  # which we refuse
        del drawn["forced_bos_token_id"]
    unsaid = {*drawn.get("suppress_tokens", ()), *(each[0] for each in words if len(each) == 1)}
    if drawn.get("forced_eos_token_id") in unsaid:  # as well
        del drawn["forced_eos_token_id"]
    return drawn


def theirs(model: Any, sources: list[list[int]], drawn: Drawn) -> tuple[list[list[tuple[int, ...]]], np.ndarray | None]:
    """Tokens of each source's hypotheses after the start token, and the scores of beam search."""
    renamed = {"beams": "num_beams", "nbest": "num_return_sequences"}
    named = {
        renamed.get(name, name): list(value) if isinstance(value, tuple) else value for name, value in drawn.items()
    }
    if "bad_words_ids" in named:
        named["bad_words_ids"] = [list(words) for words in named["bad_words_ids"]]
    ends = named.setdefault("eos_token_id", EOS)
    config = GenerationConfig(
        **named,
        pad_token_id=PAD,
        decoder_start_token_id=START,
        do_sample=False,
        use_cache=False,  # as our side here: with other sums, near-ties within a search come out otherwise
        return_dict_in_generate=True,
        output_scores=True,
    )
    longest = max(map(len, sources))
    ids = torch.tensor([source + [PAD] * (longest - len(source)) for source in sources])
    mask = torch.tensor([[1] * len(source) + [0] * (longest - len(source)) for source in sources])
    model.generation_config = GenerationConfig()
    result = model.generate(ids, attention_mask=mask, generation_config=config)
    sequences = [_cut(row[1:], ends if isinstance(ends, list) else [ends]) for row in result.sequences.tolist()]
    count = drawn["nbest"]
    grouped = [sequences[start : start + count] for start in range(0, len(sequences), count)]
    scores = result.sequences_scores.reshape(-1, count).numpy() if drawn["beams"] > 1 else None
    return grouped, scores


def _cut(tokens: list[int], ends: list[int]) -> tuple[int, ...]:
    """Without the padding that follows an end token, or a target that is over."""
    for place, token in enumerate(tokens):
        if token in ends:
            return tuple(tokens[: place + 1])
    return tuple(tokens)


def test_tokens_and_scores_are_hugging_faces() -> None:
    rng = random.Random(0)
    models = functools.cache(seeded)
    targets = ties = 0
    for number in range(COMBINATIONS):
        family = list(FAMILIES)[number % len(FAMILIES)]
        model = models(family, number % MODELS).double()  # sums in fp32 depend on the batch, by the processor
        drawn = draw(rng)
        sources = [[*rng.choices(OTHERS, k=rng.randint(0, 6)), EOS] for _ in range(rng.randint(1, 4))]
        found = generate(HuggingFaceRuntime(model), sources, facts_of(), SearchOptions(**drawn))
        expected, scores = theirs(model, sources, drawn)
        where = f"combination {number}, {family}: {drawn}"
        for row, (ours, others) in enumerate(zip(found, expected, strict=True)):
            targets += len(others)
            ties += compare(ours, others, None if scores is None else scores[row], where)
    assert (targets, ties) == (TARGETS, 0)  # what docs/search.md says


def compare(ours: list[Found], others: list[tuple[int, ...]], scores: np.ndarray | None, where: str) -> int:
    """How many targets differ by no more than a near-tie; anything else fails."""
    ties = 0
    for rank, other in enumerate(others):
        if scores is not None and scores[rank] < -1e8:  # transformers fills up with what never ended
            assert rank >= len(ours), where
            continue
        assert rank < len(ours), f"{where}: only {len(ours)} of {others}"
        if scores is not None:
            assert ours[rank].score == pytest.approx(float(scores[rank]), abs=NEAR), where
        if ours[rank].tokens != other:
            assert scores is not None, f"{where}: {ours[rank].tokens} for {other}"
            near = [abs(float(scores[rank]) - float(score)) for at, score in enumerate(scores) if at != rank]
            assert min(near, default=1.0) < NEAR, f"{where}: {ours[rank].tokens} for {other}"
            ties += 1
    return ties
