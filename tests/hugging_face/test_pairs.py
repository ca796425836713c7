"""Scores of pairs of texts are transformers', also of pairs that are cut: each model with its own tokenizer's types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from txport.api.encoding import Encoder
from txport.bundles.comparisons import describe_original
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import ConfigError
from txport.proof.against.hold import compare_original
from txport.runtimes.pytorch import TorchRuntime
from txport.text.load import load_tokenizer

WORDS = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"])}
LONGEST = 16
PAIRS = [("a b", "c"), ("c", "a b"), ("a", "z"), ("a b c d e f g h", "h g f e d c b a"), ("a b c", "d " * 40)]
SIZES = {"vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 40, "num_labels": 1, "initializer_range": 0.5}
BART = {"vocab_size": len(WORDS), "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "num_labels": 1}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
BART |= {"pad_token_id": 0, "decoder_start_token_id": 3, "init_std": 0.5}
TYPED = "[CLS] $A [SEP] $B:1 [SEP]:1"
CLASSES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("Bert", TYPED, {}),
    "four types": ("Bert", TYPED, {"type_vocab_size": 4}),
    "electra": ("Electra", TYPED, {"embedding_size": 24}),
    "albert": ("Albert", TYPED, {"embedding_size": 24}),
    "bart": ("Bart", "[CLS] $A [SEP] [SEP] $B [SEP]", {}),
    "roberta": ("Roberta", "[CLS] $A [SEP] [SEP] $B [SEP]", {"pad_token_id": 0, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", "[CLS] $A [SEP] [SEP] $B [SEP]", {"pad_token_id": 0, "type_vocab_size": 1}),
}


def saved(name: str, folder: Path, **changed: Any) -> tuple[Any, Any]:
    """Save a seeded classifier with a tokenizer; return both."""
    kind, pair, more = CLASSES[name]
    torch.manual_seed(3)
    ids = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    values = {**(BART if kind == "Bart" else SIZES), **ids, "max_position_embeddings": LONGEST + 2, **more, **changed}
    config = getattr(transformers, f"{kind}Config")(**values)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    model.save_pretrained(folder)
    made = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))  # noqa: S106 - no password
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    around = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=around)
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if pair == TYPED else ["input_ids", "attention_mask"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **names, mask_token="[MASK]", model_input_names=inputs)  # noqa: S106
    tokenizer.save_pretrained(folder)
    return model, tokenizer


@pytest.mark.parametrize("name", CLASSES)
def test_scores_of_pairs_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model, tokenizer = saved(name, tmp_path)
    checkpoint = load_checkpoint(str(tmp_path))
    assert describe_original(compare_original(checkpoint, None)).startswith("equal to transformers")
    ours = Encoder(TorchRuntime(checkpoint.model), load_tokenizer(tmp_path, checkpoint.facts), checkpoint.facts)
    longest = ours.facts.vocabulary.longest
    found = [labels[0].score for labels in ours.classify(PAIRS, truncate=True)]
    for (text, other), score in zip(PAIRS, found, strict=True):
        given = tokenizer(text, other, truncation="longest_first", max_length=longest, return_tensors="pt")
        with torch.inference_mode():
            expected = torch.sigmoid(model(**given).logits)[0, 0]
        assert score == pytest.approx(float(expected), abs=1e-5)
    assert len({round(score, 4) for score in found}) == len(PAIRS)  # which text is which matters, and so does each one
    ranked = ours.rank("a b", ["c", "z", "h g f"])
    assert [each.score for each in ranked] == sorted((each.score for each in ranked), reverse=True)
    assert next(each.score for each in ranked if each.text == "c") == pytest.approx(found[0], abs=1e-6)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", ["bert", "bart"])
def test_zero_shot_labels_have_the_scores_of_the_pipeline_of_transformers(
    name: str, several: bool, tmp_path: Path
) -> None:
    named = {0: "contradiction", 1: "neutral", 2: "ENTAILMENT"}
    numbers = {label: number for number, label in named.items()}
    sizes = {"max_position_embeddings": 32, "num_labels": 3, "id2label": named, "label2id": numbers}
    model, tokenizer = saved(name, tmp_path, **sizes)
    checkpoint = load_checkpoint(str(tmp_path))
    ours = Encoder(TorchRuntime(checkpoint.model), load_tokenizer(tmp_path, checkpoint.facts), checkpoint.facts)
    pipeline = transformers.pipeline("zero-shot-classification", model=model, tokenizer=tokenizer)
    tokenizer.model_max_length = 32
    texts, labels = ["a b", "c d e f " * 20, "h"], ["a", "b c", "d"]
    for count in (3, 1):
        asked = {"hypothesis_template": "h {} g", "multi_label": several}
        expected = pipeline(texts, labels[:count], **asked)
        found = ours.classify(texts, labels=labels[:count], template="h {} g", multi_label=several)
        for one, other in zip(found, expected, strict=True):
            assert [each.label for each in one] == other["labels"]
            assert [each.score for each in one] == pytest.approx(other["scores"], abs=1e-5)


SETTINGS = {
    "config_sentence_transformers.json": {"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None},
    "sentence_bert_config.json": {
        "transformer_task": "sequence-classification",
        "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
        "module_output_name": "scores",
        "max_seq_length": 9,
    },
}
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
MODULE = "sentence_transformers.cross_encoder.modules"
FUNCTIONS = {"torch.nn.modules.linear.Identity": "none", "torch.nn.modules.activation.Sigmoid": "sigmoid"}


@pytest.mark.parametrize("named", FUNCTIONS)
def test_a_cross_encoder_of_sentence_transformers_6(named: str, tmp_path: Path) -> None:
    saved("bert", tmp_path)
    for name, values in SETTINGS.items():
        (tmp_path / name).write_text(json.dumps(values | ({"activation_fn": named} if "prompts" in values else {})))
    (tmp_path / "modules.json").write_text(json.dumps([TRANSFORMER]))
    facts = load_checkpoint(str(tmp_path)).facts
    assert (facts.function_to_apply, facts.vocabulary.longest) == (FUNCTIONS[named], 9)
    (tmp_path / "modules.json").write_text(json.dumps([TRANSFORMER, TRANSFORMER | {"path": "1_Dense"}]))
    with pytest.raises(ConfigError, match="a CrossEncoder of 'Transformer and Transformer' is not supported"):
        load_checkpoint(str(tmp_path))


def test_a_cross_encoder_of_a_causal_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    config = transformers.Qwen3Config(**SIZES, head_dim=16, num_key_value_heads=1, eos_token_id=3)
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    scored = {"idx": 1, "name": "1", "path": "1_LogitScore", "type": f"{MODULE}.logit_score.LogitScore"}
    task = {"transformer_task": "text-generation", "module_output_name": "causal_logits"}
    extra = {"modules.json": [TRANSFORMER, scored], "sentence_bert_config.json": task}
    for name, values in (SETTINGS | extra).items():
        (tmp_path / name).write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=r"LogitScore' is not supported; export a copy without modules\.json, sent"):
        load_checkpoint(str(tmp_path))
    for name in SETTINGS | extra:
        (tmp_path / name).unlink()
    assert load_checkpoint(str(tmp_path)).facts.is_causal


@pytest.mark.parametrize("name", ["sentence_transformers", "sbert_ce_default_activation_function"])
def test_another_function_of_scores_is_refused(name: str, tmp_path: Path) -> None:
    saved("bert", tmp_path)
    path = tmp_path / "config.json"
    function = "torch.nn.modules.activation.Tanh"
    value = {"activation_fn": function} if name == "sentence_transformers" else function
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(
        ConfigError, match=r"the activation 'torch\.nn\.modules\.activation\.Tanh' of a cross-encoder is not"
    ):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("named", "function"),
    [
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.1.0"}}, "none"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
    ],
)
def test_a_cross_encoder_names_the_function_of_its_scores(named: dict[str, Any], function: str, tmp_path: Path) -> None:
    kind, _, _ = CLASSES["bert"]
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**SIZES, cls_token_id=2, sep_token_id=3, **named)
    getattr(transformers, f"{kind}ForSequenceClassification")(config).save_pretrained(tmp_path)
    assert load_checkpoint(str(tmp_path)).facts.function_to_apply == function
