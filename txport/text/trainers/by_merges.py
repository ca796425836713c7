"""Tokenizers that merge pairs (BPE), with the ids of a trainer's vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from txport.errors import CheckpointError, quoted
from txport.text.assemble import Slots, Vocabulary, assemble
from txport.text.file import FOREIGN, OUTSIDE
from txport.text.settings import Added
from txport.text.trainers.words import Around, Side
from txport.text.vocabularies import lines_of, read_ids, read_merges

JOINED = "@@"  # after a part of a word that is not the last, in subword-nmt's tokens
LAST = "</w>"  # after the last part, in subword-nmt's codes
VERSION = "#version:"


def by_codes(side: Side, path: Path, around: Around) -> str:
    """Return the tokenizer of subword-nmt or fastBPE: `path` has the pairs, words are separated by spaces."""
    pairs = read_codes(path)
    slots: Slots = {id_: (_in_codes(token, around.special), 0.0) for token, id_ in side.ids.items()}
    made = [part for pair in pairs for part in (*pair, "".join(pair))]
    words = _with_outside(slots, made, side, around)
    model = _bpe(words.ids, pairs, side.unknown, LAST)
    return assemble(
        words,
        model,
        normalizer=None,
        pre_tokenizer={"type": "Split", "pattern": {"Regex": " +"}, "behavior": "Removed", "invert": False},
        decoder={"type": "BPEDecoder", "suffix": LAST},
        before=around.before,
        after=around.after,
    )


def by_bytes(side: Side, paths: tuple[Path, Path], around: Around) -> str:
    """Return the tokenizer of GPT-2's byte pairs as fairseq uses it: tokens of the vocabulary are GPT-2's ids.

    The first file has the ids of word parts, the second has the pairs.
    """
    numbers = read_ids(paths[0])
    names = {str(number): token for token, number in numbers.items()}
    slots: Slots = {
        id_: (token if token in around.special else names.get(token, FOREIGN + token), 0.0)
        for token, id_ in side.ids.items()
    }
    words = _with_outside(slots, numbers, side, around)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return assemble(
        words,
        _bpe(words.ids, read_merges(paths[1], words.ids), side.unknown),
        normalizer=None,
        pre_tokenizer=level,
        decoder={**level, "add_prefix_space": True},
        before=around.before,
        after=around.after,
    )


def read_codes(path: Path) -> list[tuple[str, str]]:
    """Read a file of codes: pairs in merge order; fastBPE writes a count after each pair.

    Raises `CheckpointError` for an invalid line, another version or an empty file.
    """
    found: dict[tuple[str, str], None] = {}
    for number, line in enumerate(lines_of(path), 1):
        parts = line.rstrip("\r").split(" ")
        if line.startswith(VERSION) and number == 1:
            if (version := line.removeprefix(VERSION).strip()) != "0.2":
                raise CheckpointError(f"{path} is of version {quoted(version)}, expected 0.2; learn its codes anew")
            continue
        if not any(parts):
            continue
        if len(parts) not in (2, 3) or not all(parts) or (len(parts) == 3 and not parts[2].isdecimal()):
            raise CheckpointError(f"{path}, line {number}: {quoted(line)} are not two parts of words")
        if LAST in parts:
            raise CheckpointError(f"{path}, line {number}: {LAST} alone is of version 0.1, expected 0.2")
        found.setdefault((parts[0], parts[1]))
    if not found:
        raise CheckpointError(f"{path} has no pairs")
    return list(found)


def _in_codes(token: str, special: frozenset[str]) -> str:
    """Convert a token of a vocabulary to the codes' form, which marks the last part of a word instead of the others."""
    if token in special:
        return token
    return token.removesuffix(JOINED) if token.endswith(JOINED) and token != JOINED else token + LAST


def _with_outside(slots: Slots, made: Iterable[str], side: Side, around: Around) -> Vocabulary:
    """Return a vocabulary with all results of the pairs; those without an id are placed after its end."""
    added = {id_: Added(token) for token, id_ in side.ids.items() if token in around.special}
    there = {text for text, _ in slots.values()}
    missing = [token for token in dict.fromkeys(made) if token not in there]
    if missing:
        size = max(slots) + 1
        slots |= {size + at: (token, 0.0) for at, token in enumerate((OUTSIDE, *missing))}
    return Vocabulary(slots, added)


def _bpe(ids: dict[str, int], pairs: Sequence[Sequence[str]], unknown: str, suffix: str = "") -> dict[str, object]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": suffix or None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": ids,
        "merges": pairs,
    }
