"""Folders of bundles and checkpoints: which of their files are ours, and where the checkpoint of a bundle lies.

Only an export or an import replaces files of a bundle or checkpoint. A bundle never names a path: where its checkpoint
lies is kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from txport.checkpoints.folder import Lora, digest, files_of, split_loras, with_loras
from txport.errors import TxportError
from txport.models.names import COMPANIONS, MANIFEST, PICKLES
from txport.system.documents import LARGEST_TOML, DocumentError, read_json, read_text

if TYPE_CHECKING:
    from txport.bundles.bundle import Bundle

WRITTEN_BESIDE = ("README.md", "*.py")  # what people keep with weights: their card, and the model's own code
# suffixes of weights and graphs, whether txport reads them or not
WEIGHT_SUFFIXES = (*PICKLES, ".safetensors", ".onnx", ".onnx_data", ".data", ".npz", ".h5", ".msgpack", ".gguf")
PLACES = "origins"  # folder in the cache: a file for each checkpoint, named by its hash


def files_in(folder: Path) -> list[Path]:
    """Return the files of the bundle or checkpoint in a folder; none if there is neither."""
    if (folder / MANIFEST).is_file():
        return [folder / name for name in listed(folder)]
    try:
        weights = [path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES and path.is_file()]
    except OSError:
        return []
    beside = [path for pattern in WRITTEN_BESIDE for path in folder.glob(pattern)]
    return [*weights, *files_of(folder), *beside] if weights else []


def listed(folder: Path) -> Collection[str]:
    """Return the files that belong to a bundle, as its manifest lists them, by their paths in the folder.

    Of a damaged manifest, return the files that every bundle can have.
    """
    try:
        files = read_json(folder / MANIFEST).get("files")
    except DocumentError:
        files = None
    return {MANIFEST, *COMPANIONS, *(files if isinstance(files, dict) else ())}


def remember(bundle: Bundle, folder: Path, loras: Sequence[Lora] = ()) -> None:
    """Keep the folders of the checkpoint that a bundle was exported from; without a cache, do nothing."""
    name = with_loras(_real(folder), [str(each._replace(name=_real(each.folder))) for each in loras])
    place = _place(bundle)
    with contextlib.suppress(OSError, UnicodeEncodeError):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(name, encoding="utf-8")


def _real(folder: Path) -> str:
    return str(Path(os.path.realpath(folder)))


def find_origin(bundle: Bundle) -> str | None:
    """Return the checkpoint of a bundle, with its LoRAs, if it still is where it was with the same hash, or None."""
    for name in _candidates(bundle):
        with contextlib.suppress(TxportError, OSError):
            if Path(split_loras(name)[0]).is_dir() and digest(name) == bundle.manifest.checkpoint["sha256"]:
                return name
    return None


def _candidates(bundle: Bundle) -> Iterator[str]:
    """Yield the folder where the checkpoint was, then those of its name beside the bundle and here."""
    with contextlib.suppress(DocumentError, OSError):
        yield read_text(_place(bundle), LARGEST_TOML)
    name = bundle.manifest.checkpoint["name"]
    if Path(name).name == name:
        yield str(bundle.path.absolute().parent / name)
        yield name


def _place(bundle: Bundle) -> Path:
    import platformdirs

    return platformdirs.user_cache_path("txport") / PLACES / str(bundle.manifest.checkpoint["sha256"])
