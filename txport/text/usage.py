"""Use of texts by a model beyond `tokenizer.json`, stored as `text.json` in a bundle: languages, chat and clean-up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from txport.errors import BundleError, quoted
from txport.system.documents import DocumentError, read_json

Target = Literal["forced", "source", "fixed"]
MOST_LANGUAGES = 1 << 12
MAX_TEMPLATE = 1 << 18  # characters of a chat template
MAX_LENGTH = 1 << 22  # characters of what it is given, and of the prompt that it writes
MAX_SECONDS = 10.0  # for a prompt


@dataclass(frozen=True, kw_only=True)
class Languages:
    """The languages of a model that has language tokens.

    `tokens` maps names of languages to their tokens in the vocabulary. `before` and `after` are the special tokens
    around a source; None is the position of the source language's token, by default that of `source`. `target` states
    how the target language is set. "forced": by the first token of the target, which the decoder is forced to write;
    "source": by the first token of the source; "fixed": not at all, because the decoder's start token is that of a
    language.
    """

    tokens: Mapping[str, str]
    before: tuple[str | None, ...] = ()
    after: tuple[str | None, ...] = ()
    source: str | None = None
    target: Target = "forced"


@dataclass(frozen=True, kw_only=True)
class Chat:
    """How messages become a prompt: a Jinja template, and its variables: special tokens by name.

    `tool_use` is the template of chats with tools, if that is another one.
    """

    template: str
    variables: Mapping[str, object] = field(default_factory=dict)
    tool_use: str | None = None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The contents of `text.json`. With `clean_up`, spaces before punctuation are removed from decoded text."""

    clean_up: bool = False
    languages: Languages | None = None
    chat: Chat | None = None


def write_usage(usage: Usage) -> str:
    """Return the JSON text of `text.json`."""
    values = asdict(usage)
    if usage.chat is not None and usage.chat.tool_use is None:
        del values["chat"]["tool_use"]
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def read_usage(path: Path, content: Path | str) -> Usage:
    """Return the contents of a `text.json`, given as a file or as its text.

    Raises `BundleError`, which names `path`, if they are invalid.
    """
    try:
        values = read_json(content) if isinstance(content, Path) else json.loads(content)
        return _usage(values)
    except DocumentError as error:
        raise BundleError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(f"{path} does not say how texts are used: {error!r}") from error


def _usage(values: Any) -> Usage:
    languages = values["languages"]
    chat = values["chat"]
    if type(values["clean_up"]) is not bool:
        raise TypeError(f"clean_up must be true or false, got {quoted(values['clean_up'])}")
    return Usage(
        clean_up=values["clean_up"],
        languages=None if languages is None else _languages(languages),
        chat=None if chat is None else _chat(chat),
    )


def _languages(values: Any) -> Languages:
    tokens = {_text(name): _text(token) for name, token in values["tokens"].items()}
    if not 0 < len(tokens) <= MOST_LANGUAGES:
        raise ValueError(f"there must be 1 to {MOST_LANGUAGES} languages, got {len(tokens)}")
    around = [tuple(None if each is None else _text(each) for each in values[side]) for side in ("before", "after")]
    if values["target"] not in get_args(Target):
        raise ValueError(f"target must be one of {', '.join(get_args(Target))}, got {quoted(values['target'])}")
    source = values["source"]
    if source is None and None in (*around[0], *around[1]):
        raise ValueError("the source must have a language")
    if source is not None and source not in tokens:
        raise ValueError(f"there is no language {quoted(source)}")
    return Languages(tokens=tokens, before=around[0], after=around[1], source=source, target=values["target"])


def _chat(values: Any) -> Chat:
    template = _template(values["template"])
    tool_use = None if values.get("tool_use") is None else _template(values["tool_use"])
    variables = dict(values["variables"])
    for name, value in variables.items():
        _text(name)
        for each in value if isinstance(value, list) else [value]:
            _text(each)
    return Chat(template=template, variables=variables, tool_use=tool_use)


def _template(value: object) -> str:
    template = _text(value)
    if len(template) > MAX_TEMPLATE:
        raise ValueError(f"a template may have {MAX_TEMPLATE} characters, this one has {len(template)}")
    return template


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{quoted(value)} must be a text")
    return value
