"""Options and results of a search."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from txport.checkpoints.pooling import require_pooling
from txport.errors import UnsupportedError, quoted
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.models.options import MAX_EXPONENT, GenerationOptions, needing
from txport.runtimes.base import Floats, Ints
from txport.system.numbers import number, switch, whole

Alignment = tuple[tuple[float, ...], ...] | tuple[int, ...]  # (T, S), or (T,)
Processor = Callable[[Floats, Ints], Floats]


class Searching(TypedDict, total=False):
    """The options of `SearchOptions` as arguments of a function, so that type checkers know them."""

    beams: int
    nbest: int
    beam_groups: int
    diversity_penalty: float
    length_penalty: float
    coverage_penalty: float
    early_stopping: bool | Literal["never"]
    patience: float
    do_sample: bool
    temperature: float
    top_h: float | None
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    epsilon_cutoff: float
    eta_cutoff: float
    seed: int | None
    max_new_tokens: int | None
    max_length: int | None
    min_length: int
    min_new_tokens: int
    repetition_penalty: float
    encoder_repetition_penalty: float
    no_repeat_ngram_size: int
    encoder_no_repeat_ngram_size: int
    sequence_bias: Sequence[tuple[Sequence[int], float]]
    exponential_decay_length_penalty: tuple[int, float] | None
    renormalize_logits: bool
    forced_bos_token_id: int | None
    forced_eos_token_id: int | None
    suppress_tokens: Sequence[int]
    begin_suppress_tokens: Sequence[int]
    bad_words_ids: Sequence[Sequence[int]]
    eos_token_id: int | Sequence[int] | None
    stop: str | Sequence[str]
    alignment: Literal["soft", "hard"] | None
    logits_processor: Processor | None
    scores: bool


@dataclass(frozen=True, kw_only=True)
class SearchOptions(GenerationOptions):
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

    logits_processor: Processor | None = None
    scores: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "scores", switch("scores", self.scores))
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
            if is_given and facts.vocabulary.size != facts.writes.size:
                sizes = f"this model reads {facts.vocabulary.size} tokens and writes {facts.writes.size}"
                raise UnsupportedError(f"{name} needs one vocabulary for sources and targets; {sizes}")
        if self.forced_bos_token_id is not None and facts.is_causal:
            what = "forced_bos_token_id comes after a start token, and a causal model starts from a prompt"
            raise UnsupportedError(f"{what}; put the token at the end of the prompt")


DEFAULTS: dict[str, object] = {entry.name: entry.default for entry in dataclasses.fields(SearchOptions)}


def _problems(options: SearchOptions) -> Iterable[str]:
    """Yield error messages for invalid options, the most basic first."""
    if options.min_new_tokens > (options.max_new_tokens or math.inf):
        yield f"min_new_tokens must not exceed max_new_tokens, {options.max_new_tokens}; got {options.min_new_tokens}"
    processor: object = options.logits_processor
    if processor is not None and not callable(processor):
        yield f"logits_processor must be a function of scores and tokens, got {quoted(processor)}"
    changed = {name for name, default in DEFAULTS.items() if getattr(options, name) != default}
    if not options.do_sample:
        for name in sorted(changed.intersection(needing("do_sample"))):
            yield f"{name} is for sampling; give do_sample too"
        if options.nbest > options.beams:
            yield f"nbest can't exceed beams, got {options.nbest} of {options.beams}"
    elif options.beams > 1:
        yield "do_sample and beams exclude each other; give one of them"
    if options.beams == 1:
        for name in sorted(changed.intersection(needing("beams"))):
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


def _given(token: int | None) -> tuple[int, ...]:
    return () if token is None else (token,)


def require_defaults(values: Mapping[str, object], facts: Facts) -> None:
    """Raise `UnsupportedError` for default options of a bundle that its model does not support.

    For an encoder-only model, these are the options of pooling.
    """
    if not facts.generates:
        require_pooling(values, facts)
        return
    known = DEFAULTS.keys() - {"logits_processor", "scores", "alignment"}
    if strange := sorted(values.keys() - known):
        raise UnsupportedError(f"unknown option {quoted(strange[0])}")
    if values:
        chosen_options(values, {}).require_fit(facts)


def chosen_options(defaults: Mapping[str, object], given: Mapping[str, Any]) -> SearchOptions:
    """Return the given options over the defaults of a bundle, as transformers does."""
    return SearchOptions(**applied(defaults, given), **given)


def applied(defaults: Mapping[str, object], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the defaults that apply next to the given options.

    Defaults of sampling do not apply without it, nor those of beam search without beams, nor that of scores without
    scores. Raises `UnsupportedError` for invalid values of `do_sample` and `beams`.
    """
    chosen = {"do_sample": False, "beams": 1, **defaults, **given}
    idle = {*(() if switch("do_sample", chosen["do_sample"]) else needing("do_sample"))}
    idle |= {*(needing("beams") if whole("beams", chosen["beams"]) == 1 else ())}
    idle |= set() if given.get("scores", True) else {"length_penalty"}
    return {name: value for name, value in defaults.items() if name not in given and name not in idle}


def require_length_penalty(length_penalty: float) -> None:
    """Raise `UnsupportedError` for a length penalty that is out of range, or NaN."""
    if not -MAX_EXPONENT <= number("length_penalty", length_penalty) <= MAX_EXPONENT:  # NaN is in no range
        raise UnsupportedError(f"length_penalty must lie in -{MAX_EXPONENT} to {MAX_EXPONENT}, got {length_penalty}")


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
