"""Published models: their `config.json` and other files on the Hugging Face hub, and what an export may take.

`folders.write_folder` writes a checkpoint of a shape. `short` has what makes long contexts expensive (heads, positions,
windows) and two layers, for tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

GENERATION, PREPROCESSOR = "generation_config.json", "preprocessor_config.json"
VOCABULARY = 512  # of a short shape
INNER = 128  # size of its feed-forward layers


@dataclass(frozen=True)
class Limits:
    """Ceilings of the writing and of the export of a model, in every target and precision."""

    memory: float  # GB
    seconds: float


@dataclass(frozen=True)
class Shape:
    """A published model without its weights. `files` are JSON files beside `config.json`, by name.

    `short_config` and `short_files` are the values that its short form replaces.
    """

    name: str
    config: Mapping[str, Any]
    short_config: Mapping[str, Any]
    files: Mapping[str, Any] = field(default_factory=dict)
    short_files: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits | None = None

    def short(self) -> Shape:
        """Return this shape with few layers, a small vocabulary and small feed-forward layers."""
        return replace(
            self,
            name=f"{self.name}-short",
            config={**self.config, **self.short_config},
            files={**self.files, **self.short_files},
            limits=None,
        )


STACK = {"vocab_size": VOCABULARY, "intermediate_size": INNER, "num_hidden_layers": 2}
BOTH_SIDES = {
    "vocab_size": VOCABULARY,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_hidden_layers": 2,
}

SMOLLM2 = Shape(
    "smollm2-135m",
    {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "silu",
        "hidden_size": 576,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 49152,
    },
    short_config=STACK,
    files={GENERATION: {"_from_model_config": True, "bos_token_id": 0, "eos_token_id": 0}},
    limits=Limits(memory=3, seconds=60),
)

WINDOW, FULL = "sliding_attention", "full_attention"
GEMMA3 = Shape(
    "gemma3-270m",
    {
        "_sliding_window_pattern": 6,
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 640,
        "initializer_range": 0.02,
        "intermediate_size": 2048,
        "layer_types": [*[WINDOW] * 5, FULL] * 3,
        "max_position_embeddings": 32768,
        "model_type": "gemma3_text",
        "num_attention_heads": 4,
        "num_hidden_layers": 18,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": 512,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_bidirectional_attention": False,
        "use_cache": True,
        "vocab_size": 262144,
    },
    short_config=STACK | {"hidden_size": 128, "layer_types": [WINDOW, FULL]},
    files={GENERATION: {"cache_implementation": "hybrid", "do_sample": True, "top_k": 64, "top_p": 0.95}},
    limits=Limits(memory=5, seconds=120),
)

QWEN2_5 = Shape(
    "qwen2.5-0.5b",
    {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151643,
        "hidden_act": "silu",
        "hidden_size": 896,
        "initializer_range": 0.02,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 24,
        "model_type": "qwen2",
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    short_config=STACK | {"max_window_layers": 2, "bos_token_id": 500, "eos_token_id": 500},
    files={
        GENERATION: {"bos_token_id": 151643, "do_sample": False, "eos_token_id": 151643, "max_new_tokens": 2048},
    },
    short_files={GENERATION: {"bos_token_id": 500, "do_sample": False, "eos_token_id": 500, "max_new_tokens": 2048}},
    limits=Limits(memory=6, seconds=150),
)

LLAMA3_SAMPLING = {"_from_model_config": True, "do_sample": True, "temperature": 0.6, "top_p": 0.9}
LLAMA3_2 = Shape(
    "llama3.2-1b",
    {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 128256,
    },
    short_config=STACK | {"hidden_size": 128, "bos_token_id": 500, "eos_token_id": 501},
    files={GENERATION: LLAMA3_SAMPLING | {"bos_token_id": 128000, "eos_token_id": 128001}},
    short_files={GENERATION: LLAMA3_SAMPLING | {"bos_token_id": 500, "eos_token_id": 501}},
    limits=Limits(memory=12, seconds=300),
)

SENTENCES = "sentence_transformers.models"
BGE_M3 = Shape(
    "bge-m3",
    {
        "architectures": ["XLMRobertaModel"],
        "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0,
        "classifier_dropout": None,
        "eos_token_id": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 1024,
        "initializer_range": 0.02,
        "intermediate_size": 4096,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 8194,
        "model_type": "xlm-roberta",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "output_past": True,
        "pad_token_id": 1,
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
        "type_vocab_size": 1,
        "use_cache": True,
        "vocab_size": 250002,
    },
    short_config=STACK,
    files={
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": f"{SENTENCES}.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{SENTENCES}.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{SENTENCES}.Normalize"},
        ],
        "sentence_bert_config.json": {"max_seq_length": 8192, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": 1024,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    },
    limits=Limits(memory=8, seconds=180),
)

BART_LARGE = Shape(
    "bart-large",
    {
        "activation_dropout": 0.1,
        "activation_function": "gelu",
        "add_bias_logits": False,
        "add_final_layer_norm": False,
        "architectures": ["BartModel"],
        "attention_dropout": 0.1,
        "bos_token_id": 0,
        "classifier_dropout": 0.0,
        "d_model": 1024,
        "decoder_attention_heads": 16,
        "decoder_ffn_dim": 4096,
        "decoder_layerdrop": 0.0,
        "decoder_layers": 12,
        "decoder_start_token_id": 2,
        "dropout": 0.1,
        "early_stopping": True,
        "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "encoder_layerdrop": 0.0,
        "encoder_layers": 12,
        "eos_token_id": 2,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": 2,
        "init_std": 0.02,
        "is_encoder_decoder": True,
        "max_position_embeddings": 1024,
        "model_type": "bart",
        "no_repeat_ngram_size": 3,
        "normalize_before": False,
        "num_beams": 4,
        "num_hidden_layers": 12,
        "pad_token_id": 1,
        "scale_embedding": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 50265,
    },
    short_config=BOTH_SIDES,
    limits=Limits(memory=6, seconds=120),
)

NLLB = Shape(
    "nllb-600m",
    {
        "activation_dropout": 0.0,
        "activation_function": "relu",
        "architectures": ["M2M100ForConditionalGeneration"],
        "attention_dropout": 0.1,
        "bos_token_id": 0,
        "d_model": 1024,
        "decoder_attention_heads": 16,
        "decoder_ffn_dim": 4096,
        "decoder_layerdrop": 0,
        "decoder_layers": 12,
        "decoder_start_token_id": 2,
        "dropout": 0.1,
        "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "encoder_layerdrop": 0,
        "encoder_layers": 12,
        "eos_token_id": 2,
        "init_std": 0.02,
        "is_encoder_decoder": True,
        "max_length": 200,
        "max_position_embeddings": 1024,
        "model_type": "m2m_100",
        "num_hidden_layers": 12,
        "pad_token_id": 1,
        "scale_embedding": True,
        "tokenizer_class": "NllbTokenizer",
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 256206,
    },
    short_config=BOTH_SIDES,
    files={
        GENERATION: {
            "_from_model_config": True,
            "bos_token_id": 0,
            "decoder_start_token_id": 2,
            "eos_token_id": 2,
            "max_length": 200,
            "pad_token_id": 1,
        }
    },
    limits=Limits(memory=6, seconds=180),
)

LANGUAGES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml "
    "cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am "
    "yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su"
)
SUPPRESSED = [
    *(1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93, 359, 503, 522, 542, 873),
    *(
        893,
        902,
        918,
        922,
        931,
        1350,
        1853,
        1982,
        2460,
        2627,
        3246,
        3253,
        3268,
        3536,
        3846,
        3961,
        4183,
        4667,
        6585,
        6647,
    ),
    *(7273, 9061, 9383, 10428, 10929, 11938, 12033, 12331, 12562, 13793, 14157, 14635, 15265, 15618, 16553, 16604),
    *(18362, 18956, 20075, 21675, 22520, 26130, 26161, 26435, 28279, 29464, 31650, 32302, 32470, 36865, 42863, 47425),
    *(49870, 50254, 50258, 50358, 50359, 50360, 50361, 50362),
]


def speech_tokens(end: int, languages: int, suppressed: list[int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the special tokens of a Whisper in `config.json` and in `generation_config.json`.

    `end` is the end of a text. The start token, the languages and the tasks follow it in the vocabulary.
    """
    task = end + 2 + languages  # translate; then transcribe, solm, prev, no speech, no timestamps
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": end + 1}
    ids |= {"begin_suppress_tokens": [220, end], "suppress_tokens": suppressed}
    forced = [[1, end + 2], [2, task + 1], [3, task + 5]]
    generation = {
        **ids,
        "forced_decoder_ids": [[1, None], [2, task + 1]],
        "is_multilingual": True,
        "lang_to_id": {f"<|{name}|>": end + 2 + number for number, name in enumerate(LANGUAGES.split()[:languages])},
        "max_initial_timestamp_index": 1,
        "max_length": 448,
        "no_timestamps_token_id": task + 5,
        "prev_sot_token_id": task + 3,
        "return_timestamps": False,
        "task_to_id": {"transcribe": task + 1, "translate": task},
    }
    return ids | {"forced_decoder_ids": forced}, generation


def whisper(name: str, width: int, heads: int, layers: int, limits: Limits) -> Shape:
    """Return a multilingual Whisper of the first and second generation."""
    tokens, generation = speech_tokens(50257, len(LANGUAGES.split()), SUPPRESSED)
    short_tokens, short_generation = speech_tokens(400, 2, SUPPRESSED[:20])
    config = {
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "architectures": ["WhisperForConditionalGeneration"],
        "attention_dropout": 0.0,
        "d_model": width,
        "decoder_attention_heads": heads,
        "decoder_ffn_dim": 4 * width,
        "decoder_layerdrop": 0.0,
        "decoder_layers": layers,
        "dropout": 0.0,
        "encoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * width,
        "encoder_layerdrop": 0.0,
        "encoder_layers": layers,
        "init_std": 0.02,
        "is_encoder_decoder": True,
        "max_length": 448,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "model_type": "whisper",
        "num_hidden_layers": layers,
        "num_mel_bins": 80,
        "scale_embedding": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 51865,
    }
    return Shape(
        name,
        config | tokens,
        short_config=BOTH_SIDES | short_tokens,
        files={GENERATION: generation, PREPROCESSOR: AUDIO},
        short_files={GENERATION: short_generation},
        limits=limits,
    )


AUDIO = {
    "chunk_length": 30,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 80,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "processor_class": "WhisperProcessor",
    "return_attention_mask": False,
    "sampling_rate": 16000,
}
WHISPER_SMALL = whisper("whisper-small", width=768, heads=12, layers=12, limits=Limits(memory=6, seconds=120))
WHISPER_MEDIUM = whisper("whisper-medium", width=1024, heads=16, layers=24, limits=Limits(memory=12, seconds=300))


def marian_tokens(pad: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the special tokens of an OPUS-MT in `config.json` and in `generation_config.json`; `pad` is the last."""
    search = {"bad_words_ids": [[pad]], "forced_eos_token_id": 0, "max_length": 512, "num_beams": 6}
    ids = {"bos_token_id": 0, "decoder_start_token_id": pad, "eos_token_id": 0, "pad_token_id": pad}
    return ids | search | {"decoder_vocab_size": pad + 1, "vocab_size": pad + 1}, ids | search


OPUS_TOKENS, OPUS_GENERATION = marian_tokens(58100)
SHORT_OPUS_TOKENS, SHORT_OPUS_GENERATION = marian_tokens(VOCABULARY - 1)
OPUS_MT = Shape(
    "opus-mt",
    {
        "activation_dropout": 0.0,
        "activation_function": "swish",
        "add_bias_logits": False,
        "add_final_layer_norm": False,
        "architectures": ["MarianMTModel"],
        "attention_dropout": 0.0,
        "d_model": 512,
        "decoder_attention_heads": 8,
        "decoder_ffn_dim": 2048,
        "decoder_layerdrop": 0.0,
        "decoder_layers": 6,
        "dropout": 0.1,
        "encoder_attention_heads": 8,
        "encoder_ffn_dim": 2048,
        "encoder_layerdrop": 0.0,
        "encoder_layers": 6,
        "init_std": 0.02,
        "is_encoder_decoder": True,
        "max_position_embeddings": 512,
        "model_type": "marian",
        "normalize_before": False,
        "normalize_embedding": False,
        "num_hidden_layers": 6,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "static_position_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        **OPUS_TOKENS,
    },
    short_config=BOTH_SIDES | SHORT_OPUS_TOKENS,
    files={GENERATION: OPUS_GENERATION},
    short_files={GENERATION: SHORT_OPUS_GENERATION},
)

FLAN_T5 = Shape(
    "flan-t5-base",
    {
        "architectures": ["T5ForConditionalGeneration"],
        "d_ff": 2048,
        "d_kv": 64,
        "d_model": 768,
        "decoder_start_token_id": 0,
        "dropout_rate": 0.1,
        "eos_token_id": 1,
        "feed_forward_proj": "gated-gelu",
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-06,
        "model_type": "t5",
        "n_positions": 512,
        "num_decoder_layers": 12,
        "num_heads": 12,
        "num_layers": 12,
        "output_past": True,
        "pad_token_id": 0,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 32128,
    },
    short_config={
        "vocab_size": VOCABULARY,
        "d_ff": INNER,
        "d_model": 128,
        "num_layers": 2,
        "num_decoder_layers": 2,
    },
    files={
        GENERATION: {"_from_model_config": True, "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
    },
)

BERT_BASE = Shape(
    "bert-base",
    {
        "architectures": ["BertForMaskedLM"],
        "attention_probs_dropout_prob": 0.1,
        "gradient_checkpointing": False,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "model_type": "bert",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
        "type_vocab_size": 2,
        "use_cache": True,
        "vocab_size": 30522,
    },
    short_config=STACK,
)

SHAPES = {
    shape.name: shape
    for shape in (
        *(SMOLLM2, GEMMA3, QWEN2_5, LLAMA3_2, BGE_M3, BART_LARGE, NLLB),
        *(WHISPER_SMALL, WHISPER_MEDIUM, OPUS_MT, FLAN_T5, BERT_BASE),
    )
}
