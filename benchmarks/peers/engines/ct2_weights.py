"""Conversion of a txport model to a specification of CTranslate2, whose own converters read models of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import ctranslate2
import numpy as np
from torch import nn

from benchmarks.peers.engines import PLAIN, require_plain
from txport.errors import UnsupportedError
from txport.models import architecture
from txport.models.architectures.gpt2 import GPT2Config
from txport.models.architectures.llama import LlamaConfig
from txport.models.architectures.t5 import T5Config
from txport.models.architectures.transformer import TransformerConfig
from txport.models.model import Model
from txport.models.parts import Attention, Residual

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}


def convert(model: Any) -> Any:
    """Return the model as a CTranslate2 specification; raise `UnsupportedError` for other architectures."""
    kind = architecture.name_of(model.config)
    if kind not in EMPTY:
        raise UnsupportedError(f"CTranslate2 is measured on {', '.join(EMPTY)}; this model is a {kind}")
    spec = EMPTY[kind](model.config)
    spec.config.layer_norm_epsilon = model.config.norm_epsilon
    if model.facts.task == "seq2seq":
        fill_stack(spec.encoder, model.encoder, model.source_embedding, model.encoder_norm)
    fill_stack(spec.decoder, model.decoder, model.target_embedding, model.decoder_norm)
    spec.decoder.projection.weight = array(model.projection.weight)
    if model.projection.bias is not None:
        spec.decoder.projection.bias = array(model.projection.bias)
    name_tokens(spec, model)
    return spec


def name_tokens(spec: Any, model: Model) -> None:
    """Register the vocabulary and the special tokens; the string of each token is its id."""
    facts = model.facts
    words = [[str(id_) for id_ in range(tokens.size)] for tokens in (facts.reads, facts.writes)]
    if facts.task == "seq2seq":
        spec.register_source_vocabulary(words[0])
        spec.register_target_vocabulary(words[1])
        spec.config.decoder_start_token = str(facts.writes.start)
        spec.config.add_source_bos = spec.config.add_source_eos = False
    else:
        spec.register_vocabulary(words[1])
    start = facts.writes.start if facts.writes.start is not None else facts.writes.end
    spec.config.bos_token = str(start)
    spec.config.eos_token = str(facts.writes.end)
    spec.config.unk_token = str(facts.writes.pad)


def transformer(config: TransformerConfig) -> Any:
    """Return the empty specification of an encoder-decoder (Vaswani et al. 2017)."""
    require_plain(config, {**PLAIN, "output_bias": config.output_bias})
    spec = ctranslate2.specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=activation(config),
    )
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = config.scale_embedding
    return spec


def gpt2(config: GPT2Config) -> Any:
    """Return the empty specification of a GPT-2 model."""
    spec = ctranslate2.specs.TransformerDecoderModelSpec.from_config(
        config.decoder_layers, config.heads, pre_norm=True, activation=activation(config)
    )
    spec.decoder.scale_embeddings = False
    return spec


def llama(config: LlamaConfig) -> Any:
    """Return the empty specification of a model like Llama or GPT-NeoX, with unscaled rotary positions (Su et al.)."""
    wanted = {"rotary_scaling": "none", "rotary_pairing": "halves", "scale_embedding": False, "head_norm": False}
    wanted |= {"input_norm": True, "alibi": 0, "experts": 0, "shared_norm": False}
    require_plain(config, wanted)
    grouped = config.key_heads != config.heads
    spec = ctranslate2.specs.TransformerDecoderModelSpec.from_config(
        config.decoder_layers,
        config.heads,
        pre_norm=True,
        activation=activation(config),
        ffn_glu=config.gated,
        rms_norm=config.norm == "rms",
        rotary_dim=config.rotary_size,  # 0 is the whole head, as in CTranslate2
        rotary_interleave=False,
        rotary_base=config.rotary_base,
        num_heads_kv=config.key_heads if grouped else None,
        parallel_residual=config.parallel,
    )
    spec.decoder.scale_embeddings = False
    return spec


def t5(config: T5Config) -> Any:
    """Return the empty specification of a T5 model."""
    spec = ctranslate2.specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=True,
        activation=activation(config),
        ffn_glu=config.gated,
        relative_attention_bias=True,
        rms_norm=True,
    )
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = False
    if config.tied:
        spec.decoder.scale_outputs = config.d_model**-0.5
    return spec


EMPTY: dict[str, Callable[[Any], Any]] = {"transformer": transformer, "gpt2": gpt2, "llama": llama, "t5": t5}


def activation(config: Any) -> Any:
    """Return CTranslate2's value for the activation of a config."""
    return getattr(ctranslate2.specs.Activation, ACTIVATIONS[config.activation])


def fill_stack(spec: Any, layers: Any, embedding: Any, norm: nn.Module) -> None:
    """Fill the embeddings, the layers and the last norm of a stack."""
    table = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    table.weight = array(embedding.tokens.weight)
    if embedding.positions is not None:
        spec.position_encodings.encodings = array(embedding.positions)
    for theirs, ours in zip(spec.layer, layers, strict=True):
        fill_layer(theirs, ours, spec.layer[0].self_attention)
    if not isinstance(norm, nn.Identity):
        fill_norm(spec.layer_norm, norm)


def fill_layer(spec: Any, layer: Any, first: Any) -> None:
    """Fill one layer of a stack; the self-attention `first` has the relative position biases of all layers."""
    own = layer.attention
    fill_linear(spec.self_attention.linear[0], own.query, own.key, own.value)
    fill_linear(spec.self_attention.linear[1], own.output)
    parallel = hasattr(spec, "input_layer_norm")
    fill_norm(spec.input_layer_norm if parallel else spec.self_attention.layer_norm, layer.attention_residual.norm)
    fill_scores(spec.self_attention, own)
    if own.core.bias is not None:
        fill_distances(spec.self_attention, own.core.bias, first)
    if hasattr(spec, "attention"):
        fill_cross_attention(spec.attention, layer.cross_attention, layer.cross_attention_residual)
    forward = layer.feed_forward
    fill_linear(spec.ffn.linear_0, getattr(forward, "gate", forward.inner))
    if hasattr(spec.ffn, "linear_0_noact"):
        fill_linear(spec.ffn.linear_0_noact, forward.inner)
    fill_linear(spec.ffn.linear_1, forward.outer)
    norm = spec.post_attention_layer_norm if parallel else spec.ffn.layer_norm
    fill_norm(norm, layer.feed_forward_residual.norm)


def fill_cross_attention(spec: Any, attention: Attention, residual: Residual) -> None:
    """Fill the decoder's cross-attention."""
    fill_linear(spec.linear[0], attention.query)
    fill_linear(spec.linear[1], attention.key, attention.value)
    fill_linear(spec.linear[2], attention.output)
    fill_norm(spec.layer_norm, residual.norm)
    fill_scores(spec, attention)


def fill_scores(spec: Any, attention: Attention) -> None:
    """Set the scale of the scores, unless it is 1 / sqrt(H)."""
    scale = cast(float, attention.core.scale)
    if scale != attention.head_size**-0.5:
        spec.queries_scale = scale


def fill_distances(spec: Any, bias: Any, first: Any) -> None:
    """Fill the relative position biases; all layers share the arrays of the first."""
    if spec is first:
        spec.relative_attention_bias = array(bias.weight)
        spec.relative_attention_max_distance = np.dtype("int32").type(bias.farthest)
    else:
        spec.relative_attention_bias = first.relative_attention_bias
        spec.relative_attention_max_distance = first.relative_attention_max_distance


def fill_linear(spec: Any, *layers: nn.Linear) -> None:
    """Fill a linear layer with one linear layer, or with several over the same input."""
    spec.weight = np.concatenate([array(layer.weight) for layer in layers])
    if layers[0].bias is not None:
        spec.bias = np.concatenate([array(layer.bias) for layer in layers])


def fill_norm(spec: Any, norm: nn.Module) -> None:
    """Fill a layer norm or an RMS norm."""
    spec.gamma = array(norm.weight)
    if getattr(norm, "bias", None) is not None:
        spec.beta = array(norm.bias)


def array(tensor: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a tensor as a NumPy array."""
    values: np.ndarray[Any, np.dtype[np.float32]] = tensor.detach().numpy()
    return values
