"""The settings that each side can use; each side is measured with its fastest one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from benchmarks.peers.engines import Model
from benchmarks.peers.environments import ENGINES, NEWER
from benchmarks.peers.lines import COMPILED, CT2_FP32, CT2_INT8, EAGER, LLAMA, OPENVINO, OPTIMUM, PYTHIA, Line, Task
from txport import runtimes
from txport.errors import UnavailableError

OURS = ENGINES + "txport_cpu"
VECTORS = ENGINES + "txport_encoder"
FOLDERS = ENGINES + "hf_folder"
PORTABLE, PORTABLE_VECTORS = ENGINES + "txport_portable", ENGINES + "txport_portable_encoder"
OWN = (OURS, VECTORS, PORTABLE, PORTABLE_VECTORS)  # these run in txport's own environment
BULK_BATCHES = (16, 32, 64, 128)
MANY_ROWS = 32
# Of CTranslate2: oneDNN, its default on AMD; MKL, its default on Intel; matrices packed for MKL at load
BACKENDS: list[dict[str, str]] = [
    {"CT2_USE_MKL": "0"},
    {"CT2_USE_MKL": "1"},
    {"CT2_USE_MKL": "1", "CT2_USE_EXPERIMENTAL_PACKED_GEMM": "1"},
]
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # which a cpu bundle on ONNX Runtime has without it


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One engine with a model, options and environment variables."""

    engine: str
    model: Model
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The precision, options and environment variables in words."""
        settings = {"precision": self.model.precision, **self.options, **self.environment}
        return ", ".join(f"{name} {value}" for name, value in settings.items())


def threads_of(task: Task, cores: int) -> Iterator[dict[str, int]]:
    """Yield the options of threads: one batch at a time on one core or on all; in bulk, one batch per core."""
    if task.batch is None:
        for size in BULK_BATCHES:
            yield {"threads": 1, "workers": cores, "batch_size": size}
    else:
        for threads in sorted({1, cores}):
            yield {"threads": threads, "workers": 1, "batch_size": task.batch}


def ours(line: Line, cores: int) -> list[Candidate]:
    """Return txport's candidates; the kernels of int8 and int4 are chosen at export, by the number of rows of a step.

    Llama is exported without `--rows`: one scale for the activations of all rows is too coarse for the products of a
    gated feed-forward with random weights, and `export` rejects it. The engines of `NEWER` round by block or by row, so
    the default form is compared with them. The portable bundle on OpenVINO is, too, and of Pythia.
    """
    rows: int | None = 1 if line.task.rows == 1 else MANY_ROWS
    is_newer = line.against in NEWER
    rows = None if line.task.checkpoint == LLAMA or is_newer else rows
    portable = [
        Candidate(
            engine=PORTABLE_VECTORS if line.task.encodes else PORTABLE,
            model=Model(checkpoint=line.task.checkpoint, precision=precision),
            options={**options, "runtime": runtime},
        )
        for precision, options, runtime in product(
            line.precisions if is_newer or PYTHIA in line.name else (),
            threads_of(line.task, cores),
            on_openvino(line),
        )
    ]
    return with_huge_pages(portable, line) + [
        Candidate(
            engine=VECTORS if line.task.encodes else OURS,
            model=Model(
                checkpoint=line.task.checkpoint, precision=precision, rows=None if precision == "fp32" else rows
            ),
            options=options,
        )
        for precision, options in product(line.precisions, threads_of(line.task, cores))
    ]


def on_openvino(line: Line) -> Iterator[str]:
    """Yield the runtimes of OpenVINO for portable bundles; in few bits also with bf16, as its own pipeline computes."""
    yield "openvino"
    with suppress(UnavailableError):
        if line.precisions != ("fp32",):
            runtimes.require("openvino-bf16", "cpu")
            yield "openvino-bf16"


def theirs(line: Line, cores: int) -> list[Candidate]:
    """Return the peer's candidates."""
    return with_huge_pages(PEERS[line.against](line.task, cores), line)


def with_huge_pages(plain: Sequence[Candidate], line: Line) -> list[Candidate]:
    """Return the candidates, and each of them with huge pages for what its process allocates, unless memory counts."""
    huge = [replace(each, environment={**each.environment, **HUGE_PAGES}) for each in plain]
    return [*plain, *(huge if line.unit != "MB" else ())]


def ctranslate2(precision: str) -> Callable[[Task, int], list[Candidate]]:
    """Return the function that lists the candidates of CTranslate2 in one precision."""

    def candidates(task: Task, cores: int) -> list[Candidate]:
        model = Model(checkpoint=task.checkpoint, precision=precision)
        return [
            Candidate(engine=ENGINES + "ct2", model=model, options=options, environment=environment)
            for environment, options in product(BACKENDS, threads_of(task, cores))
        ]

    return candidates


def optimum(task: Task, cores: int) -> list[Candidate]:
    """Return the candidates of Optimum: fp32 and its own int8."""
    switches = product(("fp32", "int8"), sorted({1, cores}), (False, True))
    return [
        Candidate(
            engine=ENGINES + "hf_optimum",
            model=Model(checkpoint=task.checkpoint, precision=precision),
            options={"threads": threads, "io_binding": io_binding},
        )
        for precision, threads, io_binding in switches
    ]


def pytorch(compiled: bool) -> Callable[[Task, int], list[Candidate]]:
    """Return the function that lists the candidates of PyTorch, eager or compiled."""

    def candidates(task: Task, cores: int) -> list[Candidate]:
        model = Model(checkpoint=task.checkpoint)
        return [
            Candidate(engine=ENGINES + "pytorch", model=model, options={"threads": threads, "compile": compiled})
            for threads in sorted({1, cores})
        ]

    return candidates


def openvino(runtime: str) -> Callable[[Task, int], list[Candidate]]:
    """Return the function that lists the candidates of a portable bundle on OpenVINO."""

    def candidates(task: Task, cores: int) -> list[Candidate]:
        model = Model(checkpoint=task.checkpoint)
        return [
            Candidate(engine=PORTABLE, model=model, options={**options, "runtime": runtime})
            for options in threads_of(task, cores)
        ]

    return candidates


def other(engine: str, precision: str) -> Callable[[Task, int], list[Candidate]]:
    """Return the function that lists the candidates of an engine whose only option is the number of threads."""

    def candidates(task: Task, cores: int) -> list[Candidate]:
        model = Model(checkpoint=task.checkpoint, precision=precision)
        return [Candidate(engine=engine, model=model, options={"threads": threads}) for threads in sorted({1, cores})]

    return candidates


PEERS: dict[str, Callable[[Task, int], list[Candidate]]] = {
    CT2_INT8: ctranslate2("int8"),
    CT2_FP32: ctranslate2("fp32"),
    OPTIMUM: optimum,
    EAGER: pytorch(compiled=False),
    COMPILED: pytorch(compiled=True),
    **{name: openvino(runtime) for name, runtime in OPENVINO.items()},
    **{name: other(*peer) for name, peer in NEWER.items()},
}
