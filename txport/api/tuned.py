"""The settings that `txport tune` found for a bundle on this machine, kept in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from txport.errors import TxportError
from txport.models.names import MANIFEST
from txport.system import machine
from txport.system.cores import cores
from txport.system.documents import DocumentError, read_json
from txport.system.numbers import whole
from txport.system.paths import told

FOLDER = "tuned"  # in the cache: a file for each bundle and machine


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where and how a bundle runs: the options of `load`, and `batch_size` of bulk work."""

    runtime: str = "ort"
    threads: int | None = None
    workers: int = 1
    batch_size: int = 32

    def describe(self) -> str:
        """Return the settings as options of the command line."""
        return as_options(asdict(self))


def as_options(values: Mapping[str, object]) -> str:
    """Return values as options of the command line; None is left out."""
    given = ((name.replace("_", "-"), value) for name, value in values.items() if value is not None)
    return " ".join(f"--{name} {value}" for name, value in given)


def here() -> dict[str, object]:
    """Return what identifies this machine: its description without the GPU, and the cores that may be used."""
    return {**machine.describe(), "gpu": None, "usable": cores()}


def store(folder: Path, settings: Settings, **about: object) -> Path:
    """Keep the settings of the bundle in a folder; return the file. Raises `OutputError` if there is no cache."""
    file = _place(folder)
    record = {"machine": here(), "bundle": str(folder.absolute()), "settings": asdict(settings), **about}
    with told(file, "XDG_CACHE_HOME names another folder for it"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return file


def find(folder: Path) -> Settings | None:
    """Return the settings of the bundle in a folder on this machine, if its files are those that were tuned."""
    if not _root().is_dir():  # nothing was ever tuned
        return None
    try:
        return _settings(read_json(_place(folder)))
    except (DocumentError, OSError):
        return None


def every() -> Iterator[tuple[str, Settings]]:
    """Yield the folder of each bundle that was tuned on this machine and has not changed, and its settings."""
    for file in sorted(_root().glob("*.json")):
        with contextlib.suppress(DocumentError, OSError, KeyError, TypeError):
            record = read_json(file)
            if _place(Path(record["bundle"])) == file and (settings := _settings(record)):
                yield record["bundle"], settings


def _settings(record: Mapping[str, Any]) -> Settings | None:
    """Return the settings of a record; None for another machine, other fields, or a runtime that can't run."""
    from txport import runtimes

    if record.get("machine") != here():
        return None
    try:
        found = Settings(**record["settings"])
        runtimes.require(found.runtime, "cpu")
        for name in ("threads", "workers"):
            runtimes.require_threads(name, getattr(found, name))
        whole("batch_size", found.batch_size, 1)
    except (KeyError, TypeError, TxportError):
        return None
    return found


def _root() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("txport") / FOLDER


def _place(folder: Path) -> Path:
    """Return the file of a bundle on this machine, named by hashes; the manifest has those of all other files."""
    parts = [(folder / MANIFEST).read_bytes(), json.dumps(here(), sort_keys=True).encode()]
    return _root() / f"{'-'.join(hashlib.sha256(part).hexdigest()[:16] for part in parts)}.json"
