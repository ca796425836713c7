"""The `tokenizers` library: its files, its errors, and copies of a tokenizer that read special tokens otherwise."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txport.errors import BundleError, TxportError, brief
from txport.system.documents import require_size
from txport.system.machine import is_out_of_memory
from txport.system.packages import needed
from txport.system.terminal import native_stderr_held

if TYPE_CHECKING:
    import tokenizers

LARGEST = 64 << 20  # bytes of a file; the largest known files have 35 MB
MOST_GROWTH = 4096
STAND_INS = {chr(code) for code in range(0xFDD0, 0xFDF0)}  # Unicode noncharacters, each in place of one text


def read_tokenizer(path: Path, content: str | None = None) -> tokenizers.Tokenizer:
    """Return a `tokenizer.json`, read by the `tokenizers` library; raise `UnavailableError` if that does not import.

    `content` is its JSON text if it is not to be read from `path`.
    """
    with needed("txport"):
        import tokenizers
    if content is not None:
        return tokenizers.Tokenizer.from_str(content)
    require_size(path, LARGEST)
    return tokenizers.Tokenizer.from_file(str(path))


def recognising(tokenizer: tokenizers.Tokenizer, id_: int) -> tokenizers.Tokenizer:
    """Return a copy of the tokenizer that recognises one special token in texts."""
    from tokenizers import AddedToken

    content = json.loads(tokenizer.to_str())
    added = [each for each in content["added_tokens"] if each["id"] == id_]
    for each in added:
        each["special"] = False  # special tokens in a text are encoded as plain text
    tokenizer = type(tokenizer).from_str(json.dumps(content))
    if not added and (token := tokenizer.id_to_token(id_)) is not None:
        tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return tokenizer


def controlled(tokenizer: tokenizers.Tokenizer, control: Collection[str], mark: str) -> tokenizers.Tokenizer:
    """Return a copy of the tokenizer that matches these tokens in the raw text, and then removes the mark."""
    parts = json.loads(tokenizer.to_str())
    if parts["model"]["type"] == "Unigram":
        raise ValueError("a Unigram model would find special tokens in what messages say")
    for each in parts["added_tokens"]:
        if each["content"] in control:
            each.update(special=True, normalized=False)
    drop = {"type": "Replace", "pattern": {"String": mark}, "content": ""}
    normalizer = [drop] if parts["normalizer"] is None else [drop, parts["normalizer"]]
    parts["normalizer"] = {"type": "Sequence", "normalizers": normalizer}
    return type(tokenizer).from_str(json.dumps(parts))


def letter_by_letter(tokenizer: tokenizers.Tokenizer, parts: dict[str, Any]) -> tokenizers.Tokenizer:
    """Return a copy whose Unigram model can't match special tokens in a text: they are renamed.

    The new names begin with a space. Spaces of a text are replaced before the model sees it, so no text matches.
    """
    special = {each["id"] for each in parts["added_tokens"] if each["special"]}
    if parts["model"]["type"] != "Unigram" or not (special := special & set(range(len(parts["model"]["vocab"])))):
        return tokenizer
    for id_ in special:
        parts["model"]["vocab"][id_][0] = f" {parts['model']['vocab'][id_][0]}"
    parts["added_tokens"] = [each for each in parts["added_tokens"] if each["id"] not in special]
    reader = type(tokenizer).from_str(json.dumps(parts))
    reader.encode_special_tokens = True
    return reader


def require_bounded(path: Path, parts: dict[str, Any]) -> None:
    """Raise `BundleError` for a tokenizer that lets a text grow by far more than any script needs."""
    for name in ("normalizer", "decoder"):
        if (growth := _growth(parts[name])) > MOST_GROWTH:
            raise BundleError(f"the {name} of {path} may let a text grow {growth:.0f} times, the most is {MOST_GROWTH}")


def _growth(part: dict[str, Any] | None) -> float:
    """Return the factor by which a text may grow in a part of a tokenizer, which may be a sequence of parts."""
    if part is None:
        return 1.0
    inner = part.get("normalizers") or part.get("decoders") or []
    added = max((len(part[key]) for key in ("content", "prepend") if isinstance(part.get(key), str)), default=0)
    pattern = part.get("pattern")
    taken = len(pattern["String"]) if isinstance(pattern, dict) and "String" in pattern else 1
    own = max(1.0, added / max(1, taken))
    grown = [(restores, [_growth(each) for each in parts]) for restores, parts in groupby(inner, _restores)]
    return math.prod((own, *(max(each) if restores else math.prod(each) for restores, each in grown)))


def _restores(part: dict[str, Any]) -> bool:
    """Return whether a part replaces a stand-in with its text, which no other such part changes."""
    pattern, content = part.get("pattern"), part.get("content")
    is_one = isinstance(pattern, dict) and pattern.get("String") in STAND_INS
    return is_one and isinstance(content, str) and STAND_INS.isdisjoint(content)


@contextlib.contextmanager
def refusals(kind: type[TxportError], what: str) -> Iterator[None]:
    """Raise `kind` for any error of the `tokenizers` library: exceptions, and panics, which are not `Exception`s.

    A panic prints its message to stderr first; a command suppresses that.
    """
    try:
        with native_stderr_held():
            yield
    except TxportError:
        raise
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"
        if is_out_of_memory(error) or not (isinstance(error, Exception) or is_panic):
            raise
        raise kind(f"{what}: {brief(error)}") from error


def unknown_id(tokenizer: str) -> int | None:
    """Return the id of the unknown token. The JSON names the token (WordLevel, BPE) or has its id (Unigram)."""
    return unknown_of(json.loads(tokenizer)["model"])


def unknown_of(model: dict[str, Any]) -> int | None:
    """Return the id of the unknown token of a model in a `tokenizer.json`."""
    number = model.get("unk_id", model["vocab"].get(model["unk_token"]) if model.get("unk_token") else None)
    return None if number is None else int(number)


def spells(parts: dict[str, Any]) -> bool:
    """Return whether a tokenizer is character-level, like those of `spelling`: unknown text is then probably a typo."""
    splitter = parts["pre_tokenizer"]
    return parts["model"]["type"] == "WordLevel" and splitter is not None and splitter["type"] == "Split"
