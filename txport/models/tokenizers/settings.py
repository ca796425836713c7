"""What a folder of transformers' says of its tokenizer beside the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txport.errors import CheckpointError, quoted
from txport.models.names import ADDED_TOKENS, CHAT_TEMPLATE, SPECIAL_TOKENS, TOKENIZER_CONFIG
from txport.system.documents import DocumentError, read_json, read_text

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OTHERS = "additional_special_tokens"


@dataclass(frozen=True)
class Added:
    """A token that is found in texts as a whole; `special` ones are no text."""

    text: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    single_word: bool = False

    def at(self, id_: int) -> dict[str, Any]:
        """As `tokenizer.json` has it."""
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
    """The values of `tokenizer_config.json`, and of the older files beside it; missing ones have their class's default.

    Raises `CheckpointError` for files that can't be what they should.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._values = _optional(folder / TOKENIZER_CONFIG)
        self._map = _optional(folder / SPECIAL_TOKENS)

    @property
    def kind(self) -> str | None:
        """The class of the tokenizer, whether fast or slow."""
        found = self._values.get("tokenizer_class")
        return found.removesuffix("Fast") if isinstance(found, str) else None

    def get(self, name: str, default: Any = None) -> Any:
        """One value; `default` for null, and for what is missing."""
        value = self._values.get(name)
        return default if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        """One that is true or false."""
        value = self.get(name, default)
        if type(value) is not bool:
            raise self.wrong(f"{name} must be true or false, got {quoted(value)}")
        return value

    def text(self, name: str, default: str) -> str:
        """One that is a text."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(f"{name} must be a text, got {quoted(value)}")
        return value

    def whole(self, name: str, default: int, most: int) -> int:
        """A number of tokens."""
        value = self.get(name, default)
        if type(value) is not int or not 0 <= value <= most:
            raise self.wrong(f"{name} must be a whole number from 0 to {most}, got {quoted(value)}")
        return value

    def token(self, name: str, default: str | None = None) -> str | None:
        """A special token by its name, as the vocabulary writes it."""
        for values in (self._values, self._map):
            if values.get(name) is not None:
                return self._added(name, values[name]).text
        return default

    def others(self) -> list[str]:
        """Special tokens without a name."""
        for values in (self._values, self._map):
            if isinstance(found := values.get(OTHERS), list):
                return [self._added(OTHERS, each).text for each in found]
        return []

    def variables(self, defaults: Mapping[str, str]) -> dict[str, str | list[str]]:
        """The special tokens by their names, as templates know them."""
        found: dict[str, str | list[str]] = {}
        for name in NAMED:
            if (token := self.token(name, defaults.get(name))) is not None:
                found[name] = token
        return {**found, **({OTHERS: others} if (others := self.others()) else {})}

    def added(self) -> dict[int, Added]:
        """Tokens with ids that the files name."""
        found: dict[int, Added] = {}
        decoder = self.get("added_tokens_decoder", {})
        if not isinstance(decoder, Mapping):
            raise self.wrong("added_tokens_decoder must be an object")
        for key, value in decoder.items():
            if not key.isdecimal() or len(key) > 9:
                raise self.wrong(f"added_tokens_decoder has an id {quoted(key)}")
            found[int(key)] = self._added(f"added_tokens_decoder.{key}", value)
        if not found:
            special = {*self._special()}
            for token, id_ in _optional(self.folder / ADDED_TOKENS).items():
                if type(id_) is not int or not 0 <= id_ < 1 << 30:
                    raise CheckpointError(f"{self.folder / ADDED_TOKENS} gives {quoted(token)} the id {quoted(id_)}")
                found[id_] = Added(token, special=token in special, normalized=token not in special)
        return found

    def _special(self) -> Iterator[str]:
        yield from (token for name in NAMED if (token := self.token(name)) is not None)
        yield from self.others()

    def _added(self, name: str, value: Any) -> Added:
        if isinstance(value, str):
            return Added(value)
        try:
            text = value["content"]
            flags = {
                key: value.get(key, key == "special")
                for key in ("lstrip", "rstrip", "normalized", "single_word", "special")
            }
        except (LookupError, TypeError, AttributeError) as error:
            raise self.wrong(f"{name} must be a token, got {quoted(value)}") from error
        if not isinstance(text, str) or not text or any(type(each) is not bool for each in flags.values()):
            raise self.wrong(f"{name} must be a token, got {quoted(value)}")
        return Added(text, **flags)

    def template(self) -> str | None:
        """The template of a chat, the default one of several; None where there is none."""
        if (self.folder / CHAT_TEMPLATE).is_file():
            try:
                return read_text(self.folder / CHAT_TEMPLATE)
            except DocumentError as error:
                raise CheckpointError(str(error)) from error
        found = self.get("chat_template")
        if isinstance(found, list):
            named = {each.get("name"): each.get("template") for each in found if isinstance(each, Mapping)}
            found = named.get("default")
        if found is not None and not isinstance(found, str):
            raise self.wrong(f"chat_template must be a text, got {quoted(found)}")
        return found

    def wrong(self, what: str) -> CheckpointError:
        """An error about these files."""
        return CheckpointError(f"{self.folder / TOKENIZER_CONFIG}: {what}")


def _optional(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return read_json(path, 64 << 20)
    except DocumentError as error:
        raise CheckpointError(str(error)) from error
