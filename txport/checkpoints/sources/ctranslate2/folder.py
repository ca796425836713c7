"""Folders written by CTranslate2's converters, for the Transformers that it supports."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from txport.checkpoints.family import Published
from txport.checkpoints.sources.ctranslate2.binary import is_binary, read_binary
from txport.checkpoints.sources.ctranslate2.layers import (
    Parts,
    Stack,
    refuse,
    require_alike,
    require_plain,
    require_whole_width,
)
from txport.checkpoints.sources.ctranslate2.older import renewed
from txport.checkpoints.sources.ctranslate2.opt import is_opt, opt
from txport.checkpoints.sources.ctranslate2.t5 import is_t5, t5
from txport.checkpoints.sources.ctranslate2.tensors import GATED, LAYERS, ZEROS, Known, opened
from txport.checkpoints.sources.ctranslate2.vocabulary import any_of, read_vocabulary, texts
from txport.checkpoints.sources.ctranslate2.whisper import whisper
from txport.checkpoints.sources.source import Source
from txport.checkpoints.sources.trainers import UNBOUNDED, id_of, reading
from txport.errors import ConfigError, quoted
from txport.models import architecture
from txport.models.config import read_config
from txport.models.names import CONFIG
from txport.models.rules import Shift

MODEL = "model.bin"
REVISIONS = {
    "TransformerSpec": range(1, 8),
    "TransformerDecoderSpec": range(1, 9),
    "TransformerEncoderSpec": range(1, 2),
    "WhisperSpec": range(3, 4),
}
SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
ALIKE = ("width", "heads", "head_size", "inner", "activation", "norm", "final_norm", "embedding_norm", "is_scaled")
ADD = 1  # of `embeddings_merge`: embeddings of several features are added
LONGEST = 4096  # maximum length in tokens for rotary positions
RESIDUALS = r"(\w+/)?layer_norm_use_residual"  # 1 if a norm multiplies by 1 + gamma
SCALINGS = {-1: "none", 0: "linear", 2: "llama3"}
OF_SCALING = {  # the attributes that each scaling uses; the converters also write unused ones
    "none": (),
    "linear": ("rotary_factor",),
    "llama3": ("rotary_factor", "rotary_original_length", "rotary_low", "rotary_high"),
}


def recognises(folder: Path) -> bool:
    """Return whether there is a `model.bin` of CTranslate2.

    The file begins like CTranslate2's, or is next to vocabularies, or has no `config.json` next to it.
    """
    path = folder / MODEL
    is_alone = any(folder.glob("*vocabulary.json")) or not (folder / CONFIG).is_file()
    return path.is_file() and (is_binary(path) or is_alone)


def read(folder: Path) -> Source:
    """See `Format`."""
    path = folder / MODEL
    binary = read_binary(path)
    with reading(path, "a model of CTranslate2"):
        binary, settings = renewed(binary)
        if binary.specification not in SPECIFICATIONS:
            names = ", ".join(SPECIFICATIONS)
            raise ConfigError(f"its specification {quoted(binary.specification)} is not supported; supported: {names}")
        if binary.revision not in REVISIONS[binary.specification]:
            told = f"{binary.specification} of revision {binary.revision}"
            raise ConfigError(f"{told} can't be read; convert the model with CTranslate2 3 or later")
        written = read_config(folder / CONFIG) if (folder / CONFIG).is_file() else {}
        published = Published({**written, **settings}, SPECIAL)
        published.require("quantization_type", 0)
        parts = Parts(binary)
        known = SPECIFICATIONS[binary.specification](parts, published, folder)
        parts.finish()
        found = architecture.find(known.architecture)
        config = found.config.from_dict(known.values)
    rules = (*LAYERS, *known.rules)
    alike = known.values.get("source_vocab_size") == known.values.get("target_vocab_size")
    text = partial(texts, folder, published.all(), known.rows, binary.specification, alike=alike)
    weights = partial(opened, binary, known)
    return Source(config=config, rules=rules, weights=weights, place=path, texts=text, generation=known.generation)


def _seq2seq(parts: Parts, published: Published, folder: Path) -> Known:
    """Return an encoder-decoder model as `transformer`, or as `t5` if it has relative position biases."""
    if is_t5(parts):
        return t5(parts, published, folder)
    encoder = parts.stack("encoder")
    decoder = parts.stack("decoder")
    _require_plain(parts, encoder, decoder)
    tied = _tied(parts)
    from_zeros = bool(parts.attribute("decoder/start_from_zero_embedding", 0))
    source = read_vocabulary(folder, "source")
    target = read_vocabulary(folder, "target")
    end = id_of(target, published.get("eos_token"), "eos_token")
    if published.get("add_source_eos", False):
        require_alike("eos_token in sources and targets", source.get(published.get("eos_token")), end)
    start = decoder.vocabulary
    if not from_zeros:
        start = id_of(target, published.get("decoder_start_token"), "decoder_start_token")
    more = {"decoder": int(from_zeros), "encoder": int(from_zeros and tied == "all")}
    own_bos = published.get("add_source_bos", False)
    longest = min(encoder.positions, decoder.positions) or UNBOUNDED
    values = {
        "source_vocab_size": encoder.vocabulary + more["encoder"],
        "target_vocab_size": decoder.vocabulary + more["decoder"],
        "d_model": encoder.width,
        "heads": encoder.heads,
        "head_size": encoder.head_size,
        "feed_forward": encoder.inner,
        "encoder_layers": encoder.layers,
        "decoder_layers": decoder.layers,
        "max_length": longest,
        "norm": encoder.norm,
        "final_norm": encoder.final_norm,
        "norm_epsilon": published.get("layer_norm_epsilon", 1e-5),
        "embedding_norm": encoder.embedding_norm,
        "positions": "learned" if encoder.positions else "sinusoidal",
        "sinusoids": "interleaved" if encoder.positions else "fairseq",
        "position_offset": 0 if encoder.positions else 1,
        "activation": encoder.activation,
        "output_bias": from_zeros or parts.has("decoder/projection/bias"),
        "tied": tied,
        "scale_embedding": encoder.is_scaled,
        "pad_id": end,
        "bos_id": id_of(source, published.get("bos_token"), "bos_token") if own_bos else start,
        "start_id": start,
        "eos_id": end,
        "add_source_bos": own_bos,
        "add_source_eos": published.get("add_source_eos", False),
    }
    embeddings = {"encoder": f"encoder/embeddings{'_0' * parts.has('encoder/embeddings_0/weight')}/weight"}
    embeddings["decoder"] = "decoder/embeddings/weight"
    grown = [embeddings[side] for side, count in more.items() if count]
    grown += [f"decoder/projection/{each}" for each in ("weight", "bias")] * from_zeros
    cut = {f"{side}/position_encodings/encodings": longest for side in more if encoder.positions}
    return Known("transformer", values, (encoder.vocabulary, decoder.vocabulary), (ZEROS,), tuple(grown), cut)


def _require_plain(parts: Parts, encoder: Stack, decoder: Stack) -> None:
    """Raise `ConfigError` for features that `transformer` does not have, and if its two sides differ."""
    if parts.has("encoder/embeddings_1/weight"):
        raise ConfigError("'encoder/embeddings_1/weight' is not supported: a source has only tokens")
    parts.attribute("encoder/embeddings_merge", 0)
    for name in ALIKE:
        require_alike(name, getattr(encoder, name), getattr(decoder, name))
    for stack in (encoder, decoder):
        require_plain(stack)
    require_alike("position encodings", bool(encoder.positions), bool(decoder.positions))


def _tied(parts: Parts) -> str:
    source = "encoder/embeddings/weight" if parts.has("encoder/embeddings/weight") else "encoder/embeddings_0/weight"
    target = "decoder/embeddings/weight"
    projection = "decoder/projection/weight"
    if not parts.are_one(target, projection):
        return "none"
    return "all" if parts.are_one(source, target) else "target"


def _causal(parts: Parts, published: Published, folder: Path) -> Known:
    """Return a decoder-only model: `llama` with RMSNorm, `opt` for its special cases, otherwise `gpt2`."""
    if is_opt(parts):
        return opt(parts, published, folder)
    stack = parts.stack("decoder")
    rows = read_vocabulary(folder, "")
    parts.require("decoder/start_from_zero_embedding", 0)
    for name, wrong in {"norm 'post'": stack.norm != "pre", "no final norm": not stack.final_norm}.items():
        if wrong:
            raise ConfigError(f"{name} of a decoder-only model is not supported")
    refuse(stack, "embedding_norm")
    if parts.has("decoder/projection/bias"):
        raise ConfigError("'decoder/projection/bias' of a decoder-only model is not supported")
    end = id_of(rows, published.get("eos_token"), "eos_token")
    common = {
        "vocab_size": stack.vocabulary,
        "d_model": stack.width,
        "heads": stack.heads,
        "decoder_layers": stack.layers,
        "feed_forward": stack.inner,
        "activation": stack.activation,
        "tied": parts.are_one("decoder/embeddings/weight", "decoder/projection/weight"),
        "pad_id": end,
    }
    if stack.is_rms:
        return _llama(parts, published, stack, common | {"eos_ids": (end,), "add_bos": False, "bos_id": end})
    refuse(stack, "is_gated", "head_norm", "is_scaled")
    require_alike("heads and num_heads_kv", stack.heads, stack.key_heads)
    require_whole_width(stack)
    longest = min(stack.positions, stack.window or stack.positions)
    if not longest:
        raise ConfigError("a decoder-only model with LayerNorm needs position embeddings")
    own = {"max_length": longest, "norm_epsilon": published.get("layer_norm_epsilon", 1e-5), "eos_id": end}
    cut = {"decoder/position_encodings/encodings": longest}
    return Known("gpt2", common | own, (stack.vocabulary,) * 2, (ZEROS,), cut=cut)


def _llama(parts: Parts, published: Published, stack: Stack, common: dict[str, object]) -> Known:
    """Return a model with rotary positions and a gated feed-forward."""
    if not stack.is_gated or stack.positions:
        raise ConfigError("RMSNorm needs a gated feed-forward and no position embeddings")
    turned = parts.of_layers("decoder", "rotary_dim", -1)
    if turned not in (0, stack.head_size):
        raise ConfigError(f"rotary_dim {turned} is not supported; it must be 0, or {stack.head_size} as head_dim is")
    scaling = parts.of_layers("decoder", "rotary_scaling_type", -1)
    if scaling not in SCALINGS:
        raise ConfigError(f"rotary_scaling_type {scaling} is not supported; it must be one of {sorted(SCALINGS)}")
    residual = parts.attribute("decoder/layer_norm/layer_norm_use_residual", 0)
    require_alike("layer_norm_use_residual", residual, parts.of_layers("decoder", RESIDUALS, 0))
    parts.of_layers("decoder", "max_position_embeddings", 0)
    scaled = {
        "rotary_factor": float(parts.of_layers("decoder", "rotary_scaling_factor", 1.0)),
        "rotary_original_length": int(parts.of_layers("decoder", "original_max_position_embeddings", 0)),
        "rotary_low": float(parts.of_layers("decoder", "rotary_low_freq_factor", 1.0)),
        "rotary_high": float(parts.of_layers("decoder", "rotary_high_freq_factor", 4.0)),
    }
    kind = SCALINGS[int(scaling)]
    values = {
        "key_heads": stack.key_heads,
        "head_size": stack.head_size,
        "max_length": stack.window or LONGEST,
        "norm_epsilon": published.get("layer_norm_epsilon", 1e-6),
        "attention_bias": parts.in_layers("decoder", "self_attention/linear_0/bias"),
        "output_bias": parts.in_layers("decoder", "self_attention/linear_1/bias"),
        "feed_forward_bias": parts.in_layers("decoder", "ffn/linear_0/bias"),
        "head_norm": stack.head_norm,
        "scale_embedding": stack.is_scaled,
        "rotary_pairing": "interleaved" if parts.of_layers("decoder", "rotary_interleave", 1) else "halves",
        "rotary_base": parts.of_layers("decoder", "rotary_base", 10000.0),
        "rotary_scaling": kind,
        **{name: scaled[name] for name in OF_SCALING[kind]},
    }
    rules = (*GATED, Shift(r"norm\.weight$", 1.0)) if residual else GATED
    return Known("llama", common | values, (stack.vocabulary,) * 2, rules)


def _encode(parts: Parts, published: Published, folder: Path) -> Known:
    """Return an encoder-only model as `bert`."""
    stack = parts.stack("encoder")
    rows = read_vocabulary(folder, "")
    require_plain(stack, "is_scaled", "final_norm")
    require_whole_width(stack)
    merge = parts.attribute("encoder/embeddings_merge", 0)
    has_segments = parts.has("encoder/embeddings_1/weight")
    if stack.norm != "post" or not stack.embedding_norm or not stack.positions:
        raise ConfigError("an encoder alone must have positions, and norms behind sublayers and embeddings")
    if (has_segments and merge != ADD) or parts.has("encoder/embeddings_2/weight"):
        raise ConfigError("token embeddings other than those of tokens and segments are not supported")
    has_pooler = parts.has("pooler_dense/weight")
    special = {
        "cls_id": any_of(rows, "the first token", published.get("bos_token"), "[CLS]", "<s>"),
        "sep_id": any_of(rows, "the last token", published.get("eos_token"), "[SEP]", "</s>"),
    }
    pad = next((rows[each] for each in ("[PAD]", "<pad>") if each in rows), special["sep_id"])
    values = {
        "vocab_size": stack.vocabulary,
        "d_model": stack.width,
        "heads": stack.heads,
        "feed_forward": stack.inner,
        "encoder_layers": stack.layers,
        "max_length": stack.positions,
        "segment": has_segments,
        "norm_epsilon": published.get("layer_norm_epsilon", 1e-5),
        "activation": stack.activation,
        "head": "pooled" if has_pooler else "hidden",
        "pooler": parts.activation("pooler_activation") if has_pooler else "tanh",
        "pad_id": pad,
        "mask_id": next((rows[each] for each in ("[MASK]", "<mask>") if each in rows), pad),
    }
    return Known("bert", values | special, (stack.vocabulary,) * 2, (ZEROS,))


SPECIFICATIONS: dict[str, Callable[[Parts, Published, Path], Known]] = {
    "TransformerSpec": _seq2seq,
    "TransformerDecoderSpec": _causal,
    "TransformerEncoderSpec": _encode,
    "WhisperSpec": whisper,
}
