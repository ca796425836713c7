"""fairseq's dictionaries: four special tokens, and then one token per line of the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txport.errors import CheckpointError, ConfigError, quoted
from txport.text.trainers.texts import Files, texts_of
from txport.text.trainers.words import END, Side, Words
from txport.text.vocabularies import lines_of

DICTIONARIES = "dict.*.txt"
SPECIAL = ("<s>", "<pad>", END, "<unk>")
MULTILINGUAL = "translation_multi_simple_epoch"  # a task whose sources and targets begin with their language
STYLES = {"multilingual": "__{}__", "mbart": "[{}]"}  # of language tokens
REQUIRED: dict[str, tuple[Any, Any]] = {  # of that task: the required value, and the default
    "encoder_langtok": ("src", None),
    "decoder_langtok": (True, False),
    "langtoks_specs": (["main"], ["main"]),
    "lang_tok_replacing_bos_eos": (False, False),
}
OF_TASK = ("source_lang", "target_lang", "langs", "lang_tok_style", *REQUIRED)  # options of a task, not of a model
MASK = "<mask>"  # after the languages if they have mBART's style
AGAIN = "#fairseq:overwrite"  # after a token that may occur twice


def texts(folder: Path, options: Mapping[str, object], rows: tuple[int, int]) -> Files:
    """Return the text files of a bundle; `rows` are the numbers of rows of the source and target embeddings."""
    paths = [_dictionary(folder, options.get(name), name) for name in ("source_lang", "target_lang")]
    languages = language_tokens(options) if options.get("task") == MULTILINGUAL else {}
    masks = [MASK] if languages and options.get("lang_tok_style") == "mbart" else []
    added = [*languages.values(), *masks]
    source, target = (
        Side(place=path, ids=_with(read_dictionary(path), added), rows=rows[at], exact=True)
        for at, path in enumerate(paths)
    )
    alike = rows[0] == rows[1]
    special = (*SPECIAL, *masks)
    return texts_of(
        Words(
            folder=folder,
            source=source,
            target=target,
            after=(END,),
            special=special,
            languages=languages,
            alike=alike,
        )
    )


def _dictionary(folder: Path, language: object, name: str) -> Path:
    """Return the dictionary of a language; if the checkpoint names none, the only one, or one of identical ones."""
    there = sorted(folder.glob(DICTIONARIES))
    path = folder / f"dict.{language}.txt" if isinstance(language, str) else there[0]
    if path in there and (isinstance(language, str) or len({each.read_bytes() for each in there}) == 1):
        return path
    names = ", ".join(each.name for each in there)
    raise CheckpointError(f"{folder} has {names}, its checkpoint the {name} {quoted(language)}; add {path.name}")


def language_tokens(options: Mapping[str, object]) -> dict[str, str]:
    """Return the languages of a multilingual task and their tokens; raise `ConfigError` for unsupported options."""
    languages = options.get("langs")
    style = options.get("lang_tok_style", "multilingual")
    for name, (expected, default) in REQUIRED.items():
        if (found := options.get(name, default)) != expected:
            raise ConfigError(
                f"{name} {quoted(found)} of a multilingual task is not supported; it must be {expected!r}"
            )
    if not isinstance(languages, list) or not all(isinstance(each, str) for each in languages) or style not in STYLES:
        told = f"langs {quoted(languages)} and lang_tok_style {quoted(style)}"
        raise ConfigError(f"{told} are not supported; expected names of languages, and one of {', '.join(STYLES)}")
    return {language: STYLES[style].format(language) for language in languages}


def _with(ids: dict[str, int], tokens: list[str]) -> dict[str, int]:
    for token in tokens:
        ids.setdefault(token, 1 + max(ids.values()))
    return ids


def read_dictionary(path: Path) -> dict[str, int]:
    """Return the tokens of a dictionary with their ids; raise `CheckpointError` for an invalid file."""
    ids = {token: number for number, token in enumerate(SPECIAL)}
    lines = lines_of(path)
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, 1):
        parts = line.rstrip().rsplit(" ", 2 if line.rstrip().endswith(f" {AGAIN}") else 1)
        if len(parts) < 2 or not parts[1].isdecimal():
            raise CheckpointError(f"{path}, line {number}: {quoted(line)} is not a token and how often it was seen")
        if parts[0] in ids and len(parts) == 2:
            raise CheckpointError(f"{path}, line {number}: {quoted(parts[0])} is there twice")
        ids[parts[0]] = len(SPECIAL) + number - 1
    return ids
