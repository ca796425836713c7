"""Where the special tokens of a chat's prompt come from: a template may change what messages say, and so make some."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txport.errors import TextError, quoted

MARK = "\ufdd0"  # no character: none of a text that was made for others to read
KIND = "type"  # of a part of a message, a word that templates look at
OWN = "assistant"  # the role of what the model said
# Filters of ours, with names that no template can write.
TURNS, TEXTS, ITERATED = "turns of a loop", "texts as one", "what is iterated"
COUNTED, OUTPUT = "what is counted", "what is output"
# Filters and methods that keep what texts say in order, or cut it at its ends; of others nothing is known.
KEEPING = {
    *("trim", "strip", "lstrip", "rstrip", "startswith", "endswith", "tojson", "string", "safe"),
    *("length", "count", "first", "last", "list", "default", "d", "int", "items", "keys", "values", "get", "append"),
    *("selectattr", "rejectattr", "select", "reject", "dictsort", "update", "index", "find"),
    *(TURNS, TEXTS, ITERATED, COUNTED, OUTPUT),
}
WORD = re.compile(r"\w+")  # a name by which templates look up a part of a message
Message = Mapping[str, Any]


def changes_texts(parsed: Any) -> bool:
    """Whether a template, as jinja2 parses it, may put the characters of a message together anew: `lower`, `join`."""
    from jinja2 import nodes

    single = [  # `split` with one of its parts taken
        each.node for each in parsed.find_all(nodes.Getitem) if isinstance(each.arg, nodes.Const | nodes.Neg)
    ]
    for call in parsed.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr not in KEEPING:
            is_part = call.node.attr in ("split", "rsplit") and any(call is each for each in single)
            if not is_part:
                return True
    filters = any(each.name not in KEEPING for each in parsed.find_all(nodes.Filter))
    return filters or next(parsed.find_all(nodes.Slice), None) is not None


def require_own_tokens(
    prompt: str,
    messages: Sequence[Message],
    render: Callable[[Sequence[Message]], str],
    tokens: Sequence[str],
    kept: Sequence[str],
) -> None:
    """`TextError` unless the `tokens` of a prompt are those that its template writes.

    They are, if they stand where they do when marks break all that the messages say, but for tokens that are `kept` in
    those of the model; else no message may make more of them than one that says nothing.
    """
    try:
        broken = render(
            [_changed(message, lambda text, own: _spaced(text, kept if own else ())) for message in messages]
        )
    except TextError:
        broken = ""
    if broken.replace(MARK, "") == prompt.replace(MARK, "") and _places(broken, tokens) == _places(prompt, tokens):
        return
    plain = render([_changed(message, lambda text, own: "a") for message in messages])
    counts = [Counter(token for _, token in _places(each, tokens)) for each in (prompt, plain)]
    if more := counts[0] - counts[1]:
        made = f"the chat template makes the special token {quoted(next(iter(more)))} of what a message says"
        raise TextError(f"{made}; write that in another way")


def _places(prompt: str, tokens: Sequence[str]) -> set[tuple[int, str]]:
    """Where tokens stand in a prompt, marks not counted."""
    return {
        (found.start() - prompt.count(MARK, 0, found.start()), token)
        for token in tokens
        for found in re.finditer(f"(?={re.escape(token)})", prompt)
    }


def _changed(message: Message, change: Callable[[str, bool], str]) -> dict[str, Any]:
    is_own = message["role"] == OWN

    def named(name: Any) -> Any:
        return name if not isinstance(name, str) or WORD.fullmatch(name) else change(name, False)

    def each(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {named(name): found if name == KIND else each(found) for name, found in value.items()}
        if isinstance(value, list | tuple):
            return [each(found) for found in value]
        return change(value, is_own) if isinstance(value, str) else value

    return {named(name): value if name == "role" else each(value) for name, value in message.items()}


def _spaced(text: str, kept: Sequence[str]) -> str:
    """A text with a mark around each of its characters, but none in tokens that are kept, and in spaces at its ends."""
    if not (inner := text.strip()):
        return text
    start = text.index(inner)
    parts = re.split(f"({'|'.join(map(re.escape, kept))})", inner) if kept else [inner]
    broken = MARK.join(each if each in kept else MARK.join(["", *each, ""]) for each in parts)
    return f"{text[:start]}{broken}{text[start + len(inner) :]}"
