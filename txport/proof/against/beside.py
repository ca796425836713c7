"""The evidence that fault models receive about a tap at which an import and its original differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np
import torch
from torch import Tensor, nn

from txport.checkpoints.weights.streamed import stay
from txport.models.model import Model
from txport.models.parts import Embedding, Frames, Residual
from txport.proof.against.pairing import Origins
from txport.proof.against.taps import BLOCK, END, IN, OUT, Run, Tap, Value, side_of
from txport.proof.bisect.calls import PartCall, Record
from txport.proof.bisect.faults.evidence import EXPLAINED, Evidence, WrongWeight, last_map
from txport.proof.bisect.words import describe
from txport.system.arrays import Array

RECENT = 14  # values that are tried as summands
SAME = 1e-12  # maximum difference of equal values, relative to the largest


@dataclass(frozen=True)
class Beside(Evidence):
    """Evidence about one tap: the import's values are `expected`, the original's are `seen`.

    `closest` are the differences that remain with the hypotheses that explained `seen`.
    """

    tap: Tap
    run: Run
    model: Model
    origins: Origins
    wrong: Mapping[str, WrongWeight] = field(default_factory=dict)
    closest: list[float] = field(default_factory=list)

    def read_weights(self) -> None:
        """Read the weights of the parts at the tap, which fault models use, if the import is streamed."""
        for call in (self.call, self.block, self.embedding, self.frames):
            if call is not None:
                stay(call.part)

    @property
    def expected(self) -> Array:
        """The import's values."""
        found: Array = self.tap.ours.double().numpy()
        return found

    @cached_property
    def seen(self) -> Array:
        """The original's values; on padding, those of the import."""
        tap = self.tap
        theirs = tap.theirs if tap.real is None else torch.where(tap.real, tap.theirs, tap.ours)
        found: Array = theirs.double().numpy()
        return found

    @property
    def allowed(self) -> float:
        """See `Evidence`."""
        return self.tap.allowed

    @property
    def modules(self) -> tuple[str, ...]:
        """The name of the part."""
        return (self.tap.key[0],)

    @property
    def role(self) -> str:
        """The side of the model with the tap; "model" for an encoder-only model."""
        if not self.model.facts.generates:
            return "model"
        return side_of(self.model, self.tap)

    @property
    def record(self) -> Record:
        """See `Evidence`."""
        return self.run.record

    @property
    def arrays(self) -> dict[str, Array]:
        """Empty: there is no graph."""
        return {}

    @property
    def call(self) -> PartCall | None:
        """See `Evidence`."""
        name, nth, side = self.tap.key
        return None if side == END else self.run.record[name][nth]

    @property
    def block(self) -> PartCall | None:
        """See `Evidence`."""
        call = self.call
        side = self.tap.key[2]
        if side == BLOCK or call is None:
            return call
        parent = call.parent
        return parent if side == IN and parent is not None and call.part is last_map(parent.part) else None

    @cached_property
    def embedding(self) -> PartCall | None:
        """See `Evidence`."""
        call = self.call
        if self.tap.key[2] != IN or call is None:
            return None
        if call.parent is not None and isinstance(call.parent.part, Embedding):
            found = call.parent if call.part is call.parent.part.norm else None
        else:
            found = self._made_by(Embedding)
        return None if found is None or getattr(found.part, "widen", None) is not None else found

    @cached_property
    def frames(self) -> PartCall | None:
        """See `Evidence`."""
        return self._made_by(Frames) if self.tap.key[2] == IN else None

    def _made_by(self, kind: type[nn.Module]) -> PartCall | None:
        """Return the call of a part of this type, without a norm, whose result is the import's value, or None."""
        calls = (each for several in self.record.values() for each in several if isinstance(each.part, kind))
        found = [each for each in calls if torch.equal(each.result, self.tap.ours)]
        norms = [getattr(each.part, "norm", None) for each in found]
        return found[0] if found and norms[0] is None else None

    @cached_property
    def values(self) -> list[Value]:
        """The values that the tap consists of: an equal value, or two that are added; else the last of its shape."""
        key = self.tap.key
        before = self.run.flow[: self.run.moments.get(key, len(self.run.flow))]
        recent = [each for each in reversed(before) if each.tensor.shape == self.tap.ours.shape]
        equal = next((each for each in recent if _same(each.tensor, self.tap.ours)), None)
        if equal is not None:
            return [equal]
        for one, other in combinations(recent[:RECENT], 2):
            if _same(one.tensor + other.tensor, self.tap.ours):
                return [other, one]
        return recent[:1]

    @property
    def summands(self) -> dict[str, Array]:
        """See `Evidence`."""
        return {self._words(each): each.tensor.double().numpy() for each in self.values}

    def _words(self, value: Value) -> str:
        where = describe(self.model, [value.name])
        return f"what {where} gives" if value.side == OUT else f"what goes into {where}"

    @property
    def kind(self) -> object:
        """The kind of the tap, for the choice of fault models: the type of a part, or the side."""
        side = self.tap.key[2]
        call = self.call
        if side == END or call is None:
            return END
        if side == OUT:
            return type(call.part)
        for found in (self.block, self.embedding, self.frames):
            if found is not None:
                return type(found.part)
        return Residual if len(self.values) > 1 else IN

    def explains(self, hypothesis: Array) -> bool:
        """See `Evidence`; the last linear layer of a block is applied first."""
        return self.matches(self._finished(hypothesis))

    def left(self, hypothesis: Array) -> float:
        """See `Evidence`."""
        return self._gap(self._finished(hypothesis))

    def matches(self, values: Array) -> bool:
        """Return True if values are the original's, up to a small share of the error; add the rest to `closest`."""
        if values.size != self.seen.size:
            return False
        error = self._gap(self.expected)
        left = self._gap(values)
        is_right = bool(np.isfinite(left) and left <= max(EXPLAINED * error, min(self.allowed, error / 4)))
        if is_right:
            self.closest.append(left)
        return is_right

    def _gap(self, values: Array) -> float:
        """Return the largest difference from the original on real tokens; that of huge values is relative."""
        found = values.reshape(self.seen.shape)
        real = self.tap.real
        with np.errstate(invalid="ignore"):  # inf - inf, where both are infinite
            gap = np.where(found == self.seen, 0.0, np.abs(found - self.seen))
        gap = np.where(True if real is None else real.numpy(), gap, 0.0)
        return float(self.tap.scaled(torch.from_numpy(gap)).max()) if gap.size else 0.0

    @torch.inference_mode()
    def _finished(self, hypothesis: Array) -> Array:
        if self.tap.key[2] != BLOCK or self.block is None:
            return hypothesis
        last = last_map(self.block.part)
        assert last is not None
        width = next(last.parameters()).shape[1]
        if hypothesis.size % width:
            return hypothesis
        found: Tensor = last(torch.from_numpy(hypothesis.reshape(-1, width)).to(self.tap.ours.dtype))
        return found.double().numpy()


def _same(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= SAME * max(float(other.abs().max()), 1e-30)) if other.numel() else False
