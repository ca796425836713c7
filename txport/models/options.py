"""The options of a search, each declared once.

From the declarations come the checks and their messages, the options of the command line, the names in transformers'
`generation_config.json`, and the table and the types of the JavaScript package (`python -m docs.options`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from txport.errors import UnsupportedError, quoted
from txport.system.numbers import is_switch, number, switch, whole

Kind = Literal[
    "whole", "number", "switch", "token", "tokens", "sequences", "ends", "strings", "choice", "biases", "decay"
]
MAX_ID = 2**63 - 1
MAX_ROWS = 4096  # per source; more would exceed the memory of any machine
MAX_EXPONENT = 20  # a length to this power is still finite
MAX_PENALTY = 1e9  # maximum penalty, so that scores stay finite in fp32
OPTION = "option"  # key of a field's metadata


@dataclass(frozen=True, kw_only=True)
class Option:
    """The declaration of an option.

    An option whose default is None may be None. `help` is one line for the command line, which has not all kinds.
    `published` is its name in transformers, "" for the same one, None if there is none. A value lies in `least` to
    `most`, above `above`, and below `below`. `needs`: an option without which it has no effect. `in_javascript`: the
    JavaScript package has it.
    """

    kind: Kind
    help: str = ""
    published: str | None = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    needs: Literal["", "do_sample", "beams"] = ""
    choices: tuple[bool | str, ...] = ()
    in_javascript: bool = True

    @functools.cached_property
    def range(self) -> str:
        """The bounds in words, as in `lie in 0 to 1`; "" if there are none."""
        lower = self.least if self.above is None else self.above
        if lower is None:
            return ""
        if self.below is not None:
            return f"lie in {lower:g} to below {self.below:g}"
        if self.above is not None:
            return "be a positive number" if self.most is None else f"lie above {lower:g} and up to {self.most:g}"
        if self.most is not None:
            return f"lie in {lower:g} to {self.most:g}"
        return f"be at least {lower:g}" if lower else "not be negative"

    def contains(self, value: float) -> bool:
        """Return whether a number is finite and lies within the bounds."""
        return (
            (not isinstance(value, float) or math.isfinite(value))
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )


def option(default: object, kind: Kind, help: str = "", **declared: Any) -> Any:  # noqa: A002 - as click names it
    """Return a field with its declaration: `declared` are values of `Option`."""
    return field(default=default, metadata={OPTION: Option(kind=kind, help=help, **declared)})


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Generation options that a checkpoint's defaults or a call can set; docs/search.md describes them.

    Raises `UnsupportedError` for a value of another type or beyond its bounds.
    """

    beams: int = option(1, "whole", "Width of beam search; 1 is greedy.", published="num_beams", least=1, most=MAX_ROWS)
    nbest: int = option(
        1,
        "whole",
        "Hypotheses a text; with `do_sample`, samples.",
        published="num_return_sequences",
        least=1,
        most=MAX_ROWS,
    )
    beam_groups: int = option(
        1,
        "whole",
        "Number of groups of beams for diverse beam search.",
        published="num_beam_groups",
        least=1,
        in_javascript=False,
    )
    diversity_penalty: float = option(
        0.0,
        "number",
        "Subtracted from a token's score for each beam of an earlier group that chose the token.",
        least=0,
        most=MAX_PENALTY,
        in_javascript=False,
    )
    length_penalty: float = option(
        1.0,
        "number",
        "Exponent of the length that a score is divided by.",
        least=-MAX_EXPONENT,
        most=MAX_EXPONENT,
    )
    coverage_penalty: float = option(
        0.0,
        "number",
        "Weight of the coverage penalty: for source positions with little attention.",
        published=None,
        least=0,
        most=MAX_PENALTY,
        needs="beams",
        in_javascript=False,
    )
    early_stopping: bool | Literal["never"] = option(
        False,
        "choice",
        "Stopping condition of beam search, as in Hugging Face.",
        choices=(True, False, "never"),
        needs="beams",
    )
    patience: float = option(
        1.0,
        "number",
        "Finished hypotheses to wait for, as a multiple of `beams`.",
        published=None,
        above=0,
        most=100,
        needs="beams",
    )
    do_sample: bool = option(False, "switch", "Sample each token instead of taking the most probable one.")
    temperature: float = option(
        1.0,
        "number",
        "Divide logits by this before sampling; values below 1 sharpen the distribution.",
        above=0,
        needs="do_sample",
    )
    top_h: float | None = option(
        None,
        "number",
        "Sample from the most probable tokens that have at most this share of the entropy.",
        above=0,
        most=1,
        needs="do_sample",
    )
    top_k: int = option(0, "whole", "Sample from the k most probable tokens; 0: all.", least=0, needs="do_sample")
    top_p: float = option(
        1.0,
        "number",
        "Sample from the smallest set of tokens with total probability >= p.",
        above=0,
        most=1,
        needs="do_sample",
    )
    min_p: float = option(
        0.0, "number", "Sample from tokens with p >= min_p * max(p).", least=0, most=1, needs="do_sample"
    )
    typical_p: float = option(
        1.0,
        "number",
        "Sample from the tokens of total probability p whose -log(p) is closest to the entropy.",
        above=0,
        most=1,
        needs="do_sample",
    )
    epsilon_cutoff: float = option(
        0.0, "number", "Sample from tokens with at least this probability.", least=0, below=1, needs="do_sample"
    )
    eta_cutoff: float = option(
        0.0,
        "number",
        "Sample from tokens with p >= min(eta, sqrt(eta) * exp(-entropy)).",
        least=0,
        below=1,
        needs="do_sample",
    )
    seed: int | None = option(
        None,
        "whole",
        "Random seed, the same in Python and JavaScript; samples of a text do not depend on its batch.",
        published=None,
        least=0,
        needs="do_sample",
    )
    max_new_tokens: int | None = option(
        None, "whole", "Maximum number of new tokens.  [default: all that fits]", least=1
    )
    max_length: int | None = option(
        None, "whole", "Like `max_new_tokens`, but the start token and a prefix count too, or the prompt.", least=2
    )
    min_length: int = option(
        0, "whole", "Like `min_new_tokens`, but the start token and a prefix count too, or the prompt.", least=0
    )
    min_new_tokens: int = option(0, "whole", "Minimum number of tokens before the end token.", least=0)
    repetition_penalty: float = option(
        1.0,
        "number",
        "Above 1: lower the scores of tokens that the target already has.",
        least=1 / MAX_PENALTY,
        most=MAX_PENALTY,
    )
    encoder_repetition_penalty: float = option(
        1.0,
        "number",
        "Above 1: raise the scores of tokens that the source, or the prompt, has.",
        least=1 / MAX_PENALTY,
        most=MAX_PENALTY,
    )
    no_repeat_ngram_size: int = option(
        0, "whole", "Let no sequence of this many tokens occur twice; 0: no limit.", least=0
    )
    encoder_no_repeat_ngram_size: int = option(
        0, "whole", "Write no sequence of this many tokens of the source, or of the prompt; 0: no limit.", least=0
    )
    sequence_bias: Sequence[tuple[Sequence[int], float]] = option(
        (), "biases", "Sequences of tokens, and what is added to the score of the last token after the others."
    )
    exponential_decay_length_penalty: tuple[int, float] | None = option(
        None, "decay", "A number of new tokens, and the factor by which the scores of end tokens grow after it."
    )
    renormalize_logits: bool = option(
        False, "switch", "Beam search: make scores log-probabilities again after all changes."
    )
    forced_bos_token_id: int | None = option(None, "token", "First token that is generated.")
    forced_eos_token_id: int | None = option(None, "token", "Last token of a target that reaches the maximum length.")
    suppress_tokens: Sequence[int] = option((), "tokens", "Tokens that are never generated.")
    begin_suppress_tokens: Sequence[int] = option((), "tokens", "Tokens that are not generated as the first token.")
    bad_words_ids: Sequence[Sequence[int]] = option(
        (), "sequences", "Sequence of tokens that is never generated.  [repeatable]"
    )
    eos_token_id: int | Sequence[int] | None = option(
        None, "ends", "End a target at this token instead of the model's own.  [repeatable]", published=None
    )
    stop: str | Sequence[str] = option(
        (),
        "strings",
        "End a target with the token that completes this text; the output ends before it.  [repeatable]",
        published="stop_strings",
    )
    alignment: Literal["soft", "hard"] | None = option(
        None,
        "choice",
        "Each token's attention over the input (soft), or where it is largest (hard).",
        published=None,
        choices=("soft", "hard"),
    )

    def __post_init__(self) -> None:
        for name, declared in options(GenerationOptions).items():
            value = getattr(self, name)
            if value is DEFAULTS[name]:  # a default is valid
                continue
            value = CHECKS[declared.kind](name, value, declared)
            if declared.range and not declared.contains(value):
                raise UnsupportedError(f"{name} must {declared.range}, got {quoted(getattr(self, name))}")
            object.__setattr__(self, name, value)


@functools.cache
def options(record: type) -> Mapping[str, Option]:
    """Return the declarations of a record by name, in order."""
    fields = dataclasses.fields(record)
    return {each.name: each.metadata[OPTION] for each in fields if OPTION in each.metadata}


DEFAULTS: Mapping[str, object] = {each.name: each.default for each in dataclasses.fields(GenerationOptions)}


@functools.cache
def needing(other: str) -> tuple[str, ...]:
    """Return the options that have no effect without another one: `do_sample`, or more than one of `beams`."""
    return tuple(name for name, each in options(GenerationOptions).items() if each.needs == other)


def _whole(name: str, value: object, declared: Option | None = None) -> int:
    """Return a whole number as an int; seeds alone have any size."""
    return whole(name, value, most=None if name == "seed" else MAX_ID)


def _tokens(name: str, values: object, declared: Option | None = None) -> tuple[int, ...]:
    """Return the token ids of any sequence as ints."""
    return tuple(_whole(name, each) for each in _many(name, values))


def _sequences(name: str, values: object, declared: Option) -> tuple[tuple[int, ...], ...]:
    found = tuple(_tokens(name, each) for each in _many(name, values))
    if not all(found):
        raise UnsupportedError(f"{name} must not hold an empty sequence")
    return found


def _ends(name: str, value: Any, declared: Option) -> tuple[int, ...]:
    """Return one token or several as a tuple."""
    try:
        found = [value] if isinstance(value, str | bytes | Mapping | Set) else list(value)
    except TypeError:  # a number, or an array of one
        found = [value]
    if not found:
        raise UnsupportedError(f"{name} must name at least one token")
    return tuple(_whole(name, each) for each in found)


def _strings(name: str, values: Any, declared: Option) -> tuple[str, ...]:
    """Return one string or many as a tuple, and a tuple as it is."""
    strings = [values] if isinstance(values, str) else _many(name, values)
    for each in strings:
        if not isinstance(each, str) or not each or any("\ud800" <= letter <= "\udfff" for letter in each):
            raise UnsupportedError(f"{name} must be strings with at least one character, got {quoted(each)}")
    return values if isinstance(values, tuple) else tuple(strings)


def _choice(name: str, value: object, declared: Option) -> bool | str:
    """Return one of the choices; an array is none, because its comparison is elementwise."""
    found = bool(value) if is_switch(value) else value
    if not isinstance(found, bool | str) or found not in declared.choices:
        *others, last = map(repr, declared.choices)
        raise UnsupportedError(f"{name} must be {', '.join(others)} or {last}, got {quoted(value)}")
    return found


def _biases(name: str, values: object, declared: Option) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Return sequences of tokens with their biases, from pairs or from a mapping."""
    pairs = values.items() if isinstance(values, Mapping) else _many(name, values)
    found = {
        _tokens(name, words): number(name, bias)
        for words, bias in (_pair(f"an item of {name}", each) for each in pairs)
    }
    if not all(found):
        raise UnsupportedError(f"{name} must not hold an empty sequence")
    if any(not math.fabs(bias) <= MAX_PENALTY for bias in found.values()):
        raise UnsupportedError(f"{name} must lie in -{MAX_PENALTY:g} to {MAX_PENALTY:g}")
    return tuple(found.items())


def _decay(name: str, value: object, declared: Option) -> tuple[int, float]:
    start, factor = _pair(name, value)
    found = whole(name, start, least=0, most=MAX_ID), number("its factor", factor)
    if not 0 < found[1] <= MAX_PENALTY:
        raise UnsupportedError(f"the factor of {name} must lie above 0 and up to {MAX_PENALTY:g}")
    return found


def _pair(name: str, value: object) -> tuple[object, object]:
    """Return the two items of a sequence."""
    items = _many(name, value)
    if isinstance(value, str) or len(items) != 2:
        raise UnsupportedError(f"{name} must have two values, got {quoted(value)}")
    return items[0], items[1]


def _many(name: str, values: Any) -> list[Any]:
    """Return the items of any sequence as a list; None is an empty sequence, as in Hugging Face."""
    try:
        return [] if values is None else list(values)
    except TypeError:
        raise UnsupportedError(f"{name} must be a sequence, got {quoted(values)}") from None


CHECKS: Mapping[Kind, Callable[[str, object, Option], Any]] = {
    "whole": _whole,
    "number": lambda name, value, declared: number(name, value),
    "switch": lambda name, value, declared: switch(name, value),
    "token": _whole,
    "tokens": _tokens,
    "sequences": _sequences,
    "ends": _ends,
    "strings": _strings,
    "choice": _choice,
    "biases": _biases,
    "decay": _decay,
}
