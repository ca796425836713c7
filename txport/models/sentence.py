"""The steps that make the vector of a text from those of its tokens, as configs name them. Does not import PyTorch.

The first step is a pooling ("mean"). The others are the modules of sentence-transformers: "dense 256 tanh" is a linear
layer to 256 numbers and an activation, "dense 256 identity unbiased" has no bias, "layer_norm" is a layer norm with
weights, and "normalize" scales the vector to length 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, get_args

from txport.errors import quoted
from txport.models.config import LARGEST
from txport.models.facts import SENTENCE, Output, Pooled

if TYPE_CHECKING:
    import numpy as np

DENSE, LAYER_NORM, NORMALIZE, UNBIASED = "dense", "layer_norm", "normalize", "unbiased"
IDENTITY = "identity"
FUNCTIONS = ("tanh", IDENTITY, "relu", "gelu", "sigmoid", "silu")  # activations of a dense step
MOST_STEPS = 16
MODULES_POOLING = "modules"  # the pooling, and what follows it, of a folder of sentence-transformers

EXPORT_POOLINGS = (*get_args(Pooled), MODULES_POOLING)


class Dense(NamedTuple):
    """A linear layer to `size` numbers, and its activation."""

    size: int
    activation: str
    bias: bool

    def __str__(self) -> str:
        return f"{DENSE} {self.size} {self.activation}{'' if self.bias else f' {UNBIASED}'}"


def dense_of(step: str) -> Dense | None:
    """Return the linear layer of a step; None if it is another step."""
    kind, *rest = step.split(" ")
    if kind != DENSE or len(rest) not in (2, 3) or not (rest[0].isascii() and rest[0].isdigit() and len(rest[0]) < 10):
        return None
    found = Dense(int(rest[0]), rest[1], len(rest) == 2)
    return found if str(found) == step and 0 < found.size <= LARGEST and found.activation in FUNCTIONS else None


def has_weights(steps: Sequence[str]) -> bool:
    """Return whether one of the steps has weights; then no other pooling is right for the model."""
    return any(step.startswith(DENSE) or step == LAYER_NORM for step in steps)


def is_unit(steps: Sequence[str]) -> bool:
    """Return whether the steps end with vectors of length 1."""
    return len(steps) > 1 and steps[-1] == NORMALIZE


def widths(width: int, steps: Sequence[str]) -> list[int]:
    """Return the number of elements of the vector after each step, for tokens' vectors of `width` elements."""
    found = [width]
    for step in steps:
        dense = dense_of(step)
        found.append(found[-1] if dense is None else dense.size)
    return found[1:]


def outputs_of(width: int, steps: Sequence[str]) -> tuple[Output, ...]:
    """Return the output of the steps: the vector of a text; () if there are none."""
    return (Output(SENTENCE, (widths(width, steps)[-1],)),) if steps else ()


def problems(steps: Sequence[str], head: str, heads: Sequence[str]) -> Iterator[str]:
    """Yield a message for each invalid step; only models with one of `heads` have steps."""
    if not steps:
        return
    if head not in heads:
        yield f"sentence is for the heads {', '.join(heads)}, got {head!r}"
    if steps[0] not in get_args(Pooled):
        yield f"sentence must begin with one of {', '.join(get_args(Pooled))}, got {quoted(steps[0])}"
    if len(steps) > MOST_STEPS:
        yield f"sentence must have at most {MOST_STEPS} steps, got {len(steps)}"
    for step in steps[1:]:
        if step not in (LAYER_NORM, NORMALIZE) and dense_of(step) is None:
            known = f"{DENSE} SIZE ACTIVATION with one of {', '.join(FUNCTIONS)}, {LAYER_NORM} and {NORMALIZE}"
            yield f"a step of sentence after the pooling must be {known}; got {quoted(step)}"


def draw(rng: np.random.Generator) -> tuple[str, ...]:
    """Return random steps, or none."""
    others = (LAYER_NORM, NORMALIZE, *(str(Dense(12, each, bias)) for each in FUNCTIONS for bias in (True, False)))
    steps = (str(rng.choice(get_args(Pooled))), *rng.choice(others, rng.integers(4)).tolist())
    return steps if rng.integers(2) else ()
