"""Writes `ctranslate2_models`: small seeded models as CTranslate2's own converters write them, and what it finds.

Run where ctranslate2 and transformers are: `python -m tests.checkpoints.sources.record_ctranslate2 [NAME ...]`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
import transformers
from ctranslate2.converters import MarianConverter, TransformersConverter
from ctranslate2.specs import transformer_spec
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.checkpoints.sources import marian
from tests.checkpoints.sources.ctranslate2_files import OLD_HEADS, older
from tests.checkpoints.sources.plain import tensor2tensor
from tests.checkpoints.sources.record_ctranslate2_inputs import FEATURES, HEARD, PROMPTS, SOURCES, features
from tests.recorded import CTRANSLATE2

EXPECTED = "expected.npz"
SIZE = 28
WORDS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *(f"w{number}" for number in range(5, SIZE))]
STEPS = 8

transformers.logging.set_verbosity_error()
COMMON = {"vocab_size": SIZE, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SEQ2SEQ = {
    **COMMON,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
LLAMA = {
    **COMMON,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
T5 = {
    **COMMON,
    "d_model": 16,
    "d_kv": 12,
    "d_ff": 24,
    "num_heads": 2,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 1,
}
QUERIES = {**LLAMA, "num_attention_heads": 4, "num_key_value_heads": 2}
BERT = {**LLAMA, "num_hidden_layers": 1}


def norms(before: bool, embedding: bool) -> dict[str, Any]:
    """What old configs of BART's kin say, which CTranslate2 asks for."""
    return {"normalize_before": before, "normalize_embedding": embedding}


T = transformers
HF: dict[str, Callable[[], Any]] = {
    "bart": lambda: T.BartForConditionalGeneration(T.BartConfig(**SEQ2SEQ, scale_embedding=True, **norms(False, True))),
    "pegasus": lambda: T.PegasusForConditionalGeneration(
        T.PegasusConfig(**SEQ2SEQ, activation_function="gelu_new", **norms(True, False))
    ),
    "gpt2": lambda: T.GPT2LMHeadModel(T.GPT2Config(**COMMON, n_embd=16, n_layer=2, n_head=2, n_positions=32)),
    "opt": lambda: T.OPTForCausalLM(T.OPTConfig(**{**LLAMA, "vocab_size": 32}, ffn_dim=24, word_embed_proj_dim=16)),
    "opt-350m": lambda: T.OPTForCausalLM(
        T.OPTConfig(**{**LLAMA, "vocab_size": 32}, ffn_dim=24, word_embed_proj_dim=8, do_layer_norm_before=False)
    ),
    "opt-narrow": lambda: T.OPTForCausalLM(
        T.OPTConfig(**{**LLAMA, "vocab_size": 32}, ffn_dim=24, word_embed_proj_dim=8)
    ),
    "t5": lambda: T.T5ForConditionalGeneration(T.T5Config(**T5, feed_forward_proj="relu")),
    "t5-gated": lambda: T.MT5ForConditionalGeneration(
        T.MT5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    ),
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**LLAMA)),
    "llama-linear": lambda: T.LlamaForCausalLM(
        T.LlamaConfig(**QUERIES, rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_theta=5000.0)
    ),
    "mistral": lambda: T.MistralForCausalLM(T.MistralConfig(**QUERIES, sliding_window=20)),
    "qwen2": lambda: T.Qwen2ForCausalLM(T.Qwen2Config(**QUERIES, tie_word_embeddings=True)),
    "qwen3": lambda: T.Qwen3ForCausalLM(T.Qwen3Config(**QUERIES, head_dim=8)),
    "gemma": lambda: T.GemmaForCausalLM(T.GemmaConfig(**QUERIES, head_dim=8, hidden_activation="gelu_pytorch_tanh")),
    "bert": lambda: T.BertModel(T.BertConfig(**BERT)),
    "distilbert": lambda: T.DistilBertModel(
        T.DistilBertConfig(
            vocab_size=SIZE, dim=16, hidden_dim=24, n_layers=1, n_heads=2, pad_token_id=1, max_position_embeddings=32
        )
    ),
    "roberta": lambda: T.RobertaModel(T.RobertaConfig(**BERT)),
}
QUANTIZED = {"bart": ("int8", "bfloat16"), "llama": ("int8_float16", "int16", "float16")}


def seeded(make: Callable[[], Any]) -> Any:
    """Biases and norms count too."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
            parameter.copy_(parameter.half().float())
    return model


def tokenizer_into(folder: Path) -> None:
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[3]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)
    whole.save_pretrained(folder)


def record(folder: Path) -> None:
    """What CTranslate2 finds, in fp32."""
    found: dict[str, Any] = {}
    if any(folder.glob("*target_vocabulary.json")) or (folder / "shared_vocabulary.json").is_file():
        found = translated(folder)
    elif (folder.name.split("-")[0]) in ("bert", "distilbert", "roberta"):
        encoder = ctranslate2.Encoder(str(folder), compute_type="float32")
        for number, prompt in enumerate(PROMPTS):
            output = encoder.forward_batch([prompt])
            found[f"last_hidden_state.{number}"] = np.array(output.last_hidden_state)[0]
            if output.pooler_output is not None:
                found[f"pooler_output.{number}"] = np.array(output.pooler_output)[0]
    else:
        generator = ctranslate2.Generator(str(folder), compute_type="float32")
        for number, prompt in enumerate(PROMPTS):
            found[f"logits.{number}"] = np.array(generator.forward_batch([prompt]))[0]
            words = [[WORDS[token] for token in prompt]]
            how = {"max_length": STEPS, "include_prompt_in_result": False, "min_length": 0}
            found[f"tokens.{number}"] = np.array(generator.generate_batch(words, **how)[0].sequences_ids[0])
    np.savez(folder / EXPECTED, **found)


def translated(folder: Path) -> dict[str, Any]:
    translator = ctranslate2.Translator(str(folder), compute_type="float32")
    shared = folder / "shared_vocabulary.json"
    files = (
        (shared, shared)
        if shared.is_file()
        else tuple(folder / f"{side}_vocabulary.json" for side in ("source", "target"))
    )
    words, targets = ([*json.loads(file.read_text())] for file in files)
    found: dict[str, Any] = {}
    for number, source in enumerate(SOURCES):
        text = [[words[token] for token in source]]
        how = {"max_decoding_length": STEPS, "min_decoding_length": 0}
        result = translator.translate_batch(text, beam_size=1, return_logits_vocab=True, return_end_token=True, **how)[
            0
        ]
        found[f"tokens.{number}"] = np.array([targets.index(token) for token in result.hypotheses[0]])
        found[f"logits.{number}"] = np.array([np.array(each) for each in result.logits[0]]).reshape(
            len(result.logits[0]), -1
        )
        beams = translator.translate_batch(text, beam_size=3, **how)[0]
        found[f"beams.{number}"] = np.array([targets.index(token) for token in beams.hypotheses[0]])
    return found


def relu_variant() -> Any:
    """A model that no converter makes: sinusoids of CTranslate2's own, no biases in attention, no final norms."""
    rng = np.random.default_rng(5)
    spec = transformer_spec.TransformerSpec.from_config((2, 1), 2, pre_norm=True, no_final_norm=True)

    def weights(*shape: int) -> Any:
        return (rng.integers(-64, 65, shape) / 128).astype(np.float32)

    def linear(at: Any, outputs: int, inputs: int, bias: bool) -> None:
        at.weight = weights(outputs, inputs)
        if bias:
            at.bias = weights(outputs)

    def norm(at: Any) -> None:
        at.gamma = 1 + weights(16)
        at.beta = weights(16)

    spec.encoder.embeddings[0].weight = weights(SIZE, 16)
    spec.decoder.embeddings.weight = weights(SIZE - 2, 16)
    linear(spec.decoder.projection, SIZE - 2, 16, True)
    for layer in (*spec.encoder.layer, *spec.decoder.layer):
        for attention in (layer.self_attention, getattr(layer, "attention", None)):
            if attention is not None:
                norm(attention.layer_norm)
                sizes = (48, 16) if len(attention.linear) == 2 else (16, 32, 16)
                for at, size in zip(attention.linear, sizes, strict=True):
                    linear(at, size, 16, False)
        norm(layer.ffn.layer_norm)
        linear(layer.ffn.linear_0, 24, 16, True)
        linear(layer.ffn.linear_1, 16, 24, True)
    spec.register_source_vocabulary(WORDS)
    spec.register_target_vocabulary(WORDS[:-2])
    spec.config.add_source_bos = True
    return spec


SPOKEN = ["endoftext", "startoftranscript", "en", "de", "translate", "transcribe"]
SPOKEN += ["startoflm", "startofprev", "nospeech", "notimestamps"]


def whisper(place: Path) -> None:
    """A Whisper whose vocabulary tells what its tokens say of speech."""
    words = [*(f"w{number}" for number in range(20)), *(f"<|{each}|>" for each in SPOKEN)]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    tokenizer = T.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=words[20], unk_token=words[0])
    sizes = {name: value for name, value in SEQ2SEQ.items() if name.split("_")[0] in ("d", "encoder", "decoder")}
    ids = {"decoder_start_token_id": 21, "pad_token_id": 20, "bos_token_id": 20, "eos_token_id": 20}
    more = {"num_mel_bins": FEATURES[0], "max_source_positions": FEATURES[1] // 2, "max_target_positions": 16}
    config = T.WhisperConfig(**{**sizes, **ids, **more}, vocab_size=40)
    model = seeded(lambda: T.WhisperForConditionalGeneration(config))
    model.generation_config.update(suppress_tokens=[3, 4], begin_suppress_tokens=[5, 20])
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    TransformersConverter(str(place)).convert(str(CTRANSLATE2 / "whisper"), force=True)
    heard = ctranslate2.models.Whisper(str(CTRANSLATE2 / "whisper"), compute_type="float32")
    found = {}
    how = {"beam_size": 1, "max_length": 12, "suppress_tokens": [], "suppress_blank": False}
    for number, prompt in enumerate(HEARD):
        given = ctranslate2.StorageView.from_array(features(number))
        result = heard.generate(given, [prompt], return_logits_vocab=True, **how)[0]
        found[f"tokens.{number}"] = np.array(result.sequences_ids[0])
        found[f"logits.{number}"] = np.array([np.array(each) for each in result.logits[0]]).reshape(-1, 40)
    np.savez(CTRANSLATE2 / "whisper" / EXPECTED, **found)


def main(names: list[str]) -> None:
    """Record all, or only those of transformers' models that are named."""
    if not names:
        shutil.rmtree(CTRANSLATE2, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        for name, make in ((name, make) for name, make in HF.items() if name in (names or HF)):
            folder = Path(place) / name
            seeded(make).save_pretrained(folder)
            tokenizer_into(folder)
            converter = TransformersConverter(str(folder))
            for kind in (None, *QUANTIZED.get(name, ())):
                out = CTRANSLATE2 / (f"{name}-{kind}" if kind else name)
                converter.convert(str(out), quantization=kind, force=True)
                record(out)
        if "whisper" in (names or ["whisper"]):
            whisper(Path(place) / "whisper")
        if names:
            return
        options = marian.PLAIN | marian.ALL | {"transformer-postprocess-emb": "nd"}
        options["dim-vocabs"] = [SIZE, SIZE]
        positions = {"Wpos": tensor2tensor(40, 16).float().numpy()}  # those that CT2's converter makes are not Marian's
        marian.save(Path(place) / "marian", options, marian.weights_of(options) | positions)
        vocabulary = Path(place) / "vocab.yml"
        rows = ["</s>", "<unk>", *(f"w{number}" for number in range(2, SIZE))]
        vocabulary.write_text("".join(f"{word}: {number}\n" for number, word in enumerate(rows)))
        MarianConverter(str(Path(place) / "marian" / "model.npz"), [str(vocabulary)] * 2).convert(
            str(CTRANSLATE2 / "marian")
        )
        record(CTRANSLATE2 / "marian")
    spec = relu_variant()
    spec.validate()
    spec.optimize()
    (CTRANSLATE2 / "own").mkdir()
    spec.save(str(CTRANSLATE2 / "own"))
    record(CTRANSLATE2 / "own")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(shutil.copytree(CTRANSLATE2 / "own", Path(place) / "own"))
        older(folder, version=1, revision=1)
        record(folder)
        shutil.copy(folder / EXPECTED, CTRANSLATE2 / "own" / f"{OLD_HEADS}_heads.npz")


if __name__ == "__main__":
    main(sys.argv[1:])
