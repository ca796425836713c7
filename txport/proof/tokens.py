"""What search finds on a runtime against what it finds on PyTorch, and where a difference is only a near-tie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from txport.models.checkpoint import Checkpoint
from txport.proof.cases import Case
from txport.proof.noise import Noisy
from txport.proof.tolerances import Tolerance
from txport.runtimes.base import Runtime
from txport.runtimes.pytorch import TorchRuntime
from txport.search.generate import generate
from txport.search.options import Found, SearchOptions

Array = NDArray[Any]

SEARCH_TOKENS = 32
BEAMS = 4
SEARCHES = {"greedy": 1, f"beam {BEAMS}": BEAMS}  # name -> beams
REPLAYS = 16
SHARES = (1.0, 0.1, 0.01)  # of the noise: as much as there may be hides what a little does


@dataclass(frozen=True)
class TokenComparison:
    """The tokens of one kind of search in one case: rows equal, near-ties, and the first row that is wrong.

    Rows after that one are not looked at, so they count as near-ties neither. `margin` is the largest gap in
    PyTorch's own scores that was taken for a tie; `noise` the largest that may be.
    """

    case: str
    runtime: str
    search: str
    rows: int
    equal: int
    near_ties: int
    wrong: dict[str, Any] | None = None
    margin: float = 0.0
    noise: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every row is equal, or as good as PyTorch's own within rounding."""
        return self.equal + self.near_ties == self.rows

    def describe(self) -> str:
        """What is wrong, in one line."""
        return f"{self.runtime}, case {self.case}: {self.search} tokens differ: {self.wrong}"


def search_all(case: Case, runtime: Runtime, checkpoint: Checkpoint) -> dict[str, list[Found]]:
    """The best target of each source by each kind of search."""
    return {
        name: [found[0] for found in generate(runtime, case.sources, checkpoint.config, _options(checkpoint, beams))]
        for name, beams in SEARCHES.items()
    }


def _options(checkpoint: Checkpoint, beams: int) -> SearchOptions:
    return SearchOptions(max_new_tokens=min(SEARCH_TOKENS, checkpoint.config.max_length), beams=beams)


def compare_search(
    case: Case,
    label: str,
    runtime: Runtime,
    expected: Mapping[str, Sequence[Found]],
    checkpoint: Checkpoint,
    tolerance: Tolerance,
) -> Iterator[TokenComparison]:
    """Greedy and beam tokens, row by row, with what PyTorch found; a row that differs passes only as a near-tie."""
    for search, actual in search_all(case, runtime, checkpoint).items():
        wanted, tied, wrong = expected[search], [], None
        other = [row for row, (one, two) in enumerate(zip(wanted, actual, strict=True)) if one.tokens != two.tokens]
        for row in other:
            margin = near_tie(checkpoint, case.sources[row], wanted[row], actual[row], SEARCHES[search], tolerance)
            if margin is None:
                wrong = {"row": row, "expected": wanted[row].tokens, "actual": actual[row].tokens}
                break
            tied.append(margin)
        yield TokenComparison(
            case=case.name,
            runtime=label,
            search=search,
            rows=len(wanted),
            equal=len(wanted) - len(other),
            near_ties=len(tied),
            wrong=wrong,
            margin=max(tied, default=0.0),
            noise=tolerance.noise,
        )


def near_tie(
    checkpoint: Checkpoint, source: list[int], expected: Found, actual: Found, beams: int, tolerance: Tolerance
) -> float | None:
    """By how much PyTorch prefers its own tokens, if that is within the precision's noise; None if it is not.

    Greedy: at the first token that differs, where both its logit and the other's may move by the noise; what comes
    after it follows from another beginning. Beams: by the mean over the target, which ranks them, or, since search
    may drop a beam at a tie, if PyTorch itself finds these tokens when its logits are moved by the noise. Where 8 or
    4 bits make search prune others, they may also be better ones, or as good as what PyTorch then finds.
    """
    scores = [score_of(checkpoint, source, found.tokens) for found in (expected, actual)]
    if beams == 1:
        pairs = enumerate(zip(expected.tokens, actual.tokens, strict=False))
        first = next((at for at, (one, other) in pairs if one != other), None)
        margin = np.inf if first is None else abs(float(scores[0][first] - scores[1][first]))
        return margin if margin <= 2 * tolerance.noise else None
    worse = float(scores[0].mean() - scores[1].mean())
    if (worse if tolerance.rms is not None else abs(worse)) <= tolerance.noise:
        return max(worse, 0.0)
    return abs(worse) if _replayed(checkpoint, source, expected, actual, beams, tolerance) else None


def _replayed(
    checkpoint: Checkpoint, source: list[int], expected: Found, actual: Found, beams: int, tolerance: Tolerance
) -> bool:
    """Whether search on PyTorch, its logits moved by the noise, finds these tokens, or, in few bits, others as bad."""
    own = score_of(checkpoint, source, actual.tokens).mean()
    for share in SHARES:
        shaken = Noisy(TorchRuntime(checkpoint.model), tolerance, 0, share)
        found = generate(shaken, [source] * REPLAYS, checkpoint.config, _options(checkpoint, beams))
        others = {tokens for (each, *_) in found if (tokens := each.tokens) != expected.tokens}
        if actual.tokens in others:
            return True
        if tolerance.rms is not None and any(score_of(checkpoint, source, tokens).mean() <= own for tokens in others):
            return True
    return False


@torch.inference_mode()
def score_of(checkpoint: Checkpoint, source: list[int], tokens: Sequence[int]) -> Array:
    """The log-probability of each token of a target, by PyTorch."""
    target = torch.tensor([[checkpoint.config.bos_id, *tokens]])
    logits = checkpoint.model(torch.tensor([source]), torch.tensor([len(source)]), target[:, :-1])
    log_probs = torch.log_softmax(logits, dim=2)
    values: Array = log_probs.gather(2, target[:, 1:, None])[0, :, 0].double().numpy()
    return values
