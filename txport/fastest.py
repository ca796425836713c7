"""A table of the fastest targets and runtimes by processor, measured, never estimated.

Each line is one comparison by `python -m benchmarks.peers --only openvino`, with the best settings of both sides. If no
line matches a processor, nothing is recommended.
"""

from __future__ import annotations

from typing import NamedTuple

MEASURE = "`txport bench BUNDLE --runtime ort --runtime openvino`"


class Fact(NamedTuple):
    """One comparison.

    It applies to processors that have all instructions of `has` and none of `lacks`, by their Linux names
    (`avx512_vnni`, `amx_int8`, `avx512_bf16`, `i8mm`). `best` and `other` are a target, its precision and a runtime:
    "cpu int8, ort". `times` is the speed of `best` divided by the speed of `other`.
    """

    has: frozenset[str]
    lacks: frozenset[str]
    task: str
    best: str
    other: str
    times: float
    measured: str  # processor and date


XEON = "Intel Xeon (family 6, model 207), 2 cores, 2026-11-23"


def _of(task: str, best: str, other: str, times: float) -> Fact:
    """Return a fact measured on an Intel processor with AVX-512 VNNI and without AMX."""
    return Fact(frozenset({"avx512_vnni"}), frozenset({"amx_int8"}), task, best, other, times, XEON)


FACTS: tuple[Fact, ...] = (
    _of("preset:base, batch 1", "cpu fp32, ort", "portable fp32, openvino", 1.97),
    _of("preset:base, batch 8", "cpu fp32, ort", "portable fp32, openvino", 3.09),
    _of("preset:base, batch 32", "cpu fp32, ort", "portable fp32, openvino", 1.60),
    _of("preset:base, bulk", "cpu fp32, ort", "portable fp32, openvino", 1.70),
    _of("preset:base, batch 1", "cpu fp32, ort", "portable fp32, openvino-bf16", 1.36),
    _of("preset:base, batch 8", "cpu fp32, ort", "portable fp32, openvino-bf16", 1.70),
    _of("preset:base, batch 32", "cpu fp32, ort", "portable fp32, openvino-bf16", 1.97),
    _of("preset:base, bulk", "cpu fp32, ort", "portable fp32, openvino-bf16", 2.23),
    _of("preset:base, batch 1", "cpu int8, ort", "portable fp32, openvino-int8", 1.94),
    _of("preset:base, batch 8", "cpu int8, ort", "portable fp32, openvino-int8", 1.67),
    _of("preset:base, batch 32", "cpu int8, ort", "portable fp32, openvino-int8", 1.71),
    _of("preset:base, bulk", "cpu int8, ort", "portable fp32, openvino-int8", 1.85),
    _of("g2p-en, batch 1", "cpu fp32, ort", "portable fp32, openvino", 2.16),
    _of("g2p-en, batch 8", "cpu fp32, ort", "portable fp32, openvino", 1.93),
    _of("g2p-en, batch 32", "cpu fp32, ort", "portable fp32, openvino", 1.61),
    _of("g2p-en, bulk", "cpu fp32, ort", "portable fp32, openvino", 1.69),
    _of("g2p-en, batch 1", "cpu fp32, ort", "portable fp32, openvino-bf16", 2.31),
    _of("g2p-en, batch 8", "cpu fp32, ort", "portable fp32, openvino-bf16", 2.36),
    _of("g2p-en, batch 32", "cpu fp32, ort", "portable fp32, openvino-bf16", 2.06),
    _of("g2p-en, bulk", "cpu fp32, ort", "portable fp32, openvino-bf16", 2.29),
    _of("g2p-en, batch 1", "cpu int8, ort", "portable fp32, openvino-int8", 2.87),
    _of("g2p-en, batch 8", "cpu int8, ort", "portable fp32, openvino-int8", 2.55),
    _of("g2p-en, batch 32", "cpu int8, ort", "portable fp32, openvino-int8", 1.90),
    _of("g2p-en, bulk", "cpu int8, ort", "portable fp32, openvino-int8", 2.07),
)


def facts_for(flags: frozenset[str]) -> list[Fact]:
    """Return the facts that apply to a processor with these instructions."""
    return [each for each in FACTS if each.has <= flags and not each.lacks & flags]
