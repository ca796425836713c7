"""Marian's models: a `.npz` with the tensors, and the options as YAML in `special:model.yml`.

Its decoder starts from a zero vector, not from a token. Therefore the model has one token more than the vocabulary, as
its start token. The embedding of that token is zeros, and its bias in the projection prevents its generation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from txport.checkpoints.family import Published
from txport.checkpoints.sources.marian.npz import names_in, read_npz
from txport.checkpoints.sources.marian.vocabulary import end_token, read_yaml, texts
from txport.checkpoints.sources.source import Source, held
from txport.checkpoints.sources.trainers import NEVER, UNBOUNDED, reading
from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, ConfigError, quoted
from txport.models import architecture
from txport.models.config import LARGEST_FILE
from txport.models.names import CONFIG
from txport.models.rules import Rename, Rule, Transpose
from txport.system.arrays import Array

FILES = "*.npz"
SPECIAL = "special:"
OPTIONS = f"{SPECIAL}model.yml"
ACTIVATIONS = {"relu": "relu", "swish": "silu"}  # its gelu is x * sigmoid(1.702 x), which is not supported
NORMS = {  # steps before and after a sublayer and at the end of a stack, without dropout -> norm, final_norm
    ("", "an", ""): ("post", False),
    ("", "an", "n"): ("post", True),
    ("n", "a", "n"): ("pre", True),
    ("n", "a", ""): ("pre", False),
}
EPSILON = 1e-6
ROWS = (r"(encoder_|decoder_)?Wemb", r"decoder_ff_logit_out_Wt")  # matrices with one row per token
PARTS = {"q": "query", "k": "key", "v": "value", "o": "output"}


def recognises(folder: Path) -> bool:
    """Return whether there are `.npz` files, and no `config.json`, which other formats have."""
    return not (folder / CONFIG).is_file() and any(folder.glob(FILES))


def read(folder: Path) -> Source:
    """See `Format`."""
    path = _model(folder)
    with reading(path, "the model of a Marian"):
        raw = read_npz(path, {OPTIONS})[OPTIONS]
        if raw.nbytes > LARGEST_FILE:
            raise ConfigError(f"{OPTIONS} has {raw.nbytes} bytes, expected at most {LARGEST_FILE}")
        options = Published(read_yaml(raw.tobytes().rstrip(b"\0").decode("utf-8")), {})
        values = config(options, end_token(folder))
        found = architecture.find("transformer").config.from_dict(values)
        rules = tuple(_rules(values))
        options.require("output-omit-bias", False, True)
        omitted = np.zeros(values["target_vocab_size"] - 1, np.float32)
    bias = omitted if options.get("output-omit-bias", False) else None
    weights = partial(_tensors, path, is_shared=_tied(options) == "embeddings", bias=bias)
    source, target = options.get("dim-vocabs")
    text = partial(texts, folder, (source, target), alike=values["source_vocab_size"] == values["target_vocab_size"])
    return Source(config=found, rules=rules, weights=weights, place=path, texts=text)


def _model(folder: Path) -> Path:
    """Return the only file of a folder that has a model; optimizer files have no options."""
    files = sorted(folder.glob(FILES))
    models = [path for path in files if OPTIONS in names_in(path)]
    if len(models) > 1:
        told = ", ".join(path.name for path in models)
        raise ConfigError(f"{folder} holds {len(models)} models ({told}); keep the one that is meant")
    if not models:
        raise ConfigError(f"{files[0]} holds no {OPTIONS}, in which Marian writes what a model is")
    return models[0]


REQUIRED: dict[str, tuple[object, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-no-projection": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-pool": (False,),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-tied-layers": ([],),
    "transformer-train-position-embeddings": (False,),
    "transformer-train-positions": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-attention-mask": ("default",),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "lemma-dim-emb": (0,),
    "ulr": (False,),
    "input-types": ([], ["sequence", "sequence"]),
}


def config(options: Published, end: int) -> dict[str, Any]:
    """Return the values of `TransformerConfig`; `end` is the id of the end token."""
    for name, allowed in REQUIRED.items():
        options.require(name, *allowed)
    feed_forward = options.get("transformer-dim-ffn")
    options.require("transformer-decoder-dim-ffn", 0, feed_forward)
    norm, final_norm = _norms(options)
    embedding = _steps(options, "transformer-postprocess-emb", "d")
    if embedding not in ("", "n"):
        value = quoted(options.get("transformer-postprocess-emb"))
        raise ConfigError(f"transformer-postprocess-emb {value} is not supported; it must be 'd' or 'nd'")
    source, target = options.get("dim-vocabs")
    tied = _tied(options)
    if tied in ("all", "embeddings") and source != target:
        raise ConfigError(f"dim-vocabs {source} and {target} must be alike where embeddings are tied")
    extra = 1 if tied in ("all", "embeddings") else 0
    return {
        "source_vocab_size": source + extra,
        "target_vocab_size": target + 1,
        "d_model": options.get("dim-emb"),
        "heads": options.get("transformer-heads"),
        "feed_forward": feed_forward,
        "encoder_layers": options.get("enc-depth"),
        "decoder_layers": options.get("dec-depth"),
        "max_length": UNBOUNDED,
        "norm": norm,
        "final_norm": final_norm,
        "norm_epsilon": EPSILON,
        "embedding_norm": embedding == "n",
        "sinusoids": "fairseq",
        "activation": options.word("transformer-ffn-activation", ACTIVATIONS),
        "output_bias": True,
        "tied": "none" if tied == "embeddings" else tied,
        "pad_id": target if extra else end,
        "bos_id": target,
        "eos_id": end,
    }


def _norms(options: Published) -> tuple[str, bool]:
    """Return `norm` and `final_norm`; raise `ConfigError` for unsupported residuals."""
    names = ("transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top")
    steps = tuple(_steps(options, name, default) for name, default in zip(names, ("", "dan", ""), strict=True))
    if steps not in NORMS:
        value = " and ".join(f"{name} {quoted(options.get(name, ''))}" for name in names)
        raise ConfigError(f"{value} are not supported; supported: '', 'dan', '' and 'n', 'da', 'n'")
    return NORMS[steps[0], steps[1], steps[2]]


def _steps(options: Published, name: str, default: str) -> str:
    """Return the steps in order, one letter each, without dropout."""
    value = options.get(name, default)
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be letters, got {quoted(value)}")
    return value.replace("d", "")


def _tied(options: Published) -> str:
    """Return which matrices are tied."""
    for name in ("tied-embeddings", "tied-embeddings-src", "tied-embeddings-all"):
        options.require(name, False, True)
    sources = options.get("tied-embeddings-src", False)
    if options.get("tied-embeddings-all", False) or (sources and options.get("tied-embeddings", False)):
        return "all"
    if sources:
        return "embeddings"
    return "target" if options.get("tied-embeddings", False) else "none"


def _rules(config: dict[str, Any]) -> Iterator[Rule]:
    """Yield the rules for names; Marian counts layers from 1 and marks pre-norms."""
    for side in ("encoder", "decoder"):
        for number in range(config[f"{side}_layers"]):
            yield Rename(rf"^{side}_l{number + 1}_", f"{side}.{number}.")
    yield Transpose(r"\.((self|context)_W[qkvo]|ffn_W[12])$")
    first = "_pre" if config["norm"] == "pre" else ""
    norms = {
        r"\.self_Wo_ln_%s" + first: ".attention_residual.norm.",
        r"\.context_Wo_ln_%s" + first: ".cross_attention_residual.norm.",
        r"\.ffn_ffn_ln_%s" + first: ".feed_forward_residual.norm.",
        r"^encoder_top_ln_%s": "encoder_norm.",
        r"^decoder_top_ln_%s": "decoder_norm.",
        r"^encoder_emb_ln_%s_pre": "source_embedding.norm.",
        r"^decoder_emb_ln_%s_pre": "target_embedding.norm.",
    }
    for theirs, ours in (("scale", "weight"), ("bias", "bias")):
        for pattern, name in norms.items():
            yield Rename(f"{pattern % theirs}$", name + ours)
    for theirs, ours in (("W", "weight"), ("b", "bias")):
        for letter, part in PARTS.items():
            yield Rename(rf"\.self_{theirs}{letter}$", f".attention.{part}.{ours}")
            yield Rename(rf"\.context_{theirs}{letter}$", f".cross_attention.{part}.{ours}")
        yield Rename(rf"\.ffn_{theirs}1$", f".feed_forward.inner.{ours}")
        yield Rename(rf"\.ffn_{theirs}2$", f".feed_forward.outer.{ours}")
    yield Transpose(r"^decoder_ff_logit_out_W$")
    yield Rename(r"^decoder_ff_logit_out_Wt?$", "projection.weight")
    yield Rename(r"^decoder_ff_logit_out_b$", "projection.bias")
    yield Rename(r"^encoder_Wemb$", "source_embedding.tokens.weight")
    yield Rename(r"^decoder_Wemb$", "target_embedding.tokens.weight")
    yield Rename(r"^Wemb$", "projection.weight")


def _tensors(path: Path, is_shared: bool, bias: Array | None) -> Weights:
    """Return the tensors by their names in the file, with the start token added, and biases as vectors.

    With `is_shared`, source and target share an embedding that is not the projection's. `bias` is used if the
    projection has none.
    """
    arrays = {name: each for name, each in read_npz(path).items() if not name.startswith(SPECIAL)}
    for name, array in arrays.items():
        if array.dtype.kind != "f" or not array.dtype.isnative:
            wanted = f"of type {array.dtype.str}, expected floats of this machine"
            raise CheckpointError(f"{path} holds {quoted(name)} {wanted}")
    if is_shared and "Wemb" in arrays:
        both = arrays.pop("Wemb")
        arrays |= {f"{side}_Wemb": both for side in ("encoder", "decoder")}
    if bias is not None:
        arrays["decoder_ff_logit_out_b"] = bias
    same = () if is_shared else ("encoder_Wemb",)  # here, sources do not have the extra token
    found = {name: _with_start(name, _as_vector(each), name not in same) for name, each in arrays.items()}
    try:
        return held({name: torch.from_numpy(np.array(each)) for name, each in found.items()})
    except TypeError as error:
        raise CheckpointError(f"{path} holds an array of a type that no tensor has: {error}") from error


def _as_vector(array: Array) -> Array:
    """Return biases and norm parameters as vectors; they are stored as matrices of one row."""
    return array[0] if array.ndim == 2 and len(array) == 1 else array


def _with_start(name: str, array: Array, has_start: bool) -> Array:
    """Add the start token at the end of a tensor that has a token dimension."""
    if name == "decoder_ff_logit_out_b" and array.ndim == 1:
        return np.append(array, np.array([NEVER], array.dtype))
    if name == "decoder_ff_logit_out_W" and array.ndim == 2:
        return np.concatenate([array, np.zeros((len(array), 1), array.dtype)], axis=1)
    if has_start and array.ndim == 2 and any(re.fullmatch(pattern, name) for pattern in ROWS):
        return np.concatenate([array, np.zeros((1, array.shape[1]), array.dtype)])
    return array
