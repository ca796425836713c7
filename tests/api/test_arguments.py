"""Whatever a caller gives in place of an argument of the public API is taken, or refused in one line of ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import txport
from txport.api import model as api
from txport.bundles.bundle import Bundle
from txport.cli import cli
from txport.errors import TextError, TxportError, UnsupportedError, quoted
from txport.search import batching
from txport.search.options import SearchOptions
from txport.system.cores import cores
from txport.system.numbers import number, switch, whole

HUGE: list[Any] = [10**30, 10**5000]
NO_NUMBER: list[Any] = ["1", b"1", [1], object(), 1 + 2j, np.array([1, 2]), True, np.True_]
NO_WHOLE = [*NO_NUMBER, 2.5, 1e300, math.nan, math.inf, -1, -(10**18), -(10**30)]
NO_REAL = [*NO_NUMBER, None, math.nan, math.inf, -math.inf, -1e300, *HUGE]
NO_SWITCH: list[Any] = ["yes", None, 1, 0.0, [True]]
NO_IDS: list[Any] = [5, "AA", [1.5], [True], [math.nan], ["AA"], [None], [[1]]]
NO_TOKENS: list[Any] = [*NO_IDS, [-1], *([each] for each in HUGE)]
NO_WORDS: list[Any] = ["soften", 3, ["soft"], np.array(["soft", "hard"])]
NO_TEXT: list[Any] = [5, 2.5, None, b"bad", [5], [None], [b"bad"], [["bad"]]]

SAMPLED = {"do_sample": True}
BEAMS = {"beams": 2}
GROUPS = {"beams": 4, "beam_groups": 2, "diversity_penalty": 0.5}
OPTIONS: dict[str, tuple[dict[str, Any], list[Any]]] = {  # what goes with an option, and wrong values of it
    "max_new_tokens": ({}, [*NO_WHOLE, *HUGE, 0, 25]),
    "max_length": ({}, [*(each for each in NO_WHOLE if each is not None), 0, 1, -1]),
    "min_length": ({}, [*NO_WHOLE, *HUGE, None]),
    "min_new_tokens": ({}, [*NO_WHOLE, *HUGE, None, 25]),
    "beams": ({}, [*NO_WHOLE, *HUGE, None, 0, 10**9]),
    "beam_groups": (GROUPS, [*NO_WHOLE, *HUGE, None, 0, 3]),
    "diversity_penalty": (GROUPS, [*NO_REAL, 0, 1e10]),
    "nbest": (BEAMS, [*NO_WHOLE, *HUGE, None, 0, 10**9]),
    "length_penalty": (BEAMS, [*NO_REAL, 21]),
    "coverage_penalty": (BEAMS, [*NO_REAL, 1e10]),
    "early_stopping": (BEAMS, [*NO_WORDS, None]),
    "patience": (BEAMS, [*NO_REAL, 0, 101]),
    "do_sample": ({}, NO_SWITCH),
    "temperature": (SAMPLED, [*(each for each in NO_REAL if each is not HUGE[0]), 0]),
    "top_k": (SAMPLED, [*NO_WHOLE, *HUGE, None]),
    "top_p": (SAMPLED, [*NO_REAL, 0, 1.01]),
    "min_p": (SAMPLED, [*NO_REAL, 1.01]),
    "top_h": (SAMPLED, [*(each for each in NO_REAL if each is not None), 0, 1.01]),
    "typical_p": (SAMPLED, [*NO_REAL, 0, 1.01]),
    "epsilon_cutoff": (SAMPLED, [*NO_REAL, 1]),
    "eta_cutoff": (SAMPLED, [*NO_REAL, 1]),
    "seed": (SAMPLED, NO_WHOLE),
    "sequence_bias": (
        {},
        [5, "AA", [5], [[5, 1.0]], [[[], 1.0]], [[["AA"], 1.0]], *([[[5], bias]] for bias in NO_REAL)],
    ),
    "encoder_repetition_penalty": ({}, [*NO_REAL, 0, 1e-30]),
    "encoder_no_repeat_ngram_size": ({}, [*NO_WHOLE, *HUGE, None]),
    "exponential_decay_length_penalty": ({}, [5, "AA", [1], [-1, 1.5], [1.5, 1.5], *([1, each] for each in NO_REAL)]),
    "renormalize_logits": ({}, NO_SWITCH),
    "repetition_penalty": ({}, [*NO_REAL, 0, 1e-30]),
    "no_repeat_ngram_size": ({}, [*NO_WHOLE, *HUGE, None]),
    "suppress_tokens": ({}, NO_TOKENS),
    "begin_suppress_tokens": ({}, NO_TOKENS),
    "bad_words_ids": ({}, [*(each for each in NO_TOKENS if each != [[1]]), [[]], [[1.5]], [["AA"]]]),
    "forced_bos_token_id": ({}, [*NO_WHOLE, *HUGE]),
    "forced_eos_token_id": ({}, [*NO_WHOLE, *HUGE]),
    "eos_token_id": ({}, [*NO_TOKENS[1:], *HUGE, -1, 2.5, True, []]),
    "logits_processor": ({}, ["softmax", 3]),
    "stop": ({}, [5, 2.5, b"a", [5], [None], "", [""]]),
    "alignment": ({}, [*NO_WORDS, True]),
    "scores": ({}, NO_SWITCH),
}
BATCHES: dict[str, list[Any]] = {
    "batch_size": [*NO_WHOLE, *HUGE, None, 0, 10**18],
    "batch_tokens": [*NO_WHOLE, 0],
    "continuous": NO_SWITCH,
}


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}={quoted(value)[:20]}")
        for name, values in table.items()
        for value in values
    ]


@pytest.fixture(scope="module")
def model(bundle: Bundle) -> txport.Model:
    return txport.load(bundle.path)


def refuse(call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """It raises an error of ours, of one short line, at once or when the first result is asked for."""
    with pytest.raises(TxportError) as error:  # noqa: PT012 - generators begin when they are read
        found = call(*arguments, **named)
        list(found)
    assert isinstance(error.value, TextError | UnsupportedError)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(("name", "value"), cases({name: values for name, (_, values) in OPTIONS.items()}))
def test_every_way_to_search_refuses_wrong_options(name: str, value: Any, model: txport.Model) -> None:
    options = {**OPTIONS[name][0], name: value}
    refuse(model.generate, "bad", **options)
    refuse(model.generate_iter, iter(["bad"]), **options)
    refuse(model.stream, "bad", **options)
    refuse(model.search, [[5, 2]], **options)


def test_every_option_is_tried() -> None:
    assert set(OPTIONS) == set(SearchOptions.__dataclass_fields__)


@pytest.mark.parametrize(("name", "value"), cases(BATCHES))
def test_every_way_to_search_refuses_wrong_batches(name: str, value: Any, model: txport.Model) -> None:
    refuse(model.generate, "bad", **{name: value})
    refuse(model.generate_iter, ["bad"], **{name: value})
    refuse(model.search, [[5, 2]], **{name: value})
    if name == "batch_size":
        refuse(model.score, "bad", "AA", **{name: value})
        refuse(model.logits, "bad", "AA", **{name: value})


@pytest.mark.parametrize("value", [*NO_REAL, 21], ids=lambda value: quoted(value)[:20])
def test_scores_refuse_wrong_penalties(value: Any, model: txport.Model) -> None:
    refuse(model.score, "bad", "AA", length_penalty=value)


@pytest.mark.parametrize("value", NO_TEXT, ids=quoted)
def test_what_is_no_text_is_refused(value: Any, model: txport.Model) -> None:
    for call in (model.generate, model.generate_iter):
        refuse(call, value)
        refuse(call, "bad", prefixes=value)
    refuse(model.stream, value)
    refuse(model.stream, "bad", prefix=value)
    for call in (model.score, model.logits):
        refuse(call, value, "AA")
        refuse(call, "bad", value)


@pytest.mark.parametrize("value", [3, "skipped", None, ["skip"], True], ids=quoted)
def test_unknown_characters_are_an_error_or_skipped(value: Any, model: txport.Model) -> None:
    for call in (model.generate, model.generate_iter, model.stream):
        refuse(call, "bad", unknown=value)
    for call in (model.score, model.logits):
        refuse(call, "bad", "AA", unknown=value)


@pytest.mark.parametrize("value", [5, None, b"ab", "ab", [5], [None], *([each] for each in NO_TOKENS)], ids=quoted)
def test_what_are_no_token_ids_is_refused(value: Any, model: txport.Model) -> None:
    refuse(model.search, value)
    if value is not None:
        refuse(model.search, [[5, 2]], prefixes=value)


def test_tokens_of_any_kind_of_whole_number_are_taken(model: txport.Model) -> None:
    plain = model.search([[5, 2]], prefixes=[[6]])
    assert model.search(np.array([[5, 2]], np.int32), prefixes=iter([(np.int64(6),)])) == plain
    assert model.search(iter([range(5, 1, -3)]), prefixes=[np.array([6])]) == plain


@pytest.mark.parametrize(
    ("name", "value"), cases({"threads": [*NO_WHOLE, *HUGE, 0, 4000], "workers": [*NO_WHOLE, *HUGE, 0]})
)
def test_load_refuses_wrong_threads(name: str, value: Any, bundle: Bundle) -> None:
    refuse(txport.load, bundle.path, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"), cases({"runtime": [3, ["ort"], "tvm"], "provider": [3, None, ["cpu"], "gpu"]})
)
def test_load_refuses_what_is_no_engine(name: str, value: Any, bundle: Bundle) -> None:
    refuse(txport.load, bundle.path, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    cases(
        {
            "rows": [*NO_WHOLE, *HUGE, 0],
            "opset": [*NO_WHOLE, *HUGE, 0, 18.0, 999],
            "auto": NO_SWITCH,
            "auto_limit": [*(value for value in NO_REAL if value is not None), 1.5],
            "target": [3, None, ["cpu"]],
            "precision": [3, None, ["int8"]],
            "calibrate": ["texts.txt", "/dev/null"],
        }
    ),
)
def test_export_refuses_wrong_values_and_writes_nothing(
    name: str, value: Any, checkpoint: Path, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"target": "cpu", "precision": "int8", "auto": True, name: value}
    refuse(txport.export, checkpoint, tmp_path / "out", **how)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    cases(
        {
            "seed": [*NO_WHOLE, *HUGE, None],
            "cases": [*NO_WHOLE, *HUGE, None],
            "atol": [*NO_NUMBER, math.nan, -1e300, 10**5000],
            "rtol": [value for value in NO_REAL if value is not None],
        }
    ),
)
def test_parity_refuses_wrong_values(name: str, value: Any, bundle: Bundle, checkpoint: Path) -> None:
    refuse(api.parity, bundle, checkpoint, {"ort": "cpu"}, **{name: value})


def test_batches_of_any_size_that_fits_are_those_of_a_smaller_one(model: txport.Model) -> None:
    assert model.generate(["bad", "chief"], batch_size=batching.MOST) == model.generate(["bad", "chief"], batch_size=2)


def test_no_more_is_read_ahead_than_fits_into_memory() -> None:
    read = 0

    def texts() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    next(batching.in_batches(texts(), batching.at_once(list), 5000, length=lambda item: 1))
    assert read == batching.MOST


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "BUNDLE", "bad", "--threads", "4000"], "--threads must not exceed {most} on {cores}, got 4000"),
        (["run", "BUNDLE", "bad", "--workers", "4000"], "--workers must not exceed {most} on {cores}, got 4000"),
        (["score", "BUNDLE", "bad", "AA", "--threads", "4000"], "--threads must not exceed"),
        (["verify", "BUNDLE", "--threads", "4000"], "--threads must not exceed"),
        (["bench", "BUNDLE", "--threads", "4000"], "--threads must not exceed"),
        (["run", "BUNDLE", "bad", "--batch-size", str(10**18)], "--batch-size must not exceed 65536, got 10000000"),
        (["run", "BUNDLE", "bad", "--prefixes", "AA " * 24], "a prefix of 24 tokens leaves no room for a target"),
    ],
)
def test_the_command_line_says_so_in_one_line(arguments: list[str], said: str, bundle: Bundle) -> None:
    done = CliRunner().invoke(cli, [str(bundle.path) if each == "BUNDLE" else each for each in arguments])
    assert isinstance(done.exception, UnsupportedError)
    count = cores()
    wanted = said.format(most=max(16, 4 * count), cores="1 core" if count == 1 else f"{count} cores")
    assert str(done.exception).startswith(wanted)
    assert done.exception.exit_code == 2


def test_a_prefix_that_fills_the_model_is_named(model: txport.Model) -> None:
    for options in ({}, {"max_new_tokens": 4}):
        with pytest.raises(
            UnsupportedError, match=r"a prefix of 24 tokens leaves no room .* longest sequence, 24; sho"
        ):
            model.search([[5, 2]], prefixes=[[5] * 24], **options)
    assert model.search([[5, 2]], prefixes=[[5] * 23])


@given(
    value=st.integers() | st.floats() | st.booleans() | st.text() | st.none() | st.binary() | st.lists(st.integers())
)
def test_numbers_are_taken_as_they_are_or_refused(value: Any) -> None:
    for take, kinds in ((whole, int), (number, (int, float)), (switch, bool)):
        if isinstance(value, kinds) and isinstance(value, bool) == (take is switch):
            expected = float(value) if take is number else value
            assert take("it", value) == expected or math.isnan(expected)
        else:
            with pytest.raises(UnsupportedError, match=r"^it must be [^\n]*$"):
                take("it", value)


@pytest.mark.parametrize("size", [np.int8(4), np.uint8(100), np.int64(2)], ids=repr)
def test_numbers_of_numpy_are_numbers(size: Any, model: txport.Model) -> None:
    texts = ["bad", "chief"] * 3
    assert [each.input for each in model.generate(texts, batch_size=size)] == texts
    kept = model.search([[5, 6, 2]], beams=2, early_stopping=np.True_)
    assert kept == model.search([[5, 6, 2]], beams=2, early_stopping=True)


@pytest.mark.parametrize("value", [np.array("bad"), np.array(3), 5])
def test_what_can_not_be_read_one_by_one_is_refused(value: Any, model: txport.Model) -> None:
    with pytest.raises(TextError, match="must be a list or what can be read like one"):
        model.generate(value)


def test_a_stream_can_be_closed(model: txport.Model) -> None:
    for text in ("bad", "\u2603"):
        steps = model.stream(text, unknown="skip")
        next(steps)
        steps.close()
