"""Figures of the measurements: rates, ratios, fractions of the device's bandwidth, and verdicts on requirements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from benchmarks.gpu.lines import WITHIN_LOGITS, WITHIN_WER, Line
from txport.bench.bandwidth import LOOKUPS
from txport.bench.measure import quartiles
from txport.bundles.bundle import Bundle
from txport.bundles.graphs import read_model
from txport.runtimes.ort.cuda.device import ELEMENTS, bytes_of
from txport.targets.ports import STEP

REACHED, SHORT, UNMEASURED = "reached", "falls short", "not measured"
Record = dict[str, Any]


def weight_bytes(bundle: Bundle) -> int:
    """Return the bytes of the weights that a step reads completely; a table that is only looked up does not count."""
    graph = read_model(bundle.file(STEP), weights=False).graph
    read = {name for node in graph.node for name in node.input[node.op_type in LOOKUPS :]}
    sizes = {
        tensor.name: int(np.prod(tensor.dims, dtype=np.int64))
        * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        for tensor in graph.initializer
    }
    return sum(size for name, size in sizes.items() if name in read)


def step_bytes(bundle: Bundle, line: Line) -> int:
    """Return the mean number of bytes of a step: weights, the keys and values that it attends to, and logits."""
    facts = bundle.manifest.facts
    port = bundle.manifest.graphs[STEP]
    width = {each.name: bytes_of((int(each.dims[2]),), each.dtype) for each in port.inputs if each.state is not None}
    own = sum(width[name] for name in port.past("row").values())
    shared = sum(width[name] for name in port.past("source").values())
    before = line.source if facts.task == "causal" else 0
    caches = line.rows * own * (before + line.tokens // 2) + line.batch * shared * line.source
    return weight_bytes(bundle) + caches + line.rows * facts.writes.size * ELEMENTS["float32"][1]


def line_record(
    line: Line,
    seconds: Mapping[str, Sequence[float]],
    tokens: Mapping[str, Sequence[Sequence[int]]],
    size: int,
    speed: float,
) -> Record:
    """Return the record of a line from the seconds of each round and the tokens found, by side (one is "txport").

    `size`: bytes of a step; `speed`: the device's bandwidth in bytes per second.
    """
    count = sum(map(len, tokens["txport"]))
    ours = np.array(seconds["txport"])
    sides = {
        name: {
            "tokens a second": quartiles(sum(map(len, tokens[name])) / np.array(each)),
            "ms a token": quartiles(1e3 * np.array(each) * len(tokens[name]) / sum(map(len, tokens[name]))),
        }
        for name, each in seconds.items()
    }
    steps = count / len(tokens["txport"])
    ratios = {name: quartiles(np.array(each) / ours) for name, each in seconds.items() if name != "txport"}
    equal = {name: _equal(tokens["txport"], each) for name, each in tokens.items() if name != "txport"}
    return {
        "name": line.name,
        "sides": sides,
        "ratios": ratios,
        "equal targets": equal,
        "targets": len(tokens["txport"]),
        "bytes a step": size,
        "share of bandwidth": quartiles(size * steps / ours / speed),
    }


def _equal(ours: Iterable[Sequence[int]], theirs: Iterable[Sequence[int]]) -> int:
    return sum(list(one) == list(other) for one, other in zip(ours, theirs, strict=True))


def judge(what: str, wanted: float, found: float | None, *, at_least: bool) -> Record:
    """Return the verdict on one requirement; `found` is None if it was not measured."""
    if found is None or not np.isfinite(found):
        verdict = UNMEASURED
        found = None
    else:
        verdict = REACHED if (found >= wanted if at_least else found <= wanted) else SHORT
    return {
        "what": what,
        "wanted": wanted,
        "found": found,
        "is": "at least" if at_least else "at most",
        "verdict": verdict,
    }


def judgements(
    lines: Iterable[Line], records: Mapping[str, Record], parity: Mapping[str, float], worse: float | None
) -> list[Record]:
    """Return the verdicts on all requirements.

    `parity`: largest difference of logits by bundle; `worse`: word error rate of fp16 minus PyTorch's, in points.
    """
    found = []
    for line in lines:
        record = records.get(line.name)
        if line.at_most is not None:
            median = record["sides"]["txport"]["ms a token"]["median"] if record else None
            found.append(judge(f"{line.name}: ms a token", line.at_most, median, at_least=False))
        for peer, ratio in line.peers.items():
            if ratio is not None:
                times = record["ratios"].get(peer, {}).get("median") if record else None
                found.append(judge(f"{line.name}: times {peer}", ratio, times, at_least=True))
    exact = [difference for name, difference in parity.items() if name.endswith("fp32")]
    found.append(judge("fp32: difference of logits", WITHIN_LOGITS, max(exact, default=None), at_least=False))
    found.append(judge("g2p-en fp16: points of word error rate above PyTorch's", WITHIN_WER, worse, at_least=False))
    return found
