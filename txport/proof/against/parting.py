"""The first difference of an import and its original: its position, its size and its cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from txport.errors import OutOfMemoryError
from txport.models.model import Model
from txport.models.parts import NORM_TYPES, FeedForward, GatedFeedForward
from txport.proof.against.batches import MOST
from txport.proof.against.causes import cause_of
from txport.proof.against.evidence import ImportEvidence, evidence_of
from txport.proof.against.original import Original
from txport.proof.against.pairing import CLOSELY, SURELY, Origins
from txport.proof.against.taps import END, IN, OUT, Key, Run, Tap, benign, run_on_theirs, side_of
from txport.proof.against.whole import layer_of, whole_cause
from txport.proof.faults.calls import PartCall
from txport.proof.faults.evidence import Cause, Explained, last_map
from txport.proof.faults.words import describe

UNKNOWN = "unknown"  # the kind of a difference that no cause explains
TOLD = 5  # maximum number of further positions shown
BEFORE = "all that was computed before agrees, this is off"


@dataclass(frozen=True)
class Parting:
    """The first difference: the part of the import, the modules of the original, the error, and the cause.

    `side` is "in", "out", "block" or "end". `left` is the difference that remains if the cause is fixed. `also` are
    descriptions of further positions that differ.
    """

    where: str
    part: str
    side: str
    theirs: tuple[str, ...]
    error: float
    allowed: float
    kind: str
    what: str
    left: float | None
    also: tuple[str, ...] = ()

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines to show: a label and its text."""
        names = f", {' and '.join(self.theirs)} of the original" if self.theirs else ""
        place = {IN: "what goes into ", END: ""}.get(self.side, "what comes of ")
        yield "parts at", f"{self.where} ({place}{self.part}{names})"
        how = BEFORE if self.side in (IN, END) else "inputs agree, outputs part"
        yield "figures", f"{how} by {self.error:.3g}, allowed {self.allowed:.2g}"
        fixed = f"; with that changed, the two agree within {self.left:.2g}" if self.left is not None else ""
        yield "cause", self.what + fixed
        if self.also:
            more = f"; and {len(self.also) - TOLD} more" if len(self.also) > TOLD else ""
            yield "also", "; ".join(self.also[:TOLD]) + more


def find_parting(
    model: Model, original: Original, origins: Origins, runs: Sequence[Run], *, certain: bool
) -> Parting | None:
    """Return the first difference; None if it may be rounding only, unless the outputs are `certain` to differ."""
    isolated, ends = _differences(model, original, runs)
    every = [evidence_of(tap, run, model, origins) for tap, run in isolated]
    explained = ((each, cause_of(each) if _may_err(each) else None) for each in every)
    sure = ((each, found) for each, found in explained if found is not None or not each.tap.within(SURELY))
    first = next(sure, None)
    if first is None or first[1] is None:
        whole = _of_whole(model, original, runs, None if first is None else first[0])
        if whole is not None:
            return whole
    if first is not None:
        own = _where(first[0])
        also = dict.fromkeys(_where(each) for each, _ in sure)
        return _described(*first, tuple(each for each in also if each != own))
    if not certain:
        return None
    if ends:
        end = evidence_of(*ends[0], model, origins)
        return _described(end, cause_of(end), ())
    outputs = isolated or [(tap, free) for free in runs for tap in free.ends]
    most = max(outputs, key=lambda each: each[0].error / max(each[0].size, 1e-30))
    return _described(evidence_of(*most, model, origins), None, ())


Located = tuple[Tap, Run]


def _differences(model: Model, original: Original, runs: Sequence[Run]) -> tuple[list[Located], list[Located]]:
    """Return the taps that differ if the import reads the original's values, in order, and outputs that surely do.

    A tap is taken from the first run in which its difference exceeds `SURELY`, if there is one.
    """
    found: dict[Key, Located] = {}
    ends: list[Located] = []
    for free in runs:
        kept = benign(model, free)
        parted = {tap.key for tap in free.taps if not tap.within(CLOSELY)} - kept
        isolated = run_on_theirs(model, original, free, kept)
        ends += [(tap, isolated) for tap in isolated.ends if not tap.within(SURELY)]
        for tap in isolated.taps:
            if tap.key in parted and not tap.within(CLOSELY):
                known = found.setdefault(tap.key, (tap, isolated))
                if known[0].within(SURELY) and not tap.within(SURELY):
                    found[tap.key] = (tap, isolated)
    return sorted(found.values(), key=lambda each: each[0].order), ends


def _of_whole(model: Model, original: Original, runs: Sequence[Run], first: ImportEvidence | None) -> Parting | None:
    """Return the cause that is tested on the whole import, with short rows; `first` is the first difference."""
    short = [run for run in runs if run.given.tokens <= MOST]
    layer = "" if first is None or first.tap.key[2] == END else layer_of(model, first.tap.key[0])
    found = whole_cause(model, original, short, layer) if short else None
    if found is None:
        return None
    tap = max((tap for run in short for tap in run.ends), key=lambda tap: tap.error) if first is None else first.tap
    return _parting(tap, found.where, tap.allowed, found)


def _parting(tap: Tap, where: str, allowed: float, found: Explained, also: tuple[str, ...] = ()) -> Parting:
    return Parting(
        where=where,
        part=tap.key[0],
        side=tap.key[2],
        theirs=tap.names,
        error=tap.worst,
        allowed=allowed,
        kind=found.cause.kind,
        what=found.cause.what,
        left=found.left,
        also=also,
    )


def _may_err(evidence: ImportEvidence) -> bool:
    """Return True if a difference may be an error; a small one only in norms (epsilon) or feed-forward (activation)."""
    kind = evidence.kind
    is_subtle = isinstance(kind, type) and issubclass(kind, (*NORM_TYPES, FeedForward, GatedFeedForward))
    return is_subtle or not evidence.tap.within(SURELY)


def not_located(runs: Sequence[Run], error: OutOfMemoryError) -> Parting:
    """Return the difference of the outputs, without the part where it begins."""
    tap = max((tap for run in runs for tap in run.ends), key=lambda tap: tap.error / max(tap.size, 1e-30))
    name = tap.key[0]
    return _parting(tap, f"the output {name}", tap.allowed, Explained(Cause(UNKNOWN, f"not found: {error}"), None))


def _where(evidence: ImportEvidence) -> str:
    name, _, side = evidence.tap.key
    if side == END:
        return f"the output {name}"
    place = describe(evidence.model, [name if evidence.call is None else evidence.call.name])
    if evidence.call is not None:
        return place
    between = [describe(evidence.model, [call.name]) for call in _between(evidence)]
    return " to ".join(dict.fromkeys((between[0], between[-1]))) if between else f"before {place}"


def _between(evidence: ImportEvidence) -> list[PartCall]:
    """Return the calls of the import between the last tap before this one and this one: the difference is of theirs."""
    tap = evidence.tap
    side = side_of(evidence.model, tap)
    before = [each for each in evidence.run.taps if each.order < tap.order and side_of(evidence.model, each) == side]
    last = max(before, key=lambda each: each.order, default=None)
    calls = sorted((each for calls in evidence.run.record.values() for each in calls), key=lambda call: call.order)
    found = [each for each in calls if each.parent is None and each.order < tap.order]
    if last is None or last.pair is None:
        return []
    known = evidence.run.record[last.key[0]][last.key[1]]
    open_call = known.parent if known.parent is not None and not _ends(known.parent, last) else None
    return [each for each in found if each is open_call or each.order > last.order]


def _ends(block: PartCall, tap: Tap) -> bool:
    """Return True if a tap is the result of a block's last linear layer."""
    return tap.key[2] == OUT and tap.pair is not None and tap.pair.call.part is last_map(block.part)


def _unknown(tap: Tap) -> str:
    if not tap.within(SURELY):
        return "no cause that is known gives what the original gives"
    dtype = str(tap.ours.dtype).removeprefix("torch.")
    much = f"they agree within {tap.error:.2g}, which is more than rounding in {dtype}"
    return f"{much}, and no cause that is known explains it"


def _described(evidence: ImportEvidence, found: Explained | None, also: tuple[str, ...]) -> Parting:
    tap = evidence.tap
    allowed = (SURELY if not tap.within(SURELY) else CLOSELY)[tap.ours.dtype] * tap.size
    found = Explained(Cause(UNKNOWN, _unknown(tap)), None) if found is None else found
    return _parting(tap, _where(evidence), allowed, found, also)
