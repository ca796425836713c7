"""Folders that appear whole or not at all, and the hashes that prove what is in them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from txport.models.errors import OutputError


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_of(parts: dict[str, str]) -> str:
    """One SHA-256 over named hashes, whatever their order."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(parts.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


@contextmanager
def staged_folder(out: Path, *, force: bool = False) -> Iterator[Path]:
    """A new folder beside `out` that becomes `out` if the block ends well, and vanishes if it does not.

    Raises `OutputError` if `out` exists and `force` is not given, is a file, or can't be written.
    """
    _refuse(out, force)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    except OSError as error:
        raise OutputError(f"{out} can't be written: {error.strerror}; choose another place") from error
    try:
        yield stage
        stage.chmod(0o777 & ~_umask())  # mkdtemp makes it private
        _sync(stage)
        _replace(stage, out)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{out} can't be written: {error.strerror or error}; nothing was left there") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _refuse(out: Path, force: bool) -> None:
    if out.is_dir() and not force and any(out.iterdir()):
        raise OutputError(f"{out} exists; --force replaces it")
    if not out.is_dir() and (out.exists() or out.is_symlink()):
        raise OutputError(f"{out} is a file, expected a folder to make; choose another place")


def _replace(stage: Path, out: Path) -> None:
    """Put the staged folder in place; what stood there is moved aside first and removed last."""
    if not out.exists():
        stage.rename(out)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.old-", dir=out.parent))
    out.rename(aside / out.name)
    try:
        stage.rename(out)
    except OSError:
        (aside / out.name).rename(out)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
