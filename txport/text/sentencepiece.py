"""SentencePiece models: reading their files, and converting them to parts of the `tokenizers` library."""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txport.errors import CheckpointError
from txport.system.documents import DocumentError, require_size
from txport.system.protobuf import VARINT, fields, varint

LARGEST = 64 << 20  # bytes
MOST_PIECES = 1 << 20
LONGEST_PIECE = 1 << 9  # characters
SPACE = "\u2581"  # the character that represents a space
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # kinds of pieces
WORDS = f"{SPACE}[^{SPACE}]*|[^{SPACE}]+"  # transformers.js has no `MergedWithNext`
KINDS = {1: "Unigram", 2: "BPE"}
BYTE_SCORE = -1e5  # below all pieces: bytes are used only for text that has no pieces
USER_SCORE = -0.1  # above all pieces, as SentencePiece has it
# entries of every character map that composes letters: Latin, Devanagari and Korean
CANONICAL = {"e\u0301": "\u00e9", "\u0958": "\u0915\u093c", "\u1112\u1161\u11ab": "\ud55c"}
# transformers.js applies one character map, SentencePiece's `nmt_nfkc`, in place of any. It makes spaces of these,
SPACED = "\u200d\t\n\r\u200b\u200c\u200e\u200f\u2028\u2029\u2581\ufeff\ufffd"
UNMAPPED = "\u061c"  # keeps this one, which `nmt_nfkc` maps,
UNFOLDED = "\u0130\u1e9e\uff5e"  # and lowers no letters: these keep their form in maps that lower others
SIGMAS = "\u03a3\u03c2"  # become an inner sigma in such maps; JavaScript's lower case depends on their place
STAND_IN, STAND_INS = 0xFDD0, 32  # the first code, and the number, of those that no text has: they are no characters
LONGEST_RULE = 8  # characters of an entry of a character map
HALF_WIDTH = range(0xFF66, 0xFF9E)  # half-width Japanese letters
HALF_WIDTH_MARKS = "\uff9e\uff9f"  # with a letter before them, two characters for one sound


@dataclass(frozen=True)
class Piece:
    """One entry of a vocabulary: its text, score and kind (`NORMAL` to `BYTE`)."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """The contents of a SentencePiece file."""

    path: Path
    kind: str
    pieces: tuple[Piece, ...]
    charsmap: bytes
    adds_prefix: bool
    trims: bool  # remove spaces at both ends, and all but one of several
    byte_fallback: bool

    @property
    def users(self) -> tuple[str, ...]:
        """The user-defined pieces, which are matched before all others: longest first."""
        return tuple(sorted((each.text for each in self.pieces if each.kind == USER), key=len, reverse=True))

    @property
    def unknown(self) -> int:
        """The index of the unknown piece."""
        return next(place for place, piece in enumerate(self.pieces) if piece.kind == UNKNOWN)


def read_pieces(path: Path) -> Pieces:
    """Read a SentencePiece model; raise `CheckpointError` if it is invalid or can't be converted."""
    try:
        require_size(path, LARGEST)
        found = _pieces(path, path.read_bytes())
    except DocumentError as error:
        raise CheckpointError(str(error)) from error
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, struct.error, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path} is not a model of SentencePiece: {error}") from error
    return found


def _pieces(path: Path, content: bytes) -> Pieces:
    entries: list[Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    denormalizer: dict[int, object] = {}
    for field, value in _fields(content):
        if field == 1:
            entry = dict(_fields(value))
            score = struct.unpack("<f", entry.get(2, bytes(4)))[0]
            entries.append(_piece(_bytes(entry[1]).decode("utf-8"), score, entry.get(3, NORMAL)))
            if len(entries) > MOST_PIECES:
                raise ValueError(f"it has more than {MOST_PIECES} pieces")
        elif field in (2, 3, 5):
            (trainer if field == 2 else normalizer if field == 3 else denormalizer).update(_fields(value))
    kinds = [entry.kind for entry in entries]
    if kinds.count(UNKNOWN) != 1:
        raise ValueError(f"it has {kinds.count(UNKNOWN)} pieces for what is unknown, expected 1")
    if len({entry.text for entry in entries}) < len(entries):
        raise ValueError("it has one piece twice")
    kind = KINDS.get(trainer.get(3, 1))
    lacks = [
        (kind is None, "cuts words or characters"),
        (bool(trainer.get(24, 0)), "writes spaces as suffixes"),
        (not normalizer.get(5, 1), "keeps spaces as they are"),
        (bool(denormalizer.get(2)), "changes decoded text"),
        (UNUSED in kinds, "has pieces that are not to be used"),
    ]
    if wrong := [what for is_so, what in lacks if is_so]:
        raise CheckpointError(f"{path} {wrong[0]}, which no tokenizer.json can say")
    return Pieces(
        path=path,
        kind=kind or "",
        pieces=tuple(entries),
        charsmap=_bytes(normalizer.get(2, b"")),
        adds_prefix=bool(normalizer.get(3, 1)),
        trims=bool(normalizer.get(4, 1)),
        byte_fallback=bool(trainer.get(35, 0)),
    )


def _piece(text: str, score: float, kind: int) -> Piece:
    if not math.isfinite(score) or not NORMAL <= kind <= BYTE:
        raise ValueError(f"a piece has the score {score} and is of the kind {kind}")
    if len(text) > LONGEST_PIECE:
        raise ValueError(f"a piece has {len(text)} characters, the most is {LONGEST_PIECE}")
    return Piece(text, score, kind)


def _bytes(value: object) -> bytes:
    """Return the value of a bytes field; raise `TypeError` for a number, because `bytes(n)` is n zeros."""
    if not isinstance(value, bytes):
        raise TypeError("it has a number where bytes belong")
    return value


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field of a protobuf message, in order."""
    for number, kind, start, end in fields(content, 0, len(content)):
        yield number, varint(content, start, end)[0] if kind == VARINT else content[start:end]


def model_of(
    found: Pieces, vocabulary: dict[int, tuple[str, float]], unknown: int, users: Sequence[str]
) -> dict[str, object]:
    """Return the model of a `tokenizer.json`; `vocabulary` maps ids to tokens and scores.

    `users` are the user-defined pieces that are no added tokens.
    """
    size = max(vocabulary) + 1
    listed = [vocabulary.get(id_, (f" unused {id_}", 0.0)) for id_ in range(size)]
    if found.kind == "Unigram":
        kinds = {piece.text: piece.kind for piece in found.pieces}
        fixed = {BYTE: BYTE_SCORE, USER: USER_SCORE}
        scored = [(text, fixed.get(kinds.get(text, NORMAL), score)) for text, score in listed]
        return {"type": "Unigram", "unk_id": unknown, "vocab": scored, "byte_fallback": found.byte_fallback}
    ids = {text: id_ for id_, (text, _) in enumerate(listed)}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": listed[unknown][0],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": found.byte_fallback,
        "vocab": ids,
        "merges": _merges(found),
        **({"ignore_merges": True} if users else {}),
    }


def _merges(found: Pieces) -> list[tuple[str, str]]:
    """Return the pairs of pieces that form a third piece, in merge order; pairs of one piece by longest start."""
    scores = {piece.text: piece.score for piece in found.pieces if piece.kind == NORMAL}
    pairs = [
        (score, text[:cut], text[cut:])
        for text, score in scores.items()
        for cut in range(len(text) - 1, 0, -1)
        if text[:cut] in scores and text[cut:] in scores
    ]
    pairs.sort(key=lambda pair: -pair[0])  # stable
    return [(first, second) for _, first, second in pairs]


def normalizer_of(found: Pieces, prefix: str | None, users: Sequence[str]) -> dict[str, object]:
    """Return the normalizer of texts. A space is added before each section of a text if the `prefix` is "all".

    The library looks up a character together with its marks, and uses the first entry that is a prefix. Composing
    characters first gives the result of SentencePiece, which uses the longest entry. `users` are the user-defined
    pieces that are no added tokens: the character map leaves them as they are.
    """
    parts: list[dict[str, object]] = []
    if found.charsmap:
        try:
            kept = _kept(found.charsmap, users)
            parts += [replace(text, stand_in) for text, stand_in in kept.items()]
            parts += [*_composing(found.charsmap), *_mapping(found.charsmap)]
            parts += [replace(stand_in, text) for text, stand_in in kept.items()]
        except (struct.error, IndexError, ValueError) as error:
            raise CheckpointError(f"{found.path} has a map of characters that can't be read: {error}") from error
    if found.trims:  # not the ends of lines: `^` and `$` match there too
        parts += [replace(" +", " ", regex=True), *_trimming(prefix)]
    if prefix == "all":
        parts.append({"type": "Prepend", "prepend": SPACE})
    return {"type": "Sequence", "normalizers": [*parts, replace(" ", SPACE)]}


def _trimming(prefix: str | None) -> list[dict[str, object]]:
    """Return normalizers that remove spaces at both ends; the first one becomes the `prefix` if that is "first".

    The library adds a space only to what was the start of the text before it was normalised.
    """
    if prefix != "first":
        return [replace(rf"\A +|[ {SPACE}]+\z", "", regex=True)]
    return [replace(rf"[ {SPACE}]+\z", "", regex=True), replace(r"\A +", SPACE, regex=True)]


def _kept(charsmap: bytes, users: Sequence[str]) -> dict[str, str]:
    """Return stand-ins for those user-defined pieces that a character map would change."""
    changed = [text for text in users if _is_changed(charsmap, text.replace(SPACE, ""))]
    first = STAND_IN + len(SPACED + UNFOLDED)
    most = STAND_IN + STAND_INS - first
    if len(changed) > most:
        raise CheckpointError(
            f"a map of characters changes {len(changed)} pieces of its user; at most {most} can be kept"
        )
    return {text: chr(first + at) for at, text in enumerate(changed)}


def _is_changed(charsmap: bytes, text: str) -> bool:
    parts = (text[start : start + size] for start in range(len(text)) for size in range(1, LONGEST_RULE + 1))
    return any(_mapped(charsmap, part) is not None for part in parts)


def _composing(charsmap: bytes) -> list[dict[str, object]]:
    """Return normalizers that compose letters and marks as the character map does; [] if the map does not compose."""
    if any(_mapped(charsmap, written) != wanted for written, wanted in CANONICAL.items()):
        return []
    parts: list[dict[str, object]] = [{"type": "NFC"}]
    for mark in HALF_WIDTH_MARKS:
        letters = [chr(code) for code in HALF_WIDTH]
        found = {letter: other for letter in letters if (other := _mapped(charsmap, letter + mark)) is not None}
        if found:
            parts += _joining(found, mark)
    return parts


def _joining(found: dict[str, str], mark: str) -> list[dict[str, object]]:
    """Return normalizers that replace letters before a mark, and then remove the mark.

    If both are replaced at once, the library counts the result as the mark's: a text that begins so has no start, and
    gets no space before it. The mark's stand-in is also one of `_mapping`, which comes later.
    """
    stand_in = chr(STAND_IN)
    return [
        replace(f"(?<=[{''.join(found)}]){mark}", stand_in, regex=True),
        *(replace(f"{letter}(?={stand_in})", other, regex=True) for letter, other in found.items()),
        replace(stand_in, ""),
    ]


def _mapping(charsmap: bytes) -> list[dict[str, object]]:
    """Return normalizers that apply a character map, with the same result in transformers.js, which has its own map."""
    lowers = _mapped(charsmap, "A") == "a"
    guarded = SPACED + (UNFOLDED if lowers else "")
    kept = {letter: chr(STAND_IN + at) for at, letter in enumerate(guarded) if _mapped(charsmap, letter) is None}
    mark = _mapped(charsmap, UNMAPPED)
    return [
        *([] if mark is None else [replace(UNMAPPED, mark)]),
        *(replace(letter, stand_in) for letter, stand_in in kept.items()),
        *(_lowering() if lowers else []),
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode("ascii")},
        *(replace(stand_in, letter) for letter, stand_in in kept.items()),
    ]


def _lowering() -> list[dict[str, object]]:
    """Return normalizers that do what a map does to capital letters, those of compatibility characters included."""
    return [{"type": "NFKC"}, *(replace(sigma, "\u03c3") for sigma in SIGMAS), {"type": "Lowercase"}]


def _mapped(charsmap: bytes, text: str) -> str | None:
    """Look up a whole text in a character map; None if it has no entry.

    The map is a trie, with its size before it, over byte offsets of zero-terminated replacements.
    """
    size = struct.unpack_from("<I", charsmap)[0]

    def unit(place: int) -> int:
        if not 0 <= 4 * place < size:
            raise ValueError("its trie points outside")
        return int(struct.unpack_from("<I", charsmap, 4 + 4 * place)[0])

    def offset(found: int) -> int:
        return (found >> 10) << ((found & 512) >> 6)

    node = unit(0)
    place = offset(node)
    for byte in text.encode("utf-8"):
        place ^= byte
        node = unit(place)
        if node & 0x800000FF != byte:
            return None
        place ^= offset(node)
    if not node & 256:
        return None
    start = 4 + size + (unit(place) & 0x7FFFFFFF)
    return charsmap[start : charsmap.index(b"\0", start)].decode("utf-8")


def replace(text: str, other: str, *, regex: bool = False) -> dict[str, object]:
    """Return a normalizer or decoder that replaces one text with another."""
    return {"type": "Replace", "pattern": {"Regex" if regex else "String": text}, "content": other}


def splitter_of(found: Pieces, prefix: str | None, users: Sequence[str]) -> dict[str, object] | None:
    """Return a pre-tokenizer that splits before words if no piece has two words: the result is the same, but faster.

    If the `prefix` is "first", a space is added at the start of a text, but not after a special token. A BPE model also
    splits around `users`, its user-defined pieces, which it never joins with others.
    """
    whole = any(SPACE in piece.text[1:] for piece in found.pieces if piece.kind in (NORMAL, USER))
    parts: list[dict[str, object]] = []
    if prefix == "first":
        parts.append({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": not whole})
    elif not whole:
        parts.append(_split(WORDS))
    if users and found.kind == "BPE":
        parts.append(_split("|".join([*map(_escaped, users), *_inside(found)])))
    return {"type": "Sequence", "pretokenizers": parts} if len(parts) > 1 else next(iter(parts), None)


def _split(pattern: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _inside(found: Pieces) -> Iterator[str]:
    """Yield expressions that split a special token in a text: alone, it would be that token and not its characters."""
    special = [each.text for each in found.pieces if each.kind in (CONTROL, UNKNOWN) and len(each.text) > 1]
    yield from (f"{_escaped(text[0])}(?={_escaped(text[1:])})" for text in special)
    if found.byte_fallback:
        yield "<(?=0x[0-9A-F]{2}>)"


def _escaped(text: str) -> str:
    """Return an expression for a text that JavaScript reads too: it refuses escapes of other characters."""
    return re.sub(r"[\\^$.*+?()[\]{}|/-]", lambda match: rf"\x{ord(match[0]):02x}", text)


def decoder_of(found: Pieces, adds_prefix: bool) -> dict[str, object]:
    """Return the decoder, which joins pieces to text."""
    parts: list[dict[str, object]] = [replace(SPACE, " ")]
    parts += [{"type": "ByteFallback"}] * found.byte_fallback
    parts.append({"type": "Fuse"})
    if found.trims:
        parts.append(replace(r"\A\s+|\s+\z", "", regex=True))
    elif adds_prefix:
        parts.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": parts}
