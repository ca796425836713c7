"""The manifest of a bundle, `txport.json`: what its graphs are, what they were made from, and each file's hash."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any

from txport.bundles.ports import CONTRACTS, Graph
from txport.errors import BundleError, ConfigError, UnsupportedError
from txport.models.config import TransformerConfig

FORMAT = 5
MANIFEST = "txport.json"
TARGETS = tuple(CONTRACTS)
# precision -> NumPy's name for the type of caches and logits; of the weights, if they are not quantised, too
PRECISIONS = {"fp32": "float32", "fp16": "float16", "int8": "float32", "int4": "float32"}
OFFERED = {"portable": ("fp32", "fp16"), "cpu": ("fp32", "int8", "int4")}
# The largest share of the weights that `export --auto` keeps in fp32, of those that int8 or int4 quantises. With a
# quarter, int8 takes 14 bits a weight and int4 11; with a third, int8 would take 16, as much as half precision.
AUTO_LIMIT = 0.25
VALUES: Mapping[str, type | UnionType] = {
    "opset": int,
    "checkpoint": dict,
    "tools": dict,
    "generation": dict,
    "passes": dict,
    "quantization": dict,
    "rows": int | None,
    "mended": dict,
    "shared": dict,
    "parity": dict,
    "files": dict,
}
CHECKPOINT_VALUES = {"name": str, "sha256": str}
MENDED_VALUES = {"kept": list, "share": float, "limit": float, "bytes": int, "bytes_before": int}
FILE_VALUES = {"sha256": str, "bytes": int}
SHARED_VALUES = {"file": str, "offset": int, "dtype": str, "dims": list}


def is_quantised(target: str, precision: str) -> bool:
    """Whether the weights of such a bundle take fewer bits than a floating point number."""
    return target == "cpu" and precision in ("int8", "int4")


def percent(share: float) -> str:
    """A share as people read it."""
    return f"{100 * share:.3g} %"


def require_offer(target: str, precision: str) -> None:
    """Raise `UnsupportedError` unless there are bundles of this target in this precision."""
    if target not in OFFERED:
        raise UnsupportedError(f"unknown target {target!r}; there are {', '.join(OFFERED)}")
    if precision not in OFFERED[target]:
        offers = "; ".join(f"{name}: {', '.join(each)}" for name, each in OFFERED.items())
        raise UnsupportedError(f"there are no {target} bundles in {precision!r}, but of {offers}")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `txport.json` records, in its order."""

    format: int = FORMAT
    target: str
    precision: str
    opset: int
    config: TransformerConfig
    checkpoint: dict[str, str]  # name and sha256 of what was exported
    tools: dict[str, str]  # versions
    generation: dict[str, Any] = field(default_factory=dict)
    passes: dict[str, dict[str, int]] = field(default_factory=dict)  # graph -> pass -> how often it fired
    quantization: dict[str, str] = field(default_factory=dict)  # weight -> the form in which it is held
    rows: int | None = None  # of a step, for which its kernels are the fastest; None: no row depends on the others
    mended: dict[str, Any] = field(
        default_factory=dict
    )  # what was kept in fp32 for the bundle to hold, how much, bytes
    shared: dict[str, dict[str, Any]] = field(default_factory=dict)  # weight of several graphs -> where it lies
    parity: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # path -> sha256, bytes

    @property
    def dtype(self) -> str:
        """NumPy's name for the type of hidden states, caches and logits."""
        return PRECISIONS[self.precision]

    @property
    def described_precision(self) -> str:
        """The precision, and how much of the weights is not in it though it could be."""
        return self.precision + (f" ({percent(self.mended['share'])} of its weights in fp32)" if self.mended else "")

    @property
    def graphs(self) -> dict[str, Graph]:
        """The bundle's graphs by role, with their ports."""
        return {graph.role: graph for graph in CONTRACTS[self.target](self.config, self.dtype)}

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, with the graphs and their ports spelt out for other programs."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        values["config"] = self.config.to_dict()
        values["graphs"] = {role: graph.to_dict() for role, graph in self.graphs.items()}
        return values


def read_manifest(path: Path) -> Manifest:
    """The manifest of the bundle at `path`, its values checked, the files not."""
    file = path / MANIFEST
    if not file.is_file():
        raise BundleError(f"{path} is not a bundle: {MANIFEST} is missing; `txport export CHECKPOINT OUT` makes one")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        known = values["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{file} is damaged ({error}); export the bundle again") from error
    if known != FORMAT:
        mend = "update txport" if isinstance(known, int) and known > FORMAT else "export it again"
        raise BundleError(f"{path} has bundle format {known}, this txport reads format {FORMAT}; {mend}")
    return _manifest(file, values)


def _manifest(file: Path, values: dict[str, Any]) -> Manifest:
    names = {entry.name for entry in dataclasses.fields(Manifest)}
    try:
        _check_types(values, VALUES)
        _check_types(values["checkpoint"], CHECKPOINT_VALUES)
        if values["mended"]:
            _check_types(values["mended"], MENDED_VALUES)
        for entry in values["files"].values():
            _check_types(entry, FILE_VALUES)
        for entry in values["shared"].values():
            _check_types(entry, SHARED_VALUES)
            if entry["file"] not in values["files"]:
                raise KeyError(entry["file"])
        config = TransformerConfig.from_dict(values["config"])
        kept = {name: value for name, value in values.items() if name in names}
        require_offer(kept["target"], kept["precision"])
        manifest = Manifest(**{**kept, "config": config})
        matches = manifest.to_dict()["graphs"] == values["graphs"]
    except (ConfigError, UnsupportedError, KeyError, TypeError) as error:
        raise BundleError(f"{file} is damaged ({error}); export the bundle again") from error
    if not matches:
        raise BundleError(f"{file} names graphs or ports that target {manifest.target!r} does not have")
    missing = [graph.file for graph in manifest.graphs.values() if graph.file not in manifest.files]
    if missing:
        raise BundleError(f"{file} lists no hash for {', '.join(missing)}; export the bundle again")
    return manifest


def _check_types(values: Any, types: Mapping[str, type | UnionType]) -> None:
    for key, kind in types.items():
        if not isinstance(values[key], kind):
            raise TypeError(f"{key} must be {getattr(kind, '__name__', kind)}, got {values[key]!r}")
