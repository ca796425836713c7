"""Where the checkpoints of bundles lie on this machine: kept in the user's cache, since a bundle never names a path."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from txport.bundles.bundle import Bundle
from txport.errors import TxportError
from txport.models.names import digest
from txport.system.documents import LARGEST_TOML, DocumentError, read_text

PLACES = "origins"  # folder in the cache: a file for each checkpoint, named by its hash


def remember(bundle: Bundle, folder: Path) -> None:
    """Keep the folder of the checkpoint that a bundle was exported from; without a cache, do nothing."""
    place = _place(bundle)
    with contextlib.suppress(OSError, UnicodeEncodeError):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(str(Path(os.path.realpath(folder))), encoding="utf-8")


def find_origin(bundle: Bundle) -> Path | None:
    """Return the folder of the checkpoint of a bundle if it still lies there with the same hash; otherwise None."""
    for folder in _candidates(bundle):
        with contextlib.suppress(TxportError, OSError):
            if folder.is_dir() and digest(str(folder)) == bundle.manifest.checkpoint["sha256"]:
                return folder
    return None


def _candidates(bundle: Bundle) -> Iterator[Path]:
    """Yield the folder where the checkpoint was, then those of its name beside the bundle and here."""
    with contextlib.suppress(DocumentError, OSError):
        yield Path(read_text(_place(bundle), LARGEST_TOML))
    name = bundle.manifest.checkpoint["name"]
    if Path(name).name == name:
        yield bundle.path.absolute().parent / name
        yield Path(name)


def _place(bundle: Bundle) -> Path:
    import platformdirs

    return platformdirs.user_cache_path("txport") / PLACES / str(bundle.manifest.checkpoint["sha256"])
