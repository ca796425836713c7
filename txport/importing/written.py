"""Rules of a draft as text: patterns of tensor names in the file, and names in the model."""

from __future__ import annotations

import re
from collections.abc import Iterator


def rule(text: str, why: str = "") -> Iterator[str]:
    """Yield the lines of a rule, with its reason as a comment."""
    yield ""
    yield "[[rule]]"
    yield f"{text}  # {why}" if why else text


def pattern_of(name: str) -> str:
    """Return a regular expression that matches the names of a template; its group is the number of the layer."""
    return "^" + re.escape(name).replace(r"\{\}", r"(\d+)").replace(r"\-", "-") + "$"


def own_name(name: str) -> str:
    """Return the name of a tensor of the model as the replacement of a match: group 1 is the layer's number."""
    return name.replace(".0.", r".\1.", 1) if "{}" not in name else name.replace("{}", r"\1")
