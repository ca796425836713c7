"""Folders written by transformers' `save_pretrained`: a family reads their `config.json`."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from txport.checkpoints import family
from txport.checkpoints.pooling import (
    ACTIVATION,
    OF_CROSS,
    activation_of,
    is_of_sentences,
    longest_sentence,
    modules_of,
    pooling_defaults,
    steps_of,
)
from txport.checkpoints.sources.packed import CONFIG_KEY, MXFP4, Layout, read_layout, unpacked
from txport.checkpoints.sources.source import Source, place_of, read_weights
from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, ConfigError, quoted
from txport.models import architecture
from txport.models.config import Config, read_config
from txport.models.facts import Facts
from txport.models.generation import Defaults, require_known_options, search_defaults
from txport.models.names import CONFIG, GENERATION, INDEX, MODULES, TRANSFORMERS, WEIGHTS
from txport.models.sentence import has_weights
from txport.text.convert import added_tokens, companions_of
from txport.text.settings import Settings

logger = logging.getLogger(__name__)
HEADLESS = "EncoderModel"  # the end of the names of classes that give hidden states alone
GENERATED = ("bos_token_id", "eos_token_id", "decoder_start_token_id")


def recognises(folder: Path) -> bool:
    """Return whether `config.json` has a `model_type`."""
    return family.TYPE in read_config(folder / CONFIG)


def read(folder: Path) -> Source:
    """See `Format`; special tokens of `generation_config.json` have priority."""
    values = read_config(folder / CONFIG)
    config = config_as(folder, values)
    kind = family.find(values[family.TYPE])
    own = kind.own_weights.get(values[family.TYPE])
    layout = read_layout(folder, values)
    return Source(
        config=config,
        rules=(*(own(config) if own else ()), *kind.weights, *architecture.of(config).weights),
        weights=partial(_all_weights, folder, layout),
        place=place_of(folder),
        generation=partial(defaults, folder),
        original=TRANSFORMERS,
        quantised="" if layout is None or layout.method == MXFP4 else layout.describe(),
    )


def _read_weights(folder: Path, layout: Layout | None) -> Weights:
    weights = read_weights(folder)
    return weights if layout is None else unpacked(weights, layout, place_of(folder))


def _all_weights(folder: Path, layout: Layout | None) -> Weights:
    """Return the tensors of a folder, and those of sentence-transformers' modules by their names in the model."""
    found = _read_weights(folder, layout)
    if not is_of_sentences(folder):
        return found
    for number, module in enumerate(each for each in modules_of(folder) if has_weights([each.step])):
        own = read_weights(module.folder)
        found = Weights.joined([found, own.renamed({name: _of_module(name, number) for name in own})])
    return found


def _of_module(name: str, number: int) -> str:
    """Return the name in the model of a tensor of a Dense (`linear.weight`) or LayerNorm (`norm.weight`)."""
    return f"sentence.layers.{number}.{name.removeprefix('linear.').removeprefix('norm.')}"


def _weights(folder: Path, layout: Layout | None) -> Weights | None:
    """Return the tensors of a folder's safetensors; None if there are none."""
    has_some = any((folder / name).is_file() for name in (WEIGHTS, INDEX))
    return _read_weights(folder, layout) if has_some else None


def config_as(folder: Path, values: Mapping[str, object]) -> Config:
    """Return the config of the architecture, from the values of a `config.json` and the other files of its folder."""
    of_sentences = is_of_sentences(folder)
    activation = activation_of(folder)
    longest = longest_sentence(folder)
    try:
        kind = family.find(values[family.TYPE])
        layout = read_layout(folder, values)
        values = {name: value for name, value in values.items() if name != CONFIG_KEY}
        made_of = architecture.find(kind.architecture).config
        if of_sentences and not hasattr(made_of, "sentence"):
            raise ConfigError(f"{family.TYPE} {quoted(values[family.TYPE])} is not supported with {MODULES}")
        if of_sentences:
            values = {**values, "architectures": [HEADLESS]}  # regardless of the class that saved the weights
        if activation is not None:
            values = {**values, OF_CROSS: {ACTIVATION: activation}}
        beside = family.read_beside(folder)
        tokens = beside[Path(GENERATION).stem]
        values = {**values, **{name: tokens[name] for name in GENERATED if tokens.get(name) is not None}, **beside}
        made = kind.read(values, _special_tokens(folder), partial(_weights, folder, layout))
        if longest is not None and (of_sentences or activation is not None):
            made["text_length"] = min(longest, made["max_length"])
        config = made_of.from_dict(made)
    except ConfigError as error:
        raise type(error)(f"{folder / CONFIG}: {error}") from error
    changed: dict[str, Any] = {"sentence": steps_of(folder)}
    return replace(config, **changed) if has_weights(changed["sentence"]) else config


def defaults(folder: Path, facts: Facts) -> Defaults:
    """Return the default search options, or the pooling of an encoder-only model."""
    if not facts.generates:
        return Defaults(pooling_defaults(folder, facts), {})
    own = folder / GENERATION
    path = own if own.is_file() else folder / CONFIG
    values = read_config(path)
    if path == own:
        require_known_options(values, path)
    _warn_of_end(folder, facts)
    return search_defaults(values, facts)


def _warn_of_end(folder: Path, facts: Facts) -> None:
    """Warn if the tokenizer's end of a turn does not end the generation of a causal model."""
    token = Settings(folder).token("eos_token")
    id_ = (_special_tokens(folder) or {}).get(token or "")
    if facts.is_causal and id_ is not None and id_ not in facts.writes.ends:
        ends = ", ".join(map(str, facts.writes.ends))
        what = f"{token} (id {id_}), the tokenizer's end token, is not among the end tokens of generation ({ends})"
        how = f"`txport run --eos-token {shlex.quote(token or '')}`"
        logger.warning("%s: %s; outputs go on after it unless %s ends them", folder, what, how)


def _special_tokens(folder: Path) -> dict[str, int] | None:
    """Return the added tokens of the tokenizer and their ids; None without a tokenizer, {} for an invalid one."""
    try:
        return added_tokens(companions_of(folder))
    except CheckpointError:  # the error is raised when it is loaded
        return {}
