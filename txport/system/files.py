"""Files and folders that are written atomically, even if the process is killed; and hashes of files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from txport.errors import OutputError
from txport.system.locks import locked
from txport.system.places import descriptor_of, exchange, is_mount, require_utf8, resolve
from txport.system.progress import Progress, silent
from txport.system.stages import partner, recover, remove, resemble, restore, staged, told

SAVE, READY = "save", ".save.ready"  # stages inside a folder: while its files are written, and when they are complete
GONE = ".gone"  # ends the name of an empty file in a stage: the file of that name is to be removed
ELSEWHERE, NOTHING = "choose another place", "nothing was left there"


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
    progress: Progress = silent,
) -> Iterator[Path]:
    """Yield a new folder next to `out`, which becomes `out` if the block succeeds and is removed if it fails.

    With `force` it replaces a folder, but only one with a file named `holding`, if that is given: this protects, for
    example, a home directory. `owned` returns the paths in a replaced folder that belong to it; other files stay.
    Without it, none stays. A link at `out` stays, and leads to the new folder. First, stages of killed processes are
    removed or put back, and reported to `progress`. Raises `OutputError` as `require_folder` does.
    """
    with contextlib.ExitStack() as stack:
        with told(out, ELSEWHERE):
            recover(resolve(out), progress)
            place = require_folder(out, force=force, holding=holding)
            stack.enter_context(_parents(place))
            stage = stack.enter_context(staged(place, os.mkdir))
            mode = stat.S_IMODE(stage.stat().st_mode)
            stage.chmod(0o700)
        with told(out, NOTHING):
            yield stage
            _settle(stage, mode)
            if force:  # another process may have put something else there meanwhile
                _refuse(out, place, force, holding)
                if owned and place.is_dir():
                    _keep(place, stage, owned(place))
            _replace(stage, place, force)


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Yield a private temporary folder; remove those with this name that killed processes left."""
    place = Path(tempfile.gettempdir(), name)
    with contextlib.ExitStack() as stack:
        with told(place, "set TMPDIR"):
            recover(place)
            folder = stack.enter_context(staged(place, lambda path: path.mkdir(0o700)))
        yield folder


def require_folder(out: Path, *, force: bool = False, holding: str | None = None) -> Path:
    """Return the path for the folder `out`, with links resolved; nothing new is written.

    Raises `OutputError` if `out` is in the way (see `staged_folder`), is a file, the working folder or a mount point,
    or if nothing can be written there.
    """
    with told(out, ELSEWHERE):
        place = resolve(out)
        require_utf8(place, OutputError)
        restore(place)
        _refuse(out, place, force, holding)
        if _is_around(place):
            raise OutputError(f"{out} is the working folder, or holds it; choose another place")
        if is_mount(place):
            raise OutputError(f"{out} is a mount point, which can't be replaced; give a folder in it")
        above = next(folder for folder in place.parents if folder.exists())
        if not above.is_dir():
            raise OutputError(f"{out} can't be written: {above} is no folder; {ELSEWHERE}")
        if not os.access(above, os.W_OK | os.X_OK):
            raise OutputError(f"{out} can't be written: no permission to write in {above}; {ELSEWHERE}")
    return place


def _refuse(out: Path, place: Path, force: bool, holding: str | None) -> None:
    if place.is_dir() and any(place.iterdir()):
        if not force:
            raise OutputError(f"{out} exists; force=True replaces it")
        if holding and not (place / holding).is_file():
            raise OutputError(f"{out} has no {holding}, so force=True does not replace it; choose another place")
    if place.exists() and not place.is_dir():
        raise OutputError(f"{out} is a file, expected a folder to make; choose another place")


def _is_around(folder: Path) -> bool:
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return False
    return folder in (here, *here.parents)


@contextmanager
def _parents(path: Path) -> Iterator[None]:
    """Create the parent folders of a path; remove the created ones if the block fails."""
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):  # in use by now
                folder.rmdir()
        raise


def _settle(stage: Path, mode: int) -> None:
    """Set the modes of new files (temporary ones are private), and flush the files to disk."""
    stage.chmod(mode)
    for path in stage.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & mode)
            descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


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


def _replace(stage: Path, out: Path, force: bool) -> None:
    """Move the staged folder to `out`; with `force`, the old folder moves to the stage's path, or is removed."""
    if not out.exists() or not force:  # a new folder of another process stays: a rename replaces only an empty folder
        stage.rename(out)
        return
    resemble(stage, out)
    if exchange(stage, out):
        return
    aside = partner(stage)
    try:
        out.rename(aside)
        stage.rename(out)
    except BaseException:  # the old folder must survive, even after Ctrl-C
        if not out.exists():
            aside.rename(out)
        raise
    finally:
        if out.exists():
            remove(aside)


# ------------------------------------------------------------------------------------------------ a file


@contextmanager
def staged_file(path: Path) -> Iterator[IO[str]]:
    """Yield a text file that becomes `path` if the block succeeds and is removed if it fails.

    A link at `path` stays, and leads to the new file; mode and owner stay the same. If `path` is not a regular file
    but a pipe, a terminal or /dev/stdout, the text is written into it. Raises `OutputError` as `require_file` does.
    """
    with told(path, ELSEWHERE):
        if is_stream(path):
            with _open_stream(path) as stream:
                yield stream
            return
        place = _require_regular(path)
        recover(place)
        with staged(place, _new_file(place)) as stage:
            with stage.open("w", encoding="utf-8") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if place.exists():
                resemble(stage, place)
            stage.replace(place)


def require_file(path: Path) -> None:
    """Raise `OutputError` unless a file can be written to `path`; an existing file is not changed."""
    with told(path, ELSEWHERE):
        if is_stream(path):
            _require_stream(path)
            return
        place = _require_regular(path)
        with staged(place, _new_file(place)):
            pass


def is_stream(path: Path) -> bool:
    """Return whether to write into a path, not replace it: an open file of this process, a device, pipe or socket."""
    return descriptor_of(path) is not None or (path.exists() and not path.is_file() and not path.is_dir())


def _require_regular(path: Path) -> Path:
    """Return the file to replace, with links resolved; raise `OutputError` if it can't be replaced."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder, expected a file to write")
    place = resolve(path)
    if is_mount(place):
        raise OutputError(f"{path} is a mount point, which can't be replaced; choose another place")
    if place.exists() and not os.access(place, os.W_OK):
        raise OutputError(f"{path} can't be written: it is read-only; choose another place")
    return place


def _require_stream(path: Path) -> None:
    descriptor = descriptor_of(path)
    if descriptor is not None:
        if not _is_open_for_writing(descriptor):
            raise OutputError(f"{path} is not open for writing; choose another place")
    elif stat.S_ISSOCK(mode := path.stat().st_mode) or stat.S_ISBLK(mode):
        raise OutputError(f"{path} is a socket or a block device, expected a file to write")
    elif not os.access(path, os.W_OK):
        raise OutputError(f"{path} can't be written: no permission; choose another place")


def _is_open_for_writing(descriptor: int) -> bool:
    import fcntl  # available wherever descriptors have paths

    try:
        return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:
        return False


def _open_stream(path: Path) -> IO[str]:
    _require_stream(path)
    sys.stdout.flush()  # earlier prints must come first
    descriptor = descriptor_of(path)
    opened = os.open(path, os.O_WRONLY) if descriptor is None else os.dup(descriptor)
    return os.fdopen(opened, "w", encoding="utf-8")


def _new_file(place: Path) -> Callable[[Path], None]:
    """Return a function that creates an empty file, private until it gets the mode of the file that it replaces."""
    mode = 0o600 if place.exists() else 0o666
    return lambda path: os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))


# ------------------------------------------------------------------------------------------------ files of a folder


@contextmanager
def staged_files(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Yield a new folder whose files replace those of `folder`, all or none, if the block succeeds.

    `names`: all files that the block may write. Those that it does not write are removed from `folder`; other files
    stay. If a process is killed between the first file and the last, `complete` moves the remaining ones.
    """
    place = resolve(folder)
    if not place.is_dir():
        with staged_folder(folder) as stage:
            yield stage
        return
    with told(folder, "it is as it was"):
        if wrong := [name for name in sorted(names) if (place / name).is_dir()]:
            raise OutputError(f"{folder} has a folder {wrong[0]}, expected a file to replace; choose another place")
        recover(place / SAVE)
        with staged(place / SAVE, os.mkdir) as stage:
            yield stage
            _settle(stage, stat.S_IMODE(stage.stat().st_mode))
            for name in names:
                _prepare(stage / name, place / name)
            try:
                _make_ready(stage, place)
            finally:
                if not stage.exists():  # ready, and to be moved, interrupted or not
                    _move(place)


def complete(folder: Path) -> None:
    """Move files into `folder` that a process had completely written when it was killed."""
    ready = folder / READY
    if ready.is_dir():
        with locked(ready, wait=True, without=True) as is_ours:
            if is_ours:
                _move(folder)


def _prepare(new: Path, old: Path) -> None:
    if not new.exists():
        new.with_name(new.name + GONE).touch()
    elif old.is_file():
        resemble(new, old)


def _make_ready(stage: Path, folder: Path) -> None:
    """Mark the stage as ready: its files will now be moved, by this process or by another one."""
    while True:
        complete(folder)
        try:
            stage.rename(folder / READY)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process is about to move its own
                raise
        else:
            return


def _move(folder: Path) -> None:
    try:
        _move_all(folder)
    except KeyboardInterrupt:  # a partial move would leave a mixture of old and new files
        _move_all(folder)
        raise


def _move_all(folder: Path) -> None:
    for path in sorted((folder / READY).iterdir()):
        if path.suffix == GONE:
            (folder / path.stem).unlink(missing_ok=True)
            path.unlink()
        else:
            path.replace(folder / path.name)
    with contextlib.suppress(OSError):  # another process has put its own there by now
        (folder / READY).rmdir()
