"""What the `question-answering` pipeline of transformers 4.57.6 answers, by small seeded models.

tests/recorded/answers has a folder of each model, and its answers. `python -m tests.hugging_face.record_answers`
records them anew; it needs this version of transformers, since later ones have no such pipeline.
"""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import torch
import transformers

from tests.recorded import ANSWERS, EXPECTED_ANSWERS, TOKENIZERS
from tests.text.corpus import SENTENCES

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "initializer_range": 0.6,
    "num_labels": 2,
}
POSITIONS = {"max_position_embeddings": 66}  # of which RoBERTa does not use two
MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # tokenizer -> kind of model, and its config
    "bert": ("Bert", {"max_position_embeddings": 64}),
    "roberta": ("Roberta", {**POSITIONS, "type_vocab_size": 1}),
    "deberta-v2": ("DebertaV2", {"relative_attention": True, "pos_att_type": "c2p|p2c", "max_position_embeddings": 64}),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 4},
    {"top_k": 3, "handle_impossible_answer": True},
    {"top_k": 2, "max_seq_len": 32, "doc_stride": 5, "max_answer_len": 4},
)


def asked() -> list[tuple[str, str]]:
    """Questions, and contexts of one window and of several."""
    lines = [line for line in SENTENCES if line.strip()]
    return [(lines[number][:20], " ".join(lines[3 * number : 3 * number + 1 + 2 * number])) for number in range(6)]


def record(name: str) -> None:
    kind, more = MODELS[name]
    folder = ANSWERS / name
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(TOKENIZERS / name, model_max_length=64)
    ids = {each: getattr(tokenizer, each) for each in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id")}
    torch.manual_seed(4)
    sizes = {**SIZES, **more, "vocab_size": len(tokenizer), "sep_token_id": tokenizer.sep_token_id}
    config = getattr(transformers, f"{kind}Config")(**sizes, **ids)
    model = getattr(transformers, f"{kind}ForQuestionAnswering")(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    answer = transformers.pipeline("question-answering", model=model, tokenizer=tokenizer)
    found = []
    for question, context in asked():
        for options in OPTIONS:
            answers = answer(question=question, context=context, **options)
            listed = answers if isinstance(answers, list) else [answers]
            found.append({"question": question, "context": context, "options": options, "answers": listed})
    text = json.dumps(found, ensure_ascii=False, indent=1)
    (folder / EXPECTED_ANSWERS).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in sys.argv[1:] or MODELS:
        record(each)
