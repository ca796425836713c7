"""The vectors that sentence-transformers makes of its own small folders: `tests/recorded/sentences`.

`PYTHONPATH=. PYTHON -m tests.hugging_face.test_sentences`, where sentence-transformers is installed, writes them anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.recorded import EXPECTED, SENTENCES
from tests.recorded.sentences import CUT, PRECISIONS, TEXTS, WORDS

sentence_transformers = pytest.importorskip("sentence_transformers")
modules_of = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64}
BERT = {**SIZES, "num_hidden_layers": 2, "num_attention_heads": 4}
GEMMA = {
    **(SIZES | {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16}),
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "use_bidirectional_attention": True,
    "query_pre_attn_scalar": 8,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
QWEN = {
    **(SIZES | {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}),
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 0,
}
T5 = {"vocab_size": 96, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4, "num_layers": 2, "pad_token_id": 0}
KINDS: dict[str, tuple[str, dict[str, Any], list[str], str, dict[str, str]]] = {
    "bert": ("Bert", BERT, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], "[CLS] $A [SEP]", {}),
    "gemma": ("Gemma3Text", GEMMA, ["<pad>", "<eos>", "<bos>", "[UNK]"], "<bos> $A <eos>", {}),
    "t5": ("T5Encoder", T5, ["<pad>", "</s>", "[UNK]"], "$A </s>", {}),
    "qwen": ("Qwen3", QWEN, ["<end>", "<im_end>", "[UNK]"], "$A <end>", {"padding_side": "left"}),
}
NAMED = {
    "bert": {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"},
    "gemma": {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"},
    "t5": {"pad_token": "<pad>", "eos_token": "</s>"},
    "qwen": {"pad_token": "<end>", "eos_token": "<im_end>"},
}
PROMPTS = {"query": "w1 w2 w3 ", "document": "w4 "}
FOLDERS: dict[str, tuple[str, str, list[Any], dict[str, str]]] = {  # name -> transformer, pooling, modules, prompts
    "tanh": ("bert", "mean", [("Dense", 32, 16, True, "Tanh")], {}),
    "several": (
        "bert",
        "cls",
        [("Dense", 32, 24, True, "GELU"), ("LayerNorm", 24), ("Dense", 24, 12, False, "ReLU"), ("Normalize",)],
        {},
    ),
    "gemma": (
        "gemma",
        "mean",
        [("Dense", 32, 64, False, "Identity"), ("Dense", 64, 32, False, "Identity"), ("Normalize",)],
        PROMPTS,
    ),
    "t5": ("t5", "mean", [("Dense", 32, 24, False, "Identity"), ("Normalize",)], {}),
    "qwen": ("qwen", "lasttoken", [("Normalize",)], PROMPTS),
}


def transformer(kind: str, folder: Path) -> Any:
    """A Transformer with seeded weights that count, and its tokenizer of whole words."""
    family, sizes, special, around, options = KINDS[kind]
    tokenizer = Tokenizer(models.WordLevel({each: id_ for id_, each in enumerate([*special, *WORDS])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = [(each, special.index(each)) for each in around.split() if each != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=tokens)
    own = {**NAMED[kind], "unk_token": "[UNK]", "model_max_length": 64, **options}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **own).save_pretrained(folder)
    torch.manual_seed(7)
    build = getattr(transformers, f"{family}Model")
    build(build.config_class(**sizes, initializer_range=0.3)).save_pretrained(folder)
    return modules_of.Transformer(str(folder))


def module(kind: str, *sizes: Any) -> Any:
    if kind == "Dense":
        *sizes, bias, activation = sizes
        options = {"bias": bias, "activation_function": getattr(torch.nn, activation)()}
        made = modules_of.Dense(*sizes, **options)
    else:
        made = getattr(modules_of, kind)(*sizes)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def said(model: Any) -> dict[str, np.ndarray]:
    """Vectors with each prompt and none, cut and normalised ones, and those in few bits."""
    found = {"vectors": model.encode(TEXTS), "cut": model.encode(TEXTS, truncate_dim=CUT, normalize_embeddings=True)}
    found |= {f"prompt.{name}": model.encode(TEXTS, prompt_name=name) for name in model.prompts if model.prompts[name]}
    for precision in PRECISIONS:
        found[precision] = sentence_transformers.quantize_embeddings(found["vectors"], precision)
    return found


def record(name: str) -> None:
    kind, mode, modules, prompts = FOLDERS[name]
    folder = SENTENCES / name
    torch.manual_seed(11)
    first = transformer(kind, folder / "base")
    pooling = modules_of.Pooling(32, pooling_mode=mode)
    made = [first, pooling, *(module(*each) for each in modules)]
    model = sentence_transformers.SentenceTransformer(modules=made, prompts=prompts, device="cpu")
    model.save(str(folder))
    for path in [*(folder / "base").iterdir(), folder / "README.md"]:
        path.unlink()
    (folder / "base").rmdir()
    np.savez_compressed(folder / EXPECTED, **said(model))


@pytest.mark.parametrize("name", FOLDERS)
def test_what_our_vectors_are_held_to_is_what_sentence_transformers_says(name: str) -> None:
    found = said(sentence_transformers.SentenceTransformer(str(SENTENCES / name), device="cpu"))
    with np.load(SENTENCES / name / EXPECTED) as stored:
        assert set(stored) == set(found)
        for key in set(stored) - set(PRECISIONS):
            np.testing.assert_allclose(found[key], stored[key], rtol=0, atol=1e-5)
        for key in PRECISIONS:
            again = sentence_transformers.quantize_embeddings(stored["vectors"], key)
            np.testing.assert_array_equal(again, stored[key])


def test_a_dense_is_saved_with_the_class_of_its_activation() -> None:
    """As txport reads it."""
    values = json.loads((SENTENCES / "tanh" / "2_Dense" / "config.json").read_text())
    assert values["activation_function"] == "torch.nn.modules.activation.Tanh"


if __name__ == "__main__":
    for each in FOLDERS:
        record(each)
