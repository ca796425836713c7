"""Which files of a folder belong to a bundle or a checkpoint; only an export or an import replaces them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from txport.models.names import COMPANIONS, MANIFEST, PICKLES, files_of
from txport.system.documents import DocumentError, read_json

# suffixes of weights and graphs, whether txport reads them or not
WEIGHT_SUFFIXES = (*PICKLES, ".safetensors", ".onnx", ".onnx_data", ".data", ".npz", ".h5", ".msgpack", ".gguf")


def files_in(folder: Path) -> list[Path]:
    """Return the files of the bundle or checkpoint in a folder; none if there is neither."""
    if (folder / MANIFEST).is_file():
        return [folder / name for name in listed(folder)]
    try:
        weights = [path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES and path.is_file()]
    except OSError:
        return []
    return [*weights, *files_of(folder)] if weights else []


def listed(folder: Path) -> Collection[str]:
    """Return the files that belong to a bundle, as its manifest lists them, by their paths in the folder.

    Of a damaged manifest, return the files that every bundle can have.
    """
    try:
        files = read_json(folder / MANIFEST).get("files")
    except DocumentError:
        files = None
    return {MANIFEST, *COMPANIONS, *(files if isinstance(files, dict) else ())}
