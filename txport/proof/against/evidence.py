"""The evidence of a tap at which an import and its original differ, for fault models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor, nn

from txport.models.model import Model
from txport.models.parts import Embedding, Frames, Residual
from txport.proof.against.pairing import Origins
from txport.proof.against.taps import BLOCK, END, OUT, Run, Tap, Value, side_of
from txport.proof.faults.calls import PartCall
from txport.proof.faults.evidence import INPUT, OUTPUT, Evidence, last_map
from txport.proof.faults.words import describe
from txport.system.arrays import Array

RECENT = 14  # values that are tried as summands
SAME = 1e-12  # maximum difference of equal values, relative to the largest


@dataclass(frozen=True, kw_only=True)
class ImportEvidence(Evidence):
    """The evidence of one tap: the import's values are `expected`, the original's are `seen`; on padding both agree."""

    tap: Tap
    run: Run
    origins: Origins

    def gap(self, values: Array) -> float:
        """Return the largest difference from the original on real tokens; that of huge values is relative."""
        found = values.reshape(self.seen.shape)
        real = self.tap.real
        with np.errstate(invalid="ignore"):  # inf - inf, where both are infinite
            gap = np.where(found == self.seen, 0.0, np.abs(found - self.seen))
        gap = np.where(True if real is None else real.numpy(), gap, 0.0)
        return float(self.tap.scaled(torch.from_numpy(gap)).max()) if gap.size else 0.0

    @torch.inference_mode()
    def finished(self, values: Array) -> Array:
        """Return the result of a block whose last linear layer is not paired, after this layer."""
        if self.tap.key[2] != BLOCK:
            return values
        last = last_map(self.part_call.part)
        assert last is not None
        width = next(last.parameters()).shape[1]
        if values.size % width:
            return values
        found: Tensor = last(torch.from_numpy(values.reshape(-1, width)).to(self.tap.ours.dtype))
        return found.double().numpy()


def evidence_of(tap: Tap, run: Run, model: Model, origins: Origins) -> ImportEvidence:
    """Return the evidence of a tap of a run in which the import reads the original's values."""
    call = _computing(tap, run)
    values = _values_of(tap, run)
    if call is not None:
        kind: object = type(call.part)
    elif tap.key[2] == END:
        kind = OUTPUT
    else:
        kind = Residual if len(values) > 1 else INPUT
    theirs = tap.theirs if tap.real is None else torch.where(tap.real, tap.theirs, tap.ours)
    return ImportEvidence(
        model=model,
        kind=kind,
        modules=(tap.key[0],),
        role=side_of(model, tap) if model.facts.generates else "model",
        record=run.record,
        expected=tap.ours.double().numpy(),
        seen=theirs.double().numpy(),
        allowed=tap.allowed,
        call=call,
        summands={_describe(model, each): each.tensor.double().numpy() for each in values},
        tap=tap,
        run=run,
        origins=origins,
    )


def _computing(tap: Tap, run: Run) -> PartCall | None:
    """Return the call of the part that computes the import's value; see `Evidence`."""
    name, nth, side = tap.key
    if side == END:
        return None
    own = run.record[name][nth]
    if side in (OUT, BLOCK):
        return own
    parent = own.parent
    if parent is not None and own.part is last_map(parent.part):
        return parent
    if parent is not None and isinstance(parent.part, Embedding):
        found = parent if own.part is parent.part.norm else None
    else:
        found = _made_by(Embedding, tap, run)
    is_wider = found is not None and getattr(found.part, "widen", None) is not None
    return _made_by(Frames, tap, run) if found is None or is_wider else found


def _made_by(kind: type[nn.Module], tap: Tap, run: Run) -> PartCall | None:
    """Return the call of a part of this type, without a norm, whose result is the import's value, or None."""
    calls = (each for several in run.record.values() for each in several if isinstance(each.part, kind))
    found = next((each for each in calls if torch.equal(each.result, tap.ours)), None)
    return found if found is not None and getattr(found.part, "norm", None) is None else None


def _values_of(tap: Tap, run: Run) -> Sequence[Value]:
    """Return the values that a tap consists of: an equal value, or two that are added; else the last of its shape."""
    before = run.flow[: run.moments.get(tap.key, len(run.flow))]
    recent = [each for each in reversed(before) if each.tensor.shape == tap.ours.shape]
    equal = next((each for each in recent if _same(each.tensor, tap.ours)), None)
    if equal is not None:
        return [equal]
    for one, other in combinations(recent[:RECENT], 2):
        if _same(one.tensor + other.tensor, tap.ours):
            return [other, one]
    return recent[:1]


def _same(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= SAME * max(float(other.abs().max()), 1e-30)) if other.numel() else False


def _describe(model: Model, value: Value) -> str:
    where = describe(model, [value.name])
    return f"what {where} gives" if value.side == OUT else f"what goes into {where}"
