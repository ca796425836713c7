"""Archives of arrays, member by member."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path


def read_members(file: Path) -> dict[str, bytes]:
    """The files in a zip by name."""
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(file: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
    """A zip of files."""
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, whole in members.items():
            archive.writestr(name, whole)


def npy(shape: str, dtype: str, body: bytes = b"") -> bytes:
    """An array file whose header says what it likes."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + body
