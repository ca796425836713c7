"""The place of a wrong value in a graph, and its cause: the fault models of all parts, and those of graphs alone."""

from __future__ import annotations

from itertools import combinations

from txport.errors import ParityError
from txport.models.facts import StateTensor
from txport.models.model import Model
from txport.models.parts import FeedForward, GatedFeedForward, Residual
from txport.proof.bisect.caches import FAULTS_OF_CACHES
from txport.proof.bisect.evidence import GraphEvidence, call_at
from txport.proof.bisect.taps import IN, OUT, PORT, Holder, holders_of
from txport.proof.faults.calls import PartCall, is_own
from txport.proof.faults.evidence import INPUT, Cause, explain, last_map
from txport.proof.faults.kinds import FAULTS, faults_of
from txport.proof.faults.words import common_parent, describe, describe_state, name_of_sublayer

UNKNOWN = "operator"  # the kind of a fault that no fault model explains
FAULTS_OF_GRAPHS = {**FAULTS, StateTensor: FAULTS_OF_CACHES}


def cause_of(evidence: GraphEvidence) -> Cause:
    """Return the cause by the first fault model that explains the graph's value.

    Raises `ParityError` for a kind of value that has no fault models.
    """
    if evidence.seen.shape != evidence.expected.shape:
        return Cause("shape", f"its shape is {evidence.seen.shape}, expected {evidence.expected.shape}")
    wrong = (evidence.wrong.get(each.tensor) for each in _own_holders(evidence))
    if (weight := next((each for each in wrong if each is not None), None)) is not None:
        return weight.cause
    if (lost := lost_summand(evidence)) is not None:
        return lost[1]
    fault_models = faults_of(evidence.kind, FAULTS_OF_GRAPHS)
    if fault_models is None:
        name = evidence.finding.tap.name
        raise ParityError(f"no part covers {name}, a {evidence.kind.__name__}: give this kind of part fault models")
    found = explain(evidence, fault_models)
    unknown = Cause(UNKNOWN, "what it gives is not what PyTorch computes from the same values")
    return unknown if found is None else found.cause


def place_of(evidence: GraphEvidence) -> str:
    """Describe the position of a tap, and name the parts of the user's own that compute the value."""
    lost = lost_summand(evidence)
    where = _place(evidence) if lost is None else lost[0]
    again = f" (call {evidence.finding.tap.nth + 1})" if evidence.finding.tap.nth else ""
    own = _own_parts(evidence)
    return where + again + (f" (a part of {' and '.join(own)})" if own else "")


def _place(evidence: GraphEvidence) -> str:
    state = evidence.finding.tap.state
    if state is not None:
        return describe_state(state)
    if evidence.call is not None and evidence.finding.tap.side == IN:
        where = describe(evidence.model, [evidence.call.name])
        return f"{where}, activation" if isinstance(evidence.call.part, FeedForward | GatedFeedForward) else where
    if evidence.kind is Residual and (ends := _added(evidence)):
        return f"{describe(evidence.model, [ends[-1]])}, residual sum"
    where = describe(evidence.model, evidence.modules)
    return f"what goes into {where}" if evidence.kind == INPUT else where


def _added(evidence: GraphEvidence) -> list[str]:
    """Return the sublayers whose results a residual sum adds."""
    calls = [call_at(evidence.finding, tap) for tap in evidence.reads if tap.side == OUT]
    found = [_sublayer_of(evidence.model, call) for call in calls if call is not None]
    return [name for name in found if name is not None]


def _sublayer_of(model: Model, call: PartCall) -> str | None:
    """Return the name of the sublayer that ends with this call (last linear layer or result norm), or None."""
    if call.parent is not None:
        return call.parent.name if call.part is last_map(call.parent.part) else None
    name, _, _ = call.name.rpartition(".")
    around = model.get_submodule(name)
    part = model.get_submodule(call.name)  # the call may be of a copy
    is_last = isinstance(around, Residual) and around.result_norm is part
    return name_of_sublayer(model, name) if is_last else None


def lost_summand(evidence: GraphEvidence) -> tuple[str, Cause] | None:
    """Return the residual sum of which the graph computes one summand only, and the cause; None if it computes both."""
    if evidence.finding.tap.side == OUT or evidence.seen.shape != evidence.expected.shape:
        return None
    for call in (each for calls in evidence.record.values() for each in calls):
        name = _sublayer_of(evidence.model, call) if call.result.numel() == evidence.seen.size else None
        if name is None:
            continue
        where = f"{describe(evidence.model, [name])}, residual sum"
        gave = call.gave.reshape(evidence.seen.shape)
        if evidence.left(evidence.expected - gave) <= evidence.limit:
            return where, Cause("sum", f"what {describe(evidence.model, [call.name])} gives is not added")
        if evidence.left(gave) <= evidence.limit:
            return where, Cause("sum", "the residual is not added")
    return None


def _own_holders(evidence: GraphEvidence) -> list[Holder]:
    """Return the holders of the tensors that the span reads which are parts of the user's own."""
    read = [str(value.name) for node in evidence.span.nodes for value in node.inputs if value is not None]
    held = holders_of(evidence.model)
    holders = [each for name in dict.fromkeys(read) for each in held.get(name, ())]
    return [each for each in holders if is_own(each.part)]


def _own_parts(evidence: GraphEvidence) -> list[str]:
    """Return the types of the user's own parts of the value: they hold tensors of its span, or surround it."""
    ends = [tap.modules[0] for tap in (evidence.finding.tap, *evidence.reads) if tap.side != PORT]
    around = [evidence.model.get_submodule(common_parent(*pair)) for pair in combinations(ends, 2)]
    parts = (*(each.part for each in _own_holders(evidence)), *(each for each in around if is_own(each)))
    return list(dict.fromkeys(type(each).__name__ for each in parts))
