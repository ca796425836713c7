"""How `txport run` reads its lines: languages that the model is told, and messages of a chat."""

from __future__ import annotations

from typing import Any

import click

from txport.cli.options import F, is_given
from txport.errors import UnsupportedError

FLAGS = {"source_language": "--source-language", "target_language": "--target-language", "as_chat": "--chat"}


def text_options(command: F) -> F:
    """Languages, and chat."""
    chat = "Each line is what a user says, or a JSON list of messages; the checkpoint's template makes a prompt of it."
    source = "Language of the texts, as the tokenizer names it (eng_Latn).  [default: the tokenizer's]"
    for option in (
        click.option("--chat", "as_chat", is_flag=True, help=chat),
        click.option("--target-language", metavar="NAME", help="Language of the targets."),
        click.option("--source-language", metavar="NAME", help=source),
    ):
        command = option(command)
    return command


def told(model: Any, options: dict[str, Any]) -> Any:
    """The model that reads lines as options say, which are taken away; `UnsupportedError` where it can't."""
    given = [flag for name, flag in FLAGS.items() if is_given(name)]
    languages = {name: options.pop(name) for name in ("source_language", "target_language")}
    as_chat = options.pop("as_chat")
    if given and is_given("as_ids"):
        raise UnsupportedError(f"--ids gives all tokens as numbers; it does not go with {', '.join(given)}")
    if any(each is not None for each in languages.values()):
        model = model.between(**languages)
    return model.reading_chats() if as_chat else model
