"""Search over tables of logits: what must hold whatever the model says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fakes import Table, TableRuntime, TableState, Tokens, coarse_table, random_table
from txport.errors import UnsupportedError
from txport.models.architectures import transformer
from txport.models.architectures.transformer import TransformerConfig
from txport.models.facts import Facts
from txport.runtimes.base import Floats, Ints, Scores, scores
from txport.search.beams import settle
from txport.search.generate import generate, start
from txport.search.options import Found, SearchOptions

BOS, EOS = 0, 1
PENALTIES = [-1.5, -1.0, 0.0, 0.6, 1.0, 2.5]
SOURCES = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=4)
SEEDS = st.integers(0, 10**6)


def facts_of(size: int, max_length: int = 16, **changes: Any) -> Facts:
    sizes = {"d_model": 2, "heads": 1, "feed_forward": 1, "encoder_layers": 1, "decoder_layers": 1}
    ids = {"pad_id": 0, "bos_id": BOS, "eos_id": EOS, **changes}
    config = TransformerConfig(source_vocab_size=size, target_vocab_size=size, max_length=max_length, **sizes, **ids)
    return transformer.facts(config)


def search(table: Table, sources: Sequence[Sequence[int]], size: int, **options: Any) -> list[list[Found]]:
    return generate(TableRuntime(table), sources, facts_of(size), SearchOptions(**options))


def stopping(beams: int, early_stopping: Any) -> dict[str, Any]:
    """When to stop is a question for beam search only."""
    return {"early_stopping": early_stopping} if beams > 1 else {}


def log_probabilities(table: Table, source: Tokens, prefix: Tokens) -> list[float]:
    logits = table(source, prefix).astype(np.float64)
    logits -= logits.max()
    return (logits - math.log(np.exp(logits).sum())).tolist()


def sum_of(table: Table, source: Tokens, tokens: Tokens) -> float:
    return sum(log_probabilities(table, source, tokens[:place])[token] for place, token in enumerate(tokens))


def every_sequence(size: int, longest: int) -> Iterator[Tokens]:
    """All that can come out: sequences that end with the end token, and those that were cut off."""
    others = [token for token in range(size) if token != EOS]
    for length in range(longest):
        yield from ((*tokens, EOS) for tokens in itertools.product(others, repeat=length))
    yield from itertools.product(others, repeat=longest)


def brute_force(table: Table, source: Tokens, size: int, longest: int, penalty: float) -> list[Found]:
    scored = [
        Found(tokens, sum_of(table, source, tokens) / len(tokens) ** penalty)
        for tokens in every_sequence(size, longest)
    ]
    return sorted(scored, key=lambda hypothesis: -hypothesis.score)


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(2, 4),
    longest=st.integers(1, 3),
    penalty=st.sampled_from(PENALTIES),
    exact=st.booleans(),
    table=st.builds(random_table, st.just(4), SEEDS, spread=st.sampled_from([0.1, 1.0, 4.0])),
    sources=SOURCES,
)
def test_a_beam_as_wide_as_everything_equals_brute_force(
    size: int, longest: int, penalty: float, exact: bool, table: Table, sources: list[list[int]]
) -> None:
    """As wide as the candidates of one step, or as all that can come out: then even the last of the n-best is known."""
    narrowed = narrow(table, size)
    total = len(list(every_sequence(size, longest)))
    beams = max(total, 2) if exact else max(size * (size - 1) ** (longest - 1), 2)
    options = SearchOptions(
        max_new_tokens=longest, beams=beams, nbest=beams, length_penalty=penalty, early_stopping="never"
    )
    results = generate(TableRuntime(narrowed), sources, facts_of(size), options)
    for source, found in zip(sources, results, strict=True):
        expected = brute_force(narrowed, tuple(source), size, longest, penalty)[:beams]
        assert [each.score for each in found] == pytest.approx([each.score for each in expected], abs=1e-5)
        assert len({each.tokens for each in found}) == len(expected)
        for each in found:
            score = sum_of(narrowed, tuple(source), each.tokens) / len(each.tokens) ** penalty
            assert each.score == pytest.approx(score, abs=1e-5)


def narrow(table: Table, size: int) -> Table:
    return lambda source, prefix: table(source, prefix)[:size]


@settings(deadline=None, max_examples=40)
@given(size=st.integers(2, 8), longest=st.integers(1, 9), seed=SEEDS, source=st.lists(st.integers(0, 1), min_size=1))
def test_greedy_takes_the_likeliest_token_until_the_end_token(
    size: int, longest: int, seed: int, source: list[int]
) -> None:
    table = random_table(size, seed)
    expected: list[int] = []
    while len(expected) < longest and EOS not in expected:
        expected.append(int(table(tuple(source), tuple(expected)).argmax()))
    found = search(table, [source], size, max_new_tokens=longest)
    assert [[each.tokens for each in row] for row in found] == [[tuple(expected)]]


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(2, 9),
    beams=st.integers(1, 5),
    longest=st.integers(1, 8),
    early_stopping=st.sampled_from([True, False, "never"]),
    seed=SEEDS,
    sources=SOURCES,
)
def test_a_row_alone_equals_the_row_in_a_batch(
    size: int, beams: int, longest: int, early_stopping: Any, seed: int, sources: list[list[int]]
) -> None:
    options = {"max_new_tokens": longest, "beams": beams, "nbest": beams, **stopping(beams, early_stopping)}
    table = random_table(size, seed, spread=2.0)
    together = search(table, sources, size, **options)
    for source, found in zip(sources, together, strict=True):
        (alone,) = search(table, [source], size, **options)
        assert [each.tokens for each in found] == [each.tokens for each in alone]
        assert [each.score for each in found] == pytest.approx([each.score for each in alone], abs=1e-5)


def ends_after(length: int, size: int = 6) -> Table:
    """The end token is as good as certain after as many tokens as the source's first id says, impossible before."""
    tie_breaker = random_table(size, seed=7)

    def logits(source: Tokens, prefix: Tokens) -> Floats:
        values = tie_breaker(source, prefix)
        values[EOS] = 50.0 if len(prefix) >= length * source[0] else -np.inf
        return values

    return logits


def test_greedy_drops_finished_rows_at_once() -> None:
    runtime = TableRuntime(ends_after(2))
    found = generate(runtime, [[2], [0], [1], [2, 1]], facts_of(6), SearchOptions(max_new_tokens=12))
    assert [len(each[0].tokens) for each in found] == [5, 1, 3, 5]
    assert runtime.stepped == [4, 3, 3, 2, 2]
    assert set(runtime.wanted) == {1}


def test_beam_drops_the_rows_of_a_finished_source_at_once() -> None:
    """The first step has one row a source, so a first token that ends leaves K - 1 beams to end in the second."""
    runtime = TableRuntime(ends_after(2))
    options = SearchOptions(max_new_tokens=12, beams=3, nbest=3, early_stopping=True)
    found = generate(runtime, [[2], [0], [1]], facts_of(6), options)
    assert [len(each[0].tokens) for each in found] == [5, 1, 3]
    assert runtime.stepped == [3, 9, 6, 3, 3]
    assert set(runtime.wanted) == {6}


def test_rows_are_selected_only_when_they_move() -> None:
    """Selecting copies the cache: not for rows that stay, not for rows that end together, not after the last step."""
    runtime = TableRuntime(ends_after(2))
    generate(runtime, [[1], [2], [1]], facts_of(6), SearchOptions(max_new_tokens=5))
    assert runtime.selected == [[1]]
    runtime = TableRuntime(ends_after(2))
    generate(runtime, [[1], [2], [2]], facts_of(6), SearchOptions(max_new_tokens=3))
    assert runtime.selected == []
    runtime = TableRuntime(table_of(DIVIDED, 3))
    options = SearchOptions(max_new_tokens=10, beams=2, early_stopping="never")
    generate(runtime, [[0]], facts_of(3), options)
    assert runtime.selected == [[0, 0]]  # one row becomes two; that they change ranks later moves nothing


@given(data=st.data())
def test_one_child_of_each_parent_stays(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    rows = st.lists(st.integers(0, size - 1), min_size=size, max_size=size)
    parents = np.array(data.draw(st.lists(rows, min_size=1, max_size=4)))
    for own, places in zip(parents.tolist(), settle(parents).tolist(), strict=True):
        assert sorted(places) == list(range(size))
        assert {parent for parent, place in zip(own, places, strict=True) if parent == place} == set(own)


def hugging_face(table: Table, source: Tokens, options: SearchOptions) -> list[Found]:
    """Beam search by the rules of `GenerationMixin._beam_search` of transformers 5, one row, in plain Python."""
    width = options.beams
    longest = options.max_new_tokens
    penalty = options.length_penalty
    running: list[tuple[float, Tokens]] = [(0.0, ())]
    finished: list[Found] = []
    for length in range(1, longest + 1):
        candidates = [
            (total + float(log_prob), (*tokens, token))
            for total, tokens in running
            for token, log_prob in enumerate(_as_a_step_gives_them(table(source, tokens)))
        ]
        candidates = sorted(candidates, key=lambda candidate: -candidate[0])[: 2 * width]
        stopped = [tokens[-1] == EOS or length == longest for _, tokens in candidates]
        for (total, tokens), is_stopped in list(zip(candidates, stopped, strict=True))[:width]:
            if is_stopped:
                finished.append(Found(tokens, total / len(tokens) ** penalty))
        finished = sorted(finished, key=lambda hypothesis: -hypothesis.score)[:width]
        running = [each for each, is_stopped in zip(candidates, stopped, strict=True) if not is_stopped][:width]
        if not running or _has_converged(finished, running[0][0], length, options):
            break
    return finished[: options.nbest]


def _as_a_step_gives_them(logits: Floats) -> Floats:
    values, ids, _ = scores(logits[None], len(logits))
    assert ids is not None
    return values[0][np.argsort(ids[0])]  # by token, rounded exactly as search sees them


def _has_converged(finished: list[Found], best: float, length: int, options: SearchOptions) -> bool:
    if len(finished) < options.beams:
        return False
    if options.early_stopping is True:
        return True
    if options.early_stopping == "never" and options.length_penalty > 0:
        length = options.max_new_tokens
    return finished[-1].score >= best / length**options.length_penalty


@settings(deadline=None, max_examples=150)
@given(
    size=st.integers(2, 12),
    beams=st.integers(2, 5),
    nbest=st.integers(1, 5),
    longest=st.integers(1, 10),
    penalty=st.sampled_from(PENALTIES),
    early_stopping=st.sampled_from([True, False, "never"]),
    seed=SEEDS,
    spread=st.sampled_from([0.3, 1.0, 3.0]),
)
def test_beam_search_follows_the_rules_of_hugging_face(
    size: int, beams: int, nbest: int, longest: int, penalty: float, early_stopping: Any, seed: int, spread: float
) -> None:
    table = random_table(size, seed, spread=spread)
    options = SearchOptions(
        max_new_tokens=longest,
        beams=beams,
        nbest=min(beams, nbest),
        length_penalty=penalty,
        early_stopping=early_stopping,
    )
    (found,) = generate(TableRuntime(table), [[1]], facts_of(size), options)
    expected = hugging_face(table, (1,), options)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert [each.score for each in found] == pytest.approx([each.score for each in expected], rel=1e-12)
    for each in found:
        assert sum(each.token_scores) == pytest.approx(each.score * len(each.tokens) ** penalty, abs=1e-5)


def table_of(table: dict[Tokens, dict[int, float]], size: int) -> Table:
    """Logits out of probabilities by prefix; what a prefix leaves open is shared by its other tokens."""

    def logits(source: Tokens, prefix: Tokens) -> Floats:
        given = table.get(prefix, table[()] if not prefix else {2: 0.98})
        rest = (1 - sum(given.values())) / max(1, size - len(given))
        with np.errstate(divide="ignore"):
            return np.log(np.array([given.get(token, rest) for token in range(size)], dtype=np.float32))

    return logits


A, B = 0, 2
DIVIDED = {
    (): {EOS: 0.4, A: 0.35},
    (A,): {EOS: 0.9, A: 0.06},
    (B,): {B: 0.9},
    (B, B): {B: 0.6, EOS: 0.35},
    (B, B, B): {EOS: 0.5, B: 0.45},
}


@pytest.mark.parametrize(
    ("early_stopping", "expected", "steps"),
    [
        pytest.param(True, [(A, EOS), (EOS,)], 2, id="as soon as two have ended"),
        pytest.param(False, [(A, EOS), (B, B, B, EOS)], 4, id="when none wins at its present length"),
        pytest.param("never", [(B,) * 10, (A, A) + (B,) * 8], 10, id="when none wins at any length"),
    ],
)
def test_early_stopping_as_documented(early_stopping: Any, expected: list[Tokens], steps: int) -> None:
    runtime = TableRuntime(table_of(DIVIDED, 3))
    options = SearchOptions(max_new_tokens=10, beams=2, nbest=2, early_stopping=early_stopping)
    (found,) = generate(runtime, [[0]], facts_of(3), options)
    assert (len(runtime.stepped), [each.tokens for each in found]) == (steps, expected)


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(2, 9),
    beams=st.integers(2, 5),
    longest=st.integers(1, 8),
    penalty=st.sampled_from(PENALTIES),
    seed=SEEDS,
)
def test_more_patience_costs_steps_and_never_quality(
    size: int, beams: int, longest: int, penalty: float, seed: int
) -> None:
    table = random_table(size, seed, spread=2.0)
    steps = []
    scored = []
    for early_stopping in (True, False, "never"):
        runtime = TableRuntime(table)
        options = SearchOptions(
            max_new_tokens=longest, beams=beams, nbest=beams, length_penalty=penalty, early_stopping=early_stopping
        )
        (found,) = generate(runtime, [[1]], facts_of(size), options)
        steps.append(len(runtime.stepped))
        scored.append([each.score for each in found])
    assert steps == sorted(steps)
    for hasty, patient in itertools.pairwise(scored):
        assert len(hasty) <= len(patient)
        assert all(before <= after for before, after in zip(hasty, patient, strict=False))
    assert penalty > 0 or steps[1:] == [steps[2]] * 2


@settings(deadline=None, max_examples=75)
@given(
    size=st.integers(2, 4),
    beams=st.integers(1, 9),
    longest=st.integers(1, 7),
    early_stopping=st.sampled_from([True, False, "never"]),
    seed=SEEDS,
    sources=SOURCES,
)
@example(size=2, beams=9, longest=7, early_stopping="never", seed=0, sources=[[1], [0, 1]])
def test_tiny_vocabularies_ties_and_impossible_tokens_give_no_dead_hypotheses(
    size: int, beams: int, longest: int, early_stopping: Any, seed: int, sources: list[list[int]]
) -> None:
    table = coarse_table(size, seed)
    options = {"max_new_tokens": longest, "beams": beams, "nbest": beams, **stopping(beams, early_stopping)}
    for source, found in zip(sources, search(table, sources, size, **options), strict=True):
        assert 1 <= len(found) <= beams
        assert len({each.tokens for each in found}) == len(found)
        for each in found:
            assert math.isfinite(each.score)
            expected = sum_of(table, tuple(source), each.tokens) / len(each.tokens)
            assert each.score == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("beams", [1, 2, 3])
def test_the_end_token_at_once_is_a_whole_hypothesis(beams: int) -> None:
    runtime = TableRuntime(ends_after(0))
    options = SearchOptions(max_new_tokens=9, beams=beams, **stopping(beams, True))
    found = generate(runtime, [[1], [2, 1]], facts_of(6), options)
    assert [[each.tokens for each in row] for row in found] == [[(EOS,)], [(EOS,)]]
    assert [row[0].score for row in found] == pytest.approx([0, 0], abs=1e-6)
    assert len(runtime.stepped) == min(beams, 2)


@pytest.mark.parametrize("beams", [1, 3])
def test_search_ends_when_nothing_else_is_possible(beams: int) -> None:
    table = table_of({(): {EOS: 1.0, A: 0.0, B: 0.0}}, 3)
    runtime = TableRuntime(table)
    (found,) = generate(runtime, [[0]], facts_of(3), SearchOptions(max_new_tokens=9, beams=beams, nbest=beams))
    assert (runtime.stepped, [each.tokens for each in found]) == ([1], [(EOS,)])


def test_sources_are_padded_at_the_right_and_the_cache_is_as_long_as_the_target() -> None:
    class Recorder(TableRuntime):
        def start(self, source: Ints, source_lengths: Ints, *, max_length: int) -> TableState:
            seen.extend([source.tolist(), source_lengths.tolist(), max_length])
            return super().start(source, source_lengths, max_length=max_length)

    seen: list[Any] = []
    facts = facts_of(6, pad_id=5)
    start(Recorder(random_table(6, seed=0)), [[3], [2, 4, 1]], facts, 7)
    assert seen == [[[3, 5, 5], [2, 4, 1]], [1, 3], 7]


@pytest.mark.parametrize("beams", [1, 3])
def test_the_first_token_is_the_start_token(beams: int) -> None:
    class Recorder(TableRuntime):
        def step(self, tokens: Ints, state: TableState, **how: Any) -> tuple[Scores, TableState]:
            seen.append(tokens.tolist())
            return super().step(tokens, state, **how)

    seen: list[list[int]] = []
    facts = facts_of(6, bos_id=4)
    generate(Recorder(random_table(6, seed=0)), [[3], [2]], facts, SearchOptions(max_new_tokens=1, beams=beams))
    assert seen == [[4, 4]]


@pytest.mark.parametrize("penalty", [-20.0, 20.0])
def test_the_steepest_penalties_still_give_numbers(penalty: float) -> None:
    longest = 500
    table: Table = lambda source, prefix: np.array([5.0, -5.0, 0.0], dtype=np.float32)  # noqa: E731
    facts = facts_of(3, longest)
    options = SearchOptions(max_new_tokens=longest, beams=2, length_penalty=penalty)
    (found,) = generate(TableRuntime(table), [[1]], facts, options)
    assert math.isfinite(found[0].score)


def test_more_tokens_than_the_model_has_positions_are_refused() -> None:
    runtime = TableRuntime(random_table(6, seed=0))
    facts = facts_of(6, max_length=5)
    with pytest.raises(UnsupportedError, match="longest sequence, 5; got 6"):
        generate(runtime, [[1]], facts, SearchOptions(max_new_tokens=6))
    assert runtime.stepped == []
    assert len(generate(runtime, [[1]], facts, SearchOptions(max_new_tokens=5))) == 1
