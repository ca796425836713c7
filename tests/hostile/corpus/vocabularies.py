"""Files of tokenizers as transformers writes them, beside a model that has so many tokens."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

from tests.hostile.case import BAD, GOOD, Case, Command, Place, command, edit_values
from tests.hostile.corpus.manifests import BYTES as NO_JSON
from tests.hostile.corpus.values import DEEP_LIST, HUGE_NUMBER, NAME, spell
from txport.models.names import ADDED_TOKENS, CHAT_TEMPLATE, SPECIAL_TOKENS, TOKENIZER_CONFIG

EITHER = (GOOD, BAD)


def cases() -> Iterator[Case]:
    """Every vocabulary, and all that stands beside it."""
    for base in ("bert", "llama-new"):
        for name in ("empty", "a list", "a list of 200,000 levels", "an endless text", "UTF-16"):
            yield Case(f"vocabularies/{base} settings {name}", _bytes(base, TOKENIZER_CONFIG, NO_JSON[name], (BAD,)))
    for name, (base, file, change, codes) in FILES.items():
        yield Case(f"vocabularies/{base} {name}", _bytes(base, file, change, codes))
    for name, (base, key, value, codes) in SETTINGS.items():
        yield Case(f"vocabularies/{base} {name}", _setting(base, TOKENIZER_CONFIG, key, value, codes))
    for name, (base, key, value, codes) in SPECIAL.items():
        yield Case(f"vocabularies/{base} special {name}", _setting(base, SPECIAL_TOKENS, key, value, codes))


def imported(base: str, place: Place, codes: tuple[int, ...]) -> list[Command]:
    """A model with these files as one of ours, whose tokenizer is made of them."""
    return [command("import", place.inputs / base, place.out / "made", codes=codes)]


def _bytes(
    base: str, name: str, change: Callable[[bytes], bytes], codes: tuple[int, ...]
) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        file = place.base(f"tokenizer-{base}", base) / name
        before = file.read_bytes() if file.exists() else b""
        file.write_bytes(after := change(before))
        return imported(base, place, codes) if after != before else []

    return make


def _setting(base: str, file: str, key: str, value: Any, codes: tuple[int, ...]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        path = place.base(f"tokenizer-{base}", base) / file
        edit_values(path, lambda values: values.update({key: value}))
        text = spell(path.read_text(encoding="utf-8", errors="surrogatepass"))
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        return imported(base, place, codes)

    return make


def _number(value: int) -> bytes:
    parts = b""
    while value > 127:
        parts = parts + bytes([value & 127 | 128])
        value = value >> 7
    return parts + bytes([value])


def _field(number: int, content: bytes | int) -> bytes:
    """A field of a message of protobuf."""
    if isinstance(content, int):
        return _number(number << 3) + _number(content)
    return _number(number << 3 | 2) + _number(len(content)) + content


def _piece(text: bytes, score: float = 0.0, kind: int = 1) -> bytes:
    scored = _number(2 << 3 | 5) + struct.pack("<f", score)
    return _field(1, _field(1, text) + scored + _field(3, kind))


def _words(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def altered(whole: bytes) -> bytes:
        values = json.loads(whole)
        change(values)
        return spell(json.dumps(values)).encode("utf-8", "surrogatepass")

    return altered


MANY = _piece(b"********").replace(b"*" * 8, b"%08x")
PIECES, BPE = "spiece.model", "tokenizer.model"
FILES: dict[str, tuple[str, str, Callable[[bytes], bytes], tuple[int, ...]]] = {
    "pieces of nothing": ("t5-bytes", PIECES, lambda whole: b"", (BAD,)),
    "pieces of a page": ("t5-bytes", PIECES, lambda whole: b"<html>404 not found</html>", (BAD,)),
    "pieces cut in the middle": ("t5-bytes", PIECES, lambda whole: whole[: len(whole) // 2], (BAD,)),
    "pieces cut by a byte": ("t5-bytes", PIECES, lambda whole: whole[:-1], (BAD,)),
    "a field of 2**63": ("t5-bytes", PIECES, lambda whole: whole + b"\x0a" + _number(2**63 - 1), (BAD,)),
    "a number that never ends": ("t5-bytes", PIECES, lambda whole: whole + b"\xff" * 1_000, (BAD,)),
    "groups": ("t5-bytes", PIECES, lambda whole: whole + b"\x0b\x0c", (BAD,)),
    "a number for a piece": ("t5-bytes", PIECES, lambda whole: whole + _field(1, 10**9), (BAD,)),
    "a number for settings": ("t5-bytes", PIECES, lambda whole: whole + _field(3, 2**62), (BAD,)),
    "a piece of bytes": ("t5-bytes", PIECES, lambda whole: _piece(b"\xff\xfe") + whole, (BAD,)),
    "a piece of nothing": ("t5-bytes", PIECES, lambda whole: _piece(b"") + whole, EITHER),
    "a score of NaN": ("t5-bytes", PIECES, lambda whole: whole + _piece(b"qqq", float("nan")), (BAD,)),
    "a score of infinity": ("t5-bytes", PIECES, lambda whole: whole + _piece(b"qqq", float("inf")), (BAD,)),
    "a merge of a score of NaN": ("llama-new", BPE, lambda whole: whole + _piece(b"qqq", float("nan")), (BAD,)),
    "a piece of an unknown kind": ("llama-new", BPE, lambda whole: whole + _piece(b"qqq", 0.0, 99), (BAD,)),
    "two unknown pieces": ("llama-new", BPE, lambda whole: whole + _piece(b"qqq", 0.0, 2), (BAD,)),
    "a piece twice": ("llama-new", BPE, lambda whole: whole + _piece(b"qqq") * 2, (BAD,)),
    "a piece of 1 MB": ("llama-new", BPE, lambda whole: whole + _piece(b"ab" * 500_000), (BAD,)),
    "a piece of the user of 1 MB": ("llama-new", BPE, lambda whole: whole + _piece(b"q" * 10**6, 0.0, 4), (BAD,)),
    "a piece of escapes": ("llama-new", BPE, lambda whole: whole + _piece(NAME.encode()), (BAD,)),
    "200,000 pieces": (
        "llama-new",
        BPE,
        lambda whole: whole + b"".join(MANY % at for at in range(200_000)),
        (BAD,),
    ),
    "a map of characters of noise": (
        "t5-bytes",
        PIECES,
        lambda whole: whole + _field(3, _field(2, struct.pack("<I", 400) + bytes(range(256)) * 2)),
        EITHER,
    ),
    "a map of characters that leads out": (
        "t5-bytes",
        PIECES,
        lambda whole: whole + _field(3, _field(2, struct.pack("<I", 2**32 - 1) + b"\xff" * 4_096)),
        EITHER,
    ),
    "words of nothing": ("bert", "vocab.txt", lambda whole: b"", (BAD,)),
    "words of bytes": ("bert", "vocab.txt", lambda whole: b"\xff" + whole, (BAD,)),
    "words twice": ("bert", "vocab.txt", lambda whole: whole + b"a\na\n", (BAD,)),
    "a word of 1 MB": ("bert", "vocab.txt", lambda whole: whole + b"q" * 10**6 + b"\n", (BAD,)),
    "words of 20 MB": (
        "bert",
        "vocab.txt",
        lambda whole: whole + b"".join(b"%x\n" % at for at in range(10**8, 10**8 + 2_000_000)),
        (BAD,),
    ),
    "old line ends": ("bert", "vocab.txt", lambda whole: whole.replace(b"\n", b"\r\n"), (GOOD,)),
    "ids of texts": ("gpt2", "vocab.json", _words(lambda words: words.update(qqqq="5")), (BAD,)),
    "ids below zero": ("gpt2", "vocab.json", _words(lambda words: words.update(qqqq=-1)), (BAD,)),
    "ids of 2**31": ("gpt2", "vocab.json", _words(lambda words: words.update(qqqq=2**31)), (BAD,)),
    "ids of 4,000,000": ("gpt2", "vocab.json", _words(lambda words: words.update(qqqq=4_000_000)), (BAD,)),
    "ids of 5,000 digits": ("gpt2", "vocab.json", _words(lambda words: words.update(qqqq=HUGE_NUMBER)), (BAD,)),
    "ids of 200,000 levels": ("gpt2", "vocab.json", _words(lambda words: words.update(qqqq=DEEP_LIST)), (BAD,)),
    "ids twice": ("gpt2", "vocab.json", _words(lambda words: words.update(qqqq=5)), (BAD,)),
    "words of lone surrogates": ("gpt2", "vocab.json", _words(lambda words: words.update({"\ud800": 10_000})), (BAD,)),
    "words of a list": ("gpt2", "vocab.json", lambda whole: b'["a"]', (BAD,)),
    "merges of nothing": ("gpt2", "merges.txt", lambda whole: b"", EITHER),
    "merges of three": ("gpt2", "merges.txt", lambda whole: whole + b"a b c\n", (BAD,)),
    "merges of strangers": ("gpt2", "merges.txt", lambda whole: whole + b"qqq zzz\n", (BAD,)),
    "merges of bytes": ("gpt2", "merges.txt", lambda whole: whole + b"\xff \xfe\n", (BAD,)),
    "merges of 20 MB": ("gpt2", "merges.txt", lambda whole: whole + b"a b\n" * 5_000_000, (BAD,)),
    "pieces of another model": ("marian-languages", "target.spm", lambda whole: whole[:200], (BAD,)),
    "words of another model": ("marian-languages", "vocab.json", lambda whole: b'{"a": 0}', (BAD,)),
    "a template of bytes": ("llama-new", CHAT_TEMPLATE, lambda whole: b"\xff" + whole, (BAD,)),
    "a template of 1 MB": ("llama-new", CHAT_TEMPLATE, lambda whole: b"a" * 10**6, (BAD,)),
    "a template that is none": ("llama-new", CHAT_TEMPLATE, lambda whole: b"{% for", EITHER),
    "added tokens of texts": ("qwen2", ADDED_TOKENS, lambda whole: b'{"a": "b"}', EITHER),
    "added tokens of 2**31": ("m2m100", ADDED_TOKENS, lambda whole: b'{"a": 2147483648}', EITHER),
    "added tokens of 10**9": ("m2m100", ADDED_TOKENS, lambda whole: b'{"a": 1000000000}', EITHER),
}
TOKEN = {"content": "<q>", "lstrip": False, "rstrip": False, "normalized": False, "special": True, "single_word": False}
SETTINGS: dict[str, tuple[str, str, Any, tuple[int, ...]]] = {
    "a class of escapes": ("bert", "tokenizer_class", NAME, (BAD,)),
    "a class of code": ("bert", "tokenizer_class", "__import__('os')", (BAD,)),
    "a class of another": ("bert", "tokenizer_class", "T5Tokenizer", (BAD,)),
    "an added token beyond": ("bert", "added_tokens_decoder", {"999999999": TOKEN}, (BAD,)),
    "an added token of letters": ("bert", "added_tokens_decoder", {"x": TOKEN}, (BAD,)),
    "an added token of other digits": ("bert", "added_tokens_decoder", {"\u0661\u0662": TOKEN}, EITHER),
    "an added token of another name": ("bert", "added_tokens_decoder", {"5": TOKEN}, (BAD,)),
    "an added token of nothing": ("bert", "added_tokens_decoder", {"5": {**TOKEN, "content": ""}}, (BAD,)),
    "an added token of 200,000 levels": ("bert", "added_tokens_decoder", {"5": DEEP_LIST}, (BAD,)),
    "added tokens of a list": ("bert", "added_tokens_decoder", [TOKEN], (BAD,)),
    "a flag of a text": ("bert", "do_lower_case", "yes", (BAD,)),
    "an unknown token of escapes": ("bert", "unk_token", NAME, (BAD,)),
    "an unknown token of a number": ("bert", "unk_token", 5, (BAD,)),
    "special tokens of numbers": ("bert", "additional_special_tokens", [1, 2], (BAD,)),
    "100,000 special tokens": ("bert", "additional_special_tokens", [f"<{at}>" for at in range(100_000)], EITHER),
    "gaps of 2**40": ("t5-bytes", "extra_ids", 2**40, (BAD,)),
    "gaps of 60,000": ("t5-bytes", "extra_ids", 60_000, EITHER),
    "gaps below zero": ("t5-bytes", "extra_ids", -1, (BAD,)),
    "a language that is not there": ("m2m100", "src_lang", NAME, (BAD,)),
    "a language of a number": ("mbart50", "src_lang", 5, (BAD,)),
    "no languages": ("mbart50", "additional_special_tokens", [], (BAD,)),
    "two vocabularies": ("marian-languages", "separate_vocabs", True, (BAD,)),
    "a template of a number": ("qwen2", "chat_template", 5, EITHER),
    "errors of others": ("gpt2", "errors", "ignore", (BAD,)),
}
SPECIAL: dict[str, tuple[str, str, Any, tuple[int, ...]]] = {
    "tokens of numbers": ("roberta", "cls_token", 5, EITHER),
    "tokens of nothing": ("roberta", "cls_token", {"content": ""}, EITHER),
    "tokens of lists": ("roberta", "cls_token", ["<s>"], EITHER),
    "tokens of 200,000 levels": ("roberta", "cls_token", DEEP_LIST, (BAD,)),
}
