"""Folders that transformers' `save_pretrained` wrote: a family reads their `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from txport.errors import CheckpointError, ConfigError
from txport.models import architecture, family
from txport.models.config import read_config
from txport.models.facts import Facts
from txport.models.generation import search_defaults
from txport.models.names import CONFIG, GENERATION, TOKENIZER
from txport.models.sources.source import Format, Source, place_of, read_safetensors
from txport.models.tokenizers.convert import companions_of
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
        if (folder / GENERATION).is_file():
            generation = read_config(folder / GENERATION)
            values |= {name: each for name, each in generation.items() if name in GENERATED and each is not None}
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


def _generation(folder: Path, facts: Facts) -> Mapping[str, Any]:
    """How the model searches: by `generation_config.json`, or without one by its config."""
    if facts.task == "encode":
        return {}
    return search_defaults(read_config(folder / (GENERATION if (folder / GENERATION).is_file() else CONFIG)), facts)


def _special_tokens(folder: Path) -> dict[str, int] | None:
    """The special tokens of the tokenizer, what they are written as -> id; None where there is none."""
    try:
        found = companions_of(folder).get(TOKENIZER)
        if found is None:
            return None
        values = read_json(found) if isinstance(found, Path) else json.loads(found)
        return {each["content"]: each["id"] for each in values["added_tokens"] if type(each["id"]) is int}
    except (DocumentError, CheckpointError, LookupError, TypeError):  # what is wrong is told when it is loaded
        return {}


FORMAT = Format(recognises=recognises, read=read)
