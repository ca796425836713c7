"""`Batch`: the columns are the results of the model, and a bad row affects itself alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import txport
from txport.bulk import Batch
from txport.bulk.batch import _rows
from txport.bundles.bundle import Bundle
from txport.errors import RunError, TextError, TxportError, UnsupportedError

LONG = "bad" * 100
TEXTS = ["bad", LONG, "chief", None, "", "a"]
GOOD = ["bad", "chief", "a"]


def test_rows_of_a_generating_model(bundle: Bundle) -> None:
    found = Batch(bundle.path)(pa.table({"id": range(6), "text": TEXTS})).to_pylist()
    expected = txport.load(bundle.path).generate(GOOD)
    assert [row["id"] for row in found] == list(range(6))
    values = [(row["output"], row["score"], row["finish"]) for row in found if row["error"] is None]
    assert values == [(each.output, each.score, each.finish) for each in expected]
    errors = {row["text"]: row["error"] for row in found if row["error"] is not None}
    assert errors.keys() == {LONG, None, ""}
    assert errors[None] == "the text is null"
    assert "tokens" in errors[LONG]
    assert all(row["output"] is row["score"] is row["finish"] is None for row in found if row["error"] is not None)


def test_several_hypotheses_have_a_column(bundle: Bundle) -> None:
    (row,) = Batch(bundle.path, beams=3, nbest=2)(pa.table({"text": ["bad"]})).to_pylist()
    (expected,) = txport.load(bundle.path).generate("bad", beams=3, nbest=2)
    assert [each["output"] for each in row["hypotheses"]] == [each.output for each in expected.hypotheses]


@pytest.mark.parametrize("ability", ["embed", "classify", "tag", "fill"])
def test_rows_of_an_encoder(encoders: dict[str, Path], ability: str) -> None:
    """Errors stand between good rows, whose results are those of the good rows alone."""
    mask = " [MASK]" if ability == "fill" else ""
    good = [text + mask for text in ("a b", "c", "d e f")]
    long = "a " * 50 + mask
    batch = Batch(encoders[ability], batch_size=2, special=True)
    found = batch.outputs(pa.array([good[0], long, None, good[1], long, long, good[2]]))
    assert found.type == batch.type
    assert [row["error"] is None for row in found.to_pylist()] == [True, False, False, True, False, False, True]
    model = txport.load(encoders[ability])
    expected = list(getattr(model, ability)(good, special=True))
    rows = [row for row in found.to_pylist() if row["error"] is None]
    if ability == "embed":
        np.testing.assert_array_equal(np.array([row["vector"] for row in rows], np.float32), expected)
        return
    column = {"classify": "labels", "tag": "tags", "fill": "masks"}[ability]
    assert [row[column] for row in rows] == [as_values(each) for each in expected]
    if ability == "classify":
        assert [(row["output"], row["score"]) for row in rows] == [(each[0].label, each[0].score) for each in expected]


def as_values(found: Any) -> Any:
    return [as_values(each) for each in found] if isinstance(found, list) else asdict(found)


def test_pairs_and_vectors_of_tokens(encoders: dict[str, Path]) -> None:
    rows = Batch(encoders["classify"], pairs=True).outputs(pa.array(["a b\tc", "a b"])).to_pylist()
    (expected,) = txport.load(encoders["classify"]).classify([("a b", "c")])
    assert rows[0]["labels"] == as_values(expected)
    assert "a tab" in rows[1]["error"]
    rows = Batch(encoders["answer"], nbest=2).outputs(pa.array(["a b\tc d e", "a b"])).to_pylist()
    answers = txport.load(encoders["answer"]).answer("a b", "c d e", nbest=2)
    assert rows[0]["answers"] == as_values(answers)
    assert (rows[0]["output"], rows[0]["score"]) == (answers[0].text, answers[0].score)
    assert "a tab" in rows[1]["error"]
    (row,) = Batch(encoders["embed"], pooling="none").outputs(pa.array(["a b"])).to_pylist()
    assert np.array(row["vectors"]).shape == (4, 16)


def test_a_text_is_cut_if_that_is_wanted(bundle: Bundle, encoders: dict[str, Path]) -> None:
    for place, text in ((bundle.path, LONG), (encoders["embed"], "a " * 50)):
        (row,) = Batch(place, truncate=True).outputs(pa.array([text])).to_pylist()
        assert row["error"] is None


@given(st.lists(st.sampled_from(["good", "long", "breaks its batch"]), max_size=20), st.integers(1, 5))
def test_an_error_of_a_batch_is_of_its_text_alone(texts: list[str], size: int) -> None:
    """Also where a runtime fails on a whole batch, and where the results before an error come late."""

    def work(rest: list[str]) -> Iterator[str]:
        for start in range(0, len(rest), size):
            batch = rest[start : start + size]
            end = batch.index("long") if "long" in batch else None
            if "breaks its batch" in batch[:end]:
                raise RunError("a NaN")
            yield from (f"{text} result" for text in batch[:end])
            if end is not None:
                raise TextError("too long")

    found = [str(each) for each in _rows(work, texts)]
    assert found == [{"good": "good result", "long": "too long", "breaks its batch": "a NaN"}[text] for text in texts]


def test_kinds_of_batches(bundle: Bundle) -> None:
    batch = Batch(bundle.path, "word", prefix="p_")
    table = pa.table({"word": GOOD})
    expected = batch(table)
    assert expected.column_names == ["word", "p_output", "p_score", "p_finish", "p_error"]
    (records,) = table.to_batches()
    assert batch(records).equals(expected.to_batches()[0])
    assert batch({"word": np.array(GOOD, dtype=object)}).equals(expected)
    assert batch(table.column("word")).equals(batch(records.column(0)))
    assert batch(records.column(0)).field(0).equals(expected.column(1).chunk(0))
    dictionary = pa.table({"word": pa.array(GOOD).dictionary_encode()})
    assert batch(dictionary).column("p_output").equals(expected.column("p_output"))


def test_types_do_not_depend_on_rows(bundle: Bundle, encoders: dict[str, Path]) -> None:
    """A part without a result would otherwise have columns of the type null, which other parts do not fit."""
    for place in (bundle.path, *encoders.values()):
        batch = Batch(place)
        assert batch.outputs(pa.array([None], pa.string())).type == batch.outputs(pa.array(["a"])).type == batch.type


def test_it_goes_to_other_processes(bundle: Bundle) -> None:
    batch = Batch(bundle.path, beams=2)
    batch.type  # noqa: B018 - opens the bundle, which does not travel
    copy = ForkingPickler.loads(ForkingPickler.dumps(batch))
    assert copy(pa.table({"text": GOOD})).equals(batch(pa.table({"text": GOOD})))


def test_chats_are_texts_or_lists_of_messages() -> None:
    from txport.bulk.batch import _texts

    messages = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b", "name": "x"}]]
    assert _texts(pa.array(messages), True, "text") == [
        '[{"role": "user", "content": "a"}]',
        '[{"role": "user", "content": "b", "name": "x"}]',
    ]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"other": ["a"]}, {}, "has no column 'text'; its columns are other"),
        ({"text": [1]}, {}, "the column 'text' has the type int64, expected text"),
        ({"text": ["a"], "score": [1]}, {}, "the rows already have the columns score; a prefix gives"),
        ({"text": ["a"]}, {"beans": 2}, "unknown option 'beans'"),
        ({"text": ["a"]}, {"beams": 0}, "beams"),
    ],
)
def test_what_it_refuses(bundle: Bundle, table: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(TxportError, match=message):
        Batch(bundle.path, **options)(pa.table(table))


def test_an_unknown_option_of_an_encoder(encoders: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedError, match="unknown option 'beams'; supported: pooling, "):
        Batch(encoders["embed"], beams=2)(pa.table({"text": ["a"]}))
