"""Options and results of a search."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from txport.errors import UnsupportedError, quoted
from txport.models.facts import Facts
from txport.models.pooling import require_pooling
from txport.runtimes.base import Floats, Ints
from txport.system.numbers import is_switch, number, switch, whole

EarlyStopping = bool | Literal["never"]
Alignment = tuple[tuple[float, ...], ...] | tuple[int, ...]  # (T, S), or (T,)
Processor = Callable[[Floats, Ints], Floats]
STEEPEST = 20  # a length to this power is still finite
MOST_PATIENT = 100
MOST_ROWS = 4096  # per source; more would exceed the memory of any machine
GREATEST = 1e9  # maximum penalty, so that scores stay finite in fp32
LONGEST_ID = 2**63 - 1
OPTIONAL = ("max_new_tokens", "max_length", "seed", "forced_bos_token_id", "forced_eos_token_id")
WHOLE = (
    "max_new_tokens",
    "max_length",
    "min_new_tokens",
    "beams",
    "beam_groups",
    "nbest",
    "top_k",
    "no_repeat_ngram_size",
    "seed",
    "forced_bos_token_id",
    "forced_eos_token_id",
)
REAL = (
    "diversity_penalty",
    "length_penalty",
    "coverage_penalty",
    "patience",
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
)
SWITCHES = ("do_sample", "scores")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Generation options. Names and meanings are Hugging Face's where they exist; docs/search.md lists them all.

    The score of a hypothesis is sum(log p) / length^`length_penalty`, the end token included. Beam search stops when
    `beams` x `patience` hypotheses are finished and no running one can win: at its current length
    (`early_stopping=False`), or at any length ("never"). With True it stops without this check. Without `scores`,
    greedy search and sampling do not normalise, and scores are NaN. Without `max_new_tokens`, a target has up to
    `max_length` tokens, its start token and prefix included, or as many as fit.

    Raises `UnsupportedError` for invalid values and combinations.

    `logits_processor` maps scores (R, V) and the tokens so far (R, T), the start token or the prompt first, to new
    scores (R, V): log-probabilities in beam search, logits otherwise. Prompts are padded on the left. It must be
    thread-safe if there are several workers.
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int = 0
    beams: int = 1
    beam_groups: int = 1
    diversity_penalty: float = 0.0
    nbest: int = 1
    length_penalty: float = 1.0
    coverage_penalty: float = 0.0
    early_stopping: EarlyStopping = False
    patience: float = 1.0
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()
    bad_words_ids: Sequence[Sequence[int]] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    eos_token_id: int | Sequence[int] | None = None
    logits_processor: Processor | None = None
    alignment: Literal["soft", "hard"] | None = None
    scores: bool = True

    def __post_init__(self) -> None:
        for name in WHOLE:
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        for name in REAL:
            object.__setattr__(self, name, number(name, getattr(self, name)))
        for name in SWITCHES:
            object.__setattr__(self, name, switch(name, getattr(self, name)))
        if is_switch(self.early_stopping):
            object.__setattr__(self, "early_stopping", bool(self.early_stopping))
        for name in ("suppress_tokens", "begin_suppress_tokens"):
            object.__setattr__(self, name, _tokens(name, getattr(self, name)))
        words = _many("bad_words_ids", self.bad_words_ids)
        object.__setattr__(self, "bad_words_ids", tuple(_tokens("bad_words_ids", each) for each in words))
        if self.eos_token_id is not None:
            ends = np.atleast_1d(np.asarray(self.eos_token_id, object))
            object.__setattr__(self, "eos_token_id", tuple(_whole("eos_token_id", each) for each in ends))
        require_length_penalty(self.length_penalty)
        for problem in _problems(self):
            raise UnsupportedError(problem)

    @property
    def kept(self) -> int:
        """The number of finished hypotheses per source and group: round(beams per group x `patience`), at least 1."""
        return max(1, round(self.beams // self.beam_groups * self.patience))

    @property
    def rows(self) -> int:
        """The number of rows per source."""
        return self.nbest if self.do_sample else self.beams

    @property
    def changes_scores(self) -> bool:
        """True if options other than bans change scores, so that the scores of all tokens are needed."""
        return self.repetition_penalty != 1 or self.logits_processor is not None

    @property
    def aligns(self) -> bool:
        """True if attention over the source is needed."""
        return self.alignment is not None or self.coverage_penalty > 0

    def ends(self, facts: Facts) -> tuple[int, ...]:
        """Return the end tokens of a target."""
        return facts.writes.ends if self.eos_token_id is None else tuple(self.eos_token_id)  # type: ignore[arg-type]

    def require_fit(self, facts: Facts, prefix: int = 0) -> None:
        """Raise `UnsupportedError` for options that this model does not support with a prefix of `prefix` tokens."""
        self._require_task(facts)
        limit = f"the model's longest sequence, {facts.writes.longest}"
        if prefix >= facts.writes.longest:
            raise UnsupportedError(f"a prefix of {prefix} tokens leaves no room for a target in {limit}; shorten it")
        if self.max_new_tokens is None and self.max_length is not None and prefix + 1 >= self.max_length:
            raise UnsupportedError(f"a prefix of {prefix} tokens leaves no room in max_length {self.max_length}")
        if (longest := prefix + (self.max_new_tokens or 1)) > facts.writes.longest:
            what = "a prefix and max_new_tokens" if prefix else "max_new_tokens"
            raise UnsupportedError(f"{what} must not exceed {limit}; got {longest}")
        if prefix + self.min_new_tokens > facts.writes.longest:
            raise UnsupportedError(f"min_new_tokens must not exceed {limit}; got {self.min_new_tokens}")
        named: dict[str, Iterable[int]] = {
            "suppress_tokens": self.suppress_tokens,
            "begin_suppress_tokens": self.begin_suppress_tokens,
            "bad_words_ids": (token for words in self.bad_words_ids for token in words),
            "forced_bos_token_id": _given(self.forced_bos_token_id),
            "forced_eos_token_id": _given(self.forced_eos_token_id),
            "eos_token_id": self.ends(facts),
        }
        for name, tokens in named.items():
            for token in tokens:
                if not 0 <= token < facts.writes.size:
                    limit = f"0 to {facts.writes.size - 1}"
                    raise UnsupportedError(f"{name} must lie in the vocabulary, {limit}; got {token}")
        if self.min_new_tokens and self.forced_bos_token_id in self.ends(facts):
            fault = "forced_bos_token_id must not be an end token where min_new_tokens forbids it"
            raise UnsupportedError(f"{fault}; got {self.forced_bos_token_id}")

    def _require_task(self, facts: Facts) -> None:
        """Raise `UnsupportedError` for options that do not apply to the task of the model."""
        for name in ("alignment", "coverage_penalty"):
            if getattr(self, name) and facts.attention is None:
                raise UnsupportedError(f"{name} needs attention over a source, which this {facts.task} model has not")
        if self.max_length is not None and facts.task == "causal":
            what = "max_length counts a target's start token, and a causal model has none"
            raise UnsupportedError(f"{what}; give max_new_tokens")
        if self.forced_bos_token_id is not None and facts.task == "causal":
            what = "forced_bos_token_id comes after a start token, and a causal model starts from a prompt"
            raise UnsupportedError(f"{what}; put the token at the end of the prompt")


def _whole(name: str, value: Any) -> int | None:
    """Return a whole number as an int; None is kept for optional values."""
    if value is None and name in OPTIONAL:
        return None
    return whole(name, value, most=None if name == "seed" else LONGEST_ID)


def _tokens(name: str, values: Any) -> tuple[int | None, ...]:
    """Return the token ids of any sequence as ints."""
    return tuple(_whole(name, each) for each in _many(name, values))


def _many(name: str, values: Any) -> list[Any]:
    """Return the items of any sequence as a list; None is an empty sequence, as in Hugging Face."""
    try:
        return [] if values is None else list(values)
    except TypeError:
        raise UnsupportedError(f"{name} must be a sequence, got {quoted(values)}") from None


def _given(token: int | None) -> tuple[int, ...]:
    return () if token is None else (token,)


def _problems(options: SearchOptions) -> Iterable[str]:
    """Yield error messages for invalid options, the most basic first."""
    yield from _wrong_counts(options)
    yield from _wrong_words(options)
    yield from _wrong_numbers(options)
    defaults = {entry.name: entry.default for entry in SearchOptions.__dataclass_fields__.values()}
    changed = {name for name, default in defaults.items() if getattr(options, name) != default}
    if not options.do_sample:
        for name in sorted(changed & {"temperature", "top_k", "top_p", "min_p", "seed"}):
            yield f"{name} is for sampling; give do_sample too"
        if options.nbest > options.beams:
            yield f"nbest can't exceed beams, got {options.nbest} of {options.beams}"
    elif options.beams > 1:
        yield "do_sample and beams exclude each other; give one of them"
    if options.beams == 1:
        for name in sorted(changed & {"early_stopping", "patience", "coverage_penalty"}):
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
    for name in ("top_k", "no_repeat_ngram_size", "seed"):
        if (getattr(options, name) or 0) < 0:
            yield f"{name} must not be negative, got {getattr(options, name)}"
    most = LONGEST_ID if options.max_new_tokens is None else options.max_new_tokens
    if not 0 <= options.min_new_tokens <= most:
        limit = f"0 to max_new_tokens, {most}"
        yield f"min_new_tokens must lie in {limit}; got {options.min_new_tokens}"
    if options.eos_token_id is not None and not tuple(options.eos_token_id):  # type: ignore[arg-type]
        yield "eos_token_id must name at least one token"
    if any(not len(words) for words in options.bad_words_ids):
        yield "bad_words_ids must not hold an empty sequence"


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
    for name in ("diversity_penalty", "coverage_penalty", "repetition_penalty"):
        if getattr(options, name) > GREATEST:
            yield f"{name} must not exceed {GREATEST:g}, got {getattr(options, name)}"
    for name in ("patience", "temperature", "repetition_penalty"):
        if not 0 < getattr(options, name) < math.inf:
            yield f"{name} must be a positive number, got {getattr(options, name)}"
    if options.repetition_penalty < 1 / GREATEST:
        yield f"repetition_penalty must be at least {1 / GREATEST:g}, got {options.repetition_penalty}"
    if not 0 < options.top_p <= 1:
        yield f"top_p must lie above 0 and up to 1, got {options.top_p}"
    if not 0 <= options.min_p <= 1:
        yield f"min_p must lie in 0 to 1, got {options.min_p}"


def _is_one(value: Any, *words: str) -> bool:
    """Return True if the value is one of the words; an array is not, because its comparison is elementwise."""
    return isinstance(value, str) and value in words


def require_defaults(values: Mapping[str, Any], facts: Facts) -> None:
    """Raise `UnsupportedError` for default options of a bundle that its model does not support.

    For an encoder-only model, these are the options of pooling.
    """
    if facts.task == "encode":
        require_pooling(values, facts)
        return
    known = {each.name for each in dataclasses.fields(SearchOptions)} - {"logits_processor", "scores", "alignment"}
    if strange := sorted(values.keys() - known):
        raise UnsupportedError(f"unknown option {quoted(strange[0])}")
    if values:
        SearchOptions(**values).require_fit(facts)


def require_length_penalty(length_penalty: float) -> None:
    """Raise `UnsupportedError` for a length penalty that is out of range, or NaN."""
    if not -STEEPEST <= number("length_penalty", length_penalty) <= STEEPEST:  # NaN is in no range
        raise UnsupportedError(f"length_penalty must lie in -{STEEPEST} to {STEEPEST}, got {length_penalty}")


@dataclass(frozen=True)
class Found:
    """One target: its token ids, the end token included if it was reached, its score, and the log-prob of each token.

    `alignment`, if requested, is the attention of each token to each source position ("soft"), or the source position
    with the most attention ("hard").
    """

    tokens: tuple[int, ...]
    score: float
    token_scores: tuple[float, ...] = ()
    alignment: Alignment = ()
