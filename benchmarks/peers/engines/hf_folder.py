"""Folders as transformers saves them, with random weights of a fixed seed, for the converters of both sides.

This is not an engine: it has only `prepare`. A folder has the sizes of a published model, and a tokenizer whose tokens
are their ids, since CTranslate2's converter reads the vocabulary from a tokenizer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.engines import Model

FOLDER, SMALL = "folder:", "-toy"  # prefix of a folder's name, and suffix of its small version
NOISE = 0.1  # added to biases and norms, so that a converter that omits one is noticed
LARGE = 6.0  # an encoder's factor of every 48th number after norms and inside feed-forwards: trained ones have such
EVERY = 48
WORDS = {50257: "<|endoftext|>", 50258: "<|startoftranscript|>", 50362: "<|nospeech|>", 50363: "<|notimestamps|>"}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A class of transformers, its config, the values of the small version, and of `generation_config.json`.

    `words` are the tokens whose text is not their id; `unknown` is the id of the unknown token. `has_large`: some
    of its activations are much larger than the others, as in trained models, whose forms in few bits take longer.
    """

    architecture: str
    config: dict[str, Any]
    small: dict[str, Any]
    has_large: bool = False
    generation: dict[str, Any] = field(default_factory=dict)
    words: dict[int, str] = field(default_factory=dict)
    unknown: int


def encoder_decoder(d_model: int, layers: int, heads: int, feed_forward: int) -> dict[str, Any]:
    """Return the sizes of encoder and decoder; the deviation of random weights preserves the scale of activations."""
    sizes = {"layers": layers, "attention_heads": heads, "ffn_dim": feed_forward}
    both = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}
    return {"d_model": d_model, "init_std": d_model**-0.5, **both}


def encoder(d_model: int, layers: int, heads: int) -> dict[str, Any]:
    """Return the sizes of a BERT."""
    sizes = {"hidden_size": d_model, "num_hidden_layers": layers, "num_attention_heads": heads}
    special = {"cls_token_id": 101, "sep_token_id": 102, "mask_token_id": 103}
    return {**sizes, **special, "intermediate_size": 4 * d_model, "initializer_range": d_model**-0.5}


def llama(d_model: int, layers: int, heads: int, groups: int, feed_forward: int) -> Recipe:
    """Return a Llama with the vocabulary of SmolLM2, which is the projection, too."""
    config = {
        "vocab_size": 49152,
        "hidden_size": d_model,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "initializer_range": d_model**-0.5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    small = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 128**-0.5,
    }
    return Recipe(architecture="LlamaForCausalLM", config=config, small=small, unknown=0)


SMALL_BERT = encoder(64, 2, 4)
RECIPES = {
    "smollm2-135m": llama(576, 30, 9, 3, 1536),
    "llama-402m": llama(896, 24, 14, 2, 4864),
    "minilm-l6": Recipe(
        architecture="BertModel",
        config={**encoder(384, 6, 12), "vocab_size": 30522},
        small=SMALL_BERT,
        has_large=True,
        unknown=100,
    ),
    "bert-base": Recipe(
        architecture="BertModel",
        config={**encoder(768, 12, 12), "vocab_size": 30522},
        small=SMALL_BERT,
        has_large=True,
        unknown=100,
    ),
    "modernbert-base": Recipe(
        architecture="ModernBertModel",
        config={**encoder(768, 22, 12), "intermediate_size": 1152, "vocab_size": 50368},
        small=SMALL_BERT,
        has_large=True,
        unknown=100,
    ),
    "cross-encoder-l6": Recipe(
        architecture="BertForSequenceClassification",
        config={**encoder(384, 6, 12), "vocab_size": 30522, "num_labels": 3},
        small=SMALL_BERT,
        has_large=True,
        unknown=100,
    ),
    "pythia-160m": Recipe(
        architecture="GPTNeoXForCausalLM",
        config={
            "vocab_size": 50304,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 2048,
            "initializer_range": 768**-0.5,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        small={"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2},
        unknown=1,
    ),
    "marian-base": Recipe(
        architecture="MarianMTModel",
        config={
            **encoder_decoder(512, 6, 8, 2048),
            "vocab_size": 58101,
            "max_position_embeddings": 512,
            "activation_function": "swish",
            "scale_embedding": True,
            "pad_token_id": 58100,
            "decoder_start_token_id": 58100,
            "eos_token_id": 0,
            "forced_eos_token_id": None,
        },
        small=encoder_decoder(64, 2, 4, 96),
        generation={"bad_words_ids": [[58100]]},
        words={58100: "<pad>"},  # CTranslate2's converter removes it
        unknown=1,
    ),
    "nllb-600m": Recipe(
        architecture="M2M100ForConditionalGeneration",
        config={
            **encoder_decoder(1024, 12, 16, 4096),
            "vocab_size": 256206,
            "max_position_embeddings": 1024,
            "activation_function": "relu",
            "scale_embedding": True,
            "bos_token_id": 0,
            "pad_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
        },
        small=encoder_decoder(64, 2, 4, 96) | {"vocab_size": 512},
        unknown=3,
    ),
    "t5-small": Recipe(
        architecture="T5ForConditionalGeneration",
        config={"vocab_size": 32128, "d_model": 512, "d_ff": 2048, "num_layers": 6, "decoder_start_token_id": 0},
        small={"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4},
        unknown=2,
    ),
    "gpt2": Recipe(
        architecture="GPT2LMHeadModel",
        config={"initializer_range": 768**-0.5},
        small={"n_embd": 64, "n_layer": 2, "n_head": 4, "initializer_range": 0.125},
        unknown=50256,
    ),
    "whisper-tiny": Recipe(
        architecture="WhisperForConditionalGeneration",
        config={
            **encoder_decoder(384, 4, 6, 1536),
            "bos_token_id": 50257,
            "pad_token_id": 50257,
            "eos_token_id": 50257,
            "decoder_start_token_id": 50258,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        small=encoder_decoder(64, 2, 4, 256),
        generation={
            "is_multilingual": True,
            "lang_to_id": {"<|en|>": 50259},
            "task_to_id": {"translate": 50358, "transcribe": 50359},
            "language": "<|en|>",
            "task": "transcribe",
            "no_timestamps_token_id": 50363,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        words=WORDS,
        unknown=50257,
    ),
}


def prepare(model: Model, folder: Path) -> None:
    """Write a folder of transformers."""
    name = model.checkpoint.removeprefix(FOLDER)
    recipe = RECIPES[name.removesuffix(SMALL)]
    made = random_model(recipe, {**recipe.config, **(recipe.small if name.endswith(SMALL) else {})})
    for key, value in recipe.generation.items():  # `update` rejects keys that only some models have
        setattr(made.generation_config, key, value)
    made.save_pretrained(folder)
    tokenizer(recipe, made.config).save_pretrained(folder)


def random_model(recipe: Recipe, config: dict[str, Any]) -> Any:
    """Return a model with random weights as transformers initialises them, and noise on biases and norms."""
    import torch
    import transformers

    kind = getattr(transformers, recipe.architecture)
    torch.manual_seed(0)
    model = kind(kind.config_class(**config))
    with torch.no_grad():
        for values in (*model.parameters(), getattr(model, "final_logits_bias", torch.zeros(1))):
            if values.dim() == 1 or values.shape[0] == 1:
                values += NOISE * torch.randn_like(values)
        for name, values in model.named_parameters() if recipe.has_large else ():
            is_gain = values.dim() == 1 and re.search(r"norm\.weight$", name, re.IGNORECASE)
            if is_gain or re.search(r"(intermediate\.dense|Wi)\.weight$", name):
                values[::EVERY] *= LARGE
    return model


def tokenizer(recipe: Recipe, config: Any) -> Any:
    """Return a tokenizer whose tokens are their ids, separated by spaces."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = [recipe.words.get(id_, str(id_)) for id_ in range(config.vocab_size)]
    plain = Tokenizer(WordLevel({word: id_ for id_, word in enumerate(words)}, unk_token=words[recipe.unknown]))
    plain.pre_tokenizer = WhitespaceSplit()
    ends = {"unk_token": recipe.unknown, "bos_token": config.bos_token_id, "eos_token": config.eos_token_id}
    ends |= {"pad_token": config.pad_token_id}
    special = {name: words[id_] for name, id_ in ends.items() if id_ is not None}
    return PreTrainedTokenizerFast(tokenizer_object=plain, **special)
