"""Formatting of chat messages as a prompt, by the checkpoint's template.

The content of a message is never read as a special token. A mark is inserted into each such token in it, and the
tokenizer removes the marks only after it has matched the special tokens of the template.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from txport.errors import TextError, UnsupportedError, brief, quoted
from txport.system.packages import needed
from txport.text.base import Unknown, shorten
from txport.text.file import FileTokenizer
from txport.text.origin import KIND, MARK, OWN, Message, require_own_tokens, starts
from txport.text.usage import MAX_LENGTH, MAX_SECONDS, Chat

if TYPE_CHECKING:
    from txport.text.templates import ChatTemplate

TAG = "\ufdd1\ufdd1 "  # marks the end of a message that the model continues; the blank shows whether blanks are kept
ESCAPED = {r"\ufdd0": MARK, r"\ufdd1": TAG[0]}  # how a template writes marks that are in a list or an object
REASONING = ("reasoning_content", "thinking", "reasoning")  # keys of a message that mean the same
RESERVED = ("messages", "add_generation_prompt", "role", "loop", "self")
ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class ChatReader:
    """Encodes a line as chat messages: a JSON list of messages, or else the text of one user message.

    `options` are variables of the template (`enable_thinking`, `tools`, `documents`); texts in them are plain text,
    like messages. With `continues`, the prompt ends with the last message, which the model continues; None: if that is
    the model's own.
    """

    inner: FileTokenizer
    chat: Chat
    options: Mapping[str, object] = field(default_factory=dict)
    continues: bool | None = None

    def encode(self, text: str, unknown: Unknown = "auto", special: bool = False) -> list[int]:
        """See `Tokenizer.encode`; special tokens are those of the template, so `special` raises `UnsupportedError`."""
        if special:
            raise UnsupportedError("the template alone writes the special tokens of a chat; remove special")
        return self.inner.with_control(self.prompt(messages_of(text)), self._control[0], MARK, unknown)

    def spelled(self, text: str) -> list[str]:
        """See `Tokenizer.spelled`: what messages say is plain text, and their JSON spells tokens as they do."""
        return self.inner.spelled(text)

    @property
    def unknown(self) -> int | None:
        """See `Tokenizer.unknown`."""
        return self.inner.unknown

    def require_read(self) -> None:
        """Raise `UnsupportedError` for an option that the template does not read, unless it is None."""
        known = self._template.variables
        if strange := next(
            (name for name, value in self.options.items() if name not in known and value is not None), ""
        ):
            own = ", ".join(sorted(known - {*RESERVED, *self.chat.variables})) or "none"
            raise UnsupportedError(f"the chat template does not read {quoted(strange)}; its options: {own}")

    def prompt(self, messages: Sequence[Message]) -> str:
        """Return the prompt of messages, with marks in their content.

        Raises `TextError` for messages that can't be formatted.
        """
        messages = [_normalised(each) if isinstance(each, Mapping) else each for each in messages]
        try:
            marked: list[Message] = [self._marked(message) for message in messages]
        except RecursionError as error:
            raise TextError("the messages hold lists or objects in one another, too many to be read") from error
        continues = bool(messages) and messages[-1]["role"] == OWN if self.continues is None else self.continues
        every, own = self._control
        options = _broken(self.options, every)
        if continues:
            messages, marked = _tagged(messages), _tagged(marked)
        until = time.monotonic() + MAX_SECONDS  # for all texts that the prompt takes

        def render(found: Sequence[Message], options: Mapping[str, object] = options) -> str:
            asked = {"messages": found, "add_generation_prompt": not continues}
            given = {**self.chat.variables, "tools": None, "documents": None, **options, **asked}
            prompt = self._template.render(given, until)
            for written, mark in ESCAPED.items():
                prompt = prompt.replace(written, mark)
            return prompt

        prompt = render(marked)
        if self._template.changes_texts:
            kept = [token for token in every if token not in own]
            require_own_tokens(prompt, messages, render, every, kept, self._switches)
            if nested := {name: value for name, value in self.options.items() if isinstance(value, list | dict)}:

                def render_options(found: Sequence[Message]) -> str:
                    return render(marked, {**options, **{name: found[0][name] for name in nested}})

                require_own_tokens(prompt, [{"role": "tool", **nested}], render_options, every, kept, ())
        return _until_tag(prompt) if continues else prompt

    @cached_property
    def _template(self) -> ChatTemplate:
        with needed("txport[chat]", "a chat"):
            from txport.text.templates import ChatTemplate

            has_tools = self.chat.tool_use is not None and self.options.get("tools") is not None
            return ChatTemplate(str(self.chat.tool_use) if has_tools else self.chat.template)

    @cached_property
    def _switches(self) -> tuple[str, ...]:
        """The texts by which the template chooses, and from whose letters no token of `_control` can be made."""
        letters = [set(token.casefold()) for token in self._control[0]]
        found = sorted(self._template.switches)
        return tuple(text for text in found if not any(each <= set(text.casefold()) for each in letters))

    @cached_property
    def _control(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tokens that no message may contain, and those that a message of the model may not contain.

        In the model's messages, a template may search for tokens that are not special, such as the end of a thought.
        """
        added = self.inner.added()
        special = [text for text, is_special in added.items() if is_special]
        templates = self.chat.template + (self.chat.tool_use or "")
        plain = [
            text
            for text, is_special in added.items()
            if not is_special and text in templates and any(map(str.isalpha, text))
        ]
        sought = " ".join(self._template.sought)
        return (*special, *plain), (*special, *(text for text in plain if text not in sought))

    def _marked(self, message: Message) -> dict[str, object]:
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(role, str) or not ROLE.fullmatch(role):
            wanted = 'an object with a "role" (a word) and a "content"'
            raise TextError(f"a message must be {wanted}, got {quoted(message)}")
        tokens = self._control[1] if role == OWN else self._control[0]
        return {
            name: value if name == "role" else _broken(value, tokens, self._switches) for name, value in message.items()
        }


def messages_of(text: str) -> list[Message]:
    """Return the messages of a line: a JSON list of objects, or else one user message with the line as content."""
    if len(text) > MAX_LENGTH:
        raise TextError(f"a chat may have {MAX_LENGTH} characters, this one has {len(text)}")
    if not text.lstrip().startswith("[{"):
        return [{"role": "user", "content": text}]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "what a user says that begins so must stand in a message"
        raise TextError(f"{shorten(text)} is not a JSON list of messages: {brief(error)}; {hint}") from error
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise TextError(f"{shorten(text)} is not a JSON list of messages: each must be an object")
    return found


def chat_line(messages: str | Sequence[Message]) -> str:
    """Return messages, or one user's text, as a line of JSON; raise `TextError` for anything else."""
    found = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    if not isinstance(found, Sequence) or not found or not all(isinstance(each, Mapping) for each in found):
        raise TextError(f"messages must be a text or a list of objects, got {quoted(messages)}")
    try:
        return json.dumps([dict(each) for each in found], ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TextError(f"messages must be such as JSON has, got {quoted(messages)}: {brief(error)}") from error


def require_options(options: Mapping[str, object]) -> None:
    """Raise `UnsupportedError` for variables that a template can't be given."""
    for name in options:
        if not isinstance(name, str) or not name.isidentifier() or name in RESERVED:
            raise UnsupportedError(f"a template has no option {quoted(name)}; an option is a variable, such as tools")
    try:
        length = len(json.dumps(dict(options), ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        what = f"options of a template must be such as JSON has, got {quoted(options)}: {brief(error)}"
        raise UnsupportedError(what) from error
    if length > MAX_LENGTH:
        raise UnsupportedError(f"options of a template may have {MAX_LENGTH} characters, these have {length}")


def _normalised(message: Message) -> Message:
    """Return a message as transformers 5 gives it to templates: without nulls, its reasoning by the names of it."""
    known = {name: value for name, value in message.items() if value is not None}
    said = [known[name] for name in REASONING if name in known]
    return {"thinking": said[0], **known, "reasoning_content": said[0]} if said else known


def _tagged(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a tag at the end of the last one; raise `TextError` if that has no text."""
    last = dict(messages[-1])
    content = last.get("content")
    if isinstance(content, str):
        last["content"] = content + TAG
        return [*messages[:-1], last]
    parts = [dict(each) if isinstance(each, Mapping) else each for each in content or []]
    texts = [each for each in parts if isinstance(each, dict) and isinstance(each.get("text"), str)]
    if not texts:
        raise TextError("the last message has no text to be continued")
    texts[-1]["text"] += TAG
    return [*messages[:-1], last | {"content": parts}]


def _until_tag(prompt: str) -> str:
    """Return what precedes the tag, without blanks if the template cuts them off."""
    place = prompt.rfind(TAG.strip())
    if place < 0:
        raise TextError("the chat template does not write the end of the last message, so it can't be continued")
    return prompt[:place] if prompt[place:].startswith(TAG) else prompt[:place].rstrip()


def _broken(value: object, tokens: tuple[str, ...], switches: tuple[str, ...] = (), ends: bool = True) -> Any:
    """Return the value with a mark inside each token in its texts.

    With `ends`, marks are also added at an end of a text that may be a part of a token, unless one of `switches` is
    there.
    """
    if isinstance(value, Mapping):
        return {_cut(name, tokens): _broken(each, tokens, switches, name != KIND) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_broken(each, tokens, switches) for each in value]
    return _cut(value, tokens, switches, ends) if isinstance(value, str) else value


def _cut(value: str, tokens: tuple[str, ...], switches: tuple[str, ...] = (), ends: bool = False) -> str:
    for mark in (MARK, TAG[0]):
        if mark in value:
            raise TextError(f"{shorten(value)} has the character U+{ord(mark):X}, which is none")
    for token in tokens:
        if len(token) == 1 and token in value:
            raise TextError(f"{shorten(value)} has the special token {quoted(token)}, which no message may have")
    places = {start + 1 for token in (*tokens, *ESCAPED) for start in starts(value, token)}
    if ends and (inner := value.strip()):
        start = value.index(inner)
        if not inner.startswith(switches) and _continues(inner, tokens):
            places.add(start)
        if not inner.endswith(switches) and _begins(inner, tokens):
            places.add(start + len(inner))
    for place in sorted(places, reverse=True):
        value = value[:place] + MARK + value[place:]
    return value


class Parts(NamedTuple):
    """The beginnings and ends of tokens, without whole tokens, and the length of the longest."""

    beginnings: frozenset[str]
    ends: frozenset[str]
    longest: int


@lru_cache(maxsize=16)
def _parts(tokens: tuple[str, ...]) -> Parts:
    cuts = [(token[:cut], token[cut:]) for token in tokens for cut in range(1, len(token))]
    beginnings, ends = (frozenset(cut[side] for cut in cuts) for side in (0, 1))
    return Parts(beginnings, ends, max(map(len, tokens), default=0))


def _continues(text: str, tokens: tuple[str, ...]) -> bool:
    """Return whether a text begins with the rest of a token, without the token's first characters, or is within it."""
    parts = _parts(tokens)
    begun = (text[:size] for size in range(1, min(len(text), parts.longest) + 1))
    return any(each in parts.ends for each in begun) or any(text in token[1:] for token in tokens)


def _begins(text: str, tokens: tuple[str, ...]) -> bool:
    """Return whether a text ends with the first characters of a token."""
    parts = _parts(tokens)
    return any(text[-size:] in parts.beginnings for size in range(1, min(len(text), parts.longest) + 1))
