"""Results of generating models, complete and streamed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from txport.errors import UnsupportedError
from txport.runtimes.inputs import Source
from txport.search.generate import Steps
from txport.search.options import Alignment, Found, SearchOptions

Finish = Literal["end", "length", "stop"]


@dataclass(frozen=True)
class Hypothesis:
    """One hypothesis: text, score (sum(log p) / length^`length_penalty`), token ids and their log-probs.

    The text ends before a stop string; the tokens do not.

    `alignment`, if requested, is the attention of each token to each source token ("soft"), or the source token with
    the most attention ("hard"). `finish` tells what ended it: an end token ("end"), the maximum length ("length"), or
    a stop string ("stop", also if no token was allowed); None for a given target, which was not generated.
    """

    output: str
    score: float
    tokens: list[int]
    token_scores: list[float]
    alignment: Alignment = ()
    finish: Finish | None = None


@dataclass(frozen=True)
class Generated:
    """The result of one input; `output` and `score` are those of the best hypothesis, or "" and 0 without one.

    `error` says why the model can't take the input, if errors are returned; there are no hypotheses then.
    """

    input: str
    output: str
    score: float
    hypotheses: list[Hypothesis]
    error: str | None = None

    @property
    def finish(self) -> Finish | None:
        """What ended the best hypothesis (see `Hypothesis`); None without one."""
        return self.hypotheses[0].finish if self.hypotheses else None

    def to_dict(self) -> dict[str, object]:
        """Return JSON values; alignment is omitted if it was not requested, and error if there is none."""
        values = dataclasses.asdict(self)
        if self.error is None:
            del values["error"]
        for each in (each for each in values["hypotheses"] if not each["alignment"]):
            del each["alignment"]
        return values


def hypothesis(found: Found, output: str, finish: Finish | None = None) -> Hypothesis:
    """Return a hypothesis of what a search has found, with its text."""
    return Hypothesis(output, found.score, list(found.tokens), list(found.token_scores), found.alignment, finish)


def finish_of(tokens: Sequence[int], ends: Sequence[int], most: int, is_stopped: bool) -> Finish:
    """Return what ended a target of at most `most` tokens; `is_stopped`: its last token completes a stop string."""
    if tokens and tokens[-1] in ends:
        return "end"
    return "length" if len(tokens) >= most and not is_stopped else "stop"


class Prepared(NamedTuple):
    """A request for one text: its tokens, those of its prefix, its options, and what makes text of the targets."""

    source: Source
    prefix: list[int]
    options: SearchOptions
    text_of: Callable[[Sequence[int]], str]  # up to a stop string
    certain: Callable[[Sequence[int]], str]  # the text of the tokens so far that further tokens can't change
    result: Callable[[list[Found]], Generated]

    def require_streamed(self) -> None:
        """Raise `UnsupportedError` if there is more than one hypothesis."""
        if self.options.nbest > 1:
            raise UnsupportedError(f"only one hypothesis can be streamed, got nbest {self.options.nbest}")


def grown(
    steps: Steps, certain: Callable[[Sequence[int]], str], text_of: Callable[[Sequence[int]], str]
) -> Generator[str, None, None]:
    """Yield the certain text of a search each time it grows, and finally the complete text."""
    output = ""
    with contextlib.closing(steps):
        while True:
            try:
                text = certain(next(steps)()[0])
            except StopIteration as end:
                whole = text_of(end.value[0][0].tokens)
                if whole != output or not whole:
                    yield whole
                return
            if text != output and text.startswith(output):
                output = text
                yield output
