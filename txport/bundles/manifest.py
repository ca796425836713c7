"""The manifest of a bundle, `txport.json`: its graphs, the checkpoint, and the hash of each file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from txport.bundles.forms import Form, Stored
from txport.checkpoints.weights.smoothing import Smoothing
from txport.models.facts import Facts
from txport.models.names import MANIFEST, TARGET_TOKENIZER, TEXT, TOKENIZER
from txport.system.terminal import percent
from txport.targets import target_of
from txport.targets.ports import Graph, single_graph
from txport.targets.target import Target

FORMAT = 8
# precision -> NumPy dtype of caches and logits, and of weights that are not quantised.
PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "float32", "int4": "float32"}
# The usual share of the quantised weights that `export --auto` may keep in fp32, and the largest: a bundle that is
# mostly in fp32 is not named int8. With a quarter, int8 needs 14 bits per weight and int4 11; with a third, int8 would
# need 16, as many as half precision.
AUTO_LIMIT, MOST_IN_FP32 = 0.25, 0.5
# Omitted from JSON if false or empty.
RARE: dict[str, type] = {
    "weightless": bool,
    "single": bool,
    "not_followed": dict,
    "original": dict,
    "loss": dict,
    "calibrated": dict,
    "smoothing": list,
}
STAND_IN = "cuda-stand-in"  # the runtime that checks a cuda bundle where there is no GPU
STOOD_IN = "checked in fp32 on a stand-in; no GPU was seen"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of `txport.json`, in the order of the file."""

    format: int = FORMAT
    target: str
    precision: str
    opset: int
    architecture: str
    config: dict[str, object]  # of the architecture
    facts: Facts
    checkpoint: dict[str, str]  # name and sha256 of what was exported; `quantised` if another tool quantised it
    tools: dict[str, str]  # versions
    generation: dict[str, Any] = field(default_factory=dict)
    not_followed: dict[str, object] = field(default_factory=dict)  # the checkpoint's options that no search follows
    passes: dict[str, dict[str, int]] = field(default_factory=dict)  # graph -> pass -> number of replacements
    parts: dict[str, dict[str, int]] = field(default_factory=dict)  # graph -> operator -> number of parts
    # initializer -> its weights and form, if it holds several weights, or one in a form that the precision chose; other
    # initializers have the checkpoint's names and values
    weights: dict[str, Stored] = field(default_factory=dict)
    rows: int | None = None  # rows of a step for which the kernels are the fastest; None: no row depends on the others
    kept_in_fp32: dict[str, Any] = field(default_factory=dict)  # what `export --auto` chose: `comparisons.KEPT`
    shared: dict[str, dict[str, Any]] = field(default_factory=dict)  # shared weight -> file, offset, dtype, dims
    parity: dict[str, Any] = field(default_factory=dict)
    # the comparison with the original, and what few bits cost: see bundles/comparisons.py
    original: dict[str, object] = field(default_factory=dict)
    loss: dict[str, object] = field(default_factory=dict)
    calibrated: dict[str, object] = field(default_factory=dict)  # texts by which weights were rounded, what that gained
    smoothing: tuple[Smoothing, ...] = ()  # the factors that the weights have, and the checkpoint has not
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # path -> sha256, bytes
    weightless: bool = False  # True if the graphs refer to weight files that are not in the bundle
    single: bool = False  # True if there is an additional graph that contains the whole search

    @property
    def made_for(self) -> Target:
        """The target as a record."""
        return target_of(self.target)

    @property
    def has_integers(self) -> bool:
        """True if the graphs may multiply integers; portable ones multiply what they have dequantised."""
        return not self.made_for.is_standard

    @property
    def is_quantised(self) -> bool:
        """True if the precision has quantised weights."""
        return self.made_for.quantises(self.precision)

    @property
    def dtype(self) -> str:
        """NumPy dtype name of hidden states, caches and logits."""
        return PRECISIONS[self.arithmetic]

    @property
    def arithmetic(self) -> str:
        """The precision of computation, which can differ from that of the weights."""
        return self.made_for.arithmetic(self.precision)

    @property
    def quantization(self) -> dict[str, Stored]:
        """The initializers for which the precision chose a form (fp32 included); empty if it has no choice."""
        return {name: stored for name, stored in self.weights.items() if stored.form is not None}

    @property
    def forms(self) -> dict[str, Form]:
        """Map each weight of the checkpoint for which the precision chose a form to that form."""
        table = self.weights.values()
        return {name: stored.form for stored in table if stored.form is not None for name in stored.weights}

    @property
    def described_precision(self) -> str:
        """The precision, followed by the share of the weights that were kept in fp32, if any."""
        if not self.kept_in_fp32.get("share"):
            return self.precision
        return f"{self.precision} ({percent(self.kept_in_fp32['share'])} of its weights in fp32)"

    @cached_property  # used at each call of a graph
    def graphs(self) -> Mapping[str, Graph]:
        """The bundle's graphs by role, with their ports."""
        if not self.single:
            return self.driven
        self.made_for.require_single(self.facts)
        single = single_graph(self.facts, self.dtype)
        return {**self.driven, single.role: single}

    @cached_property
    def driven(self) -> Mapping[str, Graph]:
        """The graphs that a runtime runs step by step, by role: all except the single graph."""
        return {graph.role: graph for graph in self.made_for.contracts[self.facts.task](self.facts, self.dtype)}

    @property
    def written_in(self) -> str:
        """The name of the file that describes the model."""
        return MANIFEST

    def texts_in(self, folder: Path) -> Mapping[str, Path | str]:
        """Return the files of tokenizers and text settings by name, each as a path or as its text."""
        return {name: folder / name for name in (TOKENIZER, TARGET_TOKENIZER, TEXT) if (folder / name).exists()}

    def is_of(self, sha256: str) -> bool:
        """Return whether the bundle was made from the checkpoint with this SHA-256."""
        return self.checkpoint["sha256"] == sha256

    def differences(self, described: Mapping[str, object]) -> Iterator[tuple[str, Any, object]]:
        """Yield the differences from a checkpoint's description: path, value in the manifest, expected value."""
        told = {"architecture": self.architecture, "config": dict(self.config), "facts": self.facts.to_dict()}
        return _differences(told, dict(described))

    def to_dict(self) -> dict[str, object]:
        """Return JSON values, including the graphs and their ports for other programs."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        values["facts"] = self.facts.to_dict()
        values["weights"] = {name: stored.to_dict() for name, stored in self.weights.items()}
        values["graphs"] = {role: graph.to_dict() for role, graph in self.graphs.items()}
        values["smoothing"] = [each.to_dict() for each in self.smoothing]
        for name in RARE:
            if not values[name]:
                del values[name]
        return values


def _differences(found: object, expected: object, where: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield the path and both values of each difference between two JSON values."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in dict.fromkeys((*expected, *found)):
            path = f"{where}.{name}" if where else name
            yield from _differences(found.get(name), expected.get(name), path)
    elif found != expected:
        yield where, found, expected
