"""Transformers of fairseq: a `.pt` with options and tensors, next to dictionaries `dict.LANGUAGE.txt`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from txport.checkpoints.family import Published, require_alike
from txport.checkpoints.sources.source import Source
from txport.checkpoints.sources.trainers import (
    SUFFIX,
    only_pickle,
    options_of,
    read_namespaces,
    reading,
    rows_and_width,
    tensors_of,
    weights_of,
)
from txport.errors import CheckpointError, ConfigError, quoted
from txport.models import architecture
from txport.models.names import CONFIG
from txport.models.rules import FAIRSEQ_LAYERS, Drop, Rename, Rule, Split
from txport.text.trainers.texts import Files, texts_of
from txport.text.trainers.words import END, Side, Words
from txport.text.vocabularies import lines_of

DICTIONARIES = "dict.*.txt"
SPECIAL = ("<s>", "<pad>", END, "<unk>")
MULTILINGUAL = "translation_multi_simple_epoch"  # a task whose sources and targets begin with their language
STYLES = {"multilingual": "__{}__", "mbart": "[{}]"}  # of language tokens
REQUIRED_OF_TASK: dict[str, tuple[object, object]] = {  # of that task: the required value, and the default
    "encoder_langtok": ("src", None),
    "decoder_langtok": (True, False),
    "langtoks_specs": (["main"], ["main"]),
    "lang_tok_replacing_bos_eos": (False, False),
}
# options of a task, not of a model
OF_TASK = ("source_lang", "target_lang", "langs", "lang_tok_style", *REQUIRED_OF_TASK)
MASK = "<mask>"  # after the languages if they have mBART's style
AGAIN = "#fairseq:overwrite"  # after a token that may occur twice

START, PAD, STOP = 0, 1, 2  # its dictionaries begin with these; the decoder starts from the end token
OFFSET = PAD + 1  # rows of a position table that no token uses
LONGEST = 1024  # tokens, if no maximum is stated
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
}
ARCHITECTURES = re.compile(r"transformer(?!_(lm|encoder|from_pretrained|monotonic))(_\w+)?")
REQUIRED: dict[str, tuple[object, ...]] = {
    "task": ("translation", "translation_lev", MULTILINGUAL),
    "no_token_positional_embeddings": (False,),
    "adaptive_input": (False,),
    "no_cross_attention": (False,),
    "cross_self_attention": (False,),
    "merge_src_tgt_embed": (False,),
    "character_embeddings": (False,),
    "quant_noise_pq": (0,),
    "base_layers": (0,),
    "scale_fc": (False,),
    "scale_heads": (False,),
    "scale_attn": (False,),
    "scale_resids": (False,),
    "prepend_bos": (False,),
}
DEFAULTS = {"encoder_embed_dim": 512, "encoder_ffn_embed_dim": 2048, "activation_fn": "relu", "dropout": 0.1}


def recognises(folder: Path) -> bool:
    """Return whether there are dictionaries, and no `config.json`, which other formats have."""
    return not (folder / CONFIG).is_file() and any(folder.glob(DICTIONARIES))


def read(folder: Path) -> Source:
    """See `Format`."""
    path = only_pickle(folder, f"*{SUFFIX}")
    values = read_namespaces(path)
    tensors = tensors_of(values.get("model"), path)
    with reading(path, "a Transformer of fairseq"):
        options = Published(_options(values), DEFAULTS)
        found = config(options, tensors)
        made = architecture.find("transformer").config.from_dict(found)
    cut = {f"{side}.embed_positions.weight": found["max_length"] + OFFSET for side in ("encoder", "decoder")}
    weights = partial(weights_of, tensors, cut)
    text = partial(_texts, folder, options.all(), (found["source_vocab_size"], found["target_vocab_size"]))
    return Source(config=made, rules=WEIGHTS, weights=weights, place=path, texts=text)


def _options(values: Any) -> dict[str, Any]:
    """Return the options in `args`, or those of the model in `cfg`, as later versions write them."""
    if values.get("args") is not None:
        return options_of(values["args"])
    if values.get("cfg") is None:
        raise ConfigError("it has neither args nor cfg, in which fairseq says what a model is")
    whole = options_of(values["cfg"])
    task = whole.get("task")
    named = task if isinstance(task, str) or task is None else options_of(task).get("_name")
    own = options_of(whole.get("model"))
    languages = {name: each for name, each in _languages(task).items() if each is not None}
    arch = own.get("_name", own.get("arch", "transformer"))
    return {**own, **languages, "task": named or "translation", "arch": arch}


def _languages(task: object) -> dict[str, object]:
    """Return the language options, which later versions store with the task."""
    values = {} if task is None or isinstance(task, str) else options_of(task)
    return {name: values.get(name) for name in OF_TASK}


def config(options: Published, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the values of `TransformerConfig`."""
    if options.get("task") == MULTILINGUAL:
        _language_tokens(options.all())
    arch = options.get("arch", "transformer")
    if not isinstance(arch, str) or not ARCHITECTURES.fullmatch(arch):
        raise ConfigError(f"arch {quoted(arch)} is not supported; it must be a transformer")
    for name, allowed in REQUIRED.items():
        options.require(name, *allowed)
    for name in ("adaptive_softmax_cutoff", "encoder_layers_to_keep", "decoder_layers_to_keep"):
        if options.get(name) is not None:
            raise ConfigError(f"{name} {quoted(options.get(name))} is not supported")
    width = options.get("encoder_embed_dim")
    feed_forward = options.get("encoder_ffn_embed_dim")
    for name in ("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim"):
        options.require(name, width)
    options.require("decoder_ffn_embed_dim", feed_forward)
    known_options = options.all()
    before = require_alike(known_options, "encoder_normalize_before", "decoder_normalize_before", default=False)
    learned = require_alike(known_options, "encoder_learned_pos", "decoder_learned_pos", default=False)
    lengths = [options.get(f"max_{side}_positions", LONGEST) for side in ("source", "target")]
    return {
        "source_vocab_size": rows_and_width(tensors, "encoder.embed_tokens.weight")[0],
        "target_vocab_size": rows_and_width(tensors, "decoder.embed_tokens.weight")[0],
        "d_model": width,
        "heads": require_alike(known_options, "encoder_attention_heads", "decoder_attention_heads", default=8),
        "feed_forward": feed_forward,
        "encoder_layers": options.get("encoder_layers", 6),
        "decoder_layers": options.get("decoder_layers", 6),
        "max_length": min(lengths),
        "norm": "pre" if before else "post",
        "final_norm": _final_norm(tensors),
        "norm_epsilon": 1e-5,
        "embedding_norm": options.get("layernorm_embedding", False),
        "positions": "learned" if learned else "sinusoidal",
        "sinusoids": "interleaved" if learned else "fairseq",
        "position_offset": OFFSET,
        "activation": options.word("activation_fn", ACTIVATIONS),
        "tied": _tied(options),
        "scale_embedding": not options.get("no_scale_embedding", False),
        "dropout": options.get("dropout"),
        "pad_id": PAD,
        "bos_id": START,
        "start_id": STOP,
        "eos_id": STOP,
    }


def _final_norm(tensors: dict[str, Tensor]) -> bool:
    """Return whether each stack has a final norm; models of old versions have none, regardless of their options."""
    has = {side: f"{side}.layer_norm.weight" in tensors for side in ("encoder", "decoder")}
    if has["encoder"] != has["decoder"]:
        raise ConfigError("a final norm in only one of encoder and decoder is not supported")
    for side, last in (("encoder", 1), ("decoder", 2)):
        version = tensors.get(f"{side}.version")
        if has[side] and version is not None and version.numel() == 1 and float(version) <= last:
            raise ConfigError(f"{side}.version {float(version)} has no use for {side}.layer_norm")
    return has["encoder"]


def _tied(options: Published) -> str:
    for name in ("share_all_embeddings", "share_decoder_input_output_embed"):
        options.require(name, False, True)
    if options.get("share_all_embeddings", False):
        return "all"
    return "target" if options.get("share_decoder_input_output_embed", False) else "none"


NORMS = ("attention_residual.norm", "cross_attention_residual.norm", "feed_forward_residual.norm")
PARTS = (".query.", ".key.", ".value.")
WEIGHTS: tuple[Rule, ...] = (
    Drop(r"(encoder|decoder)\.version$"),
    Drop(r"(encoder|decoder)\.embed_positions\._float_tensor$"),
    Drop(r"encoder\.embed_positions\.weights$", "source_embedding.positions"),
    Drop(r"decoder\.embed_positions\.weights$", "target_embedding.positions"),
    Rename(r"^encoder\.embed_tokens\.", "source_embedding.tokens."),
    Rename(r"^decoder\.embed_tokens\.", "target_embedding.tokens."),
    Rename(r"^decoder\.(output_projection\.weight|embed_out)$", "projection.weight"),
    Rename(r"^encoder\.embed_positions\.weight$", "source_embedding.positions"),
    Rename(r"^decoder\.embed_positions\.weight$", "target_embedding.positions"),
    Rename(r"^encoder\.layernorm_embedding\.", "source_embedding.norm."),
    Rename(r"^decoder\.layernorm_embedding\.", "target_embedding.norm."),
    *FAIRSEQ_LAYERS,
    Rename(r"^(encoder\.\d+)\.layer_norms\.0\.", rf"\1.{NORMS[0]}."),
    Rename(r"^(encoder\.\d+)\.layer_norms\.1\.", rf"\1.{NORMS[2]}."),
    *(Rename(rf"^(decoder\.\d+)\.layer_norms\.{number}\.", rf"\1.{norm}.") for number, norm in enumerate(NORMS)),
    Split(r"(?<=attention)\.in_proj_(?=weight|bias)", PARTS),
)


# ------------------------------------------------------------------------------------------------------ dictionaries


def _texts(folder: Path, options: Mapping[str, object], rows: tuple[int, int]) -> Files:
    """Return the text files of a bundle; `rows` are the numbers of rows of the source and target embeddings."""
    paths = [_dictionary(folder, options.get(name), name) for name in ("source_lang", "target_lang")]
    languages = _language_tokens(options) if options.get("task") == MULTILINGUAL else {}
    masks = [MASK] if languages and options.get("lang_tok_style") == "mbart" else []
    added = [*languages.values(), *masks]
    source, target = (
        Side(place=path, ids=_with(_read_dictionary(path), added), rows=rows[at], exact=True)
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


def _language_tokens(options: Mapping[str, object]) -> dict[str, str]:
    """Return the languages of a multilingual task and their tokens; raise `ConfigError` for unsupported options."""
    languages = options.get("langs")
    style = options.get("lang_tok_style", "multilingual")
    for name, (expected, default) in REQUIRED_OF_TASK.items():
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


def _read_dictionary(path: Path) -> dict[str, int]:
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
