"""Assembly of a `tokenizer.json` from its parts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from txport.errors import CheckpointError, quoted
from txport.text.settings import NAMED, Added, Settings

Slots = dict[int, tuple[str, float]]  # id -> token and score


@dataclass
class Vocabulary:
    """Tokens by id, added tokens, which are matched as a whole, and special tokens by name."""

    slots: Slots
    added: dict[int, Added] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)

    @property
    def ids(self) -> dict[str, int]:
        """The ids of all tokens."""
        return {text: id_ for id_, (text, _) in self.slots.items()}


def vocabulary(
    settings: Settings,
    slots: Slots,
    defaults: Mapping[str, str],
    special: Iterable[Added] = (),
    users: Iterable[Added] = (),
) -> Vocabulary:
    """Return the vocabulary of a tokenizer class: the tokens of its files, and those that the settings add.

    `defaults` are the class's special tokens by name, `special` are more tokens that the class adds, and `users` are
    pieces that are matched as a whole. Raises `CheckpointError` if the settings and the files name different tokens for
    one id, if a token occurs twice, and if ids are far larger than the number of tokens.
    """
    found = Vocabulary(dict(slots))
    for id_, token in settings.added().items():
        if found.slots.setdefault(id_, (token.text, 0.0))[0] != token.text:
            both = f"{quoted(token.text)}, its vocabulary {quoted(found.slots[id_][0])}"
            raise settings.wrong(f"the token {id_} is {both}")
        found.added[id_] = token
    found.named = {name: own for name in NAMED if (own := settings.token(name, defaults.get(name))) is not None}
    others = settings.others()
    known = {each.text: each for each in special}
    tokens = [known.get(text, Added(text)) for text in (*found.named.values(), *others, *known)]
    ids = found.ids
    top = max(found.slots, default=-1)
    for token in (*tokens, *users):
        if token.text not in ids:
            top += 1
            ids[token.text] = top
            found.slots[top] = (token.text, 0.0)
        found.added.setdefault(ids[token.text], token)
    named = {*found.named.values(), *others}
    found.added = {
        id_: replace(token, special=token.special or token.text in named) for id_, token in found.added.items()
    }
    texts = [text for text, _ in found.slots.values()]
    if len(set(texts)) < len(texts):
        twice = Counter(texts).most_common(1)[0][0]
        raise CheckpointError(f"the vocabulary of {settings.folder} has {quoted(twice)} twice")
    if max(found.slots, default=0) > 4 * len(texts) + 1000:
        raise CheckpointError(
            f"the vocabulary of {settings.folder} has the id {max(found.slots)}, and {len(texts)} tokens"
        )
    return found


def assemble(
    words: Vocabulary,
    model: Mapping[str, object],
    *,
    normalizer: object,
    pre_tokenizer: object,
    decoder: object,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> str:
    """Return a `tokenizer.json` that adds the tokens `before` and `after` around each text."""
    values = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [words.added[id_].at(id_) for id_ in sorted(words.added)],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": around(words.ids, before, after),
        "decoder": decoder,
        "model": model,
    }
    return json.dumps(values, ensure_ascii=False) + "\n"


def around(ids: Mapping[str, int], before: Sequence[str], after: Sequence[str]) -> dict[str, object] | None:
    """Return the post-processor that adds the tokens `before` and `after` around each text; None if there are none."""
    if not (before or after):
        return None
    single = [*_special(before, 0), _sequence("A", 0), *_special(after, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, _sequence("B", 1), *_special(after, 1)],
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in dict.fromkeys((*before, *after))
        },
    }


def _special(tokens: Sequence[str], kind: int) -> list[dict[str, object]]:
    return [{"SpecialToken": {"id": token, "type_id": kind}} for token in tokens]


def _sequence(name: str, kind: int) -> dict[str, object]:
    return {"Sequence": {"id": name, "type_id": kind}}
