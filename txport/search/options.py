"""Options and results of a search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from txport.checkpoints.pooling import require_pooling
from txport.errors import UnsupportedError, quoted
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.models.generation import SAMPLING
from txport.runtimes.base import Floats, Ints
from txport.search.problems import BEAMS, LONGEST_ID, problems
from txport.search.stops import Stops
from txport.system.numbers import is_switch, number, switch, whole
from txport.text.file import NOT_UTF8

EarlyStopping = bool | Literal["never"]
Alignment = tuple[tuple[float, ...], ...] | tuple[int, ...]  # (T, S), or (T,)
Processor = Callable[[Floats, Ints], Floats]
STEEPEST = 20  # a length to this power is still finite
OPTIONAL = ("max_new_tokens", "max_length", "seed", "forced_bos_token_id", "forced_eos_token_id")
WHOLE = (
    "max_new_tokens",
    "max_length",
    "min_length",
    "min_new_tokens",
    "beams",
    "beam_groups",
    "nbest",
    "top_k",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
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
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "repetition_penalty",
    "encoder_repetition_penalty",
)
SWITCHES = ("do_sample", "renormalize_logits", "scores")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Generation options. Names and meanings are Hugging Face's where they exist; docs/search.md lists them all.

    The score of a hypothesis is sum(log p) / length^`length_penalty`, the end token included. Beam search stops when
    `beams` x `patience` hypotheses are finished and no running one can win: at its current length
    (`early_stopping=False`), or at any length ("never"). With True it stops without this check. Without `scores`,
    greedy search and sampling do not normalise, and scores are NaN. Without `max_new_tokens`, a target has up to
    `max_length` tokens, its start token and prefix included, or as many as fit.

    Raises `UnsupportedError` for invalid values and combinations.

    A target ends with the token that completes a string of `stop`; `Model` binds them to its tokenizer (`Stops`).

    `logits_processor` maps scores (R, V) and the tokens so far (R, T), the start token or the prompt first, to new
    scores (R, V): log-probabilities in beam search, logits otherwise. Prompts are padded on the left. It must be
    thread-safe if there are several workers.
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    min_length: int = 0
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
    top_h: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    seed: int | None = None
    sequence_bias: Sequence[tuple[Sequence[int], float]] = ()
    encoder_repetition_penalty: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()
    bad_words_ids: Sequence[Sequence[int]] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    exponential_decay_length_penalty: tuple[int, float] | None = None
    renormalize_logits: bool = False
    eos_token_id: int | Sequence[int] | None = None
    stop: str | Sequence[str] = ()
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
        object.__setattr__(self, "sequence_bias", _biases(self.sequence_bias))
        if self.top_h is not None:
            object.__setattr__(self, "top_h", number("top_h", self.top_h))
        if self.exponential_decay_length_penalty is not None:
            start, factor = _pair("exponential_decay_length_penalty", self.exponential_decay_length_penalty)
            penalty = (_whole("exponential_decay_length_penalty", start), number("its factor", factor))
            object.__setattr__(self, "exponential_decay_length_penalty", penalty)
        if self.eos_token_id is not None:
            ends = np.atleast_1d(np.asarray(self.eos_token_id, object))
            object.__setattr__(self, "eos_token_id", tuple(_whole("eos_token_id", each) for each in ends))
        object.__setattr__(self, "stop", _strings("stop", self.stop))
        require_length_penalty(self.length_penalty)
        for problem in problems(self):
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
        return (
            self.repetition_penalty != 1
            or self.encoder_repetition_penalty != 1
            or bool(self.sequence_bias)
            or self.exponential_decay_length_penalty is not None
            or (self.renormalize_logits and self.beams > 1)
            or self.logits_processor is not None
        )

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
        is_full = self.max_length is not None and facts.is_encoder_decoder and prefix + 1 >= self.max_length
        if self.max_new_tokens is None and is_full:
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
            "sequence_bias": (token for words, _ in self.sequence_bias for token in words),
            "forced_bos_token_id": _given(self.forced_bos_token_id),
            "forced_eos_token_id": _given(self.forced_eos_token_id),
            "eos_token_id": self.ends(facts),
        }
        for name, tokens in named.items():
            for token in tokens:
                if not 0 <= token < facts.writes.size:
                    limit = f"0 to {facts.writes.size - 1}"
                    raise UnsupportedError(f"{name} must lie in the vocabulary, {limit}; got {token}")
        if (self.min_new_tokens or self.min_length > 1) and self.forced_bos_token_id in self.ends(facts):
            least = "min_new_tokens" if self.min_new_tokens else "min_length"
            fault = f"forced_bos_token_id must not be an end token where {least} forbids it"
            raise UnsupportedError(f"{fault}; got {self.forced_bos_token_id}")

    def _require_task(self, facts: Facts) -> None:
        """Raise `UnsupportedError` for options that do not apply to the task of the model."""
        for name in ("alignment", "coverage_penalty"):
            if getattr(self, name) and facts.attention is None:
                raise UnsupportedError(f"{name} needs attention over a source, which this {facts.task} model has not")
        reads_source = {
            "encoder_repetition_penalty": self.encoder_repetition_penalty != 1,
            "encoder_no_repeat_ngram_size": self.encoder_no_repeat_ngram_size > 0,
        }
        for name, is_given in reads_source.items():
            if is_given and isinstance(facts.source, Features):
                raise UnsupportedError(f"{name} needs a source of tokens, and this model reads audio")
        if self.forced_bos_token_id is not None and facts.is_causal:
            what = "forced_bos_token_id comes after a start token, and a causal model starts from a prompt"
            raise UnsupportedError(f"{what}; put the token at the end of the prompt")


def _whole(name: str, value: object) -> int | None:
    """Return a whole number as an int; None is kept for optional values."""
    if value is None and name in OPTIONAL:
        return None
    return whole(name, value, most=None if name == "seed" else LONGEST_ID)


def _tokens(name: str, values: object) -> tuple[int | None, ...]:
    """Return the token ids of any sequence as ints."""
    return tuple(_whole(name, each) for each in _many(name, values))


def _pair(name: str, value: object) -> tuple[Any, Any]:
    """Return the two items of a sequence."""
    items = _many(name, value)
    if isinstance(value, str) or len(items) != 2:
        raise UnsupportedError(f"{name} must have two values, got {quoted(value)}")
    return items[0], items[1]


def _biases(values: object) -> tuple[tuple[tuple[int | None, ...], float], ...]:
    """Return sequences of tokens with their biases, from pairs or from a mapping."""
    pairs = values.items() if isinstance(values, Mapping) else _many("sequence_bias", values)
    found = [_pair("an item of sequence_bias", pair) for pair in pairs]
    return tuple({_tokens("sequence_bias", words): number("sequence_bias", bias) for words, bias in found}.items())


def _strings(name: str, values: object) -> tuple[str, ...]:
    """Return one string or many as a tuple."""
    if isinstance(values, Stops):
        return values
    strings = [values] if isinstance(values, str) else _many(name, values)
    for each in strings:
        if not isinstance(each, str) or not each or NOT_UTF8.search(each):
            raise UnsupportedError(f"{name} must be strings with at least one character, got {quoted(each)}")
    return tuple(strings)


def _many(name: str, values: Any) -> list[Any]:
    """Return the items of any sequence as a list; None is an empty sequence, as in Hugging Face."""
    try:
        return [] if values is None else list(values)
    except TypeError:
        raise UnsupportedError(f"{name} must be a sequence, got {quoted(values)}") from None


def _given(token: int | None) -> tuple[int, ...]:
    return () if token is None else (token,)


def require_defaults(values: Mapping[str, object], facts: Facts) -> None:
    """Raise `UnsupportedError` for default options of a bundle that its model does not support.

    For an encoder-only model, these are the options of pooling.
    """
    if not facts.generates:
        require_pooling(values, facts)
        return
    known = {each.name for each in dataclasses.fields(SearchOptions)} - {"logits_processor", "scores", "alignment"}
    if strange := sorted(values.keys() - known):
        raise UnsupportedError(f"unknown option {quoted(strange[0])}")
    if values:
        chosen_options(values, {}).require_fit(facts)


def chosen_options(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> SearchOptions:
    """Return the given options over the defaults of a bundle, as transformers does."""
    return SearchOptions(**applied(defaults, given), **given)


def applied(defaults: Mapping[str, object], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the defaults that apply next to the given options.

    Defaults of sampling do not apply without it, nor those of beam search without beams. Raises `UnsupportedError` for
    invalid values of `do_sample` and `beams`.
    """
    chosen = {"do_sample": False, "beams": 1, **defaults, **given}
    idle = {*(() if switch("do_sample", chosen["do_sample"]) else SAMPLING)}
    idle |= {*(BEAMS if whole("beams", chosen["beams"]) == 1 else ())}
    return {name: value for name, value in defaults.items() if name not in given and name not in idle}


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
