"""Folders that transformers' `save_pretrained` wrote: a family reads their `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from txport.errors import ConfigError
from txport.models import architecture, family
from txport.models.config import Config, read_config
from txport.models.names import CONFIG, GENERATION, TOKENIZER
from txport.models.sources.source import Format, Source, generation, place_of, read_weights
from txport.system.documents import DocumentError, read_json

GENERATED = ("bos_token_id", "eos_token_id", "decoder_start_token_id")


def recognises(folder: Path) -> bool:
    """Whether `config.json` has a `model_type`."""
    return family.TYPE in read_config(folder / CONFIG)


def read(folder: Path) -> Source:
    """See `Format`; where `generation_config.json` names special tokens, these are taken."""
    values = read_config(folder / CONFIG)
    config = config_as(folder, values)
    kind = family.find(values[family.TYPE])
    return Source(
        config=config,
        rules=(*kind.weights, *architecture.of(config).weights),
        weights=partial(read_weights, folder),
        place=place_of(folder),
        generation=partial(generation, folder),
    )


def config_as(folder: Path, values: Mapping[str, Any]) -> Config:
    """The config of the architecture, of the values of a `config.json` and what else lies in its folder."""
    try:
        kind = family.find(values[family.TYPE])
        if (folder / GENERATION).is_file():
            tokens = read_config(folder / GENERATION)
            values = {**values, **{name: tokens[name] for name in GENERATED if tokens.get(name) is not None}}
        return architecture.find(kind.architecture).config.from_dict(kind.read(values, _special_tokens(folder)))
    except ConfigError as error:
        raise ConfigError(f"{folder / CONFIG}: {error}") from error


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
