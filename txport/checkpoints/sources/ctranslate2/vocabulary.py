"""CTranslate2's vocabularies: lists of tokens. It has no tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from txport.errors import ConfigError, brief, quoted
from txport.system.documents import DocumentError, read_text
from txport.text.trainers.texts import Files, forced_in, texts_of
from txport.text.trainers.words import Side, Words, numbered

BLANK = "<blank>"  # the padding of OpenNMT, whose sources have no end token unless the config states it
SEQ2SEQ, CAUSAL = "TransformerSpec", "TransformerDecoderSpec"
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>", BLANK, "<mask>")


def read_vocabulary(folder: Path, side: str) -> dict[str, int]:
    """Return the ids of a side's tokens, from its own file or from the one that both share."""
    return numbered(_tokens(_file(folder, side)))


def _tokens(path: Path) -> Sequence[str]:
    """Return a list in JSON, or one token per line; a carriage return belongs to a token unless all lines have one."""
    if path.suffix == ".json":
        return _strings(path)
    lines = read_text(path, newline="\n").removesuffix("\n").split("\n")
    return [line[:-1] for line in lines] if all(line.endswith("\r") for line in lines) else lines


def _strings(path: Path) -> list[str]:
    """Read a list of strings in JSON; raise `ConfigError` for anything else."""
    try:
        found = json.loads(read_text(path))
    except DocumentError as error:
        raise ConfigError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {brief(error)}") from error
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ConfigError(f"{path} must hold a list of strings")
    return found


def _file(folder: Path, side: str) -> Path:
    names = [f"{side}_vocabulary", "shared_vocabulary"] if side else ["vocabulary"]
    for path in (folder / f"{name}{ending}" for name in names for ending in (".json", ".txt")):
        if path.is_file():
            return path
    raise ConfigError(f"there is no {names[-1]}.json beside it")


def texts(
    folder: Path, config: Mapping[str, object], rows: tuple[int, int], specification: str, *, alike: bool
) -> Files:
    """Return the text files of a bundle; `rows` are the sizes of the source and target vocabularies.

    Prompts begin with the start token. Inputs of encoder-only models begin with it and end with the end token. Sources
    end with the end token, except OpenNMT's. CTranslate2 leaves this to its caller, unless its config states it.
    """
    names = ("source", "target") if specification == SEQ2SEQ else ("", "")
    unknown = str(config.get("unk_token"))
    paths = [_file(folder, name) for name in names]
    lists = [_whole(_tokens(path), unknown, each) for path, each in zip(paths, rows, strict=True)]
    sides = [
        Side(place=path, ids=numbered(tokens), rows=each, size=len(tokens), exact=True, unknown=unknown)
        for path, tokens, each in zip(paths, lists, rows, strict=True)
    ]
    ids = sides[0].ids
    special = [config.get(f"{name}_token") for name in ("bos", "eos")]
    start, end = ((str(each),) if each is not None else () for each in special)
    adds_start = specification != SEQ2SEQ or config.get("add_source_bos", False)
    adds_end = specification != CAUSAL and (config.get("add_source_eos", False) or BLANK not in ids)
    looks_so = tuple(forced_in(ids).values()) if specification == SEQ2SEQ else ()
    return texts_of(
        Words(
            folder=folder,
            source=sides[0],
            target=sides[1],
            before=start if adds_start else (),
            after=end if adds_end else (),
            special=tuple(each for each in (*SPECIAL, *start, *end) if each in ids),
            likely_languages=looks_so if all(token in sides[1].ids for token in looks_so) else (),
            alike=alike,
            has_classes=True,
        )
    )


def _whole(tokens: Sequence[str], unknown: str, rows: int) -> Sequence[str]:
    """Return the tokens of a model; its last row is that of the unknown token if the file does not list this token."""
    return [*tokens, unknown] if len(tokens) == rows - 1 and unknown not in tokens else tokens


def any_of(rows: Mapping[str, int], what: str, *tokens: object) -> int:
    """Return the id of the first of these tokens that is in the vocabulary; raise `ConfigError` if none is."""
    found = [rows[token] for token in tokens if isinstance(token, str) and token in rows]
    if not found:
        raise ConfigError(f"{what} must be one of {quoted([*tokens])}, of which the vocabulary has none")
    return found[0]
