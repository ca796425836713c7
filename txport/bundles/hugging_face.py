"""Configuration files for transformers and transformers.js: `tokenizer_config.json`, and labels in `config.json`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from txport.errors import BundleError
from txport.models.facts import Facts, Tokens
from txport.models.names import TARGET_TOKENIZER, TEXT, TOKENIZER, TOKENIZER_CONFIG
from txport.system.documents import write_json
from txport.text.library import read_tokenizer, refusals, unknown_id
from txport.text.settings import DEFAULT, TOOL_USE
from txport.text.usage import Chat, Usage, read_usage

GENERIC = "PreTrainedTokenizerFast"
HEARING = "WhisperTokenizer"  # pipelines of speech ask this class how timestamps are written
SOURCE_FOLDER, TARGET_FOLDER = "source_tokenizer", "target_tokenizer"
PROBLEM_TYPES = {  # by `function_to_apply`
    "softmax": "single_label_classification",
    "sigmoid": "multi_label_classification",
    "none": "regression",
}


def label_config(facts: Facts) -> dict[str, object]:
    """Return the entries of a `config.json` for labels, and the `problem_type` by which pipelines compute scores.

    Some pipelines apply the sigmoid to a single label only if the `problem_type` is multi-label.
    """
    found: dict[str, object] = {}
    if facts.labels:
        found["id2label"] = {str(number): label for number, label in enumerate(facts.labels)}
        found["label2id"] = {label: number for number, label in enumerate(facts.labels)}
    if facts.ability == "classify" and facts.function_to_apply is not None:
        found["problem_type"] = PROBLEM_TYPES[facts.function_to_apply]
    return found


def write_tokenizers(folder: Path, facts: Facts) -> None:
    """Write the files that `AutoTokenizer` needs for the tokenizers in `folder`, if there are any.

    If source and target have separate vocabularies, each gets a folder, and there is no `tokenizer_config.json` in
    `folder`: a pipeline has a single tokenizer, and would decode targets with the source's vocabulary.
    """
    target = special_tokens(facts.writes) if facts.target else encoder_tokens(facts.vocabulary)
    if (folder / TARGET_TOKENIZER).is_file():
        source = special_tokens(facts.vocabulary)
        _write_side(folder / TOKENIZER, folder / SOURCE_FOLDER, source, facts)
        _write_side(folder / TARGET_TOKENIZER, folder / TARGET_FOLDER, target, facts)
    elif (folder / TOKENIZER).is_file():
        write_json(folder / TOKENIZER_CONFIG, tokenizer_config(folder / TOKENIZER, target, facts))


def special_tokens(tokens: Tokens) -> dict[str, int]:
    """Return the special tokens of source or target by their names in `AutoTokenizer`: name -> id."""
    start = tokens.start if tokens.start is not None else next(iter(tokens.before), None)
    end = next(iter((*tokens.ends, *tokens.after)), None)
    found = {"pad_token": tokens.pad, "bos_token": start, "eos_token": end}
    return {name: id_ for name, id_ in found.items() if id_ is not None}


def encoder_tokens(tokens: Tokens) -> dict[str, int]:
    """Return the special tokens of an encoder-only model by their names in `AutoTokenizer`: name -> id."""
    start = next(iter(tokens.before), None)
    end = next(iter(tokens.after), None)
    found = {"pad_token": tokens.pad, "cls_token": start, "sep_token": end, "mask_token": tokens.mask}
    return {name: id_ for name, id_ in found.items() if id_ is not None}


def _write_side(file: Path, folder: Path, special: Mapping[str, int], facts: Facts) -> None:
    folder.mkdir()
    shutil.copyfile(file, folder / TOKENIZER)
    write_json(folder / TOKENIZER_CONFIG, tokenizer_config(file, special, facts))


def tokenizer_config(file: Path, special: Mapping[str, int], facts: Facts) -> dict[str, object]:
    """Return the `tokenizer_config.json` with which `AutoTokenizer` encodes and decodes like `FileTokenizer`.

    `special` are special tokens: name -> id. Raises `BundleError` if `file` is not a tokenizer.
    """
    with refusals(BundleError, f"{file} is not a tokenizer"):
        tokenizer = read_tokenizer(file)
        named = {name: tokenizer.id_to_token(id_) for name, id_ in special.items()}
        unknown = unknown_id(tokenizer.to_str())
        splitter = {} if tokenizer.pre_tokenizer is None else json.loads(tokenizer.pre_tokenizer.__getstate__())
    added = tokenizer.get_added_tokens_decoder()
    if unknown in added and added[unknown].special:  # if named, it would become special: removed from decoded text
        named["unk_token"] = added[unknown].content
    return {
        **({"add_prefix_space": True} if splitter.get("add_prefix_space") else {}),  # or version 4 takes the space away
        "tokenizer_class": GENERIC if facts.speech is None else HEARING,
        "model_max_length": facts.vocabulary.longest,
        "model_input_names": ["input_ids", "attention_mask", *(["token_type_ids"] if facts.has_token_types else [])],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": facts.ability != "fill",  # "</s>" in a user's text is four characters
        **{name: token for name, token in named.items() if token is not None},
        **_used(file.with_name(TEXT)),
    }


def _used(path: Path) -> dict[str, object]:
    """Return the settings of a `text.json` for `AutoTokenizer`, which parses special tokens of templates from text."""
    usage = read_usage(path, path) if path.exists() else Usage()
    found: dict[str, object] = {"clean_up_tokenization_spaces": True} if usage.clean_up else {}
    if usage.languages is not None:
        found["additional_special_tokens"] = list(usage.languages.tokens.values())
        found |= {"split_special_tokens": False} if usage.languages.target == "source" else {}
    if usage.chat is not None:
        found |= {**usage.chat.variables, "chat_template": _templates(usage.chat), "split_special_tokens": False}
    return found


def _templates(chat: Chat) -> object:
    if chat.tool_use is None:
        return chat.template
    named = {DEFAULT: chat.template, TOOL_USE: chat.tool_use}
    return [{"name": name, "template": template} for name, template in named.items()]
