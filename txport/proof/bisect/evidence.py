"""The evidence of a wrong value at a tap of a graph, for fault models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from torch import nn

from txport.checkpoints.weights.streamed import stay
from txport.models.facts import StateTensor
from txport.models.model import Model
from txport.models.parts import Embedding, Frames, Residual
from txport.proof.bisect.calls import PartCall, Record, is_own
from txport.proof.bisect.faults.evidence import Cause, Evidence, WrongWeight, last_map
from txport.proof.bisect.isolation import Span, span_before
from txport.proof.bisect.probe import Finding
from txport.proof.bisect.taps import IN, OUT, PORT, Holder, Tap, holders_of
from txport.proof.bisect.words import common_parent, describe, name_of_sublayer
from txport.system.arrays import Array
from txport.targets.ports import Port

PORT_KIND = Port  # of graph outputs without state
INPUT_KIND = Tap  # of inputs of parts


@dataclass(frozen=True)
class Lost:
    """A residual sum of which one summand is lost: the place of the sum, and the cause."""

    where: str
    cause: Cause


@dataclass(frozen=True)
class TapEvidence(Evidence):
    """The evidence of one tap with a wrong value."""

    finding: Finding
    model: Model
    wrong: Mapping[str, WrongWeight]  # by the model's first name of the weight

    def read_weights(self) -> None:
        """Read the weights of the parts at the tap and before it, which fault models use, if the model is streamed."""
        calls = [self.call_at(tap) for tap in (self.finding.tap, *self.reads)]
        parents = [call.parent for call in calls if call is not None]
        for call in (*calls, *parents):
            if call is not None:
                stay(call.part)
        for name in self.modules if self.finding.tap.side != PORT else ():
            stay(self.model.get_submodule(name))

    @property
    def seen(self) -> Array:
        """The graph's value, in float64."""
        return self.finding.observation.seen[self.finding.tap].astype(np.float64)

    @property
    def expected(self) -> Array:
        """PyTorch's value, in float64."""
        return self.finding.observation.truths[self.finding.tap].astype(np.float64)

    @property
    def allowed(self) -> float:
        """See `Evidence`."""
        return self.finding.worst.allowed

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the modules at the tap."""
        return self.finding.tap.modules

    @property
    def role(self) -> str:
        """The role of the graph."""
        return self.finding.probe.role

    @property
    def record(self) -> Record:
        """See `Evidence`."""
        return self.finding.observation.record

    @property
    def arrays(self) -> dict[str, Array]:
        """PyTorch's inputs and outputs of the graph, by port."""
        call = self.finding.observation.call
        return {**call.inputs, **call.expected}

    @property
    def summands(self) -> dict[str, Array]:
        """The values that the span reads, by description."""
        return {self._words(tap): value for tap, value in self.reads.items()}

    def _words(self, tap: Tap) -> str:
        where = describe(self.model, tap.modules)
        return f"what goes into {where}" if tap.side == IN else f"what {where} gives"

    @cached_property
    def span(self) -> Span:
        """The nodes that compute this value from the taps before it."""
        probe = self.finding.probe
        return span_before(probe.copy(), probe.taps, self.finding.tap)

    @cached_property
    def reads(self) -> dict[Tap, Array]:
        """PyTorch's values at the taps that the span reads; if a part outputs the tap's value, this output alone."""
        truths = self.finding.observation.truths
        own = self.finding.tap
        before = [tap for tap in truths if own.side == IN and tap.side == OUT and tap.value == own.value]
        if before:
            return {before[0]: truths[before[0]]}
        by_value = {tap.value: tap for tap in reversed(list(truths)) if tap.value in self.span.reads}
        return {tap: truths[tap] for tap in by_value.values()}

    @cached_property
    def own(self) -> tuple[Holder, ...]:
        """The holders of the tensors that the span reads which are parts of the user's own."""
        read = [str(value.name) for node in self.span.nodes for value in node.inputs if value is not None]
        held = holders_of(self.model)
        holders = [each for name in dict.fromkeys(read) for each in held.get(name, ())]
        return tuple(each for each in holders if is_own(each.part))

    @property
    def own_parts(self) -> tuple[str, ...]:
        """The types of the user's own parts that compute the value: they hold tensors of the span, or surround it."""
        ends = [tap.modules[0] for tap in (self.finding.tap, *self.reads) if tap.side != PORT]
        around = [self.model.get_submodule(common_parent(*pair)) for pair in combinations(ends, 2)]
        parts = (*(each.part for each in self.own), *(each for each in around if is_own(each)))
        return tuple(dict.fromkeys(type(each).__name__ for each in parts))

    def sublayer_of(self, call: PartCall) -> str | None:
        """Return the name of the sublayer that ends with this call (last linear layer or result norm), or None."""
        if call.parent is not None:
            return call.parent.name if call.part is last_map(call.parent.part) else None
        name, _, _ = call.name.rpartition(".")
        around = self.model.get_submodule(name)
        part = self.model.get_submodule(call.name)  # the call may be of a copy
        is_last = isinstance(around, Residual) and around.result_norm is part
        return name_of_sublayer(self.model, name) if is_last else None

    @cached_property
    def lost(self) -> Lost | None:
        """The residual sum of PyTorch of which the graph computes only one summand; None if it computes both."""
        if self.finding.tap.side == OUT or self.seen.shape != self.expected.shape:
            return None
        for call in (each for calls in self.record.values() for each in calls):
            name = self.sublayer_of(call) if call.result.numel() == self.seen.size else None
            if name is not None:
                where = f"{describe(self.model, [name])}, residual sum"
                gave = call.gave.reshape(self.seen.shape)
                if self.explains(self.expected - gave):
                    return Lost(where, Cause("sum", f"what {describe(self.model, [call.name])} gives is not added"))
                if self.explains(gave):
                    return Lost(where, Cause("sum", "the residual is not added"))
        return None

    @cached_property
    def call(self) -> PartCall | None:
        """The call of the part at the tap; None for an output of the graph."""
        tap = self.finding.tap
        record = self.finding.observation.record
        return None if tap.side == PORT else record[self.modules[0]][tap.nth]

    @cached_property
    def block(self) -> PartCall | None:
        """The call of the attention or feed-forward whose last linear layer reads the value, or None."""
        call = self.call
        if self.finding.tap.side != IN or call is None or call.parent is None:
            return None
        return call.parent if call.part is last_map(call.parent.part) else None

    @cached_property
    def embedding(self) -> PartCall | None:
        """The call of the embedding whose sum before the norm is the value at the tap, or None."""
        calls = [self.call_at(tap) for tap in self.reads]
        found = [call for call in calls if call is not None and isinstance(call.part, nn.Embedding)]
        return found[0].parent if found and len(found) == len(calls) and self.finding.tap.side != OUT else None

    @cached_property
    def frames(self) -> PartCall | None:
        """The call of the `Frames` part whose result is the value at the tap, or None."""
        calls = [self.call_at(tap) for tap in self.reads if tap.side == OUT]
        parents = [call.parent for call in calls if call is not None and call.parent is not None]
        found = [each for each in parents if isinstance(each.part, Frames)]
        call = self.call
        is_inside = call is not None and call.parent in found
        return (
            found[0] if len(found) == len(self.reads) == 1 and self.finding.tap.side != OUT and not is_inside else None
        )

    def call_at(self, tap: Tap) -> PartCall | None:
        """Return the call of the first module at another tap; None if there is none."""
        calls = self.finding.observation.record.get(tap.modules[0], [])
        return calls[tap.nth] if tap.side != PORT and tap.nth < len(calls) else None

    @property
    def kind(self) -> type:
        """The kind of value (see `KINDS`): a type of part, a cache, an input of a part, or an output of the graph."""
        tap = self.finding.tap
        if tap.side == PORT:
            return StateTensor if tap.state is not None else PORT_KIND
        if tap.side == OUT:
            assert self.call is not None
            return type(self.call.part)
        if self.block is not None:
            return type(self.block.part)
        if self.embedding is not None:
            return Embedding
        if self.frames is not None:
            return Frames
        return Residual if len(self.reads) > 1 else INPUT_KIND
