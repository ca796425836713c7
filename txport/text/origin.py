"""Origin of the special tokens in a chat prompt: a template that changes messages may create some from their text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from txport.errors import TextError, quoted

MARK = "\ufdd0"  # a Unicode noncharacter, which is not used in texts
KIND = "type"  # key of the kind of a message part, which templates compare
OWN = "assistant"  # the role of the model's messages
TURNS = "turns of a loop"  # a filter of txport, with a name that no template can write
# Filters and methods that keep the characters of a text in order, or cut it at its ends; others may do anything.
KEEPING = {
    *("trim", "strip", "lstrip", "rstrip", "startswith", "endswith", "tojson", "string", "safe"),
    *("length", "count", "first", "last", "list", "default", "d", "int", "items", "keys", "values", "get", "append"),
    *("selectattr", "rejectattr", "select", "reject", "dictsort", "update", "index", "find"),
    TURNS,
}
WORD = re.compile(r"\w+")  # a key of a message part
Message = Mapping[str, Any]


def changing(parsed: Any) -> Iterator[Any]:
    """Yield what may rearrange the characters of a message (`lower`, `join`) in a template, parsed by jinja2."""
    from jinja2 import nodes

    single = [  # `split` of which one part is used
        each.node for each in parsed.find_all(nodes.Getitem) if isinstance(each.arg, nodes.Const | nodes.Neg)
    ]
    for call in parsed.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr not in KEEPING:
            is_part = call.node.attr in ("split", "rsplit") and any(call is each for each in single)
            if not is_part:
                yield call
    yield from (each for each in parsed.find_all(nodes.Filter) if each.name not in KEEPING)
    yield from parsed.find_all(nodes.Slice)


def switches(parsed: Any) -> set[str]:
    """Return the texts that a template looks for in messages (`in`) or removes from them, and makes no others of.

    There are none if it replaces texts, other than by nothing, or joins some, or changes none.
    """
    from jinja2 import nodes

    def removes(node: Any) -> bool:
        if isinstance(node, nodes.Slice):
            return True
        name = node.name if isinstance(node, nodes.Filter) else getattr(node.node, "attr", "")
        return name == "replace" and [getattr(each, "value", None) for each in node.args[1:2]] == [""]

    if not (found := [*changing(parsed)]) or not all(map(removes, found)):
        return set()
    compared = [each for each in parsed.find_all(nodes.Compare) if any(op.op in ("in", "notin") for op in each.ops)]
    removed = [each.args[0] for each in found if not isinstance(each, nodes.Slice)]
    texts = [getattr(each, "value", None) for each in (*(each.expr for each in compared), *removed)]
    return {text for text in texts if isinstance(text, str) and text.strip()}


def require_own_tokens(
    prompt: str,
    messages: Sequence[Message],
    render: Callable[[Sequence[Message]], str],
    tokens: Sequence[str],
    kept: Sequence[str],
    chosen_by: Sequence[str],
) -> None:
    """Raise `TextError` unless the special `tokens` of a prompt were written by its template.

    They were if their positions stay the same when marks separate all characters of the messages, except within `kept`
    tokens in messages of the model. Otherwise, the prompt must not have more of any token than a prompt of messages
    without content, except for the texts `chosen_by`, by which the template chooses what it writes.
    """
    try:
        broken = render(
            [_changed(message, lambda text, own: _spaced(text, kept if own else ())) for message in messages]
        )
    except TextError:
        broken = ""
    if broken.replace(MARK, "") == prompt.replace(MARK, "") and _places(broken, tokens) == _places(prompt, tokens):
        return
    try:
        plain = render([_changed(message, lambda text, own: _neutral(text, chosen_by)) for message in messages])
    except TextError as error:
        what = "whether the chat template makes special tokens of what messages say can't be found out"
        raise TextError(f"{what}: with other texts, {error}") from error
    counts = [Counter(token for _, token in _places(each, tokens)) for each in (prompt, plain)]
    if more := counts[0] - counts[1]:
        made = f"the chat template makes the special token {quoted(next(iter(more)))} of what a message says"
        raise TextError(f"{made}; write that in another way")


def _places(prompt: str, tokens: Sequence[str]) -> set[tuple[int, str]]:
    """Return the positions and names of tokens in a prompt; marks are not counted."""
    return {(start - prompt.count(MARK, 0, start), token) for token in tokens for start in starts(prompt, token)}


def starts(text: str, token: str) -> Iterator[int]:
    """Yield where a token starts in a text; its places may overlap."""
    at = text.find(token)
    while at >= 0:
        yield at
        at = text.find(token, at + 1)


def _changed(message: Message, change: Callable[[str, bool], str]) -> dict[str, object]:
    is_own = message["role"] == OWN

    def named(name: object) -> Any:
        return name if not isinstance(name, str) or WORD.fullmatch(name) else change(name, False)

    def each(value: object) -> object:
        if isinstance(value, Mapping):
            return {named(name): found if name == KIND else each(found) for name, found in value.items()}
        if isinstance(value, list | tuple):
            return [each(found) for found in value]
        return change(value, is_own) if isinstance(value, str) else value

    return {named(name): value if name == "role" else each(value) for name, value in message.items()}


def _neutral(text: str, chosen_by: Sequence[str]) -> str:
    """Return another text, by which a template chooses the same; for a word, such as an id, one of its length."""
    if found := [each for each in chosen_by if each in text]:
        return MARK.join(["a", *found, ""])
    return "a" * len(text) if WORD.fullmatch(text) else "a"


def _spaced(text: str, kept: Sequence[str]) -> str:
    """Return a text with a mark around each character, except within `kept` tokens and in spaces at its ends."""
    if not (inner := text.strip()):
        return text
    start = text.index(inner)
    parts = re.split(f"({'|'.join(map(re.escape, kept))})", inner) if kept else [inner]
    broken = MARK.join(each if each in kept else MARK.join(["", *each, ""]) for each in parts)
    return f"{text[:start]}{broken}{text[start + len(inner) :]}"
