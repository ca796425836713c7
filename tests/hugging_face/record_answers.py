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
STACKS: dict[str, Any] = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 16}.items()
}
BOTH: dict[str, Any] = {"d_model": 16, "init_std": 0.6, "max_position_embeddings": 64, "num_labels": 2, **STACKS}
T5 = {"decoder_start_token_id": 0, "n_positions": 64}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # tokenizer -> kind of model, and its config
    "bert": ("Bert", {"max_position_embeddings": 64}),
    "roberta": ("Roberta", {**POSITIONS, "type_vocab_size": 1}),
    "deberta-v2": ("DebertaV2", {"relative_attention": True, "pos_att_type": "c2p|p2c", "max_position_embeddings": 64}),
    "qwen2": ("Qwen2", {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 64}),
    "llama": ("Llama", {"max_position_embeddings": 64}),
    "t5": ("T5", {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, **T5}),
    "bart": ("Bart", BOTH),
    "mbart50": ("MBart", {**BOTH, "bos_token_id": 0}),
}
FOLDERS = {"bart": "roberta"}  # model -> tokenizer, if it has another name
ALONE = ("llama",)  # tokenizers without rules for words: as many spans are tried as where spans become words
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
    source = TOKENIZERS / FOLDERS.get(name, name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, model_max_length=64, padding_side="right")
    ids = {each: getattr(tokenizer, each) for each in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id")}
    torch.manual_seed(4)
    sizes = {**({} if "d_model" in more else SIZES), **more, "vocab_size": len(tokenizer)}
    sizes |= {"sep_token_id": tokenizer.sep_token_id}
    config = getattr(transformers, f"{kind}Config")(**ids | sizes)
    model = getattr(transformers, f"{kind}ForQuestionAnswering")(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    answer = transformers.pipeline("question-answering", model=model, tokenizer=tokenizer)
    found = []
    for question, context in asked():
        for options in OPTIONS:
            count = options.get("top_k", 1)
            tried = {"align_to_words": False, "top_k": 2 * count + 10} if name in ALONE else {}
            answers = answer(question=question, context=context, **options | tried)
            listed = answers[:count] if isinstance(answers, list) else [answers]
            found.append({"question": question, "context": context, "options": options, "answers": listed})
    text = json.dumps(found, ensure_ascii=False, indent=1)
    (folder / EXPECTED_ANSWERS).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in sys.argv[1:] or MODELS:
        record(each)
