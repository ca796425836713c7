"""Folders that transformers' `save_pretrained` wrote: a family reads their `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from txport.errors import ConfigError
from txport.models import architecture, family
from txport.models.config import read_config
from txport.models.facts import Facts
from txport.models.generation import search_defaults
from txport.models.names import CONFIG, GENERATION, PREPROCESSOR, TOKENIZER
from txport.models.sources.source import Format, Source, place_of, read_safetensors
from txport.system.documents import DocumentError, read_json

GENERATED = ("bos_token_id", "eos_token_id", "decoder_start_token_id")


def recognises(folder: Path) -> bool:
    """Whether `config.json` has a `model_type`."""
    return family.TYPE in read_config(folder / CONFIG)


def read(folder: Path) -> Source:
    """See `Format`; where `generation_config.json` names special tokens, these are taken."""
    path = folder / CONFIG
    values = dict(read_config(path))
    try:
        kind = family.find(values[family.TYPE])
        found = architecture.find(kind.architecture)
        beside = {Path(name).stem: _values(folder / name) for name in (GENERATION, PREPROCESSOR)}
        generation = beside[Path(GENERATION).stem]
        values |= {name: each for name, each in generation.items() if name in GENERATED and each is not None}
        values |= beside
        config = found.config.from_dict(kind.read(values, _special_tokens(folder)))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return Source(
        config=config,
        rules=(*kind.weights, *found.weights),
        weights=partial(read_safetensors, folder),
        place=place_of(folder),
        generation=partial(_generation, folder),
    )


def _values(path: Path) -> dict[str, Any]:
    """Those of a JSON file; none where there is no such file."""
    return read_config(path) if path.is_file() else {}


def _generation(folder: Path, facts: Facts) -> Mapping[str, Any]:
    """How the model searches: by `generation_config.json`, or without one by its config."""
    if facts.task == "encode":
        return {}
    return search_defaults(read_config(folder / (GENERATION if (folder / GENERATION).is_file() else CONFIG)), facts)


def _special_tokens(folder: Path) -> dict[str, int] | None:
    """The special tokens of a `tokenizer.json`, what they are written as -> id; None where there is no such file."""
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    try:
        added = read_json(path)["added_tokens"]
        return {each["content"]: each["id"] for each in added if type(each["id"]) is int}
    except (DocumentError, LookupError, TypeError):  # what is wrong is told when it is loaded
        return {}


FORMAT = Format(recognises=recognises, read=read)
