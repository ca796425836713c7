"""Invalid values of search options, and combinations that make no sense, as error messages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from txport.errors import quoted
from txport.models.generation import SAMPLING

if TYPE_CHECKING:
    from txport.search.options import SearchOptions

MOST_PATIENT = 100
MOST_ROWS = 4096  # per source; more would exceed the memory of any machine
GREATEST = 1e9  # maximum penalty, so that scores stay finite in fp32
LONGEST_ID = 2**63 - 1
BEAMS = ("early_stopping", "patience", "coverage_penalty")


def problems(options: SearchOptions) -> Iterable[str]:
    """Yield error messages for invalid options, the most basic first."""
    yield from _wrong_counts(options)
    yield from _wrong_words(options)
    yield from _wrong_numbers(options)
    defaults = {entry.name: entry.default for entry in dataclasses.fields(options)}
    changed = {name for name, default in defaults.items() if getattr(options, name) != default}
    if not options.do_sample:
        for name in sorted(changed.intersection((*SAMPLING, "seed"))):
            yield f"{name} is for sampling; give do_sample too"
        if options.nbest > options.beams:
            yield f"nbest can't exceed beams, got {options.nbest} of {options.beams}"
    elif options.beams > 1:
        yield "do_sample and beams exclude each other; give one of them"
    if options.beams == 1:
        for name in sorted(changed.intersection(BEAMS)):
            yield f"{name} is for beam search; give beams too"
    elif not options.scores:
        yield "beam search can't do without scores"
    elif options.nbest > (waited := options.beam_groups * options.kept):
        yield f"nbest can't exceed beams x patience: so many hypotheses are waited for, {waited}"
    if options.beams % options.beam_groups:
        yield f"beam_groups must be as many as beams can be parted into, got {options.beam_groups} for {options.beams}"
    if options.beam_groups == 1 and options.diversity_penalty:
        yield "diversity_penalty is for beam_groups; give these too"
    if options.beam_groups > 1 and not options.diversity_penalty:
        yield "beam_groups find the same without a diversity_penalty; give one above 0"
    if not options.scores and options.length_penalty != 1:
        yield "length_penalty is for scores; there are to be none"
    forbidden = {"suppress_tokens": options.suppress_tokens, "bad_words_ids": single_tokens(options.bad_words_ids)}
    for name, tokens in forbidden.items():
        for forced in ("forced_bos_token_id", "forced_eos_token_id"):
            if (token := getattr(options, forced)) in tokens:
                yield f"{name} must not forbid what {forced} says; got {token}"


def single_tokens(sequences: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens of the sequences that have one token."""
    return [words[0] for words in sequences if len(words) == 1]


def _wrong_counts(options: SearchOptions) -> Iterable[str]:
    if options.max_length is not None and options.max_length < 2:
        yield f"max_length must be at least 2, the start token and another, got {options.max_length}"
    for name in ("max_new_tokens", "beams", "beam_groups", "nbest"):
        if (count := getattr(options, name)) is not None and count < 1:
            yield f"{name} must be at least 1, got {count}"
    for name in ("beams", "nbest"):
        if getattr(options, name) > MOST_ROWS:
            yield f"{name} must not exceed {MOST_ROWS}, got {getattr(options, name)}"
    for name in ("min_length", "top_k", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "seed"):
        if (getattr(options, name) or 0) < 0:
            yield f"{name} must not be negative, got {getattr(options, name)}"
    most = LONGEST_ID if options.max_new_tokens is None else options.max_new_tokens
    if not 0 <= options.min_new_tokens <= most:
        limit = f"0 to max_new_tokens, {most}"
        yield f"min_new_tokens must lie in {limit}; got {options.min_new_tokens}"
    if options.eos_token_id is not None and not tuple(options.eos_token_id):  # type: ignore[arg-type]
        yield "eos_token_id must name at least one token"
    biased = [words for words, _ in options.sequence_bias]
    for name, sequences in {"bad_words_ids": options.bad_words_ids, "sequence_bias": biased}.items():
        if not all(map(len, sequences)):
            yield f"{name} must not hold an empty sequence"
    if options.exponential_decay_length_penalty is not None and options.exponential_decay_length_penalty[0] < 0:
        yield f"exponential_decay_length_penalty must start from 0 on, got {options.exponential_decay_length_penalty}"


def _wrong_words(options: SearchOptions) -> Iterable[str]:
    early_stopping: Any = options.early_stopping
    if not isinstance(early_stopping, bool) and not _is_one(early_stopping, "never"):
        yield f"early_stopping must be True, False or 'never', got {quoted(early_stopping)}"
    if options.alignment is not None and not _is_one(options.alignment, "soft", "hard"):
        yield f"alignment must be 'soft' or 'hard', got {quoted(options.alignment)}"
    processor: Any = options.logits_processor
    if processor is not None and not callable(processor):
        yield f"logits_processor must be a function of scores and tokens, got {quoted(processor)}"


def _wrong_numbers(options: SearchOptions) -> Iterable[str]:
    if options.patience > MOST_PATIENT:
        yield f"patience must not exceed {MOST_PATIENT}, got {options.patience}"
    for name in ("diversity_penalty", "coverage_penalty"):
        if not 0 <= getattr(options, name) < math.inf:
            yield f"{name} must be a number from 0 on, got {getattr(options, name)}"
    for name in ("diversity_penalty", "coverage_penalty", "repetition_penalty", "encoder_repetition_penalty"):
        if getattr(options, name) > GREATEST:
            yield f"{name} must not exceed {GREATEST:g}, got {getattr(options, name)}"
    for name in ("patience", "temperature", "repetition_penalty", "encoder_repetition_penalty"):
        if not 0 < getattr(options, name) < math.inf:
            yield f"{name} must be a positive number, got {getattr(options, name)}"
    for name in ("repetition_penalty", "encoder_repetition_penalty"):
        if getattr(options, name) < 1 / GREATEST:
            yield f"{name} must be at least {1 / GREATEST:g}, got {getattr(options, name)}"
    if any(not math.fabs(bias) <= GREATEST for _, bias in options.sequence_bias):
        yield f"sequence_bias must lie in -{GREATEST:g} to {GREATEST:g}"
    if (
        options.exponential_decay_length_penalty is not None
        and not 0 < options.exponential_decay_length_penalty[1] <= GREATEST
    ):
        yield f"the factor of exponential_decay_length_penalty must lie above 0 and up to {GREATEST:g}"
    for name in ("top_p", "typical_p", "top_h"):
        if (share := getattr(options, name)) is not None and not 0 < share <= 1:
            yield f"{name} must lie above 0 and up to 1, got {share}"
    if not 0 <= options.min_p <= 1:
        yield f"min_p must lie in 0 to 1, got {options.min_p}"
    for name in ("epsilon_cutoff", "eta_cutoff"):
        if not 0 <= getattr(options, name) < 1:
            yield f"{name} must lie in 0 to below 1, got {getattr(options, name)}"


def _is_one(value: object, *words: str) -> bool:
    """Return True if the value is one of the words; an array is not, because its comparison is elementwise."""
    return isinstance(value, str) and value in words
