"""The reference, which is the model in float64 with its weights unchanged, and the unavoidable error of a precision.

The summation order of fp32 kernels depends on the processor, so PyTorch's fp32 result is one of many. In float64 all
orders agree to more digits than fp32 has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from txport.bundles.forms import Form
from txport.bundles.manifest import Manifest
from txport.checkpoints.weights.streamed import converted
from txport.models.audio import Features
from txport.models.model import Model
from txport.models.ops import Ops, padding_mask
from txport.models.parts import NORM_TYPES
from txport.proof.few_bits.activations import rounding_activations
from txport.proof.masks import bound_of, cut_off
from txport.proof.parity.tolerances import DRAWS
from txport.runtimes.inputs import Sources, batch
from txport.system.arrays import Array

Ids = Sequence[Sequence[int]]
Computed = TypeVar("Computed")
HALVES = {"fp16": torch.half, "bf16": torch.bfloat16}
NO_FORMS: Mapping[str, Form] = {}
NOISES = 1 << 18  # numbers that are rounded with one piece of random bits
LACKING = 29  # mantissa bits that float64 has and float32 lacks
COMPUTING: ContextVar[Any] = ContextVar("COMPUTING", default=None)  # the computation and its draw; None: exact
REMEMBERED = 16  # batches of targets: more than there are cases
# Functions that only move or copy numbers.
MAKING_NOTHING = (
    Tensor.transpose, Tensor.view, Tensor.flatten, Tensor.unflatten, Tensor.unsqueeze, Tensor.to, Tensor.float,
    Tensor.__getitem__, Tensor.clone, Tensor.movedim, Tensor.split, Tensor.chunk, torch.cat, torch.take,
    torch.unflatten, F.embedding, F.dropout,
)  # fmt: skip

LARGEST_HALF = float(np.finfo(np.float16).max)
SCALING = (
    Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul, Tensor.div, Tensor.__truediv__, Tensor.__rtruediv__,
    torch.div,
)  # fmt: skip


class Rounding(TorchFunctionMode):
    """Round each float64 result of a PyTorch function to `dtype`.

    Perfect kernels of that precision do the same. The remaining error is that of the precision, the same on every
    machine. If `draw` is not 0, values are rounded up or down at random, more probably to the nearer number.
    """

    def __init__(self, draw: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(draw) if draw else None
        self._noise = torch.randint(0, 1 << LACKING, (2 * NOISES,), generator=self._generator) if draw else None

    def __torch_function__(self, function: Any, types: object, args: Any = (), options: Any = None) -> object:
        """See `TorchFunctionMode`."""
        found = function(*args, **(options or {}))
        rounds = isinstance(found, Tensor) and found.dtype == torch.float64
        return self._round(found).double() if rounds else found

    def _round(self, x: Tensor) -> Tensor:
        if self._generator is not None and self._dtype == torch.float32:
            return self._rounded_at_random(x)
        nearest = x.to(self._dtype)
        if self._generator is None:
            return nearest
        rest = x - nearest
        other = torch.nextafter(nearest, torch.inf * rest.sign().to(self._dtype))  # on the other side of x
        chance = rest / (other.double() - nearest)
        return torch.where(torch.rand(x.shape, generator=self._generator, dtype=x.dtype) < chance, other, nearest)

    def _rounded_at_random(self, x: Tensor) -> Tensor:
        """Round to float32 at random in fewer passes: add random bits below float32's last bit, then truncate.

        The bits are drawn once, and used from a random place on: drawing takes longer than most computations.
        """
        assert self._noise is not None
        bits = x.contiguous().view(torch.int64).flatten().clone()
        pieces = torch.split(bits, NOISES)
        for piece, start in zip(pieces, torch.randint(NOISES, (len(pieces),), generator=self._generator), strict=True):
            piece.add_(self._noise[start : start + len(piece)]).bitwise_and_(-1 << LACKING)
        return bits.view(torch.float64).view(x.shape).to(torch.float32)


class Jitter(TorchFunctionMode):
    """Change the last bit of each result of a PyTorch function at random (Monte Carlo arithmetic).

    PyTorch may be right by luck where a small error grows. Another rounding of each step shows how large its error can
    be.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(self, function: Any, types: object, args: Any = (), options: Any = None) -> object:
        """See `TorchFunctionMode`."""
        found = function(*args, **(options or {}))
        if not isinstance(found, Tensor) or not found.is_floating_point() or function in MAKING_NOTHING:
            return found
        steps = torch.randint(-1, 2, found.shape, generator=self._generator)
        return found * (1 + torch.finfo(found.dtype).eps * steps).to(found.dtype)


class HalfConstants(TorchFunctionMode):
    """Multiply and divide by numbers as a graph in fp16 holds them: rounded to fp16, also those inside of GELU.

    Norms compute in fp32 there.
    """

    norms = 0  # that are running

    def __torch_function__(self, function: Any, types: object, args: Any = (), options: Any = None) -> object:
        """See `TorchFunctionMode`."""
        if function is F.gelu:
            return _gelu_in_half(*args, **(options or {}))
        if function in SCALING and not self.norms:
            args = tuple(in_half(each) if isinstance(each, float) else each for each in args)
        return function(*args, **(options or {}))


@contextmanager
def constants_of(manifest: Manifest) -> Iterator[None]:
    """Return a context in which PyTorch has the constants of a bundle's graphs, where these run in fp32."""
    if not manifest.made_for.is_standard or manifest.arithmetic != "fp16":
        yield
        return
    mode = HalfConstants()

    def count(module: nn.Module, _given: object, found: object = None) -> None:
        mode.norms += isinstance(module, NORM_TYPES) * (1 if found is None else -1)

    hooks = (register_module_forward_pre_hook(count), register_module_forward_hook(count))
    try:
        with mode:
            yield
    finally:
        for hook in hooks:
            hook.remove()


def in_half(number: float) -> float:
    """Return a number rounded to fp16; one beyond its range, which masks, stays."""
    return float(np.float16(number)) if abs(number) <= LARGEST_HALF else number


def _gelu_in_half(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return x * 0.5 * (1 + torch.erf(x / in_half(math.sqrt(2))))
    cubed = in_half(0.044715) * x**3
    return x * 0.5 * (1 + torch.tanh(in_half(math.sqrt(2 / math.pi)) * (x + cubed)))


@dataclass(frozen=True)
class Exact:
    """A model in float64, and the same model in a precision.

    `own`: the model as PyTorch runs it in the precision; for int8 and int4, with activations rounded as the kernels
    do, since the weights are already those of the bundle. `rounded`: the model as the best kernels of the precision
    would compute it; its error is smaller, and the same on every machine.

    `together`: the rows of a batch share a scale of their activations. `repeats`: activations are rounded, each row by
    itself, so that every runtime rounds the same values alike, in any batch.
    """

    model: Model
    own: Computation
    rounded: Computation
    together: bool = False
    repeats: bool = False
    _answers: dict[object, list[Array]] = field(default_factory=dict)
    _encoded: dict[int, dict[object, Tensor]] = field(default_factory=dict)  # encoder states by model

    @classmethod
    def of(cls, model: Model, precision: str = "fp32", forms: Mapping[str, Form] = NO_FORMS) -> Exact:
        """Return the references of a model in fp32, with its weights unchanged.

        `forms`: in int8 and int4, the form of each quantised weight, which tells how its product rounds activations.
        """
        if model.fp32_only:  # then PyTorch in fp32 is all there is
            own = model if precision == "fp32" else converted(model, torch.half)
            return cls(model, Computation(own, last_bits), Computation(own, lambda draw: Jitter(1 + draw)))
        exact = converted(model, torch.float64)
        if precision in ("int8", "int4"):
            rounded = Computation(exact, partial(rounding_activations, exact, forms))
            together = any(each.shares_scale for each in forms.values())
            repeats = bool(forms) and not together
            drawn = Computation(exact, lambda draw: rounded.rounds(draw + repeats))  # the first draw is the reference
            return cls(exact, drawn, rounded, together, repeats)
        if precision == "fp32":
            return cls(exact, Computation(model, last_bits), Computation(exact, rounding(torch.float32)))
        narrow = HALVES[precision]
        half = converted(model, narrow)
        return cls(exact, Computation(half, last_bits), Computation(converted(half, torch.float64), rounding(narrow)))

    @contextmanager
    def encoding_once(self) -> Iterator[Exact]:
        """Return this in a context in which the same features are encoded once, which takes most of the time."""
        models = {id(each): each for each in (self.model, self.own.model, self.rounded.model)}
        known = [each for each in models.values() if isinstance(each.facts.reads, Features)]
        for model in known:
            kept = self._encoded.setdefault(id(model), {})
            vars(model)["encoder_states"] = partial(_encoded, model, type(model).encoder_states, kept, self.together)
        try:
            yield self
        finally:
            for model in known:
                del vars(model)["encoder_states"]

    @contextmanager
    def encoding_again(self) -> Iterator[None]:
        """Return a context in which features are encoded even if they were before, so that each layer is called."""
        kept = vars(self.model).pop("encoder_states", None)
        try:
            yield
        finally:
            if kept is not None:
                vars(self.model)["encoder_states"] = kept

    def logits(self, sources: Sources, targets: Ids) -> list[Array]:
        """Return the logits before each token of each target as `reproduced`: (T, V) per target, stored in fp32."""
        key = (tuple(map(_key, sources)), tuple(map(tuple, targets)))
        if key not in self._answers:
            if len(self._answers) >= REMEMBERED:
                del self._answers[next(iter(self._answers))]
            with self.reproduced():
                self._answers[key] = one_pass(self.model, sources, targets)
        return self._answers[key]

    def own_logits(self, sources: Sources, targets: Ids, draw: int = 0) -> list[Array]:
        """Return PyTorch's logits in the precision, (T, V) per target; with random last bits if `draw` is not 0."""
        with self.own.context(draw):
            return one_pass(self.own.model, sources, targets)

    def own_error(self, sources: Sources, targets: Ids, draw: int = 0) -> float:
        """Return PyTorch's largest error in the precision over all positions; at a single position it is chance."""
        return _worst(self.logits(sources, targets), self.own_logits(sources, targets, draw))

    def reproduced(self) -> AbstractContextManager[object]:
        """Return a context in which the model computes what runtimes reproduce: exactly, or if `repeats`, rounded."""
        return self.rounded.context(0) if self.repeats else nullcontext()

    def rounding_errors(self, sources: Sources, targets: Ids, *, draws: int = DRAWS) -> list[float]:
        """Return, per target, the largest error of the best kernels of the precision, over several random roundings.

        The error is relative to what is `reproduced`.
        """
        if isinstance(self.model.facts.reads, Features) and len(sources) > 1:  # which take much memory
            pairs = [([source], [target]) for source, target in zip(sources, targets, strict=True)]
            if draws == 1:  # of a large model: the error of one source is as much chance as that of another
                return self.rounding_errors(*pairs[0], draws=draws) * len(pairs)
            return [error for pair in pairs for error in self.rounding_errors(*pair, draws=draws)]
        right = self.logits(sources, targets)
        errors = [0.0] * len(sources)
        for found in islice(self.draws(partial(one_pass, sources=sources, targets=targets)), draws):
            errors = [max(error, largest_difference(*pair)) for error, *pair in zip(errors, right, found, strict=True)]
        return errors

    def draws(self, compute: Callable[[Model], Computed]) -> Iterator[Computed]:
        """Yield `compute(model)` per random rounding by the best kernels; a single one may be right by luck."""
        first = 1 if self.repeats else 0
        for draw in range(first, first + DRAWS):
            with self.rounded.context(draw):
                yield compute(self.rounded.model)


@dataclass(frozen=True)
class Computation:
    """A model, and how it rounds, given the number of the draw."""

    model: Model
    rounds: Callable[[int], AbstractContextManager[object]]

    @contextmanager
    def context(self, draw: int) -> Iterator[None]:
        """Return a context in which the model computes so."""
        with self.rounds(draw):
            token = COMPUTING.set((id(self), draw))
            try:
                yield
            finally:
                COMPUTING.reset(token)


def _encoded(
    model: Model, encode: Callable[..., Tensor], kept: dict[object, Tensor], together: bool, source: Tensor, ops: Ops
) -> Tensor:
    """Return the encoder states of features (B, M, F), each row from `kept` if it was encoded in this computation."""
    rows = [source] if together else torch.split(source, 1)
    keys = [(COMPUTING.get(), row.numpy().tobytes()) for row in rows]
    for key, row in zip(keys, rows, strict=True):
        if key not in kept:
            kept[key] = encode(model, row, model.encoder_ops(row, None))
    return ops.lay_out(torch.cat([kept[key] for key in keys]))


def last_bits(draw: int) -> AbstractContextManager[object]:
    """Return a context that leaves PyTorch unchanged, or, if `draw` is not 0, makes last bits random."""
    return Jitter(draw) if draw else nullcontext()


def rounding(dtype: torch.dtype) -> Callable[[int], AbstractContextManager[object]]:
    """Return the contexts that round like the best kernels of a precision."""
    return partial(Rounding, dtype=dtype)


def _worst(right: Sequence[Array], found: Sequence[Array]) -> float:
    return max(largest_difference(one, other) for one, other in zip(right, found, strict=True))


@torch.inference_mode()
def one_pass(model: Model, sources: Sources, targets: Ids) -> list[Array]:
    """Return the logits before each token of each target, computed in one pass: (T, V) per target."""
    return [each.float().numpy() for each in passed(model, sources, targets)]


def passed(model: Model, sources: Sources, targets: Ids) -> list[Tensor]:
    """Return the logits of `one_pass` as tensors, with their gradients if these are computed."""
    how = _passed_causal if model.facts.is_causal else _passed_source
    logits = how(model, sources, targets)
    return [each[: len(target)] for each, target in zip(logits, targets, strict=True)]


def _passed_source(model: Model, sources: Sources, targets: Ids) -> Tensor:
    facts = model.facts
    given, lengths = map(torch.from_numpy, batch(sources, facts))
    given = given.to(next(model.parameters()).dtype) if given.is_floating_point() else given
    tokens, _ = pad([(facts.writes.start or 0, *target[:-1]) for target in targets], facts.writes.pad)
    logits: Tensor = model(given, lengths, torch.from_numpy(tokens))
    return logits


def _passed_causal(model: Model, prompts: Ids, targets: Ids) -> Tensor:
    rows = [[*prompt, *target[:-1]] for prompt, target in zip(prompts, targets, strict=True)]
    ids, lengths = (torch.from_numpy(each) for each in pad(rows, model.facts.writes.pad))
    mask = padding_mask(lengths, ids.shape[1])
    places = torch.arange(ids.shape[1])[None, :].expand(ids.shape)
    starts = torch.tensor([[len(prompt) - 1] for prompt in prompts])
    wanted = (starts + torch.arange(max(map(len, targets)))).clamp(max=ids.shape[1] - 1)
    return model.extend(ids, mask, places, model.empty_state(len(ids)), wanted=wanted).logits


def pad(rows: Ids, pad_id: int) -> tuple[Array, Array]:
    """Return tokens padded on the right (B, T), and the length of each row (B,)."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.full((len(rows), lengths.max()), pad_id, dtype=np.int64)
    for padded, row in zip(ids, rows, strict=True):
        padded[: len(row)] = row
    return ids, lengths


def _key(source: Any) -> Any:
    """Return a hashable key of a source."""
    return source.tobytes() if isinstance(source, np.ndarray) else tuple(source)


def largest_difference(expected: Array, actual: Array) -> float:
    """Return the largest absolute difference, with masked values cut off; NaN if any difference is NaN."""
    bound = bound_of(expected)
    wanted, found = (cut_off(each.astype(np.float64), bound) for each in (expected, actual))
    return float(np.abs(wanted - found).max(initial=0.0))
