"""Whisper; its special tokens are found by their names in the vocabulary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from txport.checkpoints import family
from txport.checkpoints.family import Published
from txport.checkpoints.sources.ctranslate2.layers import (
    Parts,
    Stack,
    refuse,
    require_alike,
    require_plain,
    require_whole_width,
)
from txport.checkpoints.sources.ctranslate2.tensors import Known
from txport.checkpoints.sources.ctranslate2.vocabulary import read_vocabulary
from txport.checkpoints.sources.trainers import id_of
from txport.errors import ConfigError
from txport.models.facts import Facts
from txport.models.generation import Defaults, search_defaults
from txport.models.rules import Rename, Rule

END, START, NO_TIMES, PREVIOUS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "<|startofprev|>"
TASKS = ("transcribe", "translate")
LANGUAGE = re.compile(r"<\|[a-z]{2,3}\|>")
ENGLISH = 51864  # vocabulary size of English-only models
LATEST_FIRST = 50  # latest first timestamp, in steps
RULES: tuple[Rule, ...] = (
    Rename(r"^encoder/conv1/", "source_embedding.first."),
    Rename(r"^encoder/conv2/", "source_embedding.second."),
)


def whisper(parts: Parts, config: Published, folder: Path) -> Known:
    """Return the model as `whisper`; raise `ConfigError` for unsupported features."""
    convolution = parts.shapes.get("encoder/conv1/weight", ())
    if len(convolution) != 3:
        raise ConfigError(f"it must have a convolution 'encoder/conv1/weight', got the shape {convolution}")
    encoder = parts.stack("encoder", width=convolution[0])
    decoder = parts.stack("decoder")
    parts.require("decoder/start_from_zero_embedding", 0)
    for name in ("width", "heads", "inner"):
        require_alike(name, getattr(encoder, name), getattr(decoder, name))
    for stack in (encoder, decoder):
        _require_norms(stack)
    refuse(decoder, "is_scaled")
    require_alike("the activation and Whisper's", decoder.activation, "gelu")
    if not parts.are_one("decoder/embeddings/weight", "decoder/projection/weight"):
        raise ConfigError("the output projection of a Whisper must be its embedding")
    require_alike("layer_norm_epsilon and Whisper's", config.get("layer_norm_epsilon", 1e-5), 1e-5)
    rows = read_vocabulary(folder, "")
    values = {
        "model_type": "whisper",
        "vocab_size": decoder.vocabulary,
        "num_mel_bins": convolution[1],
        "d_model": decoder.width,
        "max_source_positions": encoder.positions,
        "max_target_positions": decoder.positions,
        "decoder_start_token_id": id_of(rows, START, "the start token"),
        "pad_token_id": id_of(rows, END, "the end token"),
        "eos_token_id": id_of(rows, END, "the end token"),
        **family.read_beside(folder),
        "generation_config": _speech(rows, config, decoder.vocabulary),
    }
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        sizes = {"layers": stack.layers, "attention_heads": stack.heads, "ffn_dim": stack.inner}
        values |= {f"{side}_{name}": size for name, size in sizes.items()}
    found = family.find("whisper").read(values, None)
    return Known("whisper", found, (decoder.vocabulary,) * 2, RULES, generation=partial(_generation, config))


def _require_norms(stack: Stack) -> None:
    require_plain(stack, "embedding_norm")
    require_whole_width(stack)
    if stack.norm != "pre" or not stack.final_norm or not stack.positions:
        raise ConfigError("a Whisper needs norms before the sublayers, a final norm and position embeddings")


def _speech(rows: Mapping[str, int], config: Published, size: int) -> dict[str, object]:
    """Return languages, tasks and timestamp settings in the form of `generation_config.json`."""
    known = config.get("lang_ids") or rows.values()
    languages = {token: id_ for token, id_ in rows.items() if LANGUAGE.fullmatch(token) and id_ in known}
    tasks = {task: rows[f"<|{task}|>"] for task in TASKS if f"<|{task}|>" in rows}
    return {
        "is_multilingual": size != ENGLISH and bool(languages) and len(tasks) == len(TASKS),
        "lang_to_id": languages,
        "task_to_id": tasks,
        "no_timestamps_token_id": rows.get(NO_TIMES),
        "prev_sot_token_id": rows.get(PREVIOUS),
        "max_initial_timestamp_index": LATEST_FIRST,
    }


def _generation(config: Published, facts: Facts) -> Defaults:
    """Return the tokens that a search suppresses."""
    names = {"suppress_tokens": "suppress_ids", "begin_suppress_tokens": "suppress_ids_begin"}
    return search_defaults({name: config.get(theirs) for name, theirs in names.items()}, facts)
