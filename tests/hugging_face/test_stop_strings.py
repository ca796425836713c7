"""A token completes a stop string where transformers says so, with every kind of tokenizer that folders have."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, StopStringCriteria

from txport.search.stops import Stops
from txport.text.file import FileTokenizer

IS_OLD = transformers.__version__.startswith("4.")  # it compares tokens that are parts of a character as if unknown
PLAIN = ["the cat sat on the mat.\nUser: stop it, please\n", "abcdef abc stopped; topper operas </s> ###\n\n"]
TEXTS = PLAIN if IS_OLD else [*PLAIN, "der Bär läuft über Öl 🙂🙃 日本語の文"]
SEQUENCES = 60


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS * 2, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet))
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2: the pieces of plain texts, and a token for each byte of others."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))  # noqa: S106
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    alone = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(PLAIN * 2, trainers.BpeTrainer(vocab_size=340, special_tokens=alone))
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    how = {"vocab_size": 90, "special_tokens": ["<unk>", "</s>"], "unk_token": "<unk>"}
    tokenizer.train_from_iterator(TEXTS * 2, trainers.UnigramTrainer(**how))
    return tokenizer


def word_pieces() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    how = {"vocab_size": 90, "special_tokens": ["[UNK]", "[SEP]"]}
    tokenizer.train_from_iterator(TEXTS * 2, trainers.WordPieceTrainer(**how))
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, byte_fallback, unigram, word_pieces])
def test_the_same_tokens_complete_stop_strings(make: Any) -> None:
    rng = random.Random(make.__name__)
    tokenizer = make()
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    ours = FileTokenizer(Path("tokenizer.json"), content=tokenizer.to_str())
    ids = range(tokenizer.get_vocab_size())
    completed = 0
    for number in range(SEQUENCES):
        text = rng.choice(TEXTS)
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        tokens = [rng.choice(ids) if rng.random() < 0.1 else token for token in tokens]
        begins = [rng.randrange(len(text)) for _ in range(rng.randint(1, 3))]
        strings = [text[begin : begin + rng.randint(1, 7)] for begin in begins]
        stops = Stops(strings, ours.spelling)
        try:
            criteria = StopStringCriteria(theirs, strings)
        except ValueError:  # no token of the vocabulary completes any of them
            criteria = None
        for size in range(1, len(tokens) + 1):
            expected = criteria is not None and criteria(torch.tensor([tokens[:size]]), None).item()
            assert (stops.start(tokens[:size]) is not None) == expected, (number, strings, tokens[:size])
            completed += expected
    assert completed > SEQUENCES
