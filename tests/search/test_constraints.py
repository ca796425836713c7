"""Which tokens may come next, over tables of logits: every promise of an option holds for whatever is found."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.fakes import TableRuntime, Tokens, random_table
from tests.search.test_generate import BOS, EOS, SEEDS, every_sequence, facts_of, search, sum_of
from txport.errors import UnsupportedError
from txport.models.options import CHECKS, DEFAULTS, GenerationOptions
from txport.models.options import options as declarations
from txport.runtimes.base import Floats, Ints
from txport.search import constraints
from txport.search.constraints import _without, possible_tops
from txport.search.generate import generate, longest_target, wanted
from txport.search.options import Found, SearchOptions

SIZE = 9
TOKENS = st.integers(2, SIZE - 1)
OPTIONS = st.fixed_dictionaries(
    {"max_new_tokens": st.integers(3, 8), "beams": st.integers(1, 4)},
    optional={
        "min_new_tokens": st.integers(0, 3),
        "no_repeat_ngram_size": st.integers(1, 3),
        "suppress_tokens": st.lists(st.integers(1, SIZE - 1), max_size=3),
        "begin_suppress_tokens": st.lists(st.integers(1, SIZE - 1), max_size=3),
        "bad_words_ids": st.lists(st.lists(st.integers(1, SIZE - 1), min_size=1, max_size=3), max_size=4),
        "eos_token_id": st.sampled_from([(EOS,), (EOS, 8), (7, 8)]),
    },
)
PREFIXES = st.lists(st.lists(TOKENS, max_size=3), min_size=1, max_size=4)


def _with(value: float, scores: Any) -> Any:
    scores[1, 4] = value
    return scores


def unchanged(scores: Floats, token_ids: Ints) -> Floats:
    """A processor of a user's own; with one, all scores are fetched."""
    assert scores.shape[0] == token_ids.shape[0]
    assert (token_ids[:, 0] == BOS).all()
    return scores


def find(seed: int, prefixes: Sequence[Sequence[int]], options: dict[str, Any]) -> list[list[Found]]:
    sources = [[1] * (1 + number) for number in range(len(prefixes))]
    runtime = TableRuntime(random_table(SIZE, seed, spread=2.0))
    return generate(runtime, sources, facts_of(SIZE), SearchOptions(**options), prefixes)


def senseless(prefixes: list[list[int]], options: dict[str, Any]) -> bool:
    return any(set(prefix) & set(options.get("eos_token_id", (EOS,))) for prefix in prefixes)


def nothing_is_left(prefix: Sequence[int], new: Tokens, options: dict[str, Any]) -> bool:
    """Whether every token is forbidden after these."""
    token_ids = (BOS, *prefix, *new)
    ends = options.get("eos_token_id", (EOS,))
    banned = set(options.get("suppress_tokens", ()))
    banned |= set() if new else set(options.get("begin_suppress_tokens", ()))
    banned |= set(ends) if len(new) < options.get("min_new_tokens", 0) else set()
    for words in options.get("bad_words_ids", []):
        if token_ids[len(token_ids) - len(words) + 1 :] == tuple(words[:-1]):
            banned.add(words[-1])
    if size := options.get("no_repeat_ngram_size"):
        newest = token_ids[len(token_ids) - size + 1 :]
        banned |= {
            token_ids[at + size - 1]
            for at in range(len(token_ids) - size + 1)
            if token_ids[at : at + size - 1] == newest
        }
    return banned >= set(range(SIZE))


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, prefixes=PREFIXES, options=OPTIONS)
def test_what_is_found_keeps_every_promise(seed: int, prefixes: list[list[int]], options: dict[str, Any]) -> None:
    assume(not senseless(prefixes, options))
    ends = options.get("eos_token_id", (EOS,))
    for prefix, (best, *_) in zip(prefixes, find(seed, prefixes, options), strict=True):
        assert best.tokens[: len(prefix)] == tuple(prefix)
        assert math.isfinite(best.score)
        new = best.tokens[len(prefix) :]
        assert not set(new[:-1]) & set(ends)
        if not (new and new[-1] in ends):
            assert len(new) == options["max_new_tokens"] or nothing_is_left(prefix, new, options)
        elif len(new) < options["max_new_tokens"]:
            assert len(new) >= options.get("min_new_tokens", 0)
        assert not set(new) & set(options.get("suppress_tokens", ()))
        assert not set(new[:1]) & set(options.get("begin_suppress_tokens", ()))
        assert [len(best.token_scores), *best.token_scores[: len(prefix)]] == [len(best.tokens), *[0.0] * len(prefix)]
        token_ids = (BOS, *best.tokens)
        for words in options.get("bad_words_ids", []):
            for end in range(len(prefix) + 2, len(token_ids) + 1):
                assert token_ids[max(0, end - len(words)) : end] != tuple(words)
        if size := options.get("no_repeat_ngram_size"):
            grams = [token_ids[end - size : end] for end in range(size, len(token_ids) + 1)]
            fresh = grams[len(grams) - len(new) :] if len(grams) >= len(new) else grams
            for place, gram in enumerate(fresh, len(grams) - len(fresh)):
                assert gram not in grams[:place]


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, prefixes=PREFIXES, options=OPTIONS)
def test_few_candidates_say_what_all_scores_say(seed: int, prefixes: list[list[int]], options: dict[str, Any]) -> None:
    assume(not senseless(prefixes, options))
    few, every = (find(seed, prefixes, {**options, **more}) for more in ({}, {"logits_processor": unchanged}))
    for one, other in zip(few, every, strict=True):
        assert [each.tokens for each in one] == [each.tokens for each in other]
        assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-5)


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, prefixes=PREFIXES, options=OPTIONS)
def test_many_bans_say_what_few_say(seed: int, prefixes: list[list[int]], options: dict[str, Any]) -> None:
    assume(not senseless(prefixes, options))
    few = find(seed, prefixes, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraints, "SPARE", 0)
        assert find(seed, prefixes, options) == few


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, prefixes=PREFIXES, options=OPTIONS, penalty=st.sampled_from([0.5, 1.0, 1.5]))
def test_targets_with_prefixes_of_any_length_are_those_found_alone(
    seed: int, prefixes: list[list[int]], options: dict[str, Any], penalty: float
) -> None:
    assume(not senseless(prefixes, options))
    chosen = SearchOptions(**options, repetition_penalty=penalty)
    table = random_table(SIZE, seed, spread=2.0)
    sources = [[1], [0], [1, 0], [0, 1]][: len(prefixes)]
    together = generate(TableRuntime(table), sources, facts_of(SIZE), chosen, prefixes)
    for source, prefix, found in zip(sources, prefixes, together, strict=True):
        (alone,) = generate(TableRuntime(table), [source], facts_of(SIZE), chosen, [prefix])
        assert [each.tokens for each in found] == [each.tokens for each in alone]
        assert [each.score for each in found] == pytest.approx([each.score for each in alone], abs=1e-5)


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, prefix=st.lists(st.integers(2, 3), max_size=2), penalty=st.sampled_from([-1.0, 0.0, 0.6, 2.0]))
def test_a_prefix_counts_neither_for_length_nor_for_score(seed: int, prefix: list[int], penalty: float) -> None:
    size = 4
    longest = 3
    table = random_table(4, seed)
    beams = len(list(every_sequence(size, longest)))
    options = SearchOptions(
        max_new_tokens=longest, beams=beams, nbest=beams, length_penalty=penalty, early_stopping="never"
    )
    (found,) = generate(TableRuntime(table), [[1]], facts_of(size), options, [prefix])
    expected = sorted(
        ((score(table, prefix, rest) / len(rest) ** penalty, rest) for rest in every_sequence(size, longest)),
        reverse=True,
    )
    assert [each.score for each in found] == pytest.approx([score for score, _ in expected], abs=1e-5)


def score(table: Any, prefix: Sequence[int], rest: Tokens) -> float:
    return sum_of(table, (1,), (*prefix, *rest)) - sum_of(table, (1,), tuple(prefix))


@pytest.mark.parametrize("beams", [1, 3])
def test_the_first_token_can_be_forced(beams: int) -> None:
    found = search(random_table(SIZE, 0), [[1], [0]], SIZE, max_new_tokens=4, beams=beams, forced_bos_token_id=5)
    assert [each[0].tokens[0] for each in found] == [5, 5]
    assert [each[0].token_scores[0] for each in found] == [0, 0]


@pytest.mark.parametrize(
    "way", [{}, {"do_sample": True, "nbest": 2, "seed": 1}, {"beams": 3}, {"logits_processor": unchanged}]
)
@pytest.mark.parametrize("prefixes", [[[], []], [[4], [5, 4, 6]]])
def test_the_last_token_of_a_target_of_full_length_can_be_forced(
    way: dict[str, Any], prefixes: list[list[int]]
) -> None:
    """Whatever bans say; what ended before is as it is."""
    options = {**way, "max_new_tokens": 4, "min_new_tokens": 3, "forced_eos_token_id": EOS, "no_repeat_ngram_size": 1}
    for seed in range(5):
        for prefix, found in zip(prefixes, find(seed, prefixes, options), strict=True):
            for each in found:
                assert len(each.tokens) == len(prefix) + 4
                assert (each.tokens[-1], each.token_scores[-1]) == (EOS, 0)


def test_a_users_own_processor_sees_the_tokens_so_far_and_decides() -> None:
    def count_up(scores: Floats, token_ids: Ints) -> Floats:
        wanted = np.full_like(scores, -np.inf)
        wanted[np.arange(len(token_ids)), np.minimum(token_ids[:, -1] + 2, SIZE - 1)] = 0
        return wanted

    for beams in (1, 3):
        options = {"max_new_tokens": 4, "beams": beams, "logits_processor": count_up}
        found = search(random_table(SIZE, 0), [[1], [0, 1]], SIZE, **options)
        assert [each[0].tokens for each in found] == [(2, 4, 6, 8)] * 2


@settings(deadline=None, max_examples=40)
@given(SEEDS, PREFIXES, OPTIONS, st.booleans())
def test_no_step_asks_for_what_was_not_foretold(
    seed: int, prefixes: list[list[int]], options: dict[str, Any], in_groups: bool
) -> None:
    assume(not senseless(prefixes, options))
    options |= {"beam_groups": options["beams"], "diversity_penalty": 0.5} if in_groups and options["beams"] > 1 else {}
    sources = [[1]] * len(prefixes)
    facts = facts_of(SIZE)
    chosen = SearchOptions(**options)
    runtime = TableRuntime(random_table(SIZE, seed, spread=2.0))
    generate(runtime, sources, facts, chosen, prefixes)
    longest = longest_target(sources, facts, chosen, prefixes)
    assert set(runtime.wanted) <= {0, *possible_tops(chosen, facts, wanted(chosen, facts), longest)}


@pytest.mark.parametrize(
    ("options", "tops"),
    [
        ({}, [1]),
        ({"beams": 3, "eos_token_id": [1, 7, 8]}, [12]),
        ({"do_sample": True, "top_k": 5}, [5]),
        ({"do_sample": True}, [None]),
        ({"repetition_penalty": 1.2, "suppress_tokens": [2]}, [None]),
        ({"suppress_tokens": [2, 3, 4], "bad_words_ids": [[5]]}, [5]),
        ({"min_new_tokens": 2, "eos_token_id": [1, 7, 8]}, [1, 5]),
        ({"bad_words_ids": [[2, 3], [3, 4], [4, 5]]}, [1, 2, 3, 5]),
        ({"no_repeat_ngram_size": 3}, [1, 2, 3, 5]),
    ],
)
def test_what_steps_may_ask_for_follows_from_the_options(options: dict[str, Any], tops: list[int | None]) -> None:
    facts = facts_of(SIZE)
    chosen = SearchOptions(max_new_tokens=6, **options)
    assert possible_tops(chosen, facts, wanted(chosen, facts), 6) == tops


@pytest.mark.parametrize("beams", [1, 3])
def test_bad_words_that_nobody_has_begun_cost_nothing(beams: int) -> None:
    runtime = TableRuntime(random_table(SIZE, 0))
    options = SearchOptions(max_new_tokens=1, beams=beams, bad_words_ids=[[token, 3] for token in range(2, SIZE)])
    generate(runtime, [[1]], facts_of(SIZE), options)
    assert runtime.wanted == [1 if beams == 1 else 2 * beams]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suppress_tokens": [9]}, "suppress_tokens must lie in the vocabulary, 0 to 8; got 9"),
        ({"bad_words_ids": [[2, -1]]}, "bad_words_ids must lie in the vocabulary, 0 to 8; got -1"),
        ({"forced_bos_token_id": EOS, "min_new_tokens": 1}, "must not be an end token where min_new_tokens forbids it"),
        ({"forced_eos_token_id": 9}, "forced_eos_token_id must lie in the vocabulary, 0 to 8; got 9"),
        (
            {"forced_eos_token_id": 2, "suppress_tokens": [2]},
            "suppress_tokens must not forbid what forced_eos_token_id",
        ),
        ({"forced_bos_token_id": 2, "bad_words_ids": [[3, 2], [2]]}, "bad_words_ids must not forbid what .*; got 2"),
        ({"bad_words_ids": [[]]}, "bad_words_ids must not hold an empty sequence"),
        ({"eos_token_id": []}, "eos_token_id must name at least one token"),
        ({"eos_token_id": 9}, "eos_token_id must lie in the vocabulary, 0 to 8; got 9"),
        (
            {"forced_bos_token_id": 2, "suppress_tokens": [2]},
            "suppress_tokens must not forbid what .*; got 2",
        ),
        ({"patience": 2.0}, "patience is for beam search; give beams too"),
        ({"beams": 2, "patience": 1e308}, "patience must lie above 0 and up to 100, got 1e"),
        ({"beams": 2, "nbest": 2, "patience": 0.5}, "nbest can't exceed beams x patience: so many .*, 1"),
        ({"scores": False, "length_penalty": 2.0}, "length_penalty is for scores; there are to be none"),
        ({"beams": 2, "nbest": 3}, "nbest can't exceed beams, got 3 of 2"),
        ({"early_stopping": True}, "early_stopping is for beam search; give beams too"),
        ({"beams": 2, "early_stopping": 1}, "early_stopping must be True, False or 'never', got 1"),
        ({"max_new_tokens": 17}, "max_new_tokens must not exceed the model's longest sequence, 16; got 17"),
    ],
)
def test_constraints_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        search(random_table(SIZE, 0), [[1]], SIZE, **{"max_new_tokens": 4, **options})


@pytest.mark.parametrize(
    ("prefix", "options", "message"),
    [
        ([EOS], {"max_new_tokens": 3}, "a prefix must not hold an end token; got 1"),
        ([9], {"max_new_tokens": 3}, "a prefix must lie in the vocabulary, 0 to 8; got 9"),
        ([2] * 5, {"max_new_tokens": 12}, "a prefix and max_new_tokens must not exceed .*, 16; got 17"),
        ([2, 3, 4], {"max_length": 4}, "a prefix of 3 tokens leaves no room in max_length 4"),
    ],
)
def test_a_prefix_must_be_one(prefix: list[int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        find(0, [[2], prefix], options)


def test_whole_numbers_of_any_kind_will_do() -> None:
    few = {"suppress_tokens": np.array([2, 3]), "eos_token_id": np.array([1, 5]), "max_new_tokens": np.int32(4)}
    assert SearchOptions(**few) == SearchOptions(suppress_tokens=(2, 3), eos_token_id=(1, 5), max_new_tokens=4)
    assert SearchOptions(eos_token_id=np.int64(1), max_new_tokens=4) == SearchOptions(eos_token_id=1, max_new_tokens=4)


def test_prefixes_may_be_arrays() -> None:
    options = {"max_new_tokens": 3}
    assert find(0, [np.array([2, 3]), np.array([4, 5])], options) == find(0, [[2, 3], [4, 5]], options)
    with pytest.raises(UnsupportedError, match="a prefix says what the first token is"):
        find(0, [np.array([2, 3])], {**options, "forced_bos_token_id": 3})
    nothing = [np.array([], np.int64)]
    assert find(0, nothing, {**options, "forced_bos_token_id": 3})[0][0].tokens[0] == 3


def test_none_is_no_constraint() -> None:
    none: Any = None
    assert SearchOptions(max_new_tokens=4, suppress_tokens=none, bad_words_ids=none) == SearchOptions(max_new_tokens=4)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("ban", [{"suppress_tokens": [EOS, 8]}, {"bad_words_ids": [[8], [EOS]]}])
def test_without_an_end_token_a_target_is_as_long_as_may_be(beams: int, ban: dict[str, Any]) -> None:
    options = {"max_new_tokens": 7, "beams": beams, "eos_token_id": (EOS, 8), **ban}
    (found,) = search(random_table(SIZE, 0), [[1]], SIZE, **options)
    assert len(found[0].tokens) == 7
    assert not {EOS, 8} & set(found[0].tokens)


@pytest.mark.parametrize("beams", [1, 3])
def test_so_many_tokens_come_before_the_end_token_may(beams: int) -> None:
    def ending(source: Tokens, prefix: Tokens) -> Floats:
        return 9 * (np.arange(SIZE) == EOS).astype(np.float32)

    for least in range(4):
        (found,) = search(ending, [[1]], SIZE, max_new_tokens=6, min_new_tokens=least, beams=beams)
        assert (len(found[0].tokens), found[0].tokens[-1]) == (least + 1, EOS)


@pytest.mark.parametrize("way", [{}, {"do_sample": True, "seed": 0}])
def test_a_processor_sees_no_target_that_has_ended(way: dict[str, Any]) -> None:
    def running(scores: Floats, token_ids: Ints) -> Floats:
        assert not (token_ids == EOS).any()
        return scores

    sources = [[number % 2] * (1 + number) for number in range(8)]
    search(random_table(SIZE, 0, spread=2.0), sources, SIZE, max_new_tokens=12, logits_processor=running, **way)


def test_patience_waits_for_more_hypotheses() -> None:
    table = random_table(SIZE, 1, spread=0.3)
    steps = []
    for patience in (0.5, 1.0, 2.0, 4.0):
        runtime = TableRuntime(lambda source, prefix: table(source, prefix) + 2 * (np.arange(SIZE) == EOS))
        options = SearchOptions(max_new_tokens=14, beams=2, patience=patience, early_stopping=True)
        generate(runtime, [[1]], facts_of(SIZE), options)
        steps.append(len(runtime.stepped))
    assert steps == sorted(set(steps)), "each waits longer than the one before"


@pytest.mark.parametrize(("beams", "scores"), [(1, True), (1, False), (3, True)])
def test_where_nothing_may_be_said_a_target_stands_as_it_is(beams: int, scores: bool) -> None:
    options = {"no_repeat_ngram_size": 1, "min_new_tokens": 6, "max_new_tokens": 6, "beams": beams, "scores": scores}
    (found,) = search(random_table(4, 0), [[1]], 4, **options)
    assert sorted(found[0].tokens) == [2, 3]
    assert len(found[0].token_scores) == (2 if scores else 0)
    (nothing,) = search(random_table(4, 0), [[1]], 4, max_new_tokens=3, beams=beams, suppress_tokens=[0, 1, 2, 3])
    assert nothing[0].tokens == ()


def test_many_bans_take_memory_in_proportion_to_their_number() -> None:
    """As those of a long prompt, of which no token may come again."""
    ids = np.arange(1 << 14)[None]
    tracemalloc.start()
    values, left = _without(np.zeros(ids.shape, np.float32), ids, ids[:, 1 : 1 << 13], 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert left.tolist() == [[0, 1 << 13, (1 << 13) + 1]]
    assert (values == 0).all()
    assert peak < 64 * ids.size


@pytest.mark.parametrize("beams", [1, 3])
def test_a_processor_has_no_say_in_a_prefix(beams: int) -> None:
    def only_five(scores: Floats, token_ids: Ints) -> Floats:
        return np.where(np.arange(SIZE) == 5, np.float32(0), np.float32(-np.inf)) + np.zeros_like(scores)

    options = SearchOptions(max_new_tokens=2, beams=beams, logits_processor=only_five)
    found = generate(TableRuntime(random_table(SIZE, 0)), [[1], [0]], facts_of(SIZE), options, [[2, 3], []])
    assert [each[0].tokens for each in found] == [(2, 3, 5, 5), (5, 5)]


@pytest.mark.parametrize("way", [{}, {"do_sample": True, "seed": 1}, {"beams": 3}])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda scores: scores[:, :3], r"scores of shape \(\d, 9\), got \(\d, 3\)"),
        (lambda scores: scores + 1j, "real numbers, got complex64"),
        (lambda scores: scores.astype(str), "real numbers, got <U"),
        (lambda scores: _with(np.nan, scores), "got NaN in row 1"),
        (lambda scores: _with(np.inf, scores), "got infinity in row 1"),
        (lambda scores: _with(1e300, scores.astype(float)), "got infinity in row 1"),
    ],
)
def test_a_processor_must_return_scores(way: dict[str, Any], changed: Callable[[Floats], Any], message: str) -> None:
    def odd(scores: Floats, token_ids: Ints) -> Any:
        return changed(scores)

    with pytest.raises(UnsupportedError, match=rf"the logits_processor .*odd must return .*{message}"):
        search(random_table(SIZE, 0), [[1], [2]], SIZE, max_new_tokens=2, logits_processor=odd, **way)


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, prefix=st.lists(TOKENS, max_size=3), length=st.integers(5, 9), beams=st.integers(1, 3))
def test_max_length_counts_the_start_token_and_the_prefix(
    seed: int, prefix: list[int], length: int, beams: int
) -> None:
    assume(EOS not in prefix)
    found = find(seed, [prefix], {"max_length": length, "beams": beams})
    assert found == find(seed, [prefix], {"max_new_tokens": length - 1 - len(prefix), "beams": beams})


def test_defaults_are_valid_options_as_they_are() -> None:
    """Their values are not checked: a default must be what the check makes of it."""
    for name, declared in declarations(GenerationOptions).items():
        if (value := DEFAULTS[name]) is not None:
            checked = CHECKS[declared.kind](name, value, declared)
            assert (type(checked), checked) == (type(value), value), name
            assert not declared.range or declared.contains(value), name
