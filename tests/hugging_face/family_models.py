"""Small seeded models of every family that a checkpoint can be of, made by whichever transformers is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from transformers import GenerationConfig

VOCABULARY, LONGEST = 24, 40
WINDOW = 4  # tokens, of which prompts and what follows them have several times as many
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA: dict[str, Any] = {
    **IDS,
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": LONGEST,
}
GEMMA2: dict[str, Any] = {**LLAMA, "head_dim": 16, "query_pre_attn_scalar": 12, "sliding_window": WINDOW}
VISION = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 8,
    "patch_size": 4,
}
GPT2: dict[str, Any] = {
    **IDS,
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": LONGEST,
}
OPT: dict[str, Any] = {
    **IDS,
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "ffn_dim": 40,
    "max_position_embeddings": LONGEST,
}
BLOOM: dict[str, Any] = {**IDS, "vocab_size": VOCABULARY, "hidden_size": 32, "n_head": 4, "n_layer": 2}
FALCON: dict[str, Any] = {
    **IDS,
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": LONGEST,
}
MPT: dict[str, Any] = {
    **IDS,
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": LONGEST,
}
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
OSS: dict[str, Any] = {
    **LLAMA,
    "intermediate_size": 32,
    "head_dim": 16,
    "sliding_window": WINDOW,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 40,
    "num_heads": 4,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
BART: dict[str, Any] = {
    **IDS,
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": LONGEST,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
MARIAN: dict[str, Any] = {**BART, "decoder_start_token_id": 0, "eos_token_id": 2}
M2M: dict[str, Any] = {**BART, "pad_token_id": 1, "bos_token_id": 0, "activation_function": "relu"}
SPECIAL = {"cls_token_id": 3, "sep_token_id": 4, "mask_token_id": 5}
BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": LONGEST,
    "num_labels": 3,
    "pad_token_id": 0,
    **SPECIAL,
}
ROBERTA: dict[str, Any] = {**BERT, "pad_token_id": 1, "max_position_embeddings": LONGEST + 2, "type_vocab_size": 1}
DISTIL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 40,
    "max_position_embeddings": LONGEST,
    "num_labels": 3,
    **SPECIAL,
}
MPNET: dict[str, Any] = {**BERT, "pad_token_id": 1, "max_position_embeddings": LONGEST + 2}
ELECTRA: dict[str, Any] = {**BERT, "embedding_size": 20}
ALBERT: dict[str, Any] = {**BERT, "embedding_size": 20, "num_hidden_layers": 4, "bos_token_id": 3, "eos_token_id": 4}
MODERNBERT: dict[str, Any] = {
    **BERT,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "local_attention": WINDOW,
    "bos_token_id": 3,
    "eos_token_id": 4,
}
DEBERTA: dict[str, Any] = {
    **BERT,
    "relative_attention": True,
    "pos_att_type": "c2p|p2c",
    "position_biased_input": False,
    "type_vocab_size": 0,
    "pad_token_id": 0,
}
DEBERTA2: dict[str, Any] = {**DEBERTA, "position_buckets": 6, "norm_rel_ebd": "layer_norm", "share_att_key": True}
NOMIC: dict[str, Any] = {**BERT, "num_attention_heads": 2}


def scaled(kind: str, factor: float, **more: Any) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": kind, "factor": factor, **more}}


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
FACTORS = {"short_factor": [1.0 + 0.2 * pair for pair in range(8)], "long_factor": [2.0] * 8}
WHISPER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "num_mel_bins": 5,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_source_positions": 20,
    "max_target_positions": LONGEST,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "suppress_tokens": [5, 9],
    "begin_suppress_tokens": [11, 2],
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {  # folder -> class, and its config
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2-untied-relu": (
        "GPT2LMHeadModel",
        {**GPT2, "tie_word_embeddings": False, "activation_function": "relu", "n_inner": 20},
    ),
    "opt": ("OPTForCausalLM", OPT),
    "opt-post-narrow": ("OPTForCausalLM", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 12}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama-biases-tied": (
        "LlamaForCausalLM",
        {**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 16},
    ),
    "llama-3": ("LlamaForCausalLM", {**LLAMA, "rope_theta": 5e5, **scaled("llama3", 8.0, **LLAMA3)}),
    "llama-linear": ("LlamaForCausalLM", {**LLAMA, **scaled("linear", 4.0)}),
    "llama-yarn": (
        "LlamaForCausalLM",
        {**LLAMA, "head_dim": 16, **scaled("yarn", 4.0, original_max_position_embeddings=10, beta_fast=4.0)},
    ),
    "smollm": (
        "LlamaForCausalLM",
        {**LLAMA, "hidden_size": 48, "num_attention_heads": 3, "tie_word_embeddings": True, "rope_theta": 1e5},
    ),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": None}),
    "mistral-window": (
        "MistralForCausalLM",
        {**LLAMA, "sliding_window": WINDOW},
    ),
    "qwen2": ("Qwen2ForCausalLM", {**LLAMA, "eos_token_id": [2, 3]}),
    "qwen2-window": (
        "Qwen2ForCausalLM",
        {**LLAMA, "use_sliding_window": True, "sliding_window": WINDOW + 1, "max_window_layers": 1},
    ),
    "qwen3": (
        "Qwen3ForCausalLM",
        {**LLAMA, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1e6},
    ),
    "qwen3-hidden": ("Qwen3Model", {**LLAMA, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}),
    "mistral-hidden": ("MistralModel", {**LLAMA, "sliding_window": WINDOW}),
    "sentences-last": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 16, "tie_word_embeddings": True}),
    "gemma2-hidden": ("Gemma2Model", {**GEMMA2, "attn_logit_softcapping": 2.0}),
    "qwen2-labels": ("Qwen2ForSequenceClassification", {**LLAMA, "num_labels": 3}),
    "llama-spans": ("LlamaForQuestionAnswering", LLAMA),
    "qwen3-spans": ("Qwen3ForQuestionAnswering", {**LLAMA, "head_dim": 32}),
    "mixtral-spans": ("MixtralForQuestionAnswering", {**LLAMA, "num_local_experts": 4}),
    "bloom-spans": ("BloomForQuestionAnswering", BLOOM),
    "qwen2-token-labels": ("Qwen2ForTokenClassification", {**LLAMA, "num_labels": 3}),
    "bloom-token-labels": ("BloomForTokenClassification", {**BLOOM, "num_labels": 3}),
    "mistral-labels": ("MistralForSequenceClassification", {**LLAMA, "sliding_window": WINDOW, "num_labels": 1}),
    "gemma": ("GemmaForCausalLM", {**LLAMA, "num_key_value_heads": 1, "head_dim": 16}),
    "gemma2": ("Gemma2ForCausalLM", {**GEMMA2, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma2-plain": (
        "Gemma2ForCausalLM",
        {
            **GEMMA2,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "attention_bias": True,
            "layer_types": ["full_attention"] * 2,
        },
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {**GEMMA2, "num_hidden_layers": 3, "sliding_window_pattern": 3, **scaled("linear", 8.0)},
    ),
    "gemma3-capped": (
        "Gemma3ForCausalLM",
        {**GEMMA2, "final_logit_softcapping": 2.5, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "gemma3-both-ways": (
        "Gemma3TextModel",
        {**GEMMA2, "num_hidden_layers": 3, "sliding_window_pattern": 3, "use_bidirectional_attention": True},
    ),
    "gemma3-images": ("Gemma3ForConditionalGeneration", {"text_config": GEMMA2, "vision_config": VISION, **IDS}),
    "phi3": ("Phi3ForCausalLM", {**LLAMA, "sliding_window": None}),
    "phi3-window": ("Phi3ForCausalLM", {**LLAMA, "sliding_window": WINDOW - 1}),
    "smollm3": (
        "SmolLM3ForCausalLM",
        {**LLAMA, "num_hidden_layers": 3, "no_rope_layer_interval": 2, "tie_word_embeddings": True},
    ),
    "smollm3-window": (
        "SmolLM3ForCausalLM",
        {**LLAMA, "no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": WINDOW},
    ),
    "phi3-longrope": (
        "Phi3ForCausalLM",
        {
            **LLAMA,
            "max_position_embeddings": 2 * LONGEST,
            "original_max_position_embeddings": LONGEST,
            "rope_scaling": {"type": "longrope", **FACTORS},
        },
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", {**LLAMA, "hidden_act": "gelu", "hidden_size": 128}),
    "gpt_neox-sequential": (
        "GPTNeoXForCausalLM",
        {**LLAMA, "hidden_size": 64, "use_parallel_residual": False, "attention_bias": False, "rotary_pct": 0.5},
    ),
    "gptj": ("GPTJForCausalLM", {**GPT2, "rotary_dim": 16, "n_head": 1}),
    "codegen": ("CodeGenForCausalLM", {**GPT2, "n_embd": 64, "rotary_dim": 16}),
    "phi": ("PhiForCausalLM", {**LLAMA, "hidden_size": 64, "num_key_value_heads": 2}),
    "phi-norms": ("PhiForCausalLM", {**LLAMA, "hidden_size": 64, "qk_layernorm": True}),
    "phi3-part": (
        "Phi3ForCausalLM",
        {**LLAMA, "hidden_size": 64, "sliding_window": None, "partial_rotary_factor": 0.5},
    ),
    "stablelm": ("StableLmForCausalLM", {**LLAMA, "hidden_size": 128, "use_qkv_bias": True}),
    "stablelm-parallel": ("StableLmForCausalLM", {**LLAMA, "hidden_size": 128, "use_parallel_residual": True}),
    "starcoder2": ("Starcoder2ForCausalLM", {**LLAMA, "sliding_window": WINDOW}),
    "cohere": ("CohereForCausalLM", {**LLAMA, "logit_scale": 0.25}),
    "cohere2": ("Cohere2ForCausalLM", {**LLAMA, "logit_scale": 0.25, "sliding_window": WINDOW, "num_hidden_layers": 4}),
    "ministral": (
        "MinistralForCausalLM",
        {**LLAMA, "head_dim": 16, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "olmo": ("OlmoForCausalLM", LLAMA),
    "olmo-clipped": ("OlmoForCausalLM", {**LLAMA, "clip_qkv": 0.5}),
    "olmo2": ("Olmo2ForCausalLM", LLAMA),
    "olmo3": (
        "Olmo3ForCausalLM",
        {
            **LLAMA,
            "num_hidden_layers": 4,
            "sliding_window": WINDOW,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "rope_theta": 500000.0,
        },
    ),
    "exaone4": ("Exaone4ForCausalLM", {**LLAMA, "num_hidden_layers": 4, "sliding_window": WINDOW}),
    "exaone4-full": (
        "Exaone4ForCausalLM",
        {**LLAMA, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "granite": (
        "GraniteForCausalLM",
        {
            **LLAMA,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
        },
    ),
    "glm": ("GlmForCausalLM", {**LLAMA, "head_dim": 32}),
    "glm4": ("Glm4ForCausalLM", {**LLAMA, "head_dim": 32}),
    "helium": ("HeliumForCausalLM", {**LLAMA, "head_dim": 16}),
    "nemotron": ("NemotronForCausalLM", {**LLAMA, "hidden_size": 64}),
    "jais2": ("Jais2ForCausalLM", LLAMA),
    "persimmon": ("PersimmonForCausalLM", {**LLAMA, "hidden_size": 64}),
    "arcee": ("ArceeForCausalLM", LLAMA),
    "ernie4_5": ("Ernie4_5ForCausalLM", {**LLAMA, "head_dim": 16, "use_bias": True}),
    "seed_oss": ("SeedOssForCausalLM", {**LLAMA, "head_dim": 16}),
    "bloom": ("BloomForCausalLM", BLOOM),
    "bloom-six": ("BloomForCausalLM", {**BLOOM, "hidden_size": 48, "n_head": 6}),
    "bloom-hidden": ("BloomModel", BLOOM),
    "falcon": ("FalconForCausalLM", FALCON),
    "falcon-new": ("FalconForCausalLM", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon-one-norm": (
        "FalconForCausalLM",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-alibi": (
        "FalconForCausalLM",
        {
            **FALCON,
            "hidden_size": 128,
            "num_attention_heads": 16,  # slopes that bf16 rounds
            "alibi": True,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
        },
    ),
    "mpt": ("MptForCausalLM", MPT),
    "mpt-clipped": (
        "MptForCausalLM",
        {**MPT, "attn_config": {"clip_qkv": 0.8, "softmax_scale": 0.5}, "n_heads": 3, "d_model": 24},
    ),
    "mixtral": ("MixtralForCausalLM", {**LLAMA, "num_local_experts": 4, "sliding_window": WINDOW}),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        {**LLAMA, **EXPERTS, "num_hidden_layers": 3, "shared_expert_intermediate_size": 16, "mlp_only_layers": [1]},
    ),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {**LLAMA, **EXPERTS, "head_dim": 32, "norm_topk_prob": True, "decoder_sparse_step": 2},
    ),
    "olmoe": ("OlmoeForCausalLM", {**LLAMA, "num_experts": 8, "num_experts_per_tok": 3}),
    "granitemoe": (
        "GraniteMoeForCausalLM",
        {**LLAMA, "num_local_experts": 4, "embedding_multiplier": 3.0, "residual_multiplier": 0.4},
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        {**OSS, **scaled("yarn", 4.0, original_max_position_embeddings=10, beta_fast=4.0, truncate=False)},
    ),
    "gpt_oss-limited": ("GptOssForCausalLM", {**OSS, "swiglu_limit": 0.5}),
    "t5": ("T5ForConditionalGeneration", T5),
    "flan-t5": ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "flan-t5-tied": ("T5ForConditionalGeneration", {**T5, "tie_word_embeddings": False}),
    "mt5-tied": ("MT5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-silu"}),
    "marian": ("MarianMTModel", {**MARIAN, "activation_function": "swish", "scale_embedding": True}),
    "marian-defaults": (
        "MarianMTModel",
        {
            **MARIAN,
            "forced_eos_token_id": 2,
            "num_beams": 3,
            "length_penalty": 0.7,
            "no_repeat_ngram_size": 2,
            "bad_words_ids": [[0], [14]],
            "max_length": 9,
        },
    ),
    "marian-relu": ("MarianMTModel", {**MARIAN, "activation_function": "relu"}),
    "pegasus": ("PegasusForConditionalGeneration", {**MARIAN, "activation_function": "relu", "scale_embedding": True}),
    "t5-hidden": ("T5EncoderModel", {**T5, "feed_forward_proj": "gated-gelu"}),
    "mt5-hidden": ("MT5EncoderModel", T5),
    "t5-labels": ("T5ForSequenceClassification", {**T5, "eos_token_id": 4, "num_labels": 3}),
    "t5-spans": ("T5ForQuestionAnswering", T5),
    "mt5-spans": ("MT5ForQuestionAnswering", {**T5, "feed_forward_proj": "gated-gelu"}),
    "bart-spans": ("BartForQuestionAnswering", BART),
    "mvp-spans": ("MvpForQuestionAnswering", BART),
    "mbart-spans": ("MBartForQuestionAnswering", {**BART, "scale_embedding": True}),
    "bart": ("BartForConditionalGeneration", BART),
    "bart-labels": ("BartForSequenceClassification", {**BART, "eos_token_id": 4, "num_labels": 3}),
    "mvp-labels": ("MvpForSequenceClassification", {**BART, "eos_token_id": 4, "num_labels": 5}),
    "mbart-labels": ("MBartForSequenceClassification", {**BART, "eos_token_id": 3, "num_labels": 2}),
    "plbart-labels": ("PLBartForSequenceClassification", {**BART, "eos_token_id": 4, "num_labels": 1}),
    "mbart": ("MBartForConditionalGeneration", {**BART, "scale_embedding": True, "activation_function": "relu"}),
    "mbart-50": (
        "MBartForConditionalGeneration",
        {**BART, "scale_embedding": True, "forced_bos_token_id": 20, "forced_eos_token_id": 2, "max_length": 7},
    ),
    "plbart": ("PLBartForConditionalGeneration", {**BART, "scale_embedding": True}),
    "mvp": ("MvpForConditionalGeneration", BART),
    "blenderbot": ("BlenderbotForConditionalGeneration", {**BART, "scale_embedding": True}),
    "m2m_100": ("M2M100ForConditionalGeneration", {**M2M, "scale_embedding": True}),
    "m2m_100-language": (
        "M2M100ForConditionalGeneration",
        {
            **M2M,
            "pad_token_id": 0,
            "scale_embedding": False,
            "forced_bos_token_id": 21,
            "bad_words_ids": [[0]],
            "max_length": 7,
        },
    ),
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "bert": ("BertModel", BERT),
    "bert-tokens": ("BertForMaskedLM", BERT),
    "bert-labels": ("BertForSequenceClassification", {**BERT, "id2label": {"0": "no", "1": "perhaps", "2": "yes"}}),
    "bert-token-labels": ("BertForTokenClassification", {**BERT, "hidden_act": "gelu_new"}),
    "bert-spans": ("BertForQuestionAnswering", {**BERT, "num_labels": 2}),
    "roberta": ("RobertaModel", ROBERTA),
    "roberta-tokens": ("RobertaForMaskedLM", ROBERTA),
    "roberta-labels": ("RobertaForSequenceClassification", ROBERTA),
    "roberta-spans": ("RobertaForQuestionAnswering", {**ROBERTA, "num_labels": 2}),
    "xlm-roberta": ("XLMRobertaModel", ROBERTA),
    "camembert": ("CamembertForMaskedLM", ROBERTA),
    "data2vec": ("Data2VecTextModel", ROBERTA),
    "data2vec-tokens": ("Data2VecTextForMaskedLM", ROBERTA),
    "data2vec-labels": ("Data2VecTextForSequenceClassification", ROBERTA),
    "ernie": ("ErnieModel", BERT),
    "ernie-tokens": ("ErnieForMaskedLM", BERT),
    "ernie-labels": ("ErnieForSequenceClassification", BERT),
    "sentences-mean": ("BertModel", BERT),
    "sentences-first": ("RobertaModel", ROBERTA),
    "distilbert": ("DistilBertModel", DISTIL),
    "distilbert-tokens": ("DistilBertForMaskedLM", DISTIL),
    "distilbert-labels": ("DistilBertForSequenceClassification", DISTIL),
    "distilbert-spans": ("DistilBertForQuestionAnswering", {**DISTIL, "num_labels": 2}),
    "mpnet": ("MPNetModel", MPNET),
    "mpnet-tokens": ("MPNetForMaskedLM", MPNET),
    "mpnet-labels": ("MPNetForSequenceClassification", MPNET),
    "sentences-mpnet": ("MPNetModel", MPNET),
    "electra": ("ElectraForPreTraining", {**ELECTRA, "hidden_act": "gelu_new"}),
    "electra-tokens": ("ElectraForMaskedLM", ELECTRA),
    "electra-labels": ("ElectraForSequenceClassification", ELECTRA),
    "electra-wide": ("ElectraForTokenClassification", {**ELECTRA, "embedding_size": 32}),
    "modernbert": ("ModernBertModel", MODERNBERT),
    "modernbert-tokens": ("ModernBertForMaskedLM", MODERNBERT),
    "modernbert-labels": ("ModernBertForSequenceClassification", {**MODERNBERT, "classifier_pooling": "mean"}),
    "modernbert-token-labels": (
        "ModernBertForTokenClassification",
        {
            **MODERNBERT,
            **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True),
            "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        },
    ),
    "modernbert-spans": ("ModernBertForQuestionAnswering", {**MODERNBERT, "num_labels": 2}),
    "nomic_bert": ("NomicBertModel", NOMIC),
    "nomic_bert-tokens": ("NomicBertForMaskedLM", NOMIC),
    "nomic_bert-labels": ("NomicBertForSequenceClassification", NOMIC),
    "jina_embeddings_v3": ("JinaEmbeddingsV3Model", {**ROBERTA, "num_attention_heads": 2}),
    "jina_embeddings_v3-tokens": ("JinaEmbeddingsV3ForMaskedLM", {**ROBERTA, "num_attention_heads": 2}),
    "jina_embeddings_v3-labels": (
        "JinaEmbeddingsV3ForSequenceClassification",
        {**ROBERTA, "num_attention_heads": 2},
    ),
    "gte": ("GteModel", {**ROBERTA, "num_attention_heads": 2, **SPECIAL}),
    "gte-tokens": ("GteForMaskedLM", {**ROBERTA, "num_attention_heads": 2, **SPECIAL}),
    "gte-labels": ("GteForSequenceClassification", {**ROBERTA, "num_attention_heads": 2, **SPECIAL}),
    "deberta-v2": ("DebertaV2Model", DEBERTA2),
    "deberta-v2-tokens": ("DebertaV2ForMaskedLM", {**DEBERTA2, "type_vocab_size": 2}),
    "deberta-v2-tokens-new": (
        "DebertaV2ForMaskedLM",
        {**DEBERTA2, "legacy": False, "tie_word_embeddings": False, "pos_att_type": ["c2p"]},
    ),
    "deberta-v2-labels": (
        "DebertaV2ForSequenceClassification",
        {**DEBERTA2, "conv_kernel_size": 3, "conv_act": "gelu", "max_relative_positions": 12},
    ),
    "deberta-v2-token-labels": (
        "DebertaV2ForTokenClassification",
        {**DEBERTA2, "share_att_key": False, "embedding_size": 20, "norm_rel_ebd": "none", "position_buckets": -1},
    ),
    "deberta-v2-spans": ("DebertaV2ForQuestionAnswering", {**DEBERTA2, "num_labels": 2, "type_vocab_size": 2}),
    "deberta": ("DebertaModel", {**DEBERTA, "max_relative_positions": 4}),
    "deberta-tokens": ("DebertaForMaskedLM", {**DEBERTA, "pos_att_type": "p2c"}),
    "deberta-labels": (
        "DebertaForSequenceClassification",
        {**DEBERTA, "position_biased_input": True, "type_vocab_size": 2, "pooler_hidden_act": "tanh"},
    ),
    "deberta-token-labels": ("DebertaForTokenClassification", {**DEBERTA, "relative_attention": False}),
    "albert": ("AlbertModel", ALBERT),
    "albert-groups": ("AlbertForSequenceClassification", {**ALBERT, "num_hidden_groups": 2}),
    "albert-inner": ("AlbertForMaskedLM", {**ALBERT, "num_hidden_layers": 2, "inner_group_num": 2}),
}
SEARCHED = {  # keys of CASES that belong to generation_config.json
    "forced_bos_token_id",
    "forced_eos_token_id",
    "num_beams",
    "length_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "max_length",
    "suppress_tokens",
    "begin_suppress_tokens",
}


def make(name: str, **other: Any) -> Any:
    """A model with weights so large that tokens differ clearly, in the order of their names; perhaps of other sizes."""
    kind, values = CASES[name]
    values = {**values, **other}
    build = getattr(transformers, kind)
    sizes = {key: each for key, each in values.items() if key not in SEARCHED}
    model = build(build.config_class(**sizes, **attention(name))).eval()
    rng = np.random.default_rng(7)
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):
            if "embed_positions" in key and name.startswith(("marian", "pegasus")):
                continue  # a table of sinusoids
            drawn = rng.standard_normal(parameter.shape)
            if parameter.dim() == 1:
                starts_at_one = "norm" in key.lower() and key.endswith("weight") and not name.startswith("gemma")
                drawn = 0.2 * drawn + starts_at_one
            elif not any(
                each in key for each in ("embed", "shared", "wte", "wpe", "relative_attention_bias", "rel_embeddings")
            ):
                drawn *= 1.3 * max(parameter.shape) ** -0.5
            if name.startswith(("gemma2", "gemma3")) and "embed_tokens" in key:
                drawn *= 0.3  # or each token is followed by itself
            parameter.copy_(torch.from_numpy(drawn))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.from_numpy(rng.standard_normal(model.final_logits_bias.shape)))
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.generation_config.update(**{key: each for key, each in values.items() if key in SEARCHED})
    if name == "gpt2-untied-relu":
        model.generation_config.update(
            do_sample=False, repetition_penalty=1.3, suppress_tokens=[5, 9], max_new_tokens=6
        )
    return model


def attention(name: str) -> dict[str, Any]:
    """The kernel that caps scores as Gemma 2 does; the others leave the cap out."""
    return {"attn_implementation": "eager"} if name.startswith("gemma2") else {}
