"""Heads of causal models and of encoder-decoders that read whole texts, without a cache. Does not import PyTorch.

A config with such heads has the fields `head`, `labels`, `problem_type` and `text_length`, and perhaps `sentence`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from txport.models import sentence
from txport.models.facts import END, HIDDEN, LENGTH, LOGITS, START, Facts, Output, Tokens, function_of

TEXT = "text"  # the head that writes text
STATES = "hidden"
LABELS, TOKEN_LABELS = "labels", "token_labels"
SPANS = "spans"  # the logits of the first and of the last token of an answer
OF_LABELS = ("labels", "problem_type")  # fields that heads of labels read


def problems(config: Any, of_text: Sequence[str], of_others: Sequence[str] = ()) -> Iterator[str]:
    """Yield a message for each invalid setting of a head.

    Only the head "text" reads the fields `of_text`, and only the others read `of_others`.
    """
    unread = {
        TEXT: (*of_others, "text_length", *OF_LABELS),
        LABELS: of_text,
        TOKEN_LABELS: (*of_text, "problem_type"),
    }.get(config.head, (*of_text, *OF_LABELS))
    for name in unread:
        if (value := getattr(config, name)) != getattr(type(config), name):
            yield f"{name} is for other heads than {config.head!r}, got {value}"
    if config.head in (LABELS, TOKEN_LABELS) and not 0 < len(set(config.labels)) == len(config.labels):
        yield f"the head {config.head!r} needs labels that differ from each other"
    if config.text_length > config.max_length:
        yield f"text_length must be at most max_length {config.max_length}, got {config.text_length}"
    yield from sentence.problems(getattr(config, "sentence", ()), config.head, (STATES,))


def facts_of(config: Any, source: Tokens, windows: tuple[int, ...] = ()) -> Facts:
    """Return the facts of a model that reads whole texts, by the head of its config."""
    outputs = {
        STATES: (Output(HIDDEN, (LENGTH, config.d_model)),),
        LABELS: (Output(LOGITS, (len(config.labels),)),),
        TOKEN_LABELS: (Output(LOGITS, (LENGTH, len(config.labels))),),
        SPANS: (Output(START, (LENGTH,)), Output(END, (LENGTH,))),
    }
    return Facts(
        task="encode",
        width=config.d_model,
        source=source,
        outputs=(*outputs[config.head], *sentence.outputs_of(config.d_model, getattr(config, "sentence", ()))),
        labels=config.labels,
        function_to_apply=function_of(config.problem_type, config.labels),
        windows=windows,
    )
