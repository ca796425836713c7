"""Tokenizers, in a checkpoint that is exported and in a bundle that runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.hostile.case import BAD, FAILED, GOOD, Case, Command, Place, command, fix_hashes, read_values
from tests.hostile.corpus.manifests import BYTES as NO_JSON
from tests.hostile.corpus.values import DEEP_LIST, HUGE_NUMBER, NAME, spell
from txport.models.names import TARGET_TOKENIZER, TOKENIZER

EXPLODING = r"^(([a-z])+.)+[A-Z]([a-z])+$"
LONG = "ab" * 20_000


def cases() -> Iterator[Case]:
    """Every tokenizer."""
    for name, change in NO_JSON.items():
        yield Case(f"tokenizers/{name}", _bytes(change))
    yield from (Case(f"tokenizers/{name}", _value(change, (BAD,))) for name, change in WRONG.items())
    yield from (Case(f"tokenizers/{name}", _value(change, (GOOD, BAD))) for name, change in STRANGE.items())
    yield Case("tokenizers/a normalizer of 1,000 levels", _bytes(_levels))
    yield Case("tokenizers/a second one that is empty", _second)


def commands(place: Place, whole: bytes, codes: tuple[int, ...]) -> list[Command]:
    """A bundle and a checkpoint with this tokenizer."""
    bundle = place.bundle()
    checkpoint = place.checkpoint()
    (bundle / TOKENIZER).write_bytes(whole)
    (checkpoint / TOKENIZER).write_bytes(whole)
    fix_hashes(bundle)
    verify = (FAILED, BAD) if codes == (BAD,) else (GOOD, FAILED, BAD)
    export = codes if codes == (BAD,) else (GOOD, FAILED, BAD)
    return [
        command("run", bundle, "bad", "chief", "--threads", 1, codes=codes),
        command("run", bundle, "--unknown", "skip", "--json", "--threads", 1, stdin=b"bad?\nchief\n", codes=codes),
        command("run", bundle, "--threads", 1, stdin=LONG.encode() + b"\n", codes=(GOOD, BAD)),
        command("score", bundle, "bad", "AA B", "--threads", 1, codes=codes),
        command("verify", bundle, "--threads", 1, codes=verify),
        command("export", checkpoint, place.out / "made", codes=export),
    ]


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        before = (place.sound.checkpoint / TOKENIZER).read_bytes()
        return commands(place, change(before), (BAD,)) if change(before) != before else []

    return make


def _value(change: Callable[[Any], object], codes: tuple[int, ...]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        values = read_values(place.sound.checkpoint / TOKENIZER)
        change(values)
        return commands(place, spell(json.dumps(values)).encode("utf-8", "surrogatepass"), codes)

    return make


def _second(place: Place) -> list[Command]:
    bundle = place.bundle()
    checkpoint = place.checkpoint()
    (bundle / TARGET_TOKENIZER).write_bytes(b"{}")
    (checkpoint / TARGET_TOKENIZER).write_bytes(b"{}")
    return [
        command("run", bundle, "bad", codes=[BAD]),
        command("verify", bundle, codes=[FAILED, BAD]),
        command("export", checkpoint, place.out / "made", codes=[BAD]),
    ]


def _vocabulary(change: Callable[[dict[str, Any]], object]) -> Callable[[Any], object]:
    return lambda values: change(values["model"]["vocab"])


def _split(pattern: dict[str, str]) -> Callable[[Any], object]:
    return lambda values: values["pre_tokenizer"].update(pattern=pattern)


WRONG: dict[str, Callable[[Any], object]] = {
    "no model": lambda values: values.pop("model"),
    "a model of nothing": lambda values: values.update(model={}),
    "a model as a list": lambda values: values.update(model=[]),
    "an unknown model": lambda values: values["model"].update(type=NAME),
    "a vocabulary as a list": lambda values: values["model"].update(vocab=["a"]),
    "a vocabulary of texts": _vocabulary(lambda vocabulary: vocabulary.update(a="5")),
    "ids below zero": _vocabulary(lambda vocabulary: vocabulary.update(a=-5)),
    "ids beyond the vocabulary": _vocabulary(lambda vocabulary: vocabulary.update(a=10_000)),
    "ids of 5,000 digits": _vocabulary(lambda vocabulary: vocabulary.update(a=HUGE_NUMBER)),
    "ids of 200,000 levels": _vocabulary(lambda vocabulary: vocabulary.update(a=DEEP_LIST)),
    "ids beyond 32 bits": _vocabulary(lambda vocabulary: vocabulary.update(a=2**40)),
    "an unclosed expression": _split({"Regex": "("}),
    "an expression of 10,000 levels": _split({"Regex": "(" * 10_000 + ")" * 10_000}),
    "added tokens as a number": lambda values: values.update(added_tokens=5),
    "an added token beyond the vocabulary": lambda values: values["added_tokens"].append(
        {**values["added_tokens"][0], "id": 10_000, "content": "<more>"}
    ),
    "a version of the next century": lambda values: values.update(version="99.0"),
    "an unknown normalizer": lambda values: values.update(normalizer={"type": "None of these"}),
}


def _levels(whole: bytes) -> bytes:
    """A normalizer of 1,000 others in one another."""
    values = json.loads(whole)
    values["normalizer"] = "@levels@"
    begin = '{"type": "Sequence", "normalizers": ['
    end = "]}"
    return json.dumps(values).replace('"@levels@"', begin * 1_000 + '{"type": "Lowercase"}' + end * 1_000).encode()


STRANGE: dict[str, Callable[[Any], object]] = {
    "no unknown token": lambda values: values["model"].pop("unk_token"),
    "an unknown token that is not there": lambda values: values["model"].update(unk_token="nowhere"),  # noqa: S106
    "an unknown token as null": lambda values: values["model"].update(unk_token=None),
    "an expression that explodes": _split({"Regex": EXPLODING}),
    "another expression that explodes": _split({"Regex": "(a|b|ab)*c"}),
    "a backreference that explodes": _split({"Regex": r"(a*)*\1b"}),
    "an expression of nothing": _split({"Regex": ""}),
    "an expression of everything": _split({"Regex": "[^\\s\\S]"}),
    "truncation": lambda values: values.update(
        truncation={"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    ),
    "truncation of a stride that does not fit": lambda values: values.update(
        truncation={"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 50}
    ),
    "padding": lambda values: values.update(
        padding={
            "strategy": {"Fixed": 1_000},
            "direction": "Left",
            "pad_to_multiple_of": None,
            "pad_id": 9_999,
            "pad_type_id": 0,
            "pad_token": NAME,
        }
    ),
    "padding beyond all memory": lambda values: values.update(
        padding={
            "strategy": {"Fixed": 2**40},
            "direction": "Left",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "a",
        }
    ),
    "an empty vocabulary": lambda values: values["model"].update(vocab={}),
    "a token of escapes": lambda values: values["model"]["vocab"].update({NAME: values["model"]["vocab"].pop("AA")}),
    "a token of 1 MB": lambda values: values["model"]["vocab"].update(
        {"a" * 1_000_000: values["model"]["vocab"].pop("AA")}
    ),
    "two tokens of one id": _vocabulary(lambda vocabulary: vocabulary.update(b=vocabulary["a"])),
    "no post-processor": lambda values: values.update(post_processor=None),
    "a post-processor of many ends": lambda values: values["post_processor"].update(
        single=values["post_processor"]["single"] * 1_000
    ),
    "a post-processor of an unknown token": lambda values: values["post_processor"]["special_tokens"].clear(),
    "a normalizer that multiplies": lambda values: values.update(
        normalizer={"type": "Sequence", "normalizers": [_replace("a", "a" * 1_000), _replace("a", "a" * 1_000)]}
    ),
    "a normalizer that removes all": lambda values: values.update(normalizer=_replace_all()),
    "a decoder of an unknown kind": lambda values: values.update(decoder={"type": "Metaspace"}),
}


def _replace(what: str, by: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": what}, "content": by}


def _replace_all() -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": "[\\s\\S]"}, "content": ""}
