"""The text files of a bundle, made from a trainer's vocabularies and the files next to them that split words."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from txport.errors import BundleError, CheckpointError, quoted
from txport.models.names import (
    BYTE_PAIRS,
    CODES,
    CUTTING,
    ENCODER,
    MODELS_OF_PIECES,
    TARGET_TOKENIZER,
    TEXT,
    TOKENIZER,
)
from txport.text.assemble import Slots, Vocabulary
from txport.text.convert import CLASSES, as_they_are, of_class
from txport.text.file import FOREIGN, FileTokenizer
from txport.text.pieces import made_of, set_apart, users_of
from txport.text.sentencepiece import BYTE_SCORE, CONTROL, UNKNOWN, Pieces, read_pieces
from txport.text.settings import Added, Settings
from txport.text.trainers.by_merges import by_bytes, by_codes
from txport.text.trainers.words import Around, Side, Words
from txport.text.usage import Languages, Usage, write_usage

Files = dict[str, Path | str]
PAIRS = (("source.spm", "target.spm"), ("src.spm", "tgt.spm"), ("source.model", "target.model"))
PAIRS_OF_CODES = (("source.bpe", "target.bpe"),)
VOCABULARY = "vocab.json"
NUMBERED = ("MarianTokenizer", "M2M100Tokenizer")  # classes that need `vocab.json` in addition to pieces
PADDING = re.compile(r"madeupword\w*|<extra_id_\d+>")  # tokens that trainers use to fill a vocabulary
RENAMED = {"<|nocaptions|>", "<|nospeech|>"}  # one token of Whisper, which was renamed


@dataclass(frozen=True)
class Cut:
    """A word splitter: its file, and functions that make the tokenizers of sources and of targets with it.

    `pieces` are the tokens that it can output, if known: other tokens of the vocabulary may be languages.
    """

    file: Path
    source: Callable[[Around], str]
    target: Callable[[Around], str]
    pieces: Collection[str] | None = None


def texts_of(words: Words) -> Files:
    """Return the files that a bundle takes from a trainer's folder; without a word splitter, text is token ids.

    Raises `CheckpointError` for a vocabulary that has more tokens than the model, for files that don't fit it, and for
    more than one word splitter.
    """
    files = as_they_are(words.folder)
    for side in (words.source, words.target):
        side.require()
    if words.has_classes and (TOKENIZER in files or _is_whole(words.folder)):
        files = of_class(words.folder, files)
    if TOKENIZER in files:
        target = TARGET_TOKENIZER if TARGET_TOKENIZER in files else TOKENIZER
        for name, side in ((TOKENIZER, words.source), (target, words.target)):
            _require_ids(words.folder / name, files[name], side)
        return files
    found = list(_cuts(words))
    if len(found) > 1:
        names = " and ".join(cut.file.name for cut in found)
        raise CheckpointError(f"{words.folder} has {names}; keep the one that the model was trained with")
    return files | (_made(words, found[0]) if found else {})


def _is_whole(folder: Path) -> bool:
    """Return whether the folder has the files of a transformers class, with ids if they are in a separate file."""
    kind = Settings(folder).kind
    return kind in CLASSES and (kind not in NUMBERED or (folder / VOCABULARY).is_file())


def has_cuts(folder: Path) -> bool:
    """Return whether the folder has a file that might split words."""
    return any(path.is_file() for pattern in CUTTING for path in folder.glob(pattern))


def _made(words: Words, cut: Cut) -> Files:
    words.source.require(words.source.unknown, *words.before, *words.after)
    words.target.require(words.target.unknown)
    languages = languages_of(words, cut.pieces)
    names: tuple[str, ...] = ()
    before = words.before
    if languages is not None:
        names = tuple(languages.tokens.values())
        own = languages.tokens.get(languages.source or "", "")
        words.source.require(*names)
        words.target.require(*(names if languages.target == "forced" else ()))
        before = tuple(own if each is None else each for each in languages.before)
    unknown = (words.source.unknown, words.target.unknown)
    around = Around(before, words.after, frozenset((*words.special, *words.before, *words.after, *names, *unknown)))
    made: Files = {TOKENIZER: cut.source(around)}
    if (target := cut.target(around)) != made[TOKENIZER] or not words.alike:
        made[TARGET_TOKENIZER] = target
    return made if languages is None else made | {TEXT: write_usage(Usage(languages=languages))}


def _require_ids(path: Path, content: Path | str, side: Side) -> None:
    """Raise `CheckpointError` if ids or tokens of a tokenizer differ from those of a vocabulary."""
    try:
        given = FileTokenizer(path, content=content if isinstance(content, str) else None).vocabulary
    except BundleError as error:
        raise CheckpointError(str(error)) from error
    for token, id_ in given.items():
        if side.ids.get(token, id_) != id_:
            raise CheckpointError(f"{path} gives {quoted(token)} the id {id_}, {side.place} {side.ids[token]}")
    tokens = {id_: token for token, id_ in given.items()}
    for token, id_ in side.ids.items():
        own = tokens.get(id_, token)
        if own not in (token, FOREIGN + token) and not PADDING.fullmatch(token) and {own, token} != RENAMED:
            raise CheckpointError(f"{path} has {quoted(own)} as the token {id_}, {side.place} {quoted(token)}")


def _cuts(words: Words) -> Iterator[Cut]:
    """Yield the word splitters of a folder, one per kind."""
    source = words.source
    target = words.target
    folder = words.folder
    named = (source.pieces, target.pieces)
    paths = (named[0], named[1]) if named[0] and named[1] else _pair(folder, PAIRS, MODELS_OF_PIECES)
    if paths is not None:
        found = (read_pieces(paths[0]), read_pieces(paths[1]))
        own = {piece.text for piece in found[0].pieces}
        reading = partial(by_pieces, source, found[0], reads=True)
        yield Cut(paths[0], reading, partial(by_pieces, target, found[1], reads=False), own)
    if (codes := _pair(folder, PAIRS_OF_CODES, CODES)) is not None:
        yield Cut(codes[0], partial(by_codes, source, codes[0]), partial(by_codes, target, codes[1]))
    if (bytes_ := _pair(folder, ((ENCODER, BYTE_PAIRS),), ())) is not None:
        yield Cut(bytes_[0], partial(by_bytes, source, bytes_), partial(by_bytes, target, bytes_))


def _pair(folder: Path, pairs: Iterable[tuple[str, str]], shared: Iterable[str]) -> tuple[Path, Path] | None:
    """Return the files of one of these pairs, or one file for both sides; None if there are none.

    Raises `CheckpointError` for half a pair.
    """
    for names in pairs:
        there = [name for name in names if (folder / name).is_file()]
        if len(there) == 2:
            return folder / names[0], folder / names[1]
        if there:
            lacks = next(name for name in names if name not in there)
            raise CheckpointError(f"{folder / there[0]} is there, but not {lacks}; add it, or take {there[0]} away")
    path = next((folder / name for name in shared if (folder / name).is_file()), None)
    return None if path is None else (path, path)


# ------------------------------------------------------------------------------------------------ pieces


def by_pieces(side: Side, found: Pieces, around: Around, *, reads: bool) -> str:
    """Return the `tokenizer.json` of one side; only if it `reads` texts must it split them as the trainer does."""
    scores = {piece.text: piece.score for piece in found.pieces}
    slots: Slots = {id_: (token, scores.get(token, BYTE_SCORE)) for token, id_ in side.ids.items()}
    users = {each.text: each for each in users_of(found)}
    if lacking := users.keys() - side.ids.keys():
        raise CheckpointError(f"{found.path} has a piece {quoted(min(lacking))} of its user, {side.place} has none")
    special = {*around.special, *(piece.text for piece in found.pieces if piece.kind in (CONTROL, UNKNOWN))}
    whole = {**{token: Added(token) for token in special}, **users}
    added = {id_: whole[token] for token, id_ in side.ids.items() if token in whole}
    words = Vocabulary(slots, added, {"unk_token": side.unknown})
    set_apart(words, found, reads=reads)
    return made_of(found, words, [*around.before], [*around.after]).text


# ------------------------------------------------------------------------------------------------ languages

FORCED = (  # forms of language tokens
    re.compile(r"__([a-z]{2,3})__"),  # of M2M-100
    re.compile(r"__([a-z]{3}_[A-Z][a-z]{3})__"),  # of NLLB, by fairseq
    re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"),  # of NLLB
    re.compile(r"\[?([a-z]{2}_[A-Z]{2})\]?"),  # of mBART-50
)
ENGLISH = ("en", "eng_Latn", "en_XX")  # default source languages
TOLD = re.compile(r">>([^<>\s]+)<<")  # the target language, before a source of Marian's


def languages_of(words: Words, pieces: Collection[str] | None) -> Languages | None:
    """Return the languages of a checkpoint's vocabularies; None if there are none.

    Sources begin with their language's token if the trainer adds one; other tokens around them are kept. The default
    source language is English, or else the first language. `pieces` are the tokens that are cut from texts: none of
    them is assumed to be a language token. If `pieces` is None, likely language tokens are ignored.
    """
    told = {match[1]: match[0] for token in words.source.ids if (match := TOLD.fullmatch(token))}
    told = {name: token for name, token in told.items() if token not in (pieces or ())}
    if told and not words.languages:
        return Languages(tokens=told, before=words.before, after=words.after, target="source")
    likely = [] if pieces is None else [token for token in words.likely_languages if token not in pieces]
    if not (found := words.languages or forced_in(likely)):
        return None
    source = next((name for name in ENGLISH if name in found), next(iter(found)))
    return Languages(tokens=found, before=(*words.before, None), after=words.after, source=source)


def forced_in(tokens: Iterable[str]) -> dict[str, str]:
    """Return the names and tokens of languages among these tokens; {} if there is at most one."""
    tokens = list(tokens)
    found = ({match[1]: match[0] for token in tokens if (match := each.fullmatch(token))} for each in FORCED)
    return next((each for each in found if len(each) > 1), {})
