"""The columns that bulk work adds to a table: for each kind of model, their types and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from txport.models.facts import Facts

ERROR = "error"
LABELS = pa.list_(pa.struct({"label": pa.string(), "score": pa.float64()}))
TAGS = pa.list_(pa.struct({"token": pa.string(), "label": pa.string(), "score": pa.float64()}))
ANSWERS = pa.list_(pa.struct({"text": pa.string(), "score": pa.float64(), "start": pa.int64(), "end": pa.int64()}))
MASKS = pa.list_(pa.list_(pa.struct({"token": pa.string(), "id": pa.int64(), "score": pa.float64()})))
GENERATED = {"output": pa.string(), "score": pa.float64(), "finish": pa.string()}
Values = dict[str, object]


class Columns(NamedTuple):
    """Columns of a model: their types by name, without `error`, and what makes their values of a result."""

    types: dict[str, pa.DataType]
    values: Callable[[Any], Values]

    @property
    def struct(self) -> pa.StructType:
        """The type of a row of these columns and `error`."""
        return pa.struct({**self.types, ERROR: pa.string()})


def columns_of(facts: Facts, defaults: Mapping[str, Any], options: Mapping[str, Any]) -> Columns:
    """Return the columns of a model; `defaults` are the bundle's options, `options` those of the call."""
    chosen = {**defaults, **options}
    match facts.ability:
        case None if chosen.get("nbest", 1) > 1:
            return Columns({**GENERATED, "hypotheses": pa.list_(pa.struct(GENERATED))}, _hypotheses)
        case None:
            return Columns(GENERATED, _generated)
        case "embed" if chosen.get("pooling") == "none":
            return Columns(
                {"vectors": pa.list_(pa.list_(pa.float32()))}, lambda found: {"vectors": list(found) or None}
            )
        case "embed":
            return Columns({"vector": pa.list_(pa.float32())}, lambda found: {"vector": found if found.size else None})
        case "classify":
            return Columns({"output": pa.string(), "score": pa.float64(), "labels": LABELS}, _labels)
        case "tag":
            return Columns({"tags": TAGS}, lambda found: {"tags": [vars(tag) for tag in found]})
        case "fill":
            return Columns({"masks": MASKS}, lambda found: {"masks": [[vars(fill) for fill in mask] for mask in found]})

        case "answer":
            return Columns({"output": pa.string(), "score": pa.float64(), "answers": ANSWERS}, _answers)


def _generated(found: Any) -> Values:
    if not found.hypotheses:  # "skip" has removed all of the text
        return {"output": found.output}
    return {"output": found.output, "score": found.score, "finish": found.finish}


def _hypotheses(found: Any) -> Values:
    every = [{"output": each.output, "score": each.score, "finish": each.finish} for each in found.hypotheses]
    return {**_generated(found), "hypotheses": every}


def _answers(found: Any) -> Values:
    best = {"output": found[0].text, "score": found[0].score} if found else {}
    return {**best, "answers": [vars(answer) for answer in found]}


def _labels(found: Any) -> Values:
    best = {"output": found[0].label, "score": found[0].score} if found else {}
    return {**best, "labels": [vars(label) for label in found]}
