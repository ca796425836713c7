"""Names and shapes of the tensors that transformers saves, by the `model_type` of a `config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]
Shapes = dict[str, tuple[int, ...]]


def tensors_of(config: Config) -> Shapes:
    """Return the shape of each tensor by its name."""
    return TYPES[config["model_type"]](config)


def linear(name: str, outputs: int, inputs: int, *, bias: bool = True) -> Shapes:
    """A matrix, and its bias if it has one."""
    return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if bias else {})


def norm(name: str, width: int, *, bias: bool = True) -> Shapes:
    """The weight of a norm, and its bias if it has one."""
    return {f"{name}.weight": (width,)} | ({f"{name}.bias": (width,)} if bias else {})


def decoder_only(config: Config) -> Shapes:
    """Llama, Qwen 2 and Gemma 3."""
    width = config["hidden_size"]
    kind = config["model_type"]
    found: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], width)}
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        found |= _rotary_attention(f"{layer}.self_attn", config)
        found |= linear(f"{layer}.mlp.gate_proj", config["intermediate_size"], width, bias=False)
        found |= linear(f"{layer}.mlp.up_proj", config["intermediate_size"], width, bias=False)
        found |= linear(f"{layer}.mlp.down_proj", width, config["intermediate_size"], bias=False)
        for name in NORMS[kind]:
            found |= norm(f"{layer}.{name}", width, bias=False)
    return found | norm("model.norm", width, bias=False)


LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm")
NORMS = {
    "llama": LLAMA_NORMS,
    "qwen2": LLAMA_NORMS,
    "gemma3_text": (*LLAMA_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
}


def _rotary_attention(name: str, config: Config) -> Shapes:
    width = config["hidden_size"]
    heads = config["num_attention_heads"]
    size = config.get("head_dim", width // heads)
    bias = config["model_type"] == "qwen2"
    found = linear(f"{name}.q_proj", heads * size, width, bias=bias)
    found |= linear(f"{name}.k_proj", config["num_key_value_heads"] * size, width, bias=bias)
    found |= linear(f"{name}.v_proj", config["num_key_value_heads"] * size, width, bias=bias)
    found |= linear(f"{name}.o_proj", width, heads * size, bias=False)
    if config["model_type"] == "gemma3_text":
        found |= norm(f"{name}.q_norm", size, bias=False) | norm(f"{name}.k_norm", size, bias=False)
    return found


def bert(config: Config) -> Shapes:
    """BERT with the head of its masked language model; XLM-R without a head, and with a pooler."""
    is_bert = config["model_type"] == "bert"
    width = config["hidden_size"]
    at = "bert." if is_bert else ""
    found: Shapes = {
        f"{at}embeddings.word_embeddings.weight": (config["vocab_size"], width),
        f"{at}embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
        f"{at}embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
        **norm(f"{at}embeddings.LayerNorm", width),
    }
    for number in range(config["num_hidden_layers"]):
        found |= _bert_layer(f"{at}encoder.layer.{number}", width, config["intermediate_size"])
    found |= linear(f"{at}pooler.dense", width, width)
    return found | _bert_head(config["vocab_size"], width) if is_bert else found


def _bert_layer(name: str, width: int, inner: int) -> Shapes:
    return {
        **linear(f"{name}.attention.self.query", width, width),
        **linear(f"{name}.attention.self.key", width, width),
        **linear(f"{name}.attention.self.value", width, width),
        **linear(f"{name}.attention.output.dense", width, width),
        **norm(f"{name}.attention.output.LayerNorm", width),
        **linear(f"{name}.intermediate.dense", inner, width),
        **linear(f"{name}.output.dense", width, inner),
        **norm(f"{name}.output.LayerNorm", width),
    }


def _bert_head(vocabulary: int, width: int) -> Shapes:
    return {
        "cls.predictions.bias": (vocabulary,),
        **linear("cls.predictions.transform.dense", width, width),
        **norm("cls.predictions.transform.LayerNorm", width),
        **linear("cls.seq_relationship", 2, width),
    }


def modernbert(config: Config) -> Shapes:
    """ModernBERT with the head of its masked language model."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    found: Shapes = {"model.embeddings.tok_embeddings.weight": (config["vocab_size"], width)}
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        found |= norm(f"{layer}.attn_norm", width, bias=False) if number else {}
        found |= linear(f"{layer}.attn.Wqkv", 3 * width, width, bias=False)
        found |= linear(f"{layer}.attn.Wo", width, width, bias=False)
        found |= norm(f"{layer}.mlp_norm", width, bias=False)
        found |= linear(f"{layer}.mlp.Wi", 2 * inner, width, bias=False)
        found |= linear(f"{layer}.mlp.Wo", width, inner, bias=False)
    for name in ("model.embeddings.norm", "model.final_norm", "head.norm"):
        found |= norm(name, width, bias=False)
    return found | linear("head.dense", width, width, bias=False) | {"decoder.bias": (config["vocab_size"],)}


def encoder_decoder(config: Config) -> Shapes:
    """BART without a head, NLLB and Marian."""
    kind = config["model_type"]
    width = config["d_model"]
    at = "" if kind == "bart" else "model."
    found: Shapes = {f"{at}shared.weight": (config["vocab_size"], width)}
    for side in ("encoder", "decoder"):
        found |= _layers(f"{at}{side}", config, side)
        if kind == "bart":  # the positions of the others are sinusoids, which need not be in a file
            found[f"{at}{side}.embed_positions.weight"] = (config["max_position_embeddings"] + 2, width)
            found |= norm(f"{at}{side}.layernorm_embedding", width)
        if kind == "m2m_100":
            found |= norm(f"{at}{side}.layer_norm", width)
    return found | ({"final_logits_bias": (1, config["vocab_size"])} if kind == "marian" else {})


def whisper(config: Config) -> Shapes:
    """Whisper: the key projections have no bias."""
    width = config["d_model"]
    return {
        "model.encoder.conv1.weight": (width, config["num_mel_bins"], 3),
        "model.encoder.conv1.bias": (width,),
        "model.encoder.conv2.weight": (width, width, 3),
        "model.encoder.conv2.bias": (width,),
        "model.encoder.embed_positions.weight": (config["max_source_positions"], width),
        **_layers("model.encoder", config, "encoder"),
        **norm("model.encoder.layer_norm", width),
        "model.decoder.embed_tokens.weight": (config["vocab_size"], width),
        "model.decoder.embed_positions.weight": (config["max_target_positions"], width),
        **_layers("model.decoder", config, "decoder"),
        **norm("model.decoder.layer_norm", width),
    }


def _layers(name: str, config: Config, side: str) -> Shapes:
    width = config["d_model"]
    inner = config[f"{side}_ffn_dim"]
    found: Shapes = {}
    for number in range(config[f"{side}_layers"]):
        layer = f"{name}.layers.{number}"
        for attention in ("self_attn", "encoder_attn") if side == "decoder" else ("self_attn",):
            for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
                bias = (config["model_type"], part) != ("whisper", "k_proj")
                found |= linear(f"{layer}.{attention}.{part}", width, width, bias=bias)
            found |= norm(f"{layer}.{attention}_layer_norm", width)
        found |= linear(f"{layer}.fc1", inner, width) | linear(f"{layer}.fc2", width, inner)
        found |= norm(f"{layer}.final_layer_norm", width)
    return found


def t5(config: Config) -> Shapes:
    """T5 with a gated feed-forward layer and an untied projection."""
    width = config["d_model"]
    table = (config["relative_attention_num_buckets"], config["num_heads"])
    found: Shapes = {"shared.weight": (config["vocab_size"], width), "lm_head.weight": (config["vocab_size"], width)}
    for side, kinds in (("encoder", ("SelfAttention",)), ("decoder", ("SelfAttention", "EncDecAttention"))):
        found[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = table
        for number in range(config["num_layers"]):
            found |= _t5_block(f"{side}.block.{number}", config, kinds)
        found |= norm(f"{side}.final_layer_norm", width, bias=False)
    return found


def _t5_block(name: str, config: Config, attentions: tuple[str, ...]) -> Shapes:
    width = config["d_model"]
    heads = config["num_heads"] * config["d_kv"]
    found: Shapes = {}
    for number, attention in enumerate(attentions):
        layer = f"{name}.layer.{number}"
        for part in ("q", "k", "v"):
            found |= linear(f"{layer}.{attention}.{part}", heads, width, bias=False)
        found |= linear(f"{layer}.{attention}.o", width, heads, bias=False)
        found |= norm(f"{layer}.layer_norm", width, bias=False)
    layer = f"{name}.layer.{len(attentions)}"
    for part in ("wi_0", "wi_1"):
        found |= linear(f"{layer}.DenseReluDense.{part}", config["d_ff"], width, bias=False)
    found |= linear(f"{layer}.DenseReluDense.wo", width, config["d_ff"], bias=False)
    return found | norm(f"{layer}.layer_norm", width, bias=False)


TYPES: dict[str, Callable[[Config], Shapes]] = {
    **dict.fromkeys(NORMS, decoder_only),
    **dict.fromkeys(("bert", "xlm-roberta"), bert),
    **dict.fromkeys(("bart", "m2m_100", "marian"), encoder_decoder),
    "modernbert": modernbert,
    "whisper": whisper,
    "t5": t5,
}
