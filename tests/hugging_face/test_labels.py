"""Scores of labels are those of transformers' pipeline, of the folder and of what a portable bundle says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline

from txport.api.encoding import scores
from txport.bundles.hugging_face import label_config
from txport.checkpoints.checkpoint import load_checkpoint
from txport.models.architectures.bert import hugging_face

WORDS = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"])}
TEXT = "a c f"
IDS = [2, 5, 7, 10, 3]
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40}


def tokenizer() -> Any:
    made = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))  # noqa: S106 - no password
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    around = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names, mask_token="[MASK]")  # noqa: S106 - no password


@pytest.mark.parametrize(
    ("problem", "count"),
    [
        *((problem, count) for problem in (None, "multi_label_classification", "regression") for count in (1, 2, 4)),
        *(("single_label_classification", count) for count in (2, 4)),  # transformers 5 refuses one label
    ],
    ids=str,
)
def test_scores_are_those_of_the_pipeline(problem: str | None, count: int, tmp_path: Path) -> None:
    torch.manual_seed(count)
    theirs = BertForSequenceClassification(
        BertConfig(vocab_size=len(WORDS), **SIZES, num_labels=count, problem_type=problem)
    ).eval()
    with torch.no_grad():
        theirs.classifier.weight.mul_(20)
        theirs.classifier.bias.normal_()
    theirs.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    ours = load_checkpoint(str(tmp_path))
    ids = torch.tensor([IDS])
    with torch.inference_mode():
        (logits,) = ours.model.infer(ids, torch.ones_like(ids).bool())
    assert ours.facts.function_to_apply is not None
    found = scores(logits[0].numpy(), ours.facts.function_to_apply)
    named = dict(zip(ours.facts.labels, found.tolist(), strict=True))
    assert pytest.approx(classified(theirs), abs=1e-5) == named
    described = {**hugging_face(ours.config), **label_config(ours.facts)}  # type: ignore[arg-type]
    theirs.config = AutoConfig.for_model(**described)
    assert pytest.approx(classified(theirs), abs=1e-5) == named


def classified(model: Any) -> dict[str, float]:
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer())
    return {each["label"]: each["score"] for each in classify(TEXT, top_k=None)}
