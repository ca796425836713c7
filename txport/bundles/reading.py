"""Reads `txport.json` and checks its types, its ranges and its consistency with the files of the bundle."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any

from txport.bundles.comparisons import KEPT, require_calibrated, require_loss, require_original
from txport.bundles.forms import Stored, require_distinct
from txport.bundles.graphs import contained
from txport.bundles.manifest import FORMAT, RARE, Manifest
from txport.checkpoints.weights.smoothing import Smoothing
from txport.errors import BundleError, ConfigError, UnsupportedError, quoted
from txport.models.facts import Facts
from txport.models.names import MANIFEST
from txport.system.documents import DocumentError, read_json
from txport.targets import target_of

LARGEST = 8 << 20  # bytes
VALUES: Mapping[str, type | UnionType] = {
    "opset": int,
    "checkpoint": dict,
    "tools": dict,
    "generation": dict,
    "architecture": str,
    "config": dict,
    "facts": dict,
    "passes": dict,
    "parts": dict,
    "weights": dict,
    "rows": int | None,
    "kept_in_fp32": dict,
    "shared": dict,
    "parity": dict,
    "files": dict,
}
CHECKPOINT_VALUES = {"name": str, "sha256": str, "quantised": str}
FILE_VALUES = {"sha256": str, "bytes": int}
SHARED_VALUES = {"file": str, "offset": int, "dtype": str, "dims": list}
# Bytes per number, by NumPy dtype name.
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "int8": 1, "int32": 4, "int64": 8}
MOST_DIMS = 8
FEWEST_BITS = 4  # per weight


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of the bundle at `path` and check its values, but not the files.

    Raises `BundleError` for values that are missing, have a wrong type, or do not fit the sizes of the files.
    """
    file = path / MANIFEST
    if not file.is_file():
        raise BundleError(f"{path} is not a bundle: {MANIFEST} is missing; `txport export CHECKPOINT OUT` makes one")
    try:
        values = read_json(file, LARGEST)
    except DocumentError as error:
        raise BundleError(f"{error}; export the bundle again") from error
    known = values.get("format")
    if known != FORMAT:
        fix = "update txport" if isinstance(known, int) and known > FORMAT else "export it again"
        raise BundleError(f"{path} has bundle format {quoted(known)}, this txport reads format {FORMAT}; {fix}")
    try:
        return _manifest(values)
    except KeyError as error:
        raise BundleError(f"{file} is damaged: {error} is missing; export the bundle again") from error
    except (ConfigError, UnsupportedError, TypeError, ValueError) as error:
        raise BundleError(f"{file} is damaged: {error}; export the bundle again") from error


def _manifest(values: dict[str, Any]) -> Manifest:
    """Create the manifest from JSON values; raise `ValueError`, `TypeError` or `KeyError` for invalid ones."""
    _check_types(values, VALUES)
    for name, kind in RARE.items():
        if name in values and type(values[name]) is not kind:
            expected = {bool: "true or false", list: "a list"}.get(kind, "an object")
            raise TypeError(f"{name} must be {expected}, got {quoted(values[name])}")
    _check_types({"quantised": "", **values["checkpoint"]}, CHECKPOINT_VALUES)
    if "original" in values:
        require_original(values["original"])
    if "loss" in values:
        require_loss(values["loss"])
    if "calibrated" in values:
        require_calibrated(values["calibrated"])
    if values["kept_in_fp32"]:
        _check_types(values["kept_in_fp32"], KEPT)
    for name, entry in values["files"].items():
        contained(name)
        _check_types(entry, FILE_VALUES)
    for name, entry in values["shared"].items():
        _check_shared(name, entry, values["files"])
    target_of(values["target"]).offered(values["precision"])
    facts = Facts.from_dict(values["facts"])
    names = {entry.name for entry in dataclasses.fields(Manifest)}
    kept = {name: value for name, value in values.items() if name in names}
    weights = {name: Stored.from_dict(each) for name, each in values["weights"].items()}
    smoothing = tuple(map(Smoothing.from_dict, values.get("smoothing", ())))
    manifest = Manifest(**{**kept, "facts": facts, "weights": weights, "smoothing": smoothing})
    _check_quantization(manifest)
    _check_graphs(manifest, values["graphs"])
    return manifest


def _check_types(values: Any, types: Mapping[str, type | UnionType]) -> None:
    """Raise `TypeError` for a value of another type, `ValueError` for a negative number."""
    for key, kind in types.items():
        value = values[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"{key} must be {getattr(kind, '__name__', kind)}, got {quoted(value)}")
        if isinstance(value, int | float) and value < 0:
            raise ValueError(f"{key} must not be negative, got {quoted(value)}")


def _check_shared(name: str, entry: Any, files: Mapping[str, Any]) -> None:
    """Require that a shared weight is completely inside a listed file, at an offset aligned to its dtype."""
    _check_types(entry, SHARED_VALUES)
    dims = entry["dims"]
    dtype = entry["dtype"]
    offset = entry["offset"]
    if dtype not in BYTES or len(dims) > MOST_DIMS or not all(type(dim) is int and 0 <= dim < 1 << 62 for dim in dims):
        raise ValueError(f"{quoted(name)} can't be of type {quoted(dtype)} with dims {quoted(dims)}")
    if offset % BYTES[dtype] or offset + math.prod(dims) * BYTES[dtype] > files[entry["file"]]["bytes"]:
        raise ValueError(f"{quoted(name)} does not lie in {quoted(entry['file'])} at {quoted(offset)}")


def _check_quantization(manifest: Manifest) -> None:
    """Require that each weight is in one initializer, and that only quantised bundles have forms and kernels."""
    require_distinct(list(manifest.weights.values()))
    if manifest.is_quantised:
        if not manifest.made_for.chooses and (manifest.kept_in_fp32 or manifest.rows):
            raise ValueError(f"a bundle of {manifest.target} has no kernels by rows, and keeps nothing in fp32")
        kind = manifest.made_for.stores
        if kind and any(form.kind != kind for form in manifest.forms.values()):
            raise ValueError(f"a bundle of {manifest.target} has quantised weights of the kind {kind} alone")
        return
    if manifest.quantization or manifest.kept_in_fp32 or manifest.rows:
        raise ValueError(f"a bundle of {manifest.target} {manifest.precision} has no quantised weights")


def _check_graphs(manifest: Manifest, graphs: object) -> None:
    """Require the graphs and ports of the target, a hash for each graph, and files that are large enough."""
    if manifest.to_dict()["graphs"] != graphs:
        raise ValueError(f"its graphs or ports are not those that target {manifest.target!r} has for these facts")
    if missing := [graph.file for graph in manifest.graphs.values() if graph.file not in manifest.files]:
        raise ValueError(f"it lists no hash for {', '.join(missing)}")
    least = least_bytes(manifest)
    size = sum(entry["bytes"] for entry in manifest.files.values())
    if size < least and not manifest.weightless:
        raise ValueError(f"its files have {size} bytes, and a model of its facts at least {least}")


def least_bytes(manifest: Manifest) -> int:
    """Return the minimum size in bytes of the files of a bundle: that of the token embeddings.

    Layers are not counted, because equal layers are stored once.
    """
    facts = manifest.facts
    width = BYTES[manifest.dtype]
    bits = FEWEST_BITS if manifest.is_quantised else 8 * width
    return facts.width * facts.writes.size * bits // 8
