"""Folders that appear whole or not at all, and the hashes that prove what is in them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from txport.errors import OutputError


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_of(parts: dict[str, str]) -> str:
    """One SHA-256 over named hashes, whatever their order."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(parts.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


@contextmanager
def staged_folder(out: Path, *, force: bool = False, holding: str | None = None) -> Iterator[Path]:
    """A new folder beside `out` that becomes `out` if the block ends well, and vanishes if it does not.

    With `force` it replaces a folder, but only one with a file named `holding`, if that is given: a home
    directory is no bundle. Raises `OutputError` if `out` is in the way, is a file, or can't be written.
    """
    try:
        _refuse(out, force, holding)
        out = out.absolute()  # "." has no name
        out.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{out} can't be written: {error.strerror}; choose another place") from error
    try:
        yield stage
        _settle(stage)
        _replace(stage, out, force)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{out} can't be written: {error.strerror or error}; nothing was left there") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _refuse(out: Path, force: bool, holding: str | None) -> None:
    if out.is_dir() and any(out.iterdir()):
        if not force:
            raise OutputError(f"{out} exists; --force replaces it")
        if holding and not (out / holding).is_file():
            raise OutputError(f"{out} has no {holding}, so --force does not replace it; choose another place")
    if not out.is_dir() and (out.exists() or out.is_symlink()):
        raise OutputError(f"{out} is a file, expected a folder to make; choose another place")


def _replace(stage: Path, out: Path, force: bool) -> None:
    """Put the staged folder in place; what stood there is moved aside first and removed last."""
    if not out.exists() or not force:  # what appeared meanwhile stays: a rename takes the place of an empty folder only
        stage.rename(out)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.old-", dir=out.parent))
    try:
        out.rename(aside / out.name)
        stage.rename(out)
    except BaseException:  # a Ctrl-C too must not cost the user what stood there
        if not out.exists():
            (aside / out.name).rename(out)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _settle(stage: Path) -> None:
    """Give everything the modes that new files have (temporary ones are private), and wait for the disk."""
    mask = os.umask(0)
    os.umask(mask)
    stage.chmod(0o777 & ~mask)
    for path in stage.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~mask)
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
