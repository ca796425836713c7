"""Probes: the values of a graph at its taps if all values before each tap are PyTorch's."""

from __future__ import annotations

import dataclasses
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
from txport.errors import TxportError, brief
from txport.exporters.cuda.apart import take_apart
from txport.proof.bisect.isolation import Runner, isolate, show
from txport.proof.bisect.taps import IN, OUT, Tap, find_taps, truth
from txport.proof.faults.calls import Record, recording
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


@dataclass(frozen=True)
class Probe:
    """One graph with its taps as outputs, in two sessions: unchanged and isolated."""

    role: str
    precision: str
    dtype: str  # type in which it is probed
    folder: Path  # of the weights
    copy: Callable[[], ir.Model]  # of the graph as it was read
    model: nn.Module  # PyTorch's model that it is compared with
    taps: tuple[Tap, ...]
    free: Runner
    isolated: Runner


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
    """Create two sessions of a graph: one outputs its taps, the other also reads PyTorch's values there.

    `table` states how its initializers are stored; `record` has the calls of the model's parts in the same run.
    """
    whole = shown(graph, manifest)
    plain = whole.clone()
    isolated = whole.clone()
    taps = find_taps(plain, table, manifest.graphs[role], model, record)
    for each in (plain, isolated):
        show(each, [tap.value for tap in taps])
    dtype = WIDE if is_widened(manifest) else manifest.dtype
    isolate(isolated, taps, dtype)
    packs = bool(manifest.quantization)  # other kernels compute with quantised weights that are not packed
    free = Runner(plain, folder, arena=False, packs=False)  # only for the shapes
    runners = free, Runner(isolated, folder, arena=False, packs=packs)
    return Probe(role, computed_in(manifest), dtype, folder, whole.clone, model, tuple(taps), *runners)


def is_widened(manifest: Manifest) -> bool:
    """Return whether the graphs of a bundle are probed in fp32, whatever they compute in on the device."""
    return manifest.made_for.on_gpu or manifest.arithmetic == "fp16"


def computed_in(manifest: Manifest) -> str:
    """Return the precision in which the graphs of a bundle compute where they are probed."""
    return "fp32" if is_widened(manifest) else manifest.arithmetic


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

    A call that a graph does not run is appended to `failures`, with the graph's role.
    """
    probes: dict[str, Probe] = {}
    manifest = bundle.manifest
    with recording(reference.model) as record:
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
                    yield probes[role], observe(probes[role], case.name, call, dict(record))
                except TxportError:
                    raise
                except Exception as error:  # ONNX Runtime raises other exception types
                    where = f"case {case.name}, step {call.step}: the {role} graph does not run"
                    failures.append((role, f"{where}: {brief(error)}"))
                record.clear()


def observe(probe: Probe, case: str, call: Call, record: Record) -> Observation:
    """Run a graph once unchanged, for the shapes, and once with PyTorch's values at every tap."""
    free = {**call.inputs, **probe.free.run(call.inputs)}
    truths: dict[Tap, Array] = {}
    feed = dict(call.inputs)
    for tap in probe.taps:
        expected = truth(tap, record, call.expected)
        like = free[tap.value]
        if expected is not None:
            truths[tap] = expected.reshape(like.shape) if expected.size == like.size else expected
        feed[tap.given] = truths[tap].astype(like.dtype) if expected is not None else like
    del free  # the values of all parts take much memory
    outputs = _settled(probe, call, feed, [tap for tap in probe.taps if tap not in truths])
    seen = {tap: outputs[tap.value] for tap in truths}
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
    before = next(each for each in observation.truths if each.side == IN and each.modules == tap.modules)
    read = torch.from_numpy(observation.truths[dataclasses.replace(before, nth=tap.nth)])
    x = read.reshape(-1, read.shape[-1])
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
        for tap in (each for each in observation.truths if not _is_close(each, observation, probe.precision)):
            worst = compare_tap(tap, observation, probe)
            if not worst.passed:
                found = Finding(probe, tap, worst, observation, (observation.case,))
                bad[probe.role, tap] = _join(bad.get((probe.role, tap), found), found)
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
