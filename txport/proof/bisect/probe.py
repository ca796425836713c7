"""Probes: the values of a graph at its taps if all values before each tap are PyTorch's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

from txport.bundles.bundle import Bundle
from txport.bundles.forms import Stored
from txport.bundles.graphs import read_ir
from txport.bundles.manifest import Manifest
from txport.checkpoints.weights.streamed import read_weight
from txport.errors import ParityError, TxportError, brief
from txport.exporters.cuda.apart import take_apart
from txport.models.parts import Layer
from txport.proof.bisect.isolation import Runner, isolate, only, show, span_before
from txport.proof.bisect.taps import IN, OUT, PORT, Tap, find_taps, truth
from txport.proof.faults.calls import Record, Room, recording
from txport.proof.few_bits.activations import slack
from txport.proof.few_bits.kernels import is_reproduced
from txport.proof.parity.cases import Case
from txport.proof.parity.measures import Comparison, badness, compare
from txport.proof.parity.replay import Call, Reference
from txport.proof.parity.tolerances import tolerance_of
from txport.runtimes.ort.widened import widen
from txport.system.arrays import Array

# Maximum difference of one part from PyTorch, relative to its largest value, with PyTorch's inputs: errors of earlier
# parts do not accumulate. A larger difference is allowed up to `SHAKEN` times the change that is caused by rounding all
# inputs differently: sharp attention and small differences of large numbers are sensitive to the last bit of their
# inputs.
LOCAL = {"fp32": 1e-5, "fp16": 4e-3, "bf16": 3e-2, "int8": 1e-5, "int4": 1e-5}
SHAKEN = 16.0
WIDE = "float32"  # the type in which cuda graphs are probed
ROOM = 1 << 30  # bytes of PyTorch's values between the parts that are in memory at once, about


@dataclass(frozen=True)
class Probe:
    """One graph with its taps as outputs, in two sessions: unchanged and isolated."""

    role: str
    precision: str
    dtype: str  # type in which it is probed
    folder: Path  # of the weights
    copy: Callable[[], ir.Model]  # of the graph as it was read
    model: nn.Module  # PyTorch's model that it is compared with
    packs: bool  # other kernels compute with quantised weights that are not packed
    taps: tuple[Tap, ...]
    some: tuple[Tap, ...] = ()  # if there are any, only these are compared

    @property
    def compared(self) -> tuple[Tap, ...]:
        """The taps that are compared."""
        return self.some or self.taps

    @cached_property
    def needed(self) -> tuple[Tap, ...]:
        """The taps that are compared, and those whose values they are computed from."""
        if not self.some:
            return self.taps
        graph = self.copy()
        spans = [span_before(graph, self.taps, tap) for tap in self.some]
        values = {*(tap.value for tap in self.some), *(name for span in spans for name in span.reads)}
        return tuple(tap for tap in self.taps if tap.value in values)

    @cached_property
    def free(self) -> Runner:
        """The graph as it is; it is run only for the shapes."""
        return self._runner(self.copy(), self.needed, packs=False)

    @cached_property
    def isolated(self) -> Runner:
        """The graph that reads PyTorch's values at the taps."""
        graph = self.copy()
        isolate(graph, self.taps, self.dtype)
        return self._runner(graph, self.compared, packs=self.packs)

    def _runner(self, graph: ir.Model, taps: Sequence[Tap], *, packs: bool) -> Runner:
        values = [tap.value for tap in taps]
        if self.some:
            graph = only(graph, values)
        else:
            show(graph, values)
        return Runner(graph, self.folder, arena=False, packs=packs)

    def pieces(self, room: Room) -> Iterator[Probe]:
        """Yield this probe; if the values of the last call did not fit in the room, yield probes of some taps each."""
        count = math.ceil(max(1, room.used / room.size))
        if count == 1:
            yield self
            return
        size = math.ceil(len(self.taps) / count)
        for at in range(0, len(self.taps), size):
            yield dataclasses.replace(self, some=self.taps[at : at + size]).with_ports()

    def with_ports(self) -> Probe:
        """Return this probe of some taps with the outputs of the graph that they need, which PyTorch may not have."""
        more = tuple(tap for tap in self.needed if tap.side == PORT and tap not in self.some)
        return dataclasses.replace(self, some=(*self.some, *more)).with_ports() if more else self

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the layers, or else the parts, around the modules of the taps that are needed.

        Whole layers have the summands of a residual that the graph may have lost.
        """
        layers = [name for name, part in self.model.named_modules(remove_duplicate=False) if isinstance(part, Layer)]
        names = {name for tap in self.needed if tap.side != PORT for name in tap.modules}
        around = {name: [each for each in layers if name.startswith(f"{each}.")] for name in names}
        return tuple({found[0] if found else name.rpartition(".")[0] or name for name, found in around.items()})


@dataclass(frozen=True)
class Observation:
    """One call of one graph: PyTorch's values by tap, and the graph's values, computed from PyTorch's."""

    case: str
    call: Call
    record: Record
    feed: Mapping[str, Array]  # all inputs of the isolated graph
    truths: Mapping[Tap, Array]
    seen: Mapping[Tap, Array]
    run: Callable[[Mapping[str, Array]], dict[str, Array]]  # the isolated graph: a feed -> values by name

    @cached_property
    def _shaken(self) -> dict[str, Array]:
        """The graph's outputs if each input is replaced by an adjacent floating-point number."""
        rng = np.random.default_rng(0)

        def beside(values: Array) -> Array:
            towards = np.where(rng.random(values.shape) < 0.5, -np.inf, np.inf).astype(values.dtype)
            other: Array = np.nextafter(values, towards)
            return other

        return self.run({name: beside(each) if each.dtype.kind == "f" else each for name, each in self.feed.items()})

    def noise(self, tap: Tap) -> float:
        """Return the largest change of a tap if all inputs of the graph are rounded differently."""
        shaken = self._shaken.get(tap.value)
        seen = self.seen[tap]
        if shaken is None or shaken.shape != seen.shape:
            return 0.0
        change = np.abs(shaken.astype(np.float64) - seen.astype(np.float64)).max(initial=0.0)
        return float(np.nan_to_num(change, nan=0.0, posinf=0.0))


@dataclass(frozen=True)
class Finding:
    """A tap with a wrong value: its worst comparison, and the cases in which it is wrong."""

    probe: Probe
    tap: Tap
    worst: Comparison
    observation: Observation
    cases: tuple[str, ...]


def make_probe(
    graph: ir.Model,
    table: Mapping[str, Stored],
    role: str,
    manifest: Manifest,
    folder: Path,
    model: nn.Module,
    record: Record,
) -> Probe:
    """Return the probe of a graph.

    `table` states how its initializers are stored; `record` has the calls of the model's parts in the same run.
    """
    whole = shown(graph, manifest)
    taps = find_taps(whole, table, manifest.graphs[role], model, record)
    dtype = WIDE if is_widened(manifest) else manifest.dtype
    packs = bool(manifest.quantization)
    return Probe(role, computed_in(manifest), dtype, folder, whole.clone, model, packs, tuple(taps))


def is_widened(manifest: Manifest) -> bool:
    """Return whether the graphs of a bundle are probed in fp32, whatever they compute in on the device."""
    return manifest.made_for.on_gpu or manifest.arithmetic == "fp16"


def computed_in(manifest: Manifest) -> str:
    """Return the precision in which the graphs of a bundle compute where they are probed.

    Standard operators multiply in fp32 with weights in few bits: ONNX Runtime's are not optimised there.
    """
    is_plain = is_widened(manifest) or (manifest.made_for.is_standard and manifest.is_quantised)
    return "fp32" if is_plain else manifest.arithmetic


def shown(model: ir.Model, manifest: Manifest) -> ir.Model:
    """Return a graph that can be probed on the CPU: in fp32, and a cuda graph is split into plain operators."""
    if not is_widened(manifest):
        return model
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    content = ir.to_proto(model)
    widen(content.graph)
    found: ir.Model = ir.from_proto(content)
    take_apart(found)
    return found


def observations(
    bundle: Bundle, reference: Reference, cases: Iterable[Case], seed: int, failures: list[tuple[str, str]]
) -> Iterator[tuple[Probe, Observation]]:
    """Run every call of every case on its graph and yield what is observed.

    A call whose values are more than `ROOM` is observed in pieces, for each of which PyTorch runs it again.
    A call that a graph does not run is appended to `failures`, with the graph's role.
    """
    probes: dict[str, Probe] = {}
    manifest = bundle.manifest
    room = Room(ROOM)
    with recording(reference.model, room=room) as record:
        for case in cases:
            for call in reference.replay(case, seed):
                role = call.role
                if not manifest.graphs[role].has_weights:
                    continue  # the graph only moves values
                if role not in probes:
                    file = bundle.file(role)
                    graph = read_ir(file)
                    probes[role] = make_probe(
                        graph, manifest.weights, role, manifest, file.parent, reference.model, record
                    )
                try:
                    for probe in probes[role].pieces(room):
                        if probe.some:
                            record.clear()
                            room.begin(probe.blocks)
                            reference.call(role, call.step, call.inputs)
                        yield probe, observe(probe, case.name, call, dict(record))
                except TxportError:
                    raise
                except Exception as error:  # ONNX Runtime raises other exception types
                    where = f"case {case.name}, step {call.step}: the {role} graph does not run"
                    failures.append((role, f"{where}: {brief(error)}"))
                record.clear()
                room.begin()


def observe(probe: Probe, case: str, call: Call, record: Record) -> Observation:
    """Run a graph once unchanged, for the shapes, and once with PyTorch's values at every tap."""
    free = {**call.inputs, **probe.free.run(call.inputs)}
    truths: dict[Tap, Array] = {}
    feed = dict(call.inputs)
    for tap in probe.needed:
        expected = truth(tap, record, call.expected)
        like = free[tap.value]
        if expected is None and tap.side != PORT and tap in probe.compared:
            raise ParityError(f"no part covers {tap.name}: its values were not kept")
        if expected is not None:
            truths[tap] = expected.reshape(like.shape) if expected.size == like.size else expected
        feed[tap.given] = truths[tap].astype(like.dtype, copy=False) if expected is not None else like
    del free  # the values of all parts take much memory
    outputs = _settled(probe, call, feed, [tap for tap in probe.compared if tap not in truths])
    seen = {tap: outputs[tap.value] for tap in probe.compared if tap in truths}
    return Observation(case, call, record, feed, truths, seen, probe.isolated.run)


def _settled(probe: Probe, call: Call, feed: dict[str, Array], unknown: Sequence[Tap]) -> dict[str, Array]:
    """Run the isolated graph; at the taps in `unknown`, where PyTorch has no value, feed the graph's own value.

    PyTorch has no logits, for example, if the call does not request them. The graph's own value is computed from
    PyTorch's values. The unchanged graph is not used, because its value has the errors of all earlier parts.
    """
    outputs = {**call.inputs, **probe.isolated.run(feed)}
    for _ in unknown:  # one may depend on another
        own = {tap.given: outputs[tap.value] for tap in unknown}
        if all(np.array_equal(feed[name], value, equal_nan=value.dtype.kind == "f") for name, value in own.items()):
            break
        feed.update(own)
        outputs = {**call.inputs, **probe.isolated.run(feed)}
    return outputs


def compare_tap(tap: Tap, observation: Observation, probe: Probe) -> Comparison:
    """Compare one tap with its tolerance; a product with a quantised weight may round a value at a tie either way.

    A norm may read such a product as it is: its input is then the same value of the graph.
    """
    expected = observation.truths[tap]
    seen = observation.seen[tap]
    allowed = _allowed(expected, probe.precision)
    unknown = _is_unknown(tap)
    limits = (np.inf, tolerance_of(probe.precision).rms) if unknown else (allowed, None)
    where = (observation.case, "ort", observation.call.step, tap.name)
    found = compare(*where, expected, seen, limits[0], rms=limits[1])
    if found.passed or unknown:
        return found
    products = (each for each in observation.truths if each.value == tap.value and each.form and each.side == OUT)
    if (product := next(products, None)) is not None:
        return dataclasses.replace(found, allowed=allowed + _slack_of(product, observation, probe))
    return dataclasses.replace(found, allowed=max(allowed, SHAKEN * observation.noise(tap)))


@torch.inference_mode()
def _slack_of(tap: Tap, observation: Observation, probe: Probe) -> float:
    """Return the largest difference of a product that its kernel's roundings explain; see `slack`."""
    assert tap.form is not None
    own = (tap.modules, IN, tap.nth)
    read = next(value for each, value in observation.truths.items() if (each.modules, each.side, each.nth) == own)
    x = torch.from_numpy(read.reshape(-1, read.shape[-1]))
    return max(float(slack(x, read_weight(probe.model, name), tap.form).amax()) for name in tap.modules)


def _allowed(expected: Array, precision: str) -> float:
    return LOCAL[precision] * float(np.abs(expected).max(initial=0.0))


def _is_unknown(tap: Tap) -> bool:
    """Return True for the result of a product whose kernel rounds in a way that is not known."""
    return tap.form is not None and tap.side == OUT and not is_reproduced(tap.form)


def _is_close(tap: Tap, observation: Observation, precision: str) -> bool:
    """Return True if a tap clearly passes; a fast check without statistics."""
    expected = observation.truths[tap]
    seen = observation.seen[tap]
    if _is_unknown(tap) or expected.shape != seen.shape:
        return False
    difference = np.abs(expected.astype(np.float64) - seen.astype(np.float64))
    return bool((difference <= _allowed(expected, precision)).all())


def find(pairs: Iterable[tuple[Probe, Observation]]) -> list[Finding]:
    """Return the taps that are wrong, in the order of the graphs; of several taps of one value only the first."""
    bad: dict[tuple[str, Tap], Finding] = {}
    for probe, observation in pairs:
        for tap in (each for each in observation.seen if not _is_close(each, observation, probe.precision)):
            worst = compare_tap(tap, observation, probe)
            if not worst.passed:
                found = Finding(probe, tap, worst, observation, (observation.case,))
                bad[probe.role, tap] = _join(bad.get((probe.role, tap), found), found)
        del probe, observation  # the next one takes much memory, too
    return in_order(list(bad.values()))


def _join(one: Finding, other: Finding) -> Finding:
    """Return the worse of two findings at one tap, with the cases of both."""
    cases = tuple(dict.fromkeys((*one.cases, *other.cases)))
    worse = other if badness(other.worst) > badness(one.worst) else one
    return dataclasses.replace(worse, cases=cases)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings in the order of roles and taps; keep one finding per value."""
    roles = list(dict.fromkeys(each.probe.role for each in findings))
    order = sorted(findings, key=lambda each: (roles.index(each.probe.role), each.probe.taps.index(each.tap)))
    first: dict[tuple[str, str], Finding] = {}
    for each in order:
        first.setdefault((each.probe.role, each.tap.value), each)
    return list(first.values())
