"""Portable bundles of every kind that other programs are to load: of families, of architectures, and with texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests import recorded
from tests.seeded import bundle_of, drawn, saved
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.models.names import TOKENIZER, WEIGHTS

# Each is written as another model of theirs, or has caches of another shape.
FAMILIES = (
    *("bert", "bert-tokens", "bert-labels", "bert-token-labels", "electra", "roberta", "sentences-mean"),
    *("bert-spans", "deberta-v2-labels", "deberta-v2-spans"),
    *("t5", "flan-t5", "marian", "bart", "bart-labels", "m2m_100", "whisper"),
    *("gpt2", "opt", "llama", "mistral-window", "qwen2-window", "qwen3", "smollm3", "gemma", "gemma2", "gemma3"),
)
DRAWN = {  # of which heads times their size are not the width, or not those of the first
    "transformer": 0,
    "additive": 0,
    "relative": 0,
    "annotated": 0,
    "llama": 2,
    "t5": 1,
}
WINDOWED = ("llama", 11)
TEXTED = {  # pipelines' models: name -> family, and the class of special tokens
    "translates": ("marian", (), ("</s>",)),
    "proceeds": ("gpt2", (), ()),
    "embeds": ("bert", ("[CLS]",), ("[SEP]",)),
    "fills": ("bert-tokens", ("[CLS]",), ("[SEP]",)),
    "classifies": ("bert-labels", ("[CLS]",), ("[SEP]",)),
    "tags": ("bert-token-labels", ("[CLS]",), ("[SEP]",)),
    "hears": ("whisper", (), ()),
}
SPECIAL = {
    "marian": {0: "<pad>", 2: "</s>"},
    "gpt2": {0: "<pad>", 2: "</s>"},
    "bert": {0: "[PAD]", 3: "[CLS]", 4: "[SEP]", 5: "[MASK]"},
}
SAID = {24: "<|endoftext|>", 25: "<|startoftranscript|>", 26: "<|en|>", 27: "<|de|>", 28: "<|fr|>"} | dict(
    enumerate(("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"), 29)
)


def made(folder: Path) -> dict[str, Bundle]:
    """All of them, in a folder."""
    found = {
        name: bundle_of(load_checkpoint(str(recorded.FAMILIES / name)), folder / name, "portable") for name in FAMILIES
    }
    for name, seed in (*DRAWN.items(), WINDOWED):
        key = f"{name} drawn {seed}"
        found[key] = bundle_of(saved(drawn(name, seed), folder / f"{key} checkpoint"), folder / key, "portable")
    return found


def texted(folder: Path) -> dict[str, Bundle]:
    """Those with a tokenizer, whose words are letters."""
    found = {}
    for name, (family, before, after) in TEXTED.items():
        source = Path(
            shutil.copytree(
                recorded.WHISPER if name == "hears" else recorded.FAMILIES / family, folder / f"{name} checkpoint"
            )
        )
        size = json.loads((source / "config.json").read_text())["vocab_size"]
        special = SAID if name == "hears" else SPECIAL[family.partition("-")[0]]
        words = {f"w{number}" if number >= 7 else "abcdefg"[number]: number for number in range(size)}
        ids = {special.get(number, word): number for word, number in words.items()}
        if name == "hears":
            ids = heard(ids)
            silence_times(source / WEIGHTS)
        (source / TOKENIZER).write_text(tokenizer(ids, special.values(), before, after))
        found[name] = bundle_of(load_checkpoint(str(source)), folder / name, "portable")
    return found


def silence_times(path: Path) -> None:
    """A model that tells no times unasked, which each program takes in a way of its own."""
    tensors = load_file(path)
    tensors["model.decoder.embed_tokens.weight"][35:] = 0
    save_file(tensors, path)


def heard(ids: Mapping[str, int]) -> dict[str, int]:
    """With the marks of special tokens, and times."""
    marked = {f"<|{word}|>" if 29 <= number <= 34 else word: number for word, number in ids.items()}
    return {f"<|{0.02 * (number - 35):.2f}|>" if number >= 35 else word: number for word, number in marked.items()}


def tokenizer(ids: Mapping[str, int], special: Any, before: Sequence[str], after: Sequence[str]) -> str:
    """A `tokenizer.json` of words apart by spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    marked = {word for word in ids if word.startswith("<|")}
    unknown = next(word for word, number in ids.items() if number == 1)
    found = Tokenizer(models.WordLevel(dict(ids), unk_token=unknown))
    found.add_special_tokens(sorted(word for word in ids if word in {*special, *marked}))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if before or after:
        around = [(token, ids[token]) for token in (*before, *after)]
        found.post_processor = processors.TemplateProcessing(
            single=" ".join((*before, "$A", *after)), special_tokens=around
        )
    return str(found.to_str())
