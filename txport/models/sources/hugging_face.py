"""Folders that transformers' `save_pretrained` wrote: a family reads their `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from txport.errors import ConfigError, quoted
from txport.models import architecture, family
from txport.models.config import read_config
from txport.models.facts import Facts
from txport.models.generation import search_defaults
from txport.models.names import CONFIG, GENERATION, MODULES, TOKENIZER
from txport.models.pooling import is_of_sentences, longest_sentence, pooling_defaults
from txport.models.sources.source import Format, Source, place_of, read_safetensors
from txport.system.documents import DocumentError, read_json

ENCODER, HEADLESS = "bert", "Model"  # architecture of encoders, and the class of one without a head
GENERATED = ("bos_token_id", "eos_token_id", "decoder_start_token_id")


def recognises(folder: Path) -> bool:
    """Whether `config.json` has a `model_type`."""
    return family.TYPE in read_config(folder / CONFIG)


def read(folder: Path) -> Source:
    """See `Format`; where `generation_config.json` names special tokens, these are taken."""
    path = folder / CONFIG
    values = dict(read_config(path))
    of_sentences, longest = is_of_sentences(folder), longest_sentence(folder)
    try:
        kind = family.find(values[family.TYPE])
        if of_sentences and kind.architecture != ENCODER:
            raise ConfigError(f"{family.TYPE} {quoted(values[family.TYPE])} can't be expressed as {MODULES} has it")
        if of_sentences:
            values["architectures"] = [HEADLESS]  # whatever class the weights were taken from
        found = architecture.find(kind.architecture)
        if (folder / GENERATION).is_file():
            generation = read_config(folder / GENERATION)
            values |= {name: each for name, each in generation.items() if name in GENERATED and each is not None}
        made = kind.read(values, _special_tokens(folder))
        if of_sentences and longest is not None:
            made["text_length"] = min(longest, made["max_length"])
        config = found.config.from_dict(made)
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
    """How the model searches: by `generation_config.json`, or without one by its config; or how it pools."""
    if facts.task == "encode":
        return pooling_defaults(folder, facts)
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
