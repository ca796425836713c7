"""Places of files: paths here, and addresses that Arrow or fsspec opens, such as s3://bucket/rows/*.parquet."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import fs

from txport.errors import OutputError, TextError, TxportError, brief
from txport.system.files import staged_file
from txport.system.machine import is_out_of_memory
from txport.system.packages import needed
from txport.system.paths import require_possible

HIDDEN = (".", "_")  # first characters of names that readers of a folder of tables pass over


class Place(NamedTuple):
    """A path of a file system; `name` is what a user calls it."""

    system: fs.FileSystem
    path: str
    name: str

    @property
    def local(self) -> Path | None:
        """The path, if it is one of this machine."""
        return Path(self.path) if isinstance(self.system, fs.LocalFileSystem) else None

    def below(self, name: str) -> Place:
        """Return the place of a file in this folder."""
        return Place(self.system, f"{self.path.rstrip('/')}/{name}", f"{self.name.rstrip('/')}/{name}")

    def info(self) -> fs.FileInfo:
        """Return what the file system knows: type, size and time of change."""
        return self.system.get_file_info(self.path)

    def names(self) -> list[str]:
        """Return the names in this folder; none, if it is not there."""
        found = self.system.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found)


def place_of(name: str, error: type[TxportError]) -> Place:
    """Return the place of a path or an address; raise `error` if nothing can open it."""
    require_possible(name, error)
    if "://" not in name:
        return Place(fs.LocalFileSystem(), Path(name).absolute().as_posix(), name)
    with opening(name, error), needed("txport[bulk]", f"the address {name}"):
        try:
            system, path = fs.FileSystem.from_uri(name)
        except pa.ArrowInvalid:  # not one of Arrow's
            import fsspec

            other, path = fsspec.core.url_to_fs(name)
            system = fs.PyFileSystem(fs.FSSpecHandler(other))
        return Place(system, path, name)


@contextlib.contextmanager
def opening(name: str, error: type[TxportError]) -> Iterator[None]:
    """Convert errors of file systems in the block to `error`, except out-of-memory errors."""
    try:
        yield
    except TxportError:
        raise
    except (OSError, ValueError) as reason:  # Arrow's are among them
        if is_out_of_memory(reason):
            raise
        what = "written" if error is OutputError else "read"
        raise error(f"{name} can't be {what}: {brief(getattr(reason, 'strerror', None) or reason)}") from reason


def files_of(names: Sequence[str], out: Place) -> list[Place]:
    """Return the files that names, patterns and folders name, each once, without those in the folder `out`.

    `*`, `?` and `[...]` stand for a part of a name, `**` for folders. Raises `TextError` for a name without files.
    """
    found: dict[str, Place] = {}
    for name in names:
        with opening(name, TextError):
            places = list(_matching(name))
        if not places:
            raise TextError(f"{name} names no file; give files, folders with files, or patterns such as 'rows/*.jsonl'")
        found |= {place.path: place for place in places}
    own = f"{out.path.rstrip('/')}/"
    if not (kept := [place for path, place in found.items() if not path.startswith(own)]):
        raise TextError(f"all files of {', '.join(names)} are in {out.name}, the folder of the outputs")
    return kept


def _matching(name: str) -> Iterator[Place]:
    parts = name.split("/")
    fixed = next((at for at, part in enumerate(parts) if set(part) & set("*?[")), len(parts))
    place = place_of("/".join(parts[:fixed]) or ("/" if name.startswith("/") else "."), TextError)
    kind = place.info().type if fixed == len(parts) else fs.FileType.Directory
    if kind == fs.FileType.File:
        yield place
        return
    pattern = parts[fixed:] or ["*"]
    selector = fs.FileSelector(place.path, allow_not_found=True, recursive=len(pattern) > 1)
    for info in sorted(place.system.get_file_info(selector), key=lambda info: info.path):
        below = info.path[len(place.path) :].strip("/").split("/")
        if info.type == fs.FileType.File and _matches(below, pattern):
            yield Place(place.system, info.path, "/".join([place.name.rstrip("/"), *below]))


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the names of a path match those of a pattern; no pattern matches a hidden name."""
    if not pattern or not names:
        return not pattern and not names
    if pattern[0] == "**" and _matches(names, pattern[1:]):
        return True
    if names[0].startswith(HIDDEN) and not pattern[0].startswith(HIDDEN):
        return False
    return fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern if pattern[0] == "**" else pattern[1:])


def write(place: Place, data: bytes) -> None:
    """Write a file, whole or not at all; raise `OutputError` if it can't be written."""
    if (path := place.local) is not None:
        with staged_file(path) as stream:
            stream.buffer.write(data)  # type: ignore[attr-defined]  # of a file
        return
    folder, _, name = place.path.rpartition("/")
    part = f"{folder}/.{name}.partial-{secrets.token_hex(8)}"
    with opening(place.name, OutputError):
        with place.system.open_output_stream(part) as stream:
            stream.write(data)
        place.system.move(part, place.path)
