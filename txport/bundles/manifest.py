"""The manifest of a bundle, `txport.json`: what its graphs are, what they were made from, and each file's hash."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from txport.bundles.contracts import CONTRACTS
from txport.bundles.forms import Form, Stored
from txport.bundles.ports import Graph, single_graph
from txport.errors import UnsupportedError, quoted
from txport.models.facts import Facts
from txport.models.names import MANIFEST, TARGET_TOKENIZER, TEXT, TOKENIZER

FORMAT = 7
TARGETS = tuple(CONTRACTS)
# precision -> NumPy's name for the type of caches and logits; of the weights, if they are not quantised, too.
PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "float32", "int4": "float32"}
# What there is of each target; the first is what an export takes where none is asked for.
OFFERED = {
    "portable": ("fp32", "fp16"),
    "cpu": ("fp32", "int8", "int4"),
    "cuda": ("fp16", "bf16", "fp32", "int8", "int4"),
}
# The largest share of the weights that `export --auto` keeps in fp32, of those that int8 or int4 quantises. With a
# quarter, int8 takes 14 bits a weight and int4 11; with a third, int8 would take 16, as much as half precision.
AUTO_LIMIT = 0.25
RARE = ("weightless", "single")  # what a manifest says only where it is so


def is_quantised(target: str, precision: str) -> bool:
    """Whether the weights of such a bundle take fewer bits than a floating point number."""
    return target in ("cpu", "cuda") and precision in ("int8", "int4")


def arithmetic_of(target: str, precision: str) -> str:
    """What such a bundle computes in: with quantised weights, kernels of the cuda target multiply in fp16."""
    return "fp16" if target == "cuda" and is_quantised(target, precision) else precision


def percent(share: float) -> str:
    """A share as people read it."""
    return f"{100 * share:.3g} %"


def usual_precision(target: str) -> str:
    """What an export for a target takes where no precision is asked for; "fp32" where there is no such target."""
    return OFFERED.get(target, ("fp32",))[0]


def require_offer(target: str, precision: str) -> None:
    """Raise `UnsupportedError` unless there are bundles of this target in this precision."""
    if target not in OFFERED:
        raise UnsupportedError(f"unknown target {quoted(target)}; supported: {', '.join(OFFERED)}")
    if precision not in OFFERED[target]:
        offers = "; ".join(f"{name}: {', '.join(each)}" for name, each in OFFERED.items())
        raise UnsupportedError(f"target {target} does not support precision {quoted(precision)}; supported: {offers}")


def require_single(target: str, facts: Facts) -> None:
    """Raise `UnsupportedError` unless a bundle of this target can have a single graph for a model of these facts."""
    if target != "portable":
        why = f"single needs standard ONNX operators, and the {target} target uses others"
        raise UnsupportedError(f"{why}; export --target portable")
    if facts.task == "encode":
        what = "its model.onnx is already a single graph; remove single"
        raise UnsupportedError(f"single needs a generating model; this model is encoder-only, and {what}")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `txport.json` records, in its order."""

    format: int = FORMAT
    target: str
    precision: str
    opset: int
    architecture: str
    config: dict[str, Any]  # of the architecture
    facts: Facts
    checkpoint: dict[str, str]  # name and sha256 of what was exported
    tools: dict[str, str]  # versions
    generation: dict[str, Any] = field(default_factory=dict)
    passes: dict[str, dict[str, int]] = field(default_factory=dict)  # graph -> pass -> how often it fired
    parts: dict[str, dict[str, int]] = field(default_factory=dict)  # graph -> operator -> how many parts became it
    # initializer -> what it is, of those that hold several weights or one in a form that the precision chose; any other
    # has the checkpoint's name and values
    weights: dict[str, Stored] = field(default_factory=dict)
    rows: int | None = None  # of a step, for which its kernels are the fastest; None: no row depends on the others
    kept_in_fp32: dict[str, Any] = field(default_factory=dict)  # which matrices, their share, its limit, bytes
    shared: dict[str, dict[str, Any]] = field(default_factory=dict)  # weight of several graphs -> where it lies
    parity: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # path -> sha256, bytes
    weightless: bool = False  # whether the graphs say where their weights would lie, and there are none
    single: bool = False  # whether there is a graph beside the others that searches by itself

    @property
    def dtype(self) -> str:
        """NumPy's name for the type of hidden states, caches and logits."""
        return PRECISIONS[self.arithmetic]

    @property
    def arithmetic(self) -> str:
        """The precision in which it computes, whatever its weights are held in."""
        return arithmetic_of(self.target, self.precision)

    @property
    def quantization(self) -> dict[str, Stored]:
        """The initializers for which the precision chose a form, be it fp32; none where it has no choice."""
        return {name: stored for name, stored in self.weights.items() if stored.form is not None}

    @property
    def forms(self) -> dict[str, Form]:
        """Each weight of the checkpoint for which the precision chose a form -> that form."""
        table = self.weights.values()
        return {name: stored.form for stored in table if stored.form is not None for name in stored.weights}

    @property
    def described_precision(self) -> str:
        """The precision, and how much of the weights is not in it though it could be."""
        if not self.kept_in_fp32:
            return self.precision
        return f"{self.precision} ({percent(self.kept_in_fp32['share'])} of its weights in fp32)"

    @cached_property  # asked at each call of a graph
    def graphs(self) -> Mapping[str, Graph]:
        """The bundle's graphs by role, with their ports."""
        if not self.single:
            return self.driven
        require_single(self.target, self.facts)
        single = single_graph(self.facts, self.dtype)
        return {**self.driven, single.role: single}

    @cached_property
    def driven(self) -> Mapping[str, Graph]:
        """Those that a runtime runs step by step; the others search by themselves."""
        return {graph.role: graph for graph in CONTRACTS[self.target][self.facts.task](self.facts, self.dtype)}

    @property
    def written_in(self) -> str:
        """The file of a bundle that says what the model is."""
        return MANIFEST

    def texts_in(self, folder: Path) -> Mapping[str, Path | str]:
        """The tokenizers of a bundle by name, and how texts are used: where each lies, or its text."""
        return {name: folder / name for name in (TOKENIZER, TARGET_TOKENIZER, TEXT) if (folder / name).exists()}

    def is_of(self, sha256: str) -> bool:
        """Whether it was made from the checkpoint with this hash."""
        return self.checkpoint["sha256"] == sha256

    def differences(self, described: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
        """Where it says something else of the model than a checkpoint does: where, what it says, what is expected."""
        told = {"architecture": self.architecture, "config": dict(self.config), "facts": self.facts.to_dict()}
        return _differences(told, dict(described))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, with the graphs and their ports spelt out for other programs."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        values["facts"] = self.facts.to_dict()
        values["weights"] = {name: stored.to_dict() for name, stored in self.weights.items()}
        values["graphs"] = {role: graph.to_dict() for role, graph in self.graphs.items()}
        for name in RARE:
            if not values[name]:
                del values[name]
        return values


def _differences(found: Any, expected: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values differ: the path, and both values."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in dict.fromkeys((*expected, *found)):
            path = f"{where}.{name}" if where else name
            yield from _differences(found.get(name), expected.get(name), path)
    elif found != expected:
        yield where, found, expected
