"""Vocabularies other than SentencePiece: `vocab.txt` (BERT), and `vocab.json` with `merges.txt` (GPT-2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txport.errors import CheckpointError, quoted
from txport.system.documents import DocumentError, read_json, read_text
from txport.text.assemble import Slots, Vocabulary, assemble, vocabulary
from txport.text.sentencepiece import replace
from txport.text.settings import Added, Settings

LARGEST = 24 << 20  # bytes
LARGEST_ID = 1 << 22
MOST_LINES = 1 << 20
LONGEST_WORD = 100  # characters; WordPiece replaces a longer word by the unknown token
BERT = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
DEBERTA = {"bos_token": "[CLS]", "eos_token": "[SEP]", **BERT}
GPT2 = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
WHISPER_STARTS = ("<|startoftranscript|>", "<|notimestamps|>")
QWEN = {"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
ROBERTA = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
MPNET = {**ROBERTA, "unk_token": "[UNK]"}
CHINESE = (  # the characters that BertNormalizer sets apart
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b81f\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f]"
)
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_ids(path: Path) -> dict[str, int]:
    """Read a `vocab.json`: tokens with their ids, each id once; raise `CheckpointError` for an invalid file."""
    try:
        found = read_json(path, LARGEST)
    except DocumentError as error:
        raise CheckpointError(str(error)) from error
    for token, id_ in found.items():
        if type(id_) is not int or not 0 <= id_ < LARGEST_ID:
            raise CheckpointError(f"{path} gives {quoted(token)} the id {quoted(id_)}, which is none")
    if not found or len(set(found.values())) < len(found):
        raise CheckpointError(f"{path} {'gives one id to two tokens' if found else 'is empty'}")
    return found


def lines_of(path: Path) -> list[str]:
    """Return the lines of a vocabulary file; raise `CheckpointError` if it can't be read or has too many lines."""
    try:
        text = read_text(path, LARGEST)
    except DocumentError as error:
        raise CheckpointError(str(error)) from error
    if (count := text.count("\n")) > MOST_LINES:
        raise CheckpointError(f"{path} has {count} lines, the most is {MOST_LINES}")
    return text.split("\n")


def bert(settings: Settings) -> tuple[str, Vocabulary]:
    """Return the tokenizer of BERT, DistilBERT and ELECTRA."""
    return _wordpiece(settings, BERT)


def mpnet(settings: Settings) -> tuple[str, Vocabulary]:
    """Return the tokenizer of MPNet: BERT's pieces, RoBERTa's special tokens."""
    return _wordpiece(settings, MPNET, Added(settings.token("mask_token", "<mask>") or "", lstrip=True))


def _wordpiece(settings: Settings, defaults: dict[str, str], *special: Added) -> tuple[str, Vocabulary]:
    """Return a WordPiece tokenizer: words and word pieces, which begin with `##`."""
    path = settings.folder / "vocab.txt"
    tokens = [line.rstrip("\r") for line in lines_of(path)]
    while tokens and not tokens[-1]:
        tokens.pop()
    if len(set(tokens)) < len(tokens):
        raise CheckpointError(f"{path} has one token twice")
    missing = {name: settings.token(name, defaults[name]) for name in ("unk_token", "cls_token", "sep_token")}
    if lacking := [token for token in missing.values() if token not in tokens]:
        raise CheckpointError(
            f"{path} has no {lacking[0]}, which is a special token of {settings.kind or 'BertTokenizer'}"
        )
    for name, only in (("do_basic_tokenize", True), ("never_split", None)):
        if settings.get(name, only) != only:
            raise settings.wrong(f"{name} {quoted(settings.get(name))} is not supported by tokenizer.json")
    words = vocabulary(settings, {id_: (token, 0.0) for id_, token in enumerate(tokens)}, defaults, special)
    strips = settings.get("strip_accents")
    if strips is not None:
        strips = settings.flag("strip_accents", False)
    lowers = settings.flag("do_lower_case", True)
    splits = settings.flag("tokenize_chinese_chars", True)
    text = assemble(
        words,
        {
            "type": "WordPiece",
            "unk_token": words.named["unk_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": LONGEST_WORD,
            "vocab": words.ids,
        },
        normalizer=_bert_normalizer(lowers, splits, strips),
        pre_tokenizer=_bert_splitter(splits),
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "WordPiece", "prefix": "##", "cleanup": True},
                {"type": "Fuse"},
                replace("^ +| +$", "", regex=True),
            ],
        },
        before=[words.named["cls_token"]],
        after=[words.named["sep_token"]],
    )
    return text, words


def _bert_normalizer(lowers: bool, splits: bool, strips: bool | None) -> dict[str, object]:
    own = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": splits,
        "strip_accents": strips,
        "lowercase": lowers,
    }
    return _lowering_sigma(own) if lowers else own


def _lowering_sigma(own: Mapping[str, object]) -> dict[str, object]:
    """Return BERT's normalizer. JavaScript has a sigma of its own at the end of words, so this is lowered before."""
    return {"type": "Sequence", "normalizers": [replace("\u03a3", "\u03c3"), own]}


def _bert_splitter(splits: bool) -> dict[str, Any]:
    """Return BERT's splitter; the normalizer of transformers.js sets apart Chinese characters of 16 bits only."""
    own = {"type": "BertPreTokenizer"}
    each = {"type": "Split", "pattern": {"Regex": CHINESE}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [own, each]} if splits else own


def bert_for_javascript(text: str) -> str | None:
    """Return a `tokenizer.json` that has BERT's normalizer with this written as `bert` does; None for any other.

    The ids in Python are the same, and in JavaScript as in Python.
    """
    if '"BertNormalizer"' not in text:  # most files, which may have a million tokens
        return None
    values = json.loads(text)
    own = values["normalizer"]
    if own["type"] != "BertNormalizer" or values["pre_tokenizer"] != {"type": "BertPreTokenizer"}:
        return None
    values["normalizer"] = _lowering_sigma(own) if own["lowercase"] else own
    values["pre_tokenizer"] = _bert_splitter(own["handle_chinese_chars"])
    return json.dumps(values, ensure_ascii=False) + "\n"


def gpt2(settings: Settings) -> tuple[str, Vocabulary]:
    """Return the byte-level tokenizer of GPT-2 and OPT."""
    words = _bytes(settings, GPT2)
    before = [words.named["bos_token"]] if settings.flag("add_bos_token", False) else []
    return _byte_level(settings, words, before=before), words


def whisper(settings: Settings) -> tuple[str, Vocabulary]:
    """Return the byte-level tokenizer of Whisper; the facts of the model have the language and the task."""
    words = _bytes(settings, GPT2)
    before = [token for token in WHISPER_STARTS if token in words.ids]
    return _byte_level(settings, words, before=before, after=[words.named["eos_token"]]), words


def roberta(settings: Settings) -> tuple[str, Vocabulary]:
    """Return the tokenizer of RoBERTa and BART."""
    words = _bytes(settings, ROBERTA, Added(settings.token("mask_token", "<mask>") or "", lstrip=True))
    before = [words.named["cls_token"]]
    after = [words.named["sep_token"]]
    return _byte_level(settings, words, before=before, after=after), words


def deberta(settings: Settings) -> tuple[str, Vocabulary]:
    """Return the tokenizer of DeBERTa, version 1: RoBERTa's pieces, BERT's special tokens."""
    words = _bytes(settings, DEBERTA, Added(settings.token("mask_token", "[MASK]") or "", lstrip=True))
    before = [words.named["cls_token"]]
    return _byte_level(settings, words, before=before, after=[words.named["sep_token"]]), words


def qwen2(settings: Settings) -> tuple[str, Vocabulary]:
    """Return the tokenizer of Qwen 2 and 3: composed letters, single digits."""
    words = _bytes(settings, QWEN)
    split = {"type": "Split", "pattern": {"Regex": QWEN_WORDS}, "behavior": "Isolated", "invert": False}
    return _byte_level(settings, words, splitter=split, normalizer={"type": "NFC"}), words


def _bytes(settings: Settings, defaults: dict[str, str], *special: Added) -> Vocabulary:
    path = settings.folder / "vocab.json"
    slots: Slots = {id_: (token, 0.0) for token, id_ in read_ids(path).items()}
    return vocabulary(settings, slots, defaults, special)


def _byte_level(
    settings: Settings,
    words: Vocabulary,
    *,
    splitter: Mapping[str, object] | None = None,
    normalizer: object = None,
    before: list[str] | None = None,
    after: list[str] | None = None,
) -> str:
    ids = words.ids
    own_space = settings.flag("add_prefix_space", False)
    if settings.get("errors", "replace") != "replace":
        raise settings.wrong(f"errors {quoted(settings.get('errors'))} is not supported by tokenizer.json")
    level = {"type": "ByteLevel", "add_prefix_space": own_space, "trim_offsets": True, "use_regex": splitter is None}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": _unknown(settings, words),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": ids,
        "merges": read_merges(settings.folder / "merges.txt", ids),
    }
    return assemble(
        words,
        model,
        normalizer=normalizer,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [splitter, level]} if splitter else level,
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        before=before or [],
        after=after or [],
    )


def _unknown(settings: Settings, words: Vocabulary) -> str | None:
    """Return the token for bytes that are not in the vocabulary; None if it has all bytes."""
    from tokenizers import pre_tokenizers

    lacks = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - words.ids.keys())
    if not lacks:
        return None
    unknown = words.named.get("unk_token")
    if unknown is None or unknown not in words.ids:
        raise settings.wrong(f"the vocabulary lacks {len(lacks)} bytes, such as {quoted(lacks[0])}, and an unk_token")
    return unknown


def read_merges(path: Path, ids: dict[str, int]) -> list[list[str]]:
    """Read a `merges.txt`: pairs of tokens in merge order; raise `CheckpointError` for an invalid line."""
    found = []
    for number, line in enumerate(lines_of(path), 1):
        pair = line.split()
        if not pair or (number == 1 and line.startswith("#version")):
            continue
        if len(pair) != 2 or not {*pair, "".join(pair)} <= ids.keys():
            raise CheckpointError(f"{path}, line {number}: {quoted(line)} are not two tokens that make a third")
        found.append(pair)
    return found
