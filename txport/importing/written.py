"""Rules of a draft as text: patterns for the names of tensors, and what these become."""

from __future__ import annotations

import re
from collections.abc import Iterator


def rule(text: str, why: str = "") -> Iterator[str]:
    """The lines of a rule, with the reason for it behind it."""
    yield ""
    yield "[[rule]]"
    yield f"{text}  # {why}" if why else text


def pattern_of(name: str) -> str:
    """A regular expression for the names of a template."""
    return (
        "^" + re.escape(name).replace(r"\{\}", r"(\d+)").replace(r"\-", "-").replace(r"\_", "_").replace("/", "/") + "$"
    )


def own_name(name: str) -> str:
    """The name of a tensor of the model, where a pattern gave the number of its layer."""
    return name.replace(".0.", r".\1.", 1) if "{}" not in name else name.replace("{}", r"\1")
