"""CTranslate2: the weights in its own format, generation by its `Translator`.

Its vocabulary is strings; here a token is written as its id, and strings are made and read outside of the time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ctranslate2
import numpy as np

from benchmarks.peers.engines import Model, Search, Sources

if TYPE_CHECKING:  # a process that generates holds no PyTorch
    from torch import nn

    from txport.models.architectures.transformer import Transformer, TransformerConfig
    from txport.models.parts import Attention, Residual

PACKAGES = ("ctranslate2", "numpy")
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}
QUANTIZATION = {"fp32": None, "int8": "int8"}
SIZES = "sizes.json"


def prepare(model: Model, folder: Path) -> None:
    """Convert a checkpoint; the weights are quantised in the file already."""
    from benchmarks.peers.engines import transformer
    from txport.system.documents import write_json

    spec = convert(transformer(model.checkpoint))
    spec.validate()
    spec.optimize(quantization=QUANTIZATION[model.precision])
    spec.save(str(folder))
    write_json(folder / SIZES, {"compute_type": {"fp32": "float32"}.get(model.precision, model.precision)})


def convert(model: Transformer) -> Any:
    """The whole model as a CTranslate2 specification."""
    config = model.config
    spec = empty_spec(config)
    for side, layers, embedding, norm in (
        (spec.encoder, model.encoder, model.source_embedding, model.encoder_norm),
        (spec.decoder, model.decoder, model.target_embedding, model.decoder_norm),
    ):
        table = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        table.weight = array(embedding.tokens.weight)
        side.scale_embeddings = config.scale_embedding
        side.position_encodings.encodings = array(embedding.positions)
        for theirs, ours in zip(side.layer, layers, strict=True):
            fill_layer(theirs, ours)
        if config.norm == "pre":
            fill_norm(side.layer_norm, norm)
    spec.decoder.projection.weight = array(model.projection.weight)
    return spec


def empty_spec(config: TransformerConfig) -> Any:
    """The specification of a model of this size, its vocabulary and its special tokens."""
    spec = ctranslate2.specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=getattr(ctranslate2.specs.Activation, ACTIVATIONS[config.activation]),
    )
    spec.register_source_vocabulary([str(id_) for id_ in range(config.source_vocab_size)])
    spec.register_target_vocabulary([str(id_) for id_ in range(config.target_vocab_size)])
    spec.config.bos_token = spec.config.decoder_start_token = str(config.bos_id)
    spec.config.eos_token, spec.config.unk_token = str(config.eos_id), str(config.pad_id)
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.config.layer_norm_epsilon = config.norm_epsilon
    return spec


def fill_layer(spec: Any, layer: Any) -> None:
    """One layer of either stack."""
    own = layer.attention
    fill_linear(spec.self_attention.linear[0], own.query, own.key, own.value)
    fill_linear(spec.self_attention.linear[1], own.output)
    fill_norm(spec.self_attention.layer_norm, layer.attention_residual.norm)
    if hasattr(spec, "attention"):
        fill_cross_attention(spec.attention, layer.cross_attention, layer.cross_attention_residual)
    fill_linear(spec.ffn.linear_0, layer.feed_forward.inner)
    fill_linear(spec.ffn.linear_1, layer.feed_forward.outer)
    fill_norm(spec.ffn.layer_norm, layer.feed_forward_residual.norm)


def fill_cross_attention(spec: Any, attention: Attention, residual: Residual) -> None:
    """The decoder's attention over the source."""
    fill_linear(spec.linear[0], attention.query)
    fill_linear(spec.linear[1], attention.key, attention.value)
    fill_linear(spec.linear[2], attention.output)
    fill_norm(spec.layer_norm, residual.norm)


def fill_linear(spec: Any, *layers: nn.Linear) -> None:
    """One linear layer, or several over the same input as one."""
    spec.weight = np.concatenate([array(layer.weight) for layer in layers])
    spec.bias = np.concatenate([array(layer.bias) for layer in layers])


def fill_norm(spec: Any, norm: nn.Module) -> None:
    """A layer norm."""
    spec.gamma, spec.beta = array(norm.weight), array(norm.bias)


def array(tensor: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor in NumPy."""
    values: np.ndarray[Any, np.dtype[np.float32]] = tensor.detach().numpy()
    return values


class Engine:
    """Options: `threads` (intra_threads), `workers` (inter_threads), `batch_size` (of those split off a larger one)."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        self._translator = ctranslate2.Translator(
            str(folder),
            compute_type=json.loads((folder / SIZES).read_text(encoding="utf-8"))["compute_type"],
            intra_threads=options["threads"],
            inter_threads=options["workers"],
        )
        self._options = {
            "beam_size": search.beams,
            "max_decoding_length": search.max_new_tokens,
            "min_decoding_length": search.max_new_tokens if search.forced else 1,
            "max_batch_size": options["batch_size"],
            "return_scores": False,
        }

    def encode(self, sources: Sources) -> list[list[str]]:
        """Ids as strings."""
        return [[str(id_) for id_ in source] for source in sources]

    def generate(self, inputs: list[list[str]]) -> Any:
        """Search."""
        return self._translator.translate_batch(inputs, **self._options)

    def decode(self, outputs: Any) -> list[list[int]]:
        """The best hypothesis of each source."""
        return [[int(token) for token in result.hypotheses[0]] for result in outputs]
