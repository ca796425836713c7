"""Files and folders that are written atomically, even if the process is killed; and hashes of files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from txport.errors import OutputError
from txport.system.paths import ELSEWHERE, require_utf8, resolve, told
from txport.system.progress import Progress, logged
from txport.system.stages import locked, recover, replace_folder, resemble, staged, to_its_end

SAVE, READY = "save", ".save.ready"  # in a folder: its files while they are made, and when they are complete
GONE = ".gone"  # ends the name of an empty file among them: the file of that name is to be removed
PRINTED = (1, 2)  # standard output and standard error


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_of(parts: dict[str, str]) -> str:
    """Return one SHA-256, in hex, over named hashes; their order does not matter."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(parts.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


# ------------------------------------------------------------------------------------------------ a folder


@contextmanager
def staged_folder(
    out: Path,
    *,
    force: bool = False,
    holding: str | None = None,
    owned: Callable[[Path], Collection[str]] | None = None,
    progress: Progress = logged,
) -> Iterator[Path]:
    """Yield a new folder, which becomes `out` if the block succeeds and is removed if it fails.

    With `force` it replaces a folder, but only one with a file named `holding`, if that is given: this protects, for
    example, a home directory. `owned` returns the paths in a replaced folder that belong to it; other files stay.
    Without it, none stays. A link at `out` stays, and leads to the new folder. Raises `OutputError` as
    `require_folder` does.
    """
    place = require_folder(out, force=force, holding=holding, progress=progress)
    with told(out, "nothing was left there"):
        place.parent.mkdir(parents=True, exist_ok=True)
        with staged(place) as new:
            new.mkdir()
            yield new
            _settle(new)
            if force:  # another process may have put something else there meanwhile
                _require_free(out, place, force, holding)
            if force and place.is_dir():
                if owned:
                    _keep(place, new, owned(place))
                replace_folder(new, place)
            else:  # a new folder of another process stays: a rename replaces only an empty folder
                new.rename(place)


def require_folder(out: Path, *, force: bool = False, holding: str | None = None, progress: Progress = logged) -> Path:
    """Return the path for the folder `out`, with links resolved; raise `OutputError` if it can't be written.

    What killed processes left there is put back or removed, and reported to `progress`.
    """
    place = resolve(out)
    require_utf8(place, OutputError)
    with told(out, ELSEWHERE):
        recover(place, progress)
        _require_free(out, place, force, holding)
        above = next(folder for folder in place.parents if folder.exists())
        with staged(above / place.name):
            pass
    return place


def _require_free(out: Path, place: Path, force: bool, holding: str | None) -> None:
    is_full = place.is_dir() and any(place.iterdir())
    if is_full and not force:
        raise OutputError(f"{out} exists; force=True replaces it")
    if is_full and holding and not (place / holding).is_file():
        raise OutputError(f"{out} has no {holding}, so force=True does not replace it; {ELSEWHERE}")
    if place.exists() and not place.is_dir():
        raise OutputError(f"{out} is a file, expected a folder to make; {ELSEWHERE}")
    if place in (here := Path.cwd(), *here.parents):
        raise OutputError(f"{out} is the working folder, or holds it; {ELSEWHERE}")
    if os.path.ismount(place):
        raise OutputError(f"{out} is a mount point, which can't be replaced; give a folder in it")


def _settle(new: Path) -> None:
    """Give all files the mode of new files (temporary ones are private), and flush them to disk."""
    mode = 0o666 & new.stat().st_mode
    for path in new.rglob("*"):
        if path.is_file():
            path.chmod(mode)
            with path.open("rb+") as stream:
                os.fsync(stream.fileno())


def _keep(old: Path, new: Path, owned: Collection[str]) -> None:
    """Link, or copy, into the folder `new` the files of `old` that are not `owned` and that `new` does not have."""
    for path in sorted(old.rglob("*")):
        name = path.relative_to(old)
        kept = new / name
        is_folder = path.is_dir() and not path.is_symlink()
        if is_folder or name.as_posix() in owned or os.path.lexists(kept):
            continue
        for folder in reversed(name.parents):
            if not (new / folder).exists():
                (new / folder).mkdir()
                shutil.copymode(old / folder, new / folder)
        try:
            os.link(path, kept, follow_symlinks=False)
        except (OSError, NotImplementedError):  # of a file system without links
            shutil.copy2(path, kept, follow_symlinks=False)


# ------------------------------------------------------------------------------------------------ a file


@contextmanager
def staged_file(path: Path) -> Iterator[IO[str]]:
    """Yield a text file that becomes `path` if the block succeeds and is removed if it fails.

    A link at `path` stays, and leads to the new file; mode and owner stay the same. The text is written into a stream
    (see `is_stream`). Raises `OutputError` as `require_file` does.
    """
    with told(path, ELSEWHERE):
        place = _require_writable(path)
        if is_stream(path):
            with _open_stream(path) as stream:
                yield stream
            return
        recover(place)
        with staged(place) as new:
            with new.open("w", encoding="utf-8") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if place.exists():
                resemble(new, place)
            new.replace(place)


def require_file(path: Path) -> None:
    """Raise `OutputError` unless a file can be written to `path`; an existing file is not changed."""
    with told(path, ELSEWHERE):
        place = _require_writable(path)
        if not is_stream(path):
            with staged(place):
                pass


def is_stream(path: Path) -> bool:
    """Return whether to write into a path, not replace it: a device, pipe or socket, or where this process prints."""
    return path.exists() and not path.is_dir() and (not path.is_file() or _printed(path) is not None)


def _require_writable(path: Path) -> Path:
    """Return the file to write, with links resolved."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder, expected a file to write")
    if (path.is_socket() or path.is_block_device()) and _printed(path) is None:
        raise OutputError(f"{path} is a socket or a block device, expected a file to write")
    if path.exists() and not os.access(path, os.W_OK):
        raise OutputError(f"{path} can't be written: no permission; {ELSEWHERE}")
    place = resolve(path)
    if os.path.ismount(place):
        raise OutputError(f"{path} is a mount point, which can't be replaced; {ELSEWHERE}")
    return place


def _open_stream(path: Path) -> IO[str]:
    sys.stdout.flush()  # earlier prints must come first
    descriptor = _printed(path)
    opened = os.open(path, os.O_WRONLY) if descriptor is None else os.dup(descriptor)
    return os.fdopen(opened, "w", encoding="utf-8")


def _printed(path: Path) -> int | None:
    """Return the descriptor to which this process prints into the file at `path`, if any."""
    for descriptor in PRINTED:
        with contextlib.suppress(OSError):  # it is closed
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
    return None


# ------------------------------------------------------------------------------------------------ files of a folder


@contextmanager
def staged_files(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Yield a new folder whose files replace those of `folder`, all or none, if the block succeeds.

    `names`: all files that the block may write. Those that it does not write are removed from `folder`; other files
    stay. If a process is killed between the first file and the last, `complete` moves the remaining ones.
    """
    place = resolve(folder)
    if not place.is_dir():
        with staged_folder(folder) as new:
            yield new
        return
    with told(folder, "it is as it was"):
        if wrong := [name for name in sorted(names) if (place / name).is_dir()]:
            raise OutputError(f"{folder} has a folder {wrong[0]}, expected a file to replace; {ELSEWHERE}")
        recover(place)
        recover(place / SAVE)
        with staged(place / SAVE) as new:
            new.mkdir()
            yield new
            _settle(new)
            for name in names:
                if not (new / name).exists():
                    (new / f"{name}{GONE}").touch()
                elif (place / name).is_file():
                    resemble(new / name, place / name)
            with locked(place, wait=True, without=True):
                _move(place / READY)
                try:
                    new.rename(place / READY)
                finally:  # a partial move would leave a mixture of old and new files
                    to_its_end(partial(_move, place / READY))


def complete(folder: Path) -> None:
    """Move files into `folder` that a process, or one that was killed, has completely written."""
    if (folder / READY).is_dir():
        with locked(folder, wait=True, without=True):
            _move(folder / READY)


def _move(ready: Path) -> None:
    for path in sorted(ready.glob("*")):  # none, if it is gone
        if path.suffix == GONE:
            (ready.parent / path.stem).unlink(missing_ok=True)
            path.unlink()
        else:
            path.replace(ready.parent / path.name)
    with contextlib.suppress(FileNotFoundError):
        ready.rmdir()
