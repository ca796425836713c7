"""Options for input texts: languages, chat, special tokens and unknown text."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from txport.cli.guard import echo
from txport.cli.options import F, is_given
from txport.errors import UnsupportedError, brief, quoted
from txport.models.facts import Facts
from txport.text.base import Aligned, Encoded, Tokenizer, TokenizerPair, Unknown, reading_pairs
from txport.text.chat import ChatReader
from txport.text.languages import LanguageReader

if TYPE_CHECKING:
    from txport.api.model import Model

LANGUAGES = {"source_language": "--source-language", "target_language": "--target-language"}
FLAGS = {**LANGUAGES, "as_chat": "--chat", "template_options": "--template-option"}
SPECIAL = {"special_tokens": "--special-tokens"}
LITERALS = {"True": True, "False": False, "None": None}  # of Python; as texts, all would be true for a template
SHOWN = 5  # tokens that a note names


def text_options(command: F) -> F:
    """Add the options for languages, chat and special tokens in outputs."""
    chat = "Each line is what a user says, or a JSON list of messages; the checkpoint's template makes a prompt of it."
    special = "Outputs have special tokens too, as the vocabulary writes them (</s>)."
    command = click.option("--special-tokens", is_flag=True, help=special)(command)
    variable = "With --chat: variable of the template; VALUE is JSON, or else a text.  [repeatable]"
    option = click.option("--template-option", "template_options", metavar="NAME=VALUE", multiple=True, help=variable)
    command = option(command)
    command = click.option("--chat", "as_chat", is_flag=True, help=chat)(command)
    return language_options(command)


def language_options(command: F) -> F:
    """Add the options for languages."""
    source = "Language of the texts, as the tokenizer names it (eng_Latn).  [default: the tokenizer's]"
    command = click.option("--target-language", metavar="NAME", help="Language of the targets.")(command)
    return click.option("--source-language", metavar="NAME", help=source)(command)


def parse_option(command: F) -> F:
    """Add `--parse-special`, which reads special tokens in texts."""
    text = "Read the spelling of a special token in a text (</s>) as the token.  [default: as plain characters]"
    return click.option("--parse-special", "special", is_flag=True, help=text)(command)


def told(model: Model, options: dict[str, Any]) -> Model:
    """Apply the options of languages, chat and special tokens, and remove them from `options`; return the new model.

    Raises `UnsupportedError` if the model does not support an option, or if one is combined with `--ids`.
    """
    given = [flag for name, flag in (FLAGS | SPECIAL | {"special": "--parse-special"}).items() if is_given(name)]
    as_chat = options.pop("as_chat")
    variables = options.pop("template_options")
    special = options.pop("special_tokens")
    if given and is_given("as_ids"):
        raise UnsupportedError(f"--ids gives all tokens as numbers; it can't be combined with {', '.join(given)}")
    named = chat_variables(as_chat, variables, options["special"])
    model = between(model, options)
    model = model.reading_chats(named) if as_chat else model
    return model.writing_special_tokens() if special else model


def chat_variables(as_chat: bool, variables: Iterable[str], special: bool) -> dict[str, Any]:
    """Return the variables of a chat template; raise `UnsupportedError` for options that can't be combined."""
    if as_chat and special:
        raise UnsupportedError("the template alone writes the special tokens of a chat; remove --parse-special")
    if variables and not as_chat:
        raise UnsupportedError("--template-option needs --chat")
    return dict(map(_template_option, variables))


def _template_option(given: str) -> tuple[str, object]:
    """Return name and value of a variable of the template; the value is JSON or a literal of Python, or else a text."""
    name, equals, value = given.partition("=")
    if not equals:
        raise UnsupportedError(f"--template-option must be NAME=VALUE, got {quoted(given)}")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError) as error:
        if value.lstrip().startswith(("[", "{")):
            raise UnsupportedError(f"--template-option {name} has a value that is not JSON: {brief(error)}") from error
        return name, LITERALS.get(value, value)


def between(model: Model, options: dict[str, Any]) -> Model:
    """Apply the options of languages, and remove them from `options`; return the new model."""
    languages = {name: options.pop(name) for name in LANGUAGES}
    if any(each is not None for each in languages.values()):
        model = model.between(**languages)
    _tell_choice(model)
    return model


def tell_not_followed(model: Model) -> None:
    """Print on standard error which of the checkpoint's generation options no search follows, if any."""
    if model.not_followed:
        named = ", ".join(f"{name} {quoted(value)}" for name, value in model.not_followed.items())
        echo(f"txport: outputs may differ from transformers', because txport does not follow {named}", err=True)


def _tell_choice(model: Model) -> None:
    """Print on standard error that the model chooses the language of its targets, if no option and no default does."""
    pair = model.tokenizer
    reader = pair.source if isinstance(pair, TokenizerPair) else None
    if not isinstance(reader, LanguageReader) or not reader.chooses or "forced_bos_token_id" in model.defaults:
        return
    if not any(map(is_given, ("as_ids", "forced_bos_token", "prefixes"))):
        echo("txport: no target language is given, so the model chooses one; --target-language sets it", err=True)


class Watched:
    """A tokenizer that keeps what commands say of texts: see `told_of_texts`."""

    def __init__(self, tokenizer: Tokenizer, facts: Facts) -> None:
        self._tokenizer = tokenizer
        self._facts = facts
        self.unknown_pieces = 0
        self.spelling_texts = 0
        self.cut_texts = 0
        self.spelled_tokens: dict[str, None] = {}
        self.lacking: dict[int, None] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """See `Tokenizer.encode`."""
        ids = self._tokenizer.encode(text, unknown, special)
        self._watch(self._tokenizer, text, ids, special)
        return ids

    def encode_texts(self, texts: Sequence[str], *how: Any) -> Encoded:
        """See `PairTokenizer.encode_texts`."""
        found = reading_pairs(self._tokenizer).encode_texts(texts, *how)
        self.cut_texts += found.is_cut
        self._watch(self._tokenizer, "\n".join(texts), found.ids, special=how[1])
        return found

    def encode_aligned(self, one: str, other: str, unknown: Unknown = "auto", special: bool = False) -> Aligned:
        """See `PairTokenizer.encode_aligned`."""
        found = reading_pairs(self._tokenizer).encode_aligned(one, other, unknown, special)
        self._watch(self._tokenizer, f"{one}\n{other}", found.ids, special)
        return found

    def encode_target(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """See `Tokenizer.encode_target`."""
        ids = self._tokenizer.encode_target(text, unknown, special)
        if self._facts.is_encoder_decoder:  # otherwise a part of a text that is also encoded
            pair = self._tokenizer
            self._watch(pair.target if isinstance(pair, TokenizerPair) else pair, text, ids, special)
        return ids

    def _watch(self, reader: Tokenizer, text: str, ids: list[int], special: bool) -> None:
        self.unknown_pieces += 0 if reader.unknown is None else ids.count(reader.unknown)
        spelled = [] if special else reader.spelled(text)
        self.spelling_texts += bool(spelled)
        self.spelled_tokens |= dict.fromkeys(spelled)

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """See `Tokenizer.decode`."""
        self.lacking |= dict.fromkeys(self._tokenizer.lacks(ids))
        return self._tokenizer.decode(ids, special)

    def continuation(self, before: Sequence[int], ids: Sequence[int], special: bool = False) -> str:
        """See `Tokenizer.continuation`."""
        self.lacking |= dict.fromkeys(self._tokenizer.lacks(ids))
        return self._tokenizer.continuation(before, ids, special)


@contextlib.contextmanager
def told_of_texts(model: Any) -> Iterator[None]:
    """Print on standard error, after the block, what was not read or written as the texts of the model say."""
    own = model.tokenizer
    model.tokenizer = watched = Watched(own, model.facts)
    yield
    if watched.spelled_tokens:
        texts = "1 text spells" if watched.spelling_texts == 1 else f"{watched.spelling_texts} texts spell"
        which = _listed(watched.spelled_tokens)
        is_chat = isinstance(own, TokenizerPair) and isinstance(own.source, ChatReader)
        fix = "in a chat, the template alone writes the tokens" if is_chat else "--parse-special reads the tokens"
        echo(f"txport: {texts} special tokens ({which}), which are read as plain characters; {fix}", err=True)
    if watched.unknown_pieces:
        what = "1 piece is" if watched.unknown_pieces == 1 else f"{watched.unknown_pieces} pieces are"
        echo(f"txport: {what} not in the vocabulary; the model reads the unknown token there", err=True)
    if watched.cut_texts:
        tell_cut(watched.cut_texts)
    if watched.lacking:
        which = _listed(sorted(watched.lacking))
        echo(
            f"txport: the tokenizer has no token for ids of the model ({which}); they are written as nothing", err=True
        )


def tell_cut(count: int) -> None:
    """Print on standard error how many texts were cut."""
    echo(f"txport: {'1 text was' if count == 1 else f'{count} texts were'} cut to what the model takes", err=True)


def _listed(values: Iterable[object]) -> str:
    shown = [str(value) for value in values]
    return ", ".join(shown[:SHOWN]) + (f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else "")
