"""What limits a phase: bytes of weights that it reads, operations of its products, and the time of its operators.

All are taken from ONNX Runtime's own profile of one round, in a process of its own, so that no timing is disturbed.
"""

from __future__ import annotations

import bisect
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from txport import runtimes
from txport.api.locate import open_bundle
from txport.bench import bandwidth
from txport.bench.candidates import Candidate
from txport.bench.compare import Json
from txport.bench.plan import Plan, Protocol
from txport.bench.rounds import WORK, draw_source
from txport.bench.worker import Worker, errors_sent
from txport.bundles.bundle import Bundle
from txport.bundles.graphs import read_ir
from txport.runtimes.ort import sessions
from txport.runtimes.ort.onnx_runtime import ort
from txport.system.progress import Progress

WARM_UP = 2
ROWS, DEPTH = 512, 1024  # of the product that measures a rate: (ROWS, DEPTH) x (DEPTH, DEPTH)
TRIES = 40  # of the product; the best one counts, as of reads: other programs may disturb tens of milliseconds
READS = 5
LEAST_READ = 1 << 16  # bytes of which the bandwidth is measured
UPTIME = 1e9  # seconds: more than the monotonic clock of any machine
FLOAT = frozenset({"MatMul", "FusedMatMul", "Gemm", "FusedGemm"})
INTEGER = frozenset(
    {"DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits", "QGemm", "QLinearMatMul"}
)
LOOKUPS = bandwidth.LOOKUPS | {"Slice"}  # these read a part of their weights
RUN = "_kernel_time"  # after the name of a node that is run
BODIES = frozenset({"If", "Loop", "Scan"})  # their time is that of the operators in their bodies
PHASES = ("encode", "prefill", "first token", "further token")


class Event(NamedTuple):
    """The run of an operator: the middle of its graph's run in seconds, its session, name and kind, ms, and shapes."""

    at: float
    node: tuple[int, str]
    kind: str
    ms: float
    weights: int
    operations: float


def measure(candidates: Sequence[Candidate], plan: Plan, progress: Progress) -> dict[str, Json]:
    """Return, by candidate, the figures of each phase at each size, and the rates of products, in operations/s.

    Candidates that ONNX Runtime does not run on the CPU have none.
    """
    found: dict[str, Json] = {}
    for one in candidates if plan.provider == "cpu" else ():
        if one.runtime == "ort":
            progress(f"{one.label}: bytes, operations and operators of each phase")
            place = (one.runtime, str(one.bundle.path), one.variant, plan)
            with Worker(f"the profile of {one.label}", work, *place) as process:
                found[one.label] = process.request("profile")
    for kind in ("fp32", "int8"):  # the rates are those of the machine: the best that any process measured
        best = max((each["rates"][kind] for each in found.values()), default=0.0)
        for each in found.values():
            each["rates"][kind] = best
    return found


def work(pipe: Connection, name: str, path: str, variant: str | None, plan: Plan) -> None:
    """Answer one request with the figures of a bundle."""
    with errors_sent(pipe):
        pipe.recv()
        bundle = open_bundle(Path(path), variant)
        rates = {kind: _rate(kind, plan.threads) for kind in ("fp32", "int8")}
        sizes = _profile(bundle, name, plan)
        for figures in (figures for size in sizes for figures in size.values()):
            reader = bandwidth.Reader(max(figures["bytes"], LEAST_READ), plan.threads)
            figures["bandwidth"] = max(reader.measure() for _ in range(READS))
        pipe.send({"rates": rates, "sizes": sizes})


def _profile(bundle: Bundle, name: str, plan: Plan) -> list[dict[str, Json]]:
    """Return, for each size, the counts of each phase, and the milliseconds of each kind of operator."""
    facts = bundle.manifest.facts
    with tempfile.TemporaryDirectory() as folder, sessions.profiling(Path(folder)) as started:
        runtime = runtimes.load(name, bundle, provider=plan.provider, threads=plan.threads)
        windows = []
        for size in plan.sizes():
            source = draw_source(facts, size)
            for _ in range(1 + WARM_UP):
                marks: list[float] = []  # between the phases of the last round
                times, _ = WORK[facts.task].round(runtime, source, facts, size, partial(_mark, started[0][0], marks))
            windows.append(list(_windows(times, size, marks)))
        events = [event for number, each in enumerate(started) for event in _events(number, *each)]
    return [
        {
            phase: _summary([each for each in events if begin < each.at < end], steps)
            for phase, steps, begin, end in size
        }
        for size in windows
    ]


def _mark(session: ort.InferenceSession, marks: list[float]) -> float:
    """Add the time in seconds, by the clock of a session's profile: the wall clock on Linux, else the monotonic one."""
    marks.append(time.time() if session.get_profiling_start_time_ns() / 1e9 > UPTIME else time.monotonic())
    return marks[-1]


def _windows(phases: Iterable[str], size: Protocol, marks: Sequence[float]) -> Iterator[tuple[str, int, float, float]]:
    """Yield the phases of a round: steps, begin and end in seconds of the profile's clock."""
    for phase, (begin, end) in zip((each for each in PHASES if each in phases), pairwise(marks), strict=True):
        yield phase, size.tokens - 1 if phase == PHASES[-1] else 1, begin, end


def _events(number: int, session: ort.InferenceSession, graph: Path) -> Iterator[Event]:
    """Yield the operators of a graph that a session has run."""
    weights = _weights(graph)
    zero = session.get_profiling_start_time_ns() / 1e9
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    runs = sorted((each["ts"], each["dur"]) for each in events if each["name"] == "model_run")
    for each in events:
        if each.get("cat") == "Node" and each["args"]["op_name"] not in BODIES:
            begin, taken = runs[bisect.bisect_right(runs, (each["ts"], float("inf"))) - 1]
            kind = each["args"]["op_name"]
            name = each["name"].removesuffix(RUN)
            size = 0 if kind in LOOKUPS else weights.get((name, kind), weights.get(("", kind), 0))
            at = zero + 1e-6 * (begin + taken / 2)
            yield Event(at, (number, name), kind, 1e-3 * each["dur"], size, _operations(kind, each["args"]))


def _weights(graph: Path) -> dict[tuple[str, str], int]:
    """Return the bytes of weights that each node of a graph reads, by name and operator; kernels may pack them.

    The profile names a node without a name by a number that is not in the graph, so it gets the mean of its operator.
    """
    import onnx_ir as ir

    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for node in ir.traversal.RecursiveGraphIterator(read_ir(graph).graph):
        known = [value.const_value.nbytes for value in node.inputs if value and value.const_value]
        sizes[node.name or "", node.op_type].append(sum(known))
    return {node: round(np.mean(each)) for node, each in sizes.items()}


def _operations(kind: str, arguments: Json) -> float:
    """Return the operations of a product: 2 for each element of the output and of the dim that is summed."""
    if kind not in FLOAT | INTEGER:
        return 0.0
    (output, *_), (left, *_) = (
        [dims for each in arguments[side] for dims in each.values()]
        for side in ("output_type_shape", "input_type_shape")
    )
    return float(2 * np.prod(output) * left[-1])


def _summary(events: Sequence[Event], steps: int) -> Json:
    """Return the bytes of weights and the operations of a step, each weight read once, and its time by kind."""
    runs: dict[tuple[int, str], list[Event]] = defaultdict(list)
    kinds: dict[str, float] = defaultdict(float)
    for each in events:
        runs[each.node].append(each)
        kinds[each.kind] += each.ms / steps
    size = sum(each[0].weights * min(1.0, len(each) / steps) for each in runs.values())
    operations = {
        name: round(sum(each.operations for each in events if each.kind in group) / steps)
        for name, group in (("fp32", FLOAT), ("int8", INTEGER))
    }
    return {"bytes": round(size), **operations, "kinds": dict(kinds)}


def _rate(kind: str, threads: int | None) -> float:
    """Return the operations a second of a large product with a constant, by the kernel of fp32 or int8."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    float_, dims = TensorProto.FLOAT, (DEPTH, DEPTH)
    constants = {"weight": np.ones(dims, np.float32 if kind == "fp32" else np.int8), "scale": np.ones(1, np.float32)}
    operator = ("MatMul", ["x", "weight"]) if kind == "fp32" else ("DynamicQuantizeMatMul", ["x", "weight", "scale"])
    node = helper.make_node(*operator, ["y"], domain="" if kind == "fp32" else "com.microsoft")
    ports = [helper.make_tensor_value_info(name, float_, (ROWS, DEPTH)) for name in ("x", "y")]
    known = [numpy_helper.from_array(value, name) for name, value in constants.items() if name in node.input]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], kind, ports[:1], ports[1:], known), opset_imports=opsets)
    model.ir_version = 10
    session = ort.InferenceSession(onnx.ModelProto.SerializeToString(model), sessions.session_options(threads, {}))
    x = np.random.default_rng(0).normal(size=(ROWS, DEPTH)).astype(np.float32)
    times = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        session.run(None, {"x": x})
        times.append(time.perf_counter() - begun)
    return 2 * ROWS * DEPTH**2 / min(times)
