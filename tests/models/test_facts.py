"""Facts come back from JSON as they were, and of JSON that holds no facts there is one error, which names the value."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txport.models import facts as module
from txport.models import json_values
from txport.models.audio import Features, Speech
from txport.models.facts import LENGTH, CrossAttention, Facts, Output, Tokens, by_layer, key_values

Json = dict[str, Any]
Path = tuple[str | int, ...]

SOURCE = Tokens(size=11, longest=7, pad=0, before=(1,), after=(2,))
TARGET = Tokens(size=13, longest=9, pad=0, start=1, ends=(2, 3))
HEARD = Features(size=5, frames=20, longest=10, sampling_rate=16000, hop_length=160, n_fft=400)
SAID = Speech(languages=("en", "de"), language_ids=(4, 5), transcribe=6, no_timestamps=8, language="de", latest_first=2)
CACHES = by_layer(key_values(2, "row", 3, 8), key_values(2, "source", 3, 8))
OUTPUTS = (Output("last_hidden_state", (LENGTH, 24)), Output("logits", (2,)))
TASKS = {
    "seq2seq": Facts(
        task="seq2seq", width=24, source=SOURCE, target=TARGET, state=CACHES, attention=CrossAttention(1, 3)
    ),
    "speech": Facts(
        task="seq2seq", width=24, source=HEARD, target=TARGET, state=CACHES, attention=CrossAttention(1, 3), speech=SAID
    ),
    "causal": Facts(
        task="causal",
        width=24,
        target=TARGET,
        state=key_values(2, "row", 3, 8),
        has_plain_logits=True,
        windows=(3, 1 << 20),
    ),
    "encode": Facts(
        task="encode", width=24, source=SOURCE, outputs=OUTPUTS, labels=("A", "B"), function_to_apply="softmax"
    ),
}


@st.composite
def tokens(draw: st.DrawFn, *, starts: bool) -> Tokens:
    size = draw(st.integers(1, json_values.LARGEST - 1))
    some = st.lists(st.integers(0, size - 1), max_size=3).map(tuple)
    ids = {name: draw(some) for name in ("before", "after")}
    ids["ends"] = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=3).map(tuple))
    start = draw(st.integers(0, size - 1)) if starts else None
    longest = draw(st.integers(2, module.LONGEST))
    return Tokens(size=size, longest=longest, pad=draw(st.integers(0, size - 1)), start=start, **ids)


@st.composite
def facts(draw: st.DrawFn) -> Facts:
    task = draw(st.sampled_from(["seq2seq", "causal", "encode"]))
    layers, heads, size = (draw(st.integers(1, 5)) for _ in range(3))
    own, shared = (key_values(layers, owner, heads, size) for owner in ("row", "source"))
    labels = draw(st.lists(st.text(), min_size=1, max_size=3, unique=True))
    outputs = st.sampled_from([(Output("logits", (len(labels),)),), (Output("logits", (LENGTH, len(labels))),)])
    functions = st.sampled_from(["sigmoid"] if len(labels) == 1 else ["softmax", "sigmoid"])
    return Facts(
        task=task,
        width=draw(st.integers(1, 1 << 20)),
        source=None if task == "causal" else draw(tokens(starts=False)),
        target=None if task == "encode" else draw(tokens(starts=True)),
        state={"seq2seq": by_layer(own, shared), "causal": own, "encode": ()}[task],
        attention=CrossAttention(layers - 1, heads) if task == "seq2seq" and draw(st.booleans()) else None,
        outputs=draw(outputs) if task == "encode" else (),
        labels=tuple(labels) if task == "encode" else (),
        function_to_apply=draw(functions) if task == "encode" else None,
        has_plain_logits=draw(st.booleans()),
        windows=tuple(draw(st.sets(st.integers(1, module.LONGEST), max_size=3))) if task == "causal" else (),
    )


@given(facts())
def test_facts_come_back_from_json_as_they_were(given: Facts) -> None:
    assert Facts.from_dict(json.loads(json.dumps(given.to_dict()))) == given


def places(values: Any, path: Path = ()) -> Iterator[Path]:
    """The path of every value in JSON, lists and objects included."""
    if path:
        yield path
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def altered(values: Json, path: Path, junk: Any) -> Json:
    found: Any = copy.deepcopy(values)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = junk
    return dict(found)


JUNK = [None, True, -1, 0, 1.5, 1 << 40, 10**400, "", "length", "text", [], [[]], [None], {}, {"a": 1}]


@pytest.mark.parametrize("task", TASKS)
def test_a_value_that_is_no_fact_is_one_error_of_a_line(task: str) -> None:
    """Whatever stands in place of whatever: facts that come back, or an error that names no more than it must."""
    values = json.loads(json.dumps(TASKS[task].to_dict()))
    found = [read(altered(values, path, junk)) for path in places(values) for junk in JUNK]
    taken = [each for each in found if isinstance(each, Facts)]
    errors = [str(each) for each in found if isinstance(each, Exception)]
    assert all(read(json.loads(json.dumps(each.to_dict()))) == each for each in taken)
    assert all("\n" not in each and len(each) < 300 for each in errors)
    assert len(errors) > len(found) / 2


def read(values: Json) -> Facts | Exception:
    """The facts, or the error that a reader of manifests expects; any other is raised."""
    try:
        return Facts.from_dict(values)
    except (KeyError, TypeError, ValueError) as error:
        return error


@pytest.mark.parametrize("task", TASKS)
def test_a_key_too_few_and_a_key_too_many_are_refused_by_name(task: str) -> None:
    values = json.loads(json.dumps(TASKS[task].to_dict()))
    objects: list[Path] = [(), *(path for path in places(values) if isinstance(at(values, path), dict))]
    for path in objects:
        for key in at(values, path):
            if (*path, key) in (("speech",), ("windows",), ("function_to_apply",)):  # which most models have not
                continue
            short = copy.deepcopy(values)
            del at(short, path)[key]
            with pytest.raises(KeyError, match=rf"\.{key}'$"):
                Facts.from_dict(short)
        with pytest.raises(ValueError, match=r"has no 'strange'$"):
            Facts.from_dict(altered(values, (*path, "strange"), 1))


def at(values: Any, path: Path) -> Any:
    for key in path:
        values = values[key]
    return values


@pytest.mark.parametrize(
    ("task", "path", "junk", "message"),
    [
        ("seq2seq", ("task",), "translate", "task must be one of seq2seq, causal, encode, got 'translate'"),
        ("seq2seq", ("width",), 0, "width must be a whole number from 1 to 2147483647, got 0"),
        ("seq2seq", ("width",), True, "width must be a whole number from 1 to 2147483647, got True"),
        (
            "seq2seq",
            ("source", "size"),
            1 << 31,
            "source.size must be a whole number from 1 to 2147483647, got 2147483648",
        ),
        ("seq2seq", ("source", "longest"), "7", "source.longest must be a whole number from 1 to 1048576, got '7'"),
        ("seq2seq", ("source", "pad"), 11, "source.pad must lie in the vocabulary of 11, got 11"),
        ("seq2seq", ("target", "ends"), [2, 13], "target.ends must lie in the vocabulary of 13, got 13"),
        ("seq2seq", ("target", "ends"), "23", "ends must be a list of at most 1024, got '23'"),
        ("seq2seq", ("target", "ends"), [2] * 1025, "ends must be a list of at most 1024, got "),
        ("seq2seq", ("target", "start"), None, "a target needs a start token and an end token"),
        ("seq2seq", ("target",), None, "a model of the task seq2seq has other sides"),
        ("causal", ("source",), SOURCE.__dict__, "a model of the task causal has other sides"),
        ("seq2seq", ("state", 0, "role"), "query", "a tensor of the state can't be 'query' of 'row'"),
        ("seq2seq", ("state", 0, "owner"), "batch", "a tensor of the state can't be 'key' of 'batch'"),
        ("seq2seq", ("state", 0, "dims"), [3, 9, 8], "a tensor of the state has heads, length and a size, got"),
        ("seq2seq", ("state", 0, "dims"), [3, "length"], "a tensor of the state has heads, length and a size, got"),
        ("seq2seq", ("state", 0, "dims"), [3, "length", 0], "a dim must be a whole number from 1 to 2147483647, got 0"),
        ("seq2seq", ("state", 0, "layer"), -1, "layer must be a whole number from 0 to 2147483647, got -1"),
        ("seq2seq", ("state", 0, "layer"), 1, "the state is none of a model of the task seq2seq"),  # two alike
        ("causal", ("state",), [], "the state is none of a model of the task causal"),
        ("causal", ("state",), [{}] * (1 << 15), "state must be a list of at most 16384"),
        ("causal", ("attention",), {"layer": 0, "heads": 3}, "has no attention over a source"),
        ("causal", ("outputs",), [{"name": "x", "dims": [5]}], "a model of the task causal has other outputs"),
        ("encode", ("outputs",), [], "a model of the task encode has other outputs"),
        ("encode", ("outputs", 0, "name"), 5, "an output must be a text, got 5"),
        ("encode", ("outputs", 0, "dims"), [1] * 5, "dims must be a list of at most 4, got"),
        ("encode", ("labels",), ["A", 1], "a label must be a text, got 1"),
        ("causal", ("windows", 0), 0, "a window must be a whole number from 1 to 1048576, got 0"),
        ("causal", ("windows",), 4, "windows must be a list of at most 16384, got 4"),
        ("causal", ("windows",), [4, 7, 4], "windows must be named once each, got [4, 7, 4]"),
        ("seq2seq", ("windows",), [4], "a model of the task seq2seq has no windows"),
        ("encode", ("function_to_apply",), None, "labels must be one of softmax, sigmoid, none, got None"),
        ("encode", ("function_to_apply",), "relu", "labels must be one of softmax, sigmoid, none, got 'relu'"),
        ("encode", ("function_to_apply",), ["none"], "must be one of softmax, sigmoid, none, got ['none']"),
        ("causal", ("function_to_apply",), "softmax", "function_to_apply needs a model with labels, got 'softmax'"),
        ("encode", ("has_plain_logits",), 1, "has_plain_logits must be true or false, got 1"),
    ],
)
def test_what_is_wrong_is_named(task: str, path: Path, junk: Any, message: str) -> None:
    values = json.loads(json.dumps(TASKS[task].to_dict()))
    with pytest.raises((TypeError, ValueError)) as caught:
        Facts.from_dict(altered(values, path, junk))
    assert message in str(caught.value)


@pytest.mark.parametrize("junk", [None, 7, "text", [], ["task"]], ids=repr)
def test_facts_are_an_object(junk: Any) -> None:
    with pytest.raises(TypeError, match="facts must be an object, got "):
        Facts.from_dict(junk)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda facts: facts.reads, {"seq2seq": SOURCE, "causal": TARGET, "encode": SOURCE}),
        (lambda facts: facts.writes, {"seq2seq": TARGET, "causal": TARGET, "encode": SOURCE}),
        (lambda facts: len(facts.owned("row")), {"seq2seq": 4, "causal": 4, "encode": 0}),
        (lambda facts: len(facts.owned("source")), {"seq2seq": 4, "causal": 0, "encode": 0}),
    ],
)
def test_each_task_has_its_sides(read: Callable[[Facts], Any], expected: dict[str, Any]) -> None:
    assert {task: read(TASKS[task]) for task in expected} == expected


def test_tokens_know_what_stands_around_a_sequence_and_what_is_no_text() -> None:
    assert SOURCE.with_special([5, 6]) == [1, 5, 6, 2]
    assert TARGET.with_special([5]) == [5]
    assert sorted(SOURCE.special) == [0, 1, 2]
    assert sorted(TARGET.special) == [0, 1, 2, 3]
    assert TARGET.end == 2
