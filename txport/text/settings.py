"""Tokenizer settings of a transformers checkpoint, without the vocabulary.

A key must be read, be listed in `UNUSED`, or be null; `*_token` may name any special token. Others are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from txport.errors import CheckpointError, quoted
from txport.models.names import ADDED_TOKENS, CHAT_TEMPLATE, MORE_TEMPLATES, SPECIAL_TOKENS, TOKENIZER_CONFIG
from txport.system.documents import DocumentError, read_json, read_text
from txport.system.terminal import one_line

logger = logging.getLogger(__name__)
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OTHERS = "additional_special_tokens"
EXTRA = "extra_special_tokens"  # the name since version 5 of transformers; before, an object of named tokens
DEFAULT, TOOL_USE = "default", "tool_use"  # names of chat templates: the second one is that of chats with tools
FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")  # of a token
IN_TOKEN = ("content", "id", "__type")  # its other keys; `__type` is its class


@dataclass(frozen=True)
class Added:
    """A token that is matched in texts as a whole; `special` tokens are not text."""

    text: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    single_word: bool = False

    def at(self, id_: int) -> dict[str, object]:
        """Return the entry of `tokenizer.json` for this token."""
        return {
            "id": id_,
            "content": self.text,
            "single_word": self.single_word,
            "lstrip": self.lstrip,
            "rstrip": self.rstrip,
            "normalized": self.normalized,
            "special": self.special,
        }


class Settings:
    """The values of `tokenizer_config.json` and of the older files next to it; missing values have the class's default.

    Raises `CheckpointError` for invalid values.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._values = _optional(folder / TOKENIZER_CONFIG)
        self._map = _optional(folder / SPECIAL_TOKENS)
        self._read: set[str] = set()  # the names that were asked for

    @property
    def kind(self) -> str | None:
        """The tokenizer class, without "Fast"."""
        found = self._values.get("tokenizer_class")
        return found.removesuffix("Fast") if isinstance(found, str) else None

    def get(self, name: str, default: object = None) -> object:
        """Return one value; `default` if it is null or missing."""
        self._read.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean value."""
        value = self.get(name, default)
        if type(value) is not bool:
            raise self.wrong(f"{name} must be true or false, got {quoted(value)}")
        return value

    def text(self, name: str, default: str) -> str:
        """Return a string value."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(f"{name} must be a text, got {quoted(value)}")
        return value

    def whole(self, name: str, default: int, most: int) -> int:
        """Return a whole number from 0 to `most`."""
        value = self.get(name, default)
        if type(value) is not int or not 0 <= value <= most:
            raise self.wrong(f"{name} must be a whole number from 0 to {most}, got {quoted(value)}")
        return value

    def token(self, name: str, default: str | None = None) -> str | None:
        """Return a special token by its name (`eos_token`), as the vocabulary writes it."""
        return default if (token := self._named(name)) is None else token.text

    def _named(self, name: str) -> Added | None:
        for values in self._special_values():
            if values.get(name) is not None:
                return self._added(name, values[name])
        return None

    def _special_values(self) -> tuple[Mapping[str, object], ...]:
        """Return the files that name special tokens, the first one first.

        transformers reads `special_tokens_map.json` only in a folder without `added_tokens_decoder`, where it is first.
        """
        return (self._values,) if "added_tokens_decoder" in self._values else (self._map, self._values)

    def special(self) -> dict[str, Added]:
        """Return the special tokens, with and without names, by their texts."""
        named = [token for name in NAMED if (token := self._named(name)) is not None]
        return {token.text: token for token in (*named, *self._others())}

    def others(self) -> list[str]:
        """Return the special tokens without a name."""
        return [token.text for token in self._others()]

    def _others(self) -> list[Added]:
        for values in self._special_values():
            for name in (OTHERS, EXTRA):
                if isinstance(found := values.get(name), list):
                    return [self._added(name, each) for each in found]
        return []

    def variables(self, defaults: Mapping[str, str]) -> dict[str, str | list[str]]:
        """Return the special tokens by name, as templates use them."""
        found: dict[str, str | list[str]] = {}
        for name in NAMED:
            if (token := self.token(name, defaults.get(name))) is not None:
                found[name] = token
        return {**found, **({OTHERS: others} if (others := self.others()) else {})}

    def added(self) -> dict[int, Added]:
        """Return the added tokens of the files by id."""
        found: dict[int, Added] = {}
        decoder = self.get("added_tokens_decoder", {})
        if not isinstance(decoder, Mapping):
            raise self.wrong("added_tokens_decoder must be an object")
        for key, value in decoder.items():
            if not key.isdecimal() or len(key) > 9:
                raise self.wrong(f"added_tokens_decoder has an id {quoted(key)}")
            found[int(key)] = self._added(f"added_tokens_decoder.{key}", value)
        if not found:
            special = self.special()
            for token, id_ in _optional(self.folder / ADDED_TOKENS).items():
                if type(id_) is not int or not 0 <= id_ < 1 << 30:
                    raise CheckpointError(f"{self.folder / ADDED_TOKENS} gives {quoted(token)} the id {quoted(id_)}")
                found[id_] = Added(token, special=token in special, normalized=token not in special)
        return found

    def _added(self, name: str, value: Any) -> Added:
        if isinstance(value, str):
            return Added(value)
        try:
            text = value["content"]
            flags = {key: value.get(key, key == "special") for key in FLAGS}
            strange = sorted(set(value) - {*FLAGS, *IN_TOKEN})
        except (LookupError, TypeError, AttributeError) as error:
            raise self.wrong(f"{name} must be a token, got {quoted(value)}") from error
        if not isinstance(text, str) or not text or any(type(each) is not bool for each in flags.values()):
            raise self.wrong(f"{name} must be a token, got {quoted(value)}")
        if strange:
            raise self.wrong(f"{name} has the key {quoted(strange[0])}, which is not supported")
        return Added(text, **flags)

    def templates(self) -> dict[str, str]:
        """Return the chat templates that are used by their names, `DEFAULT` and `TOOL_USE`; {} without the former.

        As in transformers, files of templates are in place of those in `tokenizer_config.json`.
        """
        found = self.get("chat_template")
        listed = found if isinstance(found, list) else [{"name": DEFAULT, "template": found}]
        named: dict[str, Any] = {
            str(each.get("name")): each.get("template") for each in listed if isinstance(each, dict)
        }
        files = {file.stem: file for file in sorted(self.folder.glob(MORE_TEMPLATES))}
        if (default := self.folder / CHAT_TEMPLATE).is_file():
            files[DEFAULT] = default
        try:
            named = {name: read_text(file) for name, file in files.items()} or named
        except DocumentError as error:
            raise CheckpointError(str(error)) from error
        named = {name: each for name, each in named.items() if each is not None}
        used = {name: named[name] for name in (DEFAULT, TOOL_USE) if name in named and DEFAULT in named}
        if unused := [name for name in named if name not in used]:
            _tell_unused(self.folder, ", ".join(unused), bool(used))
        if strange := [each for each in used.values() if not isinstance(each, str)]:
            raise self.wrong(f"chat_template must be a text, got {quoted(strange[0])}")
        return used

    def require_known(self) -> None:
        """Raise `CheckpointError` for a key that was not read, and may change ids or texts."""
        for values, name in ((self._values, TOKENIZER_CONFIG), (self._map, SPECIAL_TOKENS)):
            require_known(values, self._read, self.folder / name)

    def wrong(self, what: str) -> CheckpointError:
        """Return an error about these files."""
        return CheckpointError(f"{self.folder / TOKENIZER_CONFIG}: {what}")


@cache  # once per folder
def _tell_unused(folder: Path, names: str, has_default: bool) -> None:
    what = f"no chat template has the name default, so none is used; there are {names}"
    if has_default:
        what = f"of the chat templates, {DEFAULT} and {TOOL_USE} are used, so these are not: {names}"
    logger.warning("%s: %s", one_line(str(folder)), one_line(what))


def _optional(path: Path) -> dict[str, object]:
    if not path.exists():
        return {}
    try:
        return read_json(path, 64 << 20)
    except DocumentError as error:
        raise CheckpointError(str(error)) from error


ORIGIN = "it says where the files come from"
CALLED = "it is a default of calls that pad, cut or return arrays; texts are encoded whole"
IN_FILE = "only some classes read it, and if there is a tokenizer.json, that says it"
SLOW = "only classes in Python read it; transformers takes those of the tokenizers library"
TEMPLATE = "what chat templates need is in the template"
PLAIN = "text is read as plain characters unless special tokens are asked for"
CLEANED = "without clean_up_tokenization_spaces nothing reads it"
SPEECH = "the facts of a speech model say it"
IN_ADDED = "the token is one of the added tokens"

UNUSED: Mapping[str, str] = {
    **dict.fromkeys(("tokenizer_class", "name_or_path", "processor_class", "auto_map", "_commit_hash"), ORIGIN),
    **dict.fromkeys(("transformers_version", "backend", "is_local", "local_files_only", "files_loaded"), ORIGIN),
    **dict.fromkeys(("special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file", "init_inputs"), ORIGIN),
    **dict.fromkeys(("source_spm", "target_spm", "spm_file", "target_vocab_file", "normalizer_file"), ORIGIN),
    **dict.fromkeys(("full_tokenizer_file", "tokenizer_type", "model_type", "use_fast", "from_slow"), ORIGIN),
    **dict.fromkeys(("trust_remote_code", "unsloth_version", "verbose", "revision", "token"), ORIGIN),
    **dict.fromkeys(("model_max_length", "max_len", "max_length", "stride", "truncation", "padding"), CALLED),
    **dict.fromkeys(("truncation_side", "truncation_strategy", "padding_side", "pad_to_multiple_of"), CALLED),
    **dict.fromkeys(("pad_token_type_id", "pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id"), CALLED),
    **dict.fromkeys(("model_input_names", "return_tensors", "return_attention_mask", "return_token_type_ids"), CALLED),
    **dict.fromkeys(("do_lower_case", "strip_accents", "tokenize_chinese_chars", "keep_accents"), IN_FILE),
    **dict.fromkeys(("remove_space", "add_prefix_space", "add_bos_token", "add_eos_token", "legacy"), IN_FILE),
    **dict.fromkeys(("legacy_behaviour", "extra_ids", "offset", "mask_token_sent", "language_codes"), IN_FILE),
    **dict.fromkeys(("num_madeup_words", "src_lang", "tgt_lang", "source_lang", "target_lang"), IN_FILE),
    **dict.fromkeys(("separate_vocabs", "trim_offsets", "vocab_size", "unk_id", "added_tokens_decoder"), IN_FILE),
    **dict.fromkeys(("split_by_punct", "vocab_type"), IN_FILE),
    **dict.fromkeys(("do_basic_tokenize", "never_split", "errors", "spaces_between_special_tokens"), SLOW),
    **dict.fromkeys(("chat_template", "use_default_system_prompt", "response_template", "response_schema"), TEMPLATE),
    **dict.fromkeys(("chat_control_tokens", "tool_parser_type"), TEMPLATE),
    **dict.fromkeys(("split_special_tokens",), PLAIN),
    **dict.fromkeys(("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",), CLEANED),
    **dict.fromkeys(("language", "task"), SPEECH),
    **dict.fromkeys(("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"), IN_ADDED),
}
OFF: Mapping[str, tuple[object, ...]] = {  # the only values that are supported
    "sp_model_kwargs": ({},),
    "fix_mistral_regex": (False,),
    "predict_timestamps": (False,),
    "add_special_tokens": (True,),
    "suffix_first": (False,),
}
TOKEN = "_token"  # noqa: S105 - the end of a key


def require_known(values: Mapping[str, object], read: Collection[str], place: Path) -> None:
    """Raise `CheckpointError` for a key that is not read and may change ids or texts."""
    for name, value in values.items():
        if value is None or name in read or name in UNUSED:
            continue
        if name in OFF:
            if value not in OFF[name]:
                expected = " or ".join(map(repr, OFF[name]))
                raise CheckpointError(f"{place}: {name} {quoted(value)} is not supported; it must be {expected}")
        elif not (name.endswith(TOKEN) and isinstance(value, str | Mapping)):
            why = "no tokenizer of transformers that is known has this key, so ids or texts may depend on it"
            raise CheckpointError(f"{place}: the key {quoted(name)}, here {quoted(value)}, is not supported: {why}")
