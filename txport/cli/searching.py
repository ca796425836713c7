"""The options of a search, as commands take them."""

from __future__ import annotations

from typing import Any

import click

from txport.cli import texts
from txport.cli.options import F

SEARCH: list[tuple[str, dict[str, Any]]] = [
    ("--beams", {"type": click.IntRange(1), "default": 1, "help": "Width of beam search; 1 is greedy."}),
    ("--nbest", {"type": click.IntRange(1), "default": 1, "help": "Hypotheses a text; with --do-sample, samples."}),
    (
        "--beam-groups",
        {
            "type": click.IntRange(1),
            "default": 1,
            "help": "Groups of beams, each avoiding what others say.",
        },
    ),
    (
        "--diversity-penalty",
        {
            "type": float,
            "default": 0.0,
            "help": "Taken off a token's score for each beam of an earlier group that says it.",
        },
    ),
    ("--length-penalty", {"type": float, "default": 1.0, "help": "Power of the length in a score."}),
    (
        "--coverage-penalty",
        {
            "type": float,
            "default": 0.0,
            "help": "Weight of the penalty for source places that got little attention.",
        },
    ),
    (
        "--early-stopping",
        {
            "type": click.Choice(["true", "false", "never"]),
            "default": "false",
            "help": "When beam search ends, with Hugging Face's meaning.",
        },
    ),
    ("--patience", {"type": float, "default": 1.0, "help": "Ended hypotheses to wait for, in multiples of --beams."}),
    ("--do-sample", {"is_flag": True, "help": "Draw each token instead of taking the likeliest."}),
    (
        "--temperature",
        {
            "type": float,
            "default": 1.0,
            "help": "Divide scores by this before drawing; below 1, likely tokens get likelier.",
        },
    ),
    ("--top-k", {"type": click.IntRange(0), "default": 0, "help": "Draw from so many tokens; 0: all."}),
    (
        "--top-p",
        {"type": float, "default": 1.0, "help": "Draw from the fewest tokens whose probabilities add up to this."},
    ),
    (
        "--min-p",
        {"type": float, "default": 0.0, "help": "Draw from tokens at least this share as likely as the likeliest."},
    ),
    ("--seed", {"type": click.IntRange(0), "help": "Repeat the same draws for a text, whatever its batch."}),
    (
        "--max-new-tokens",
        {"type": click.IntRange(1), "help": "Longest target.  [default: all that fits]"},
    ),
    (
        "--min-new-tokens",
        {"type": click.IntRange(0), "default": 0, "help": "Tokens that come before the end token may."},
    ),
    (
        "--repetition-penalty",
        {"type": float, "default": 1.0, "help": "Above 1, tokens that the target has get less likely."},
    ),
    (
        "--no-repeat-ngram-size",
        {
            "type": click.IntRange(0),
            "default": 0,
            "help": "Let no sequence of this many tokens occur twice; 0: no limit.",
        },
    ),
    ("--prefixes", {"metavar": "TOKENS", "default": "", "help": "What each target begins with."}),
    ("--forced-bos-token", {"metavar": "TOKEN", "help": "The first token."}),
    ("--forced-eos-token", {"metavar": "TOKEN", "help": "The last token of a target of the greatest length."}),
    ("--suppress-tokens", {"metavar": "TOKENS", "default": "", "help": "Never say one of these."}),
    ("--begin-suppress-tokens", {"metavar": "TOKENS", "default": "", "help": "Let no target begin with one of these."}),
    ("--bad-words", {"metavar": "TOKENS", "multiple": True, "help": "Never say these in a row.  [repeatable]"}),
    (
        "--eos-token",
        {
            "metavar": "TOKEN",
            "multiple": True,
            "help": "End a target at this token instead of the model's own.  [repeatable]",
        },
    ),
    (
        "--alignment",
        {
            "type": click.Choice(["soft", "hard"]),
            "help": "With --json: each token's attention over the input (soft), or where it is largest (hard).",
        },
    ),
]


IDS = {  # options whose tokens are ids in Python
    "forced_bos_token_id": "--forced-bos-token",
    "forced_eos_token_id": "--forced-eos-token",
    "bad_words_ids": "--bad-words",
    "eos_token_id": "--eos-token",
}
NAMED = [*(name for name, _ in SEARCH), "--batch-size", "--batch-tokens", "--source-language", "--target-language"]
FLAGS = {**{flag.removeprefix("--").replace("-", "_"): flag for flag in NAMED}, **IDS}  # by name in Python
ONLY_GENERATING = {
    **{flag.removeprefix("--").replace("-", "_"): flag for flag, _ in SEARCH},
    "continuous": "--continuous",
    "as_stream": "--stream",
    **texts.FLAGS,
    **texts.SPECIAL,
}


def search_options(command: F) -> F:
    """How to search; tokens are written as the vocabulary writes them, apart by spaces."""
    for name, how in reversed(SEARCH):
        shown = how.get("default") not in (None, "") and not how.get("is_flag")
        command = click.option(name, show_default=shown, **how)(command)
    return command
