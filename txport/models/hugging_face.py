"""What transformers and transformers.js load a tokenizer by, `tokenizer_config.json`, and what tells them of labels."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txport.errors import BundleError
from txport.models.facts import Facts, Tokens
from txport.models.names import TARGET_TOKENIZER, TEXT, TOKENIZER, TOKENIZER_CONFIG
from txport.models.tokenizers.file import read_tokenizer, refusals, unknown_id
from txport.models.tokenizers.usage import Usage, read_usage
from txport.system.documents import write_json

GENERIC = "PreTrainedTokenizerFast"
HEARING = "WhisperTokenizer"  # of which pipelines of speech ask how times are written
SOURCE_FOLDER, TARGET_FOLDER = "source_tokenizer", "target_tokenizer"
PROBLEM_TYPES = {  # by what makes scores of logits
    "softmax": "single_label_classification",
    "sigmoid": "multi_label_classification",
    "none": "regression",
}


def label_config(facts: Facts) -> dict[str, Any]:
    """What any `config.json` says of labels, and of how pipelines make scores of their logits.

    Not all pipelines take the sigmoid of a single label unless it is told that labels do not exclude each other.
    """
    found: dict[str, Any] = {}
    if facts.labels:
        found["id2label"] = {str(number): label for number, label in enumerate(facts.labels)}
        found["label2id"] = {label: number for number, label in enumerate(facts.labels)}
    if facts.ability == "classify" and facts.function_to_apply is not None:
        found["problem_type"] = PROBLEM_TYPES[facts.function_to_apply]
    return found


def write_tokenizers(folder: Path, facts: Facts) -> None:
    """Write what `AutoTokenizer` needs beside the tokenizers that lie in `folder`, if there are some.

    Where source and target have a vocabulary each, so have they a folder, and at the root there is no
    `tokenizer_config.json`: a pipeline has one tokenizer, and would write targets in the source's vocabulary.
    """
    target = special_tokens(facts.writes) if facts.target else encoder_tokens(facts.vocabulary)
    if (folder / TARGET_TOKENIZER).is_file():
        source = special_tokens(facts.vocabulary)
        _write_side(folder / TOKENIZER, folder / SOURCE_FOLDER, source, facts)
        _write_side(folder / TARGET_TOKENIZER, folder / TARGET_FOLDER, target, facts)
    elif (folder / TOKENIZER).is_file():
        write_json(folder / TOKENIZER_CONFIG, tokenizer_config(folder / TOKENIZER, target, facts))


def special_tokens(tokens: Tokens) -> dict[str, int]:
    """The special tokens of one side, by the names that `AutoTokenizer` has for them."""
    start = tokens.start if tokens.start is not None else next(iter(tokens.before), None)
    end = next(iter((*tokens.ends, *tokens.after)), None)
    found = {"pad_token": tokens.pad, "bos_token": start, "eos_token": end}
    return {name: id_ for name, id_ in found.items() if id_ is not None}


def encoder_tokens(tokens: Tokens) -> dict[str, int]:
    """The special tokens of a model that only encodes, by the names that `AutoTokenizer` has for them."""
    start = next(iter(tokens.before), None)
    end = next(iter(tokens.after), None)
    found = {"pad_token": tokens.pad, "cls_token": start, "sep_token": end, "mask_token": tokens.mask}
    return {name: id_ for name, id_ in found.items() if id_ is not None}


def _write_side(file: Path, folder: Path, special: Mapping[str, int], facts: Facts) -> None:
    folder.mkdir()
    shutil.copyfile(file, folder / TOKENIZER)
    write_json(folder / TOKENIZER_CONFIG, tokenizer_config(file, special, facts))


def tokenizer_config(file: Path, special: Mapping[str, int], facts: Facts) -> dict[str, Any]:
    """The settings with which others encode and decode as `FileTokenizer` does; `special` tokens by their ids."""
    with refusals(BundleError, f"{file} is not a tokenizer"):
        tokenizer = read_tokenizer(file)
        named = {name: tokenizer.id_to_token(id_) for name, id_ in special.items()}
        unknown = unknown_id(tokenizer.to_str())
    added = tokenizer.get_added_tokens_decoder()
    if unknown in added and added[unknown].special:  # naming it would make it special: left out of decoded text
        named["unk_token"] = added[unknown].content
    return {
        "tokenizer_class": GENERIC if facts.speech is None else HEARING,
        "model_max_length": facts.vocabulary.longest,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": facts.ability != "fill",  # "</s>" in a user's text is four characters
        **{name: token for name, token in named.items() if token is not None},
        **_used(file.with_name(TEXT)),
    }


def _used(path: Path) -> dict[str, Any]:
    """What a `text.json` says, as `AutoTokenizer` has it: special tokens of templates stand in the text there."""
    usage = read_usage(path, path) if path.exists() else Usage()
    found: dict[str, Any] = {"clean_up_tokenization_spaces": True} if usage.clean_up else {}
    if usage.languages is not None:
        found["additional_special_tokens"] = list(usage.languages.tokens.values())
        found |= {"split_special_tokens": False} if usage.languages.target == "source" else {}
    if usage.chat is not None:
        found |= {**usage.chat.variables, "chat_template": usage.chat.template, "split_special_tokens": False}
    return found
