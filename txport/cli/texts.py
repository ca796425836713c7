"""Options for input texts: languages, chat, special tokens and unknown text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from txport.cli.guard import echo
from txport.cli.options import F, is_given
from txport.errors import UnsupportedError, quoted
from txport.models.tokenizers.base import Reader, TokenizerPair, Unknown
from txport.models.tokenizers.languages import LanguageReader

FLAGS = {"source_language": "--source-language", "target_language": "--target-language", "as_chat": "--chat"}
SPECIAL = {"special_tokens": "--special-tokens"}


def text_options(command: F) -> F:
    """Add the options for languages, chat and special tokens."""
    chat = "Each line is what a user says, or a JSON list of messages; the checkpoint's template makes a prompt of it."
    source = "Language of the texts, as the tokenizer names it (eng_Latn).  [default: the tokenizer's]"
    special = "Outputs have special tokens too, as the vocabulary writes them (</s>)."
    for option in (
        click.option("--special-tokens", is_flag=True, help=special),
        click.option("--chat", "as_chat", is_flag=True, help=chat),
        click.option("--target-language", metavar="NAME", help="Language of the targets."),
        click.option("--source-language", metavar="NAME", help=source),
    ):
        command = option(command)
    return command


def told(model: Any, options: dict[str, Any]) -> Any:
    """Apply the options of languages, chat and special tokens, and remove them from `options`; return the new model.

    Raises `UnsupportedError` if the model does not support an option, or if one is combined with `--ids`.
    """
    given = [flag for name, flag in (FLAGS | SPECIAL).items() if is_given(name)]
    languages = {name: options.pop(name) for name in ("source_language", "target_language")}
    as_chat = options.pop("as_chat")
    special = options.pop("special_tokens")
    if given and is_given("as_ids"):
        raise UnsupportedError(f"--ids gives all tokens as numbers; it can't be combined with {', '.join(given)}")
    if any(each is not None for each in languages.values()):
        model = model.between(**languages)
    _tell_choice(model)
    model = model.reading_chats() if as_chat else model
    return model.writing_special_tokens() if special else model


def tell_not_followed(model: Any) -> None:
    """Print on standard error which of the checkpoint's generation options no search follows, if any."""
    if model.not_followed:
        named = ", ".join(f"{name} {quoted(value)}" for name, value in model.not_followed.items())
        echo(f"txport: outputs may differ from transformers', because txport does not follow {named}", err=True)


def _tell_choice(model: Any) -> None:
    """Print on standard error that the model chooses the language of its targets, if no option and no default does."""
    pair = model.tokenizer
    reader = pair.source if isinstance(pair, TokenizerPair) else None
    if not isinstance(reader, LanguageReader) or not reader.chooses or "forced_bos_token_id" in model.defaults:
        return
    if not any(map(is_given, ("as_ids", "forced_bos_token", "prefixes"))):
        echo("txport: no target language is given, so the model chooses one; --target-language sets it", err=True)


class Counted:
    """A reader that counts the unknown tokens in its results."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.count = 0

    def encode(self, text: str, unknown: Unknown = "auto") -> list[int]:
        """See `Tokenizer.encode`."""
        ids = self.reader.encode(text, unknown)
        self.count += 0 if self.unknown is None else ids.count(self.unknown)
        return ids

    @property
    def unknown(self) -> int | None:
        """See `Tokenizer.unknown`."""
        return self.reader.unknown


@contextlib.contextmanager
def unknown_told(model: Any) -> Iterator[None]:
    """Print on standard error, after the block, how many pieces of its texts became the unknown token, if any."""
    counted = Counted(model.tokenizer)
    model.tokenizer = TokenizerPair(counted, model.tokenizer)
    yield
    if counted.count:
        what = "1 piece is" if counted.count == 1 else f"{counted.count} pieces are"
        echo(f"txport: {what} not in the vocabulary; the model reads the unknown token there", err=True)
