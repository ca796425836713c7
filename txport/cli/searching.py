"""The command-line options of search."""

from __future__ import annotations

from typing import Any

import click

from txport.cli import bulk, texts
from txport.cli.options import F

SEARCH: list[tuple[str, dict[str, Any]]] = [
    ("--beams", {"type": click.IntRange(1), "default": 1, "help": "Width of beam search; 1 is greedy."}),
    ("--nbest", {"type": click.IntRange(1), "default": 1, "help": "Hypotheses a text; with --do-sample, samples."}),
    (
        "--beam-groups",
        {
            "type": click.IntRange(1),
            "default": 1,
            "help": "Number of groups of beams for diverse beam search.",
        },
    ),
    (
        "--diversity-penalty",
        {
            "type": float,
            "default": 0.0,
            "help": "Subtracted from a token's score for each beam of an earlier group that chose the token.",
        },
    ),
    ("--length-penalty", {"type": float, "default": 1.0, "help": "Exponent of the length that a score is divided by."}),
    (
        "--coverage-penalty",
        {
            "type": float,
            "default": 0.0,
            "help": "Weight of the coverage penalty: for source positions with little attention.",
        },
    ),
    (
        "--early-stopping",
        {
            "type": click.Choice(["true", "false", "never"]),
            "default": "false",
            "help": "Stopping condition of beam search, as in Hugging Face.",
        },
    ),
    (
        "--patience",
        {"type": float, "default": 1.0, "help": "Finished hypotheses to wait for, as a multiple of --beams."},
    ),
    ("--do-sample", {"is_flag": True, "help": "Sample each token instead of taking the most probable one."}),
    (
        "--temperature",
        {
            "type": float,
            "default": 1.0,
            "help": "Divide logits by this before sampling; values below 1 sharpen the distribution.",
        },
    ),
    ("--top-k", {"type": click.IntRange(0), "default": 0, "help": "Sample from the k most probable tokens; 0: all."}),
    (
        "--top-p",
        {"type": float, "default": 1.0, "help": "Sample from the smallest set of tokens with total probability >= p."},
    ),
    (
        "--min-p",
        {"type": float, "default": 0.0, "help": "Sample from tokens with p >= min_p * max(p)."},
    ),
    (
        "--typical-p",
        {
            "type": float,
            "default": 1.0,
            "help": "Sample from the tokens of total probability p whose -log(p) is closest to the entropy.",
        },
    ),
    (
        "--epsilon-cutoff",
        {"type": float, "default": 0.0, "help": "Sample from tokens with at least this probability."},
    ),
    (
        "--eta-cutoff",
        {"type": float, "default": 0.0, "help": "Sample from tokens with p >= min(eta, sqrt(eta) * exp(-entropy))."},
    ),
    ("--seed", {"type": click.IntRange(0), "help": "Random seed; the samples of a text do not depend on its batch."}),
    (
        "--max-new-tokens",
        {"type": click.IntRange(1), "help": "Maximum number of new tokens.  [default: all that fits]"},
    ),
    (
        "--min-length",
        {
            "type": click.IntRange(0),
            "default": 0,
            "help": "Like --min-new-tokens, but the start token and a prefix count too, or the prompt.",
        },
    ),
    (
        "--min-new-tokens",
        {"type": click.IntRange(0), "default": 0, "help": "Minimum number of tokens before the end token."},
    ),
    (
        "--repetition-penalty",
        {"type": float, "default": 1.0, "help": "Above 1: lower the scores of tokens that the target already has."},
    ),
    (
        "--no-repeat-ngram-size",
        {
            "type": click.IntRange(0),
            "default": 0,
            "help": "Let no sequence of this many tokens occur twice; 0: no limit.",
        },
    ),
    ("--prefixes", {"metavar": "TOKENS", "default": "", "help": "Tokens at the start of each target."}),
    ("--forced-bos-token", {"metavar": "TOKEN", "help": "First token that is generated."}),
    ("--forced-eos-token", {"metavar": "TOKEN", "help": "Last token of a target that reaches the maximum length."}),
    ("--suppress-tokens", {"metavar": "TOKENS", "default": "", "help": "Tokens that are never generated."}),
    (
        "--begin-suppress-tokens",
        {"metavar": "TOKENS", "default": "", "help": "Tokens that are not generated as the first token."},
    ),
    (
        "--bad-words",
        {"metavar": "TOKENS", "multiple": True, "help": "Sequence of tokens that is never generated.  [repeatable]"},
    ),
    (
        "--eos-token",
        {
            "metavar": "TOKEN",
            "multiple": True,
            "help": "End a target at this token instead of the model's own.  [repeatable]",
        },
    ),
    (
        "--stop",
        {
            "metavar": "TEXT",
            "multiple": True,
            "help": "End a target when its text has TEXT; the output ends before it.  [repeatable]",
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
    "explained": "--explain",
    **bulk.FLAGS,
    **texts.FLAGS,
    **texts.SPECIAL,
}


def search_options(command: F) -> F:
    """Add the options of search; tokens are written as in the vocabulary, separated by spaces."""
    for name, how in reversed(SEARCH):
        shown = how.get("default") not in (None, "") and not how.get("is_flag")
        command = click.option(name, show_default=shown, **how)(command)
    return command
