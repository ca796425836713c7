"""Stop strings: which token ends a target, where its text ends, and what is streamed before."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import SeatedRuntime, TableRuntime, random_table
from tests.search.test_generate import SEEDS, SOURCES, facts_of
from txport.api.generated import finish_of, grown
from txport.errors import UnsupportedError
from txport.search.continuous import Scheduler
from txport.search.generate import generate, search
from txport.search.options import SearchOptions
from txport.search.stops import Stops
from txport.text.token_bytes import UNFINISHED

PIECES = [b"</s>", b"<s>", b"a", b"ab", b"b", " ü".encode(), b"\xc3", b"\xbc", b""]
SIZE = len(PIECES)
TOKENS = st.lists(st.integers(-1, SIZE - 1), min_size=1, max_size=9)
STRINGS = st.lists(st.sampled_from(["a", "b", "ab", "aab", "ba", "ü", "b ü", "aaaa", "</s>a"]), min_size=1, max_size=3)
KINDS: list[dict[str, Any]] = [{}, {"beams": 3, "nbest": 3}, {"do_sample": True, "nbest": 2, "seed": 5}]


def spelling(id_: int) -> bytes | None:
    return PIECES[id_] if id_ >= 0 else None


def text_of(tokens: Any) -> str:
    return b"".join(PIECES[token] for token in tokens if token > 1).decode(errors="replace")


@given(TOKENS, STRINGS)
def test_a_token_stops_if_a_string_ends_in_it(tokens: list[int], strings: list[str]) -> None:
    """By the bytes of all tokens after the last one without any, and of no more tokens than the longest string has."""
    stops = Stops(strings, spelling)
    longest = max(len(each.encode()) for each in strings)
    after = max((place + 1 for place, token in enumerate(tokens) if token < 0), default=0)
    after = max(after, len(tokens) - longest)
    pieces = [PIECES[token] for token in tokens[after:]]
    whole = b"".join(pieces)
    before = len(whole) - len(pieces[-1]) if pieces else 0
    ends = [
        at + len(each.encode()) for each in strings for at in range(len(whole)) if whole[at:].startswith(each.encode())
    ]
    assert (stops.start(tokens) is not None) == any(end > before for end in ends)


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, sources=SOURCES, strings=STRINGS, kind=st.sampled_from(KINDS))
def test_targets_end_with_a_stop_string_in_every_search(
    seed: int, sources: list[list[int]], strings: list[str], kind: dict[str, Any]
) -> None:
    table = random_table(SIZE, seed, spread=2.0)
    stops = Stops(strings, spelling)
    options = SearchOptions(max_new_tokens=9, stop=stops, **kind)
    found = generate(TableRuntime(table), sources, facts_of(SIZE), options)
    for one in (one for each in found for one in each):
        context = [1, *one.tokens]
        assert all(stops.start(context[: size + 1]) is None for size in range(1, len(one.tokens)))
    if "beams" not in kind:  # rows do not depend on each other
        free = generate(TableRuntime(table), sources, facts_of(SIZE), replace(options, stop=()))
        for one, other in zip(chain(*found), chain(*free), strict=True):
            size = next((n for n in range(1, len(other.tokens)) if stops.start([1, *other.tokens[:n]])), None)
            assert one.tokens == other.tokens[:size]
    requests = [(source, ()) for source in sources]
    seated = SeatedRuntime(table, options.rows)
    assert Scheduler(seated, requests, facts_of(SIZE), options, 2).run() == found


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, strings=STRINGS, beams=st.sampled_from([1, 3]))
def test_what_is_streamed_is_never_taken_back(seed: int, strings: list[str], beams: int) -> None:
    stops = Stops(strings, spelling)
    options = SearchOptions(max_new_tokens=9, stop=stops, beams=beams)
    steps = search(TableRuntime(random_table(SIZE, seed, spread=2.0)), [[0]], facts_of(SIZE), options)
    (found,) = generate(TableRuntime(random_table(SIZE, seed, spread=2.0)), [[0]], facts_of(SIZE), options)

    def shown(tokens: Any) -> str:
        cut = stops.cut([1], tokens, text_of)
        return text_of(tokens) if cut is None else cut

    outputs = list(grown(steps, lambda tokens: stops.settled(shown(tokens).rstrip(UNFINISHED)), shown))
    assert outputs[-1] == shown(found[0].tokens)
    assert all(outputs[-1].startswith(output) for output in outputs)


@pytest.mark.parametrize(
    ("before", "tokens", "strings", "text"),
    [
        ([1], [2, 4, 3], ["ba"], "a"),  # from "b", over "ab"
        ([1], [2, 4, 3], ["b", "ab"], "ab"),  # the first in the last token, not that of an earlier one
        ([1], [5], ["ü"], " "),
        ([1], [2, 6, 7], ["ü"], "a"),  # of two tokens that are a byte each
        ([2], [4], ["ab"], ""),  # it begins in the prompt
        ([1], [2, 0], ["</s>"], "a"),  # a special token is left out of the text
        ([1], [2, 4], ["aa"], None),
    ],
)
def test_a_text_ends_before_the_stop_string(
    before: list[int], tokens: list[int], strings: list[str], text: str | None
) -> None:
    assert Stops(strings, spelling).cut(before, tokens, text_of) == text


def test_a_prefix_completes_no_stop_string() -> None:
    table = random_table(SIZE, 3, spread=2.0)
    options = SearchOptions(max_new_tokens=4, min_new_tokens=3, stop=Stops(["ab"], spelling))
    ((found,),) = generate(TableRuntime(table), [[0]], facts_of(SIZE), options, [[3, 3]])
    assert found.tokens[:2] == (3, 3)
    assert len(found.tokens) > 2


def test_what_ended_a_target() -> None:
    assert finish_of([4, 2], [2], 2, True) == "end"
    assert finish_of([4, 4], [2], 2, True) == "stop"
    assert finish_of([4, 4], [2], 2, False) == "length"


@pytest.mark.parametrize("stop", [[""], [3], 7, ["a", "\ud800"]])
def test_stop_strings_that_are_none_are_refused(stop: Any) -> None:
    with pytest.raises(UnsupportedError, match="stop must be"):
        SearchOptions(stop=stop)
    assert SearchOptions(stop="a").stop == SearchOptions(stop=["a"]).stop == ("a",)
    with pytest.raises(UnsupportedError, match="stop needs the spelling of tokens"):
        generate(TableRuntime(random_table(SIZE, 0)), [[0]], facts_of(SIZE), SearchOptions(stop="a"))
