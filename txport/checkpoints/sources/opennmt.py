"""Transformers of OpenNMT-py: `NAME_step_NUMBER.pt` with options, vocabularies and tensors, or with safetensors.

Folders of its successor Eole are recognised too, to raise an error with advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from txport.checkpoints.family import Published
from txport.checkpoints.sources.source import Source, read_safetensors
from txport.checkpoints.sources.trainers import (
    UNBOUNDED,
    id_of,
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
from txport.models.config import read_config
from txport.models.names import CONFIG, TOKENIZER
from txport.models.rules import Constant, Drop, Rename, Rule
from txport.text.trainers.texts import Files, has_cuts, texts_of
from txport.text.trainers.words import END, Side, Words, numbered

FILES = "*_step_*.pt"
EOLE = ("architecture", "encoder", "decoder")  # its options of a model, of which there is at least one
FIX = "convert it with CTranslate2 (ctranslate2.converters.eole_ct2) and name the folder that this writes"
EMBEDDINGS = "{}.embeddings.make_embedding.emb_luts.0.weight"
POSITIONS = "{}.embeddings.make_embedding.pe.pe"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "fast_gelu": "gelu_tanh"}
SINUSOIDS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "fairseq"}
DEFAULTS = {"position_encoding_type": "SinusoidalInterleaved", "pos_ffn_activation_fn": "relu", "norm_eps": 1e-6}
REQUIRED: dict[str, tuple[object, ...]] = {
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "model_task": ("seq2seq",),
    "model_type": ("text",),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "layer_norm": ("standard",),
    "max_relative_positions": (0,),
    "relative_positions_buckets": (0,),
    "position_encoding": (True,),
    "parallel_residual": (False,),
    "copy_attn": (False,),
    "generator_function": ("softmax",),
    "num_experts": (0,),
    "sliding_window": (0,),
    "multiquery": (False,),
    "lora_layers": ([],),
    "lora_embedding": (False,),
    "quant_layers": ([],),
}


def recognises(folder: Path) -> bool:
    """Return whether there is a pickle with such a name and no `config.json`, or that of Eole."""
    return _is_of_eole(folder) if (folder / CONFIG).is_file() else any(folder.glob(FILES))


def _is_of_eole(folder: Path) -> bool:
    """Return whether `config.json` has the options of a model under `model`."""
    model = read_config(folder / CONFIG).get("model")
    return isinstance(model, Mapping) and any(key in model for key in EOLE)


def read(folder: Path) -> Source:
    """See `Format`."""
    if (folder / CONFIG).is_file():
        raise ConfigError(f"{folder / CONFIG} is of Eole, whose models can't be read; {FIX}")
    path = only_pickle(folder, FILES)
    values = read_namespaces(path)
    tensors, place = _tensors(values, path)
    with reading(path, "a Transformer of OpenNMT-py"):
        options = Published(options_of(values.get("opt")), DEFAULTS)
        vocabularies = options_of(values.get("vocab"))
        found = config(options, vocabularies, tensors)
        _require_biases(tensors)
        made = architecture.find("transformer").config.from_dict(found)
        text = partial(_texts, folder, path, options.all(), vocabularies)
    return Source(config=made, rules=WEIGHTS, weights=partial(weights_of, tensors), place=place, texts=text)


def _tensors(values: Any, path: Path) -> tuple[dict[str, Tensor], Path]:
    """Return the tensors and the file that they are in: the pickle itself, or safetensors next to it."""
    beside = path.with_suffix(".safetensors")
    if "model" not in values:
        if not beside.is_file():
            raise CheckpointError(f"{path} holds no tensors, and {beside.name} is not beside it")
        return dict(read_safetensors(beside)), beside
    found = tensors_of(values["model"], path)
    last = {f"generator.{name}": each for name, each in tensors_of(values.get("generator"), path).items()}
    if twice := found.keys() & last.keys():
        raise CheckpointError(f"{path} holds {quoted(min(twice))} twice")
    return found | last, path


def config(options: Published, vocabularies: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, object]:
    """Return the values of `TransformerConfig`: pre-norm, with a final norm."""
    for name, allowed in REQUIRED.items():
        options.require(name, *allowed)
    if vocabularies.get("src_feats"):
        raise ConfigError("src_feats are not supported: a source has only tokens")
    heads = options.get("heads", 8)
    options.require("num_kv", 0, heads)
    source, target = (_vocabulary(vocabularies, side) for side in ("src", "tgt"))
    source_size, width = rows_and_width(tensors, EMBEDDINGS.format("encoder"))
    target_size, _ = rows_and_width(tensors, EMBEDDINGS.format("decoder"))
    for sized, tokens, side in ((source_size, source, "src"), (target_size, target, "tgt")):
        if len(tokens) != sized:
            raise ConfigError(f"vocab has {len(tokens)} tokens in {side}, its embedding {sized}")
    start = vocabularies.get("decoder_start_token", "<s>")
    pad = id_of(numbered(target), "<blank>", "the padding")
    if source[pad : pad + 1] != ["<blank>"]:
        raise ConfigError("<blank> must be the same token in both vocabularies")
    return {
        "source_vocab_size": source_size,
        "target_vocab_size": target_size,
        "d_model": _width(options, width),
        "heads": heads,
        "feed_forward": options.get("transformer_ff"),
        "encoder_layers": options.get("enc_layers"),
        "decoder_layers": options.get("dec_layers"),
        "max_length": UNBOUNDED,
        "norm": "pre",
        "norm_epsilon": options.get("norm_eps"),
        "sinusoids": options.word("position_encoding_type", SINUSOIDS),
        "activation": options.word("pos_ffn_activation_fn", ACTIVATIONS),
        "output_bias": "generator.bias" in tensors or "generator.0.bias" in tensors,
        "tied": _tied(options),
        "pad_id": pad,
        "bos_id": id_of(numbered(target), start, "decoder_start_token"),
        "eos_id": id_of(numbered(target), "</s>", "the end token"),
        "add_source_eos": False,
    }


def _texts(folder: Path, path: Path, options: Mapping[str, Any], vocabularies: Mapping[str, Any]) -> Files:
    """Return the text files of a bundle; the options may name SentencePiece models."""
    source, target = (vocabularies[side] for side in ("src", "tgt"))
    transforms = options.get("transforms") or []
    if "onmt_tokenize" in transforms and has_cuts(folder):
        told = "texts went through onmt_tokenize, whose marks no tokenizer.json can say"
        raise CheckpointError(f"{path}: {told}; save a {TOKENIZER} beside it, or give token ids (`txport run --ids`)")
    named = [options.get(f"{side}_subword_model") for side in ("src", "tgt")]
    pieces = [folder / Path(name).name if isinstance(name, str) and name else None for name in named]
    found = [each if each is not None and each.is_file() and "sentencepiece" in transforms else None for each in pieces]
    sides = [
        Side(place=path, ids=numbered(tokens), rows=len(tokens), size=len(tokens), exact=True, pieces=each)
        for tokens, each in zip((source, target), found, strict=True)
    ]
    special = ("<blank>", "<s>", END)
    alike = len(source) == len(target)
    return texts_of(Words(folder=folder, source=sides[0], target=sides[1], special=special, alike=alike))


def _width(options: Published, width: int) -> int:
    """Return D; each option that names it must agree."""
    for name in ("hidden_size", "enc_hid_size", "dec_hid_size", "rnn_size", "enc_rnn_size", "dec_rnn_size"):
        if (value := options.get(name)) not in (None, -1, width):
            raise ConfigError(f"{name} {quoted(value)} differs from the width {width} of the embeddings")
    return width


def _vocabulary(vocabularies: Mapping[str, object], side: str) -> list[str]:
    found = vocabularies.get(side)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ConfigError(f"vocab must have a list of tokens in {side}; save the model with OpenNMT-py 3")
    return found


def _tied(options: Published) -> str:
    for name in ("share_embeddings", "share_decoder_embeddings"):
        options.require(name, False, True)
    if not options.get("share_decoder_embeddings", False):
        return "none"
    return "all" if options.get("share_embeddings", False) else "target"


def _require_biases(tensors: dict[str, Tensor]) -> None:
    """Raise `ConfigError` unless all or none of the linear layers of a kind have biases, on each side."""
    for kind in ("linear_query", "linear_keys", "linear_values", "final_linear", "w_1", "w_2"):
        for side in ("encoder", "decoder"):
            has = {
                f"{name.removesuffix('weight')}bias": f"{name.removesuffix('weight')}bias" in tensors
                for name in tensors
                if name.startswith(side) and name.endswith(f".{kind}.weight")
            }
            if any(has.values()) and (missing := [name for name, is_there in has.items() if not is_there]):
                raise ConfigError(f"{missing[0]} is missing, which other layers have")


# Attention and feed-forward may have no biases; then they are zeros.
BIASES = r"(encoder|decoder)\.\d+\.((cross_)?attention\.\w+|feed_forward\.\w+)\.bias"
WEIGHTS: tuple[Rule, ...] = (
    Drop(r"encoder\.embeddings\.make_embedding\.pe\.pe$", "source_embedding.positions"),
    Drop(r"decoder\.embeddings\.make_embedding\.pe\.pe$", "target_embedding.positions"),
    Rename(r"^encoder\.embeddings\.make_embedding\.emb_luts\.0\.", "source_embedding.tokens."),
    Rename(r"^decoder\.embeddings\.make_embedding\.emb_luts\.0\.", "target_embedding.tokens."),
    Rename(r"^generator\.(0\.)?", "projection."),
    Rename(r"^(encoder|decoder)\.layer_norm\.", r"\1_norm."),
    Rename(r"^(encoder\.)transformer\.", r"\1"),
    Rename(r"^(decoder\.)transformer_layers\.", r"\1"),
    Rename(r"\.feed_forward\.layer_norm\.", ".feed_forward_residual.norm."),
    Rename(r"^(encoder\.\d+)\.layer_norm\.", r"\1.attention_residual.norm."),
    Rename(r"^(decoder\.\d+)\.layer_norm_1\.", r"\1.attention_residual.norm."),
    Rename(r"^(decoder\.\d+)\.layer_norm_2\.", r"\1.cross_attention_residual.norm."),
    Rename(r"norm\.a_2$", "norm.weight"),  # in old files
    Rename(r"norm\.b_2$", "norm.bias"),
    Rename(r"\.self_attn\.", ".attention."),
    Rename(r"\.context_attn\.", ".cross_attention."),
    Rename(r"attention\.linear_query\.", "attention.query."),
    Rename(r"attention\.linear_keys\.", "attention.key."),
    Rename(r"attention\.linear_values\.", "attention.value."),
    Rename(r"attention\.final_linear\.", "attention.output."),
    Rename(r"\.feed_forward\.w_1\.", ".feed_forward.inner."),
    Rename(r"\.feed_forward\.w_2\.", ".feed_forward.outer."),
    Constant(BIASES),
)
