"""Read a shared library's file: the libraries that it needs, and the GPUs for which it has kernels.

Nothing is loaded or run, so this works also if needed libraries are missing. Linux uses ELF, Windows uses PE.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DYNAMIC = 6  # type of an ELF section
NEEDED = 1  # tag of an entry of the dynamic section
IMPORTS, DELAYED = 1, 13  # indices in the directory table of a PE file
FATBIN = struct.pack("<I", 0xBA55ED50)
FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin", ".nv_fatb", "__nv_rel")  # names in PE files have at most eight bytes
PTX, CUBIN = 1, 2
MOST = 1 << 16  # maximum number of table entries; real files have a few thousand


class Section(NamedTuple):
    """A section of an ELF or PE file."""

    name: str
    kind: int
    address: int
    offset: int
    size: int
    link: int


class Kernels(NamedTuple):
    """Compute capabilities (major, minor) of a library's machine code (`built`) and of its PTX (`portable`)."""

    built: frozenset[tuple[int, int]] = frozenset()
    portable: frozenset[tuple[int, int]] = frozenset()

    def fit(self, capability: tuple[int, int]) -> bool:
        """Return whether a GPU can run the kernels: no newer machine code of its major version, or no newer PTX."""
        of_generation = any(each[0] == capability[0] and each <= capability for each in self.built)
        return of_generation or any(each <= capability for each in self.portable)

    def __str__(self) -> str:
        """Return the capabilities as text, such as "7.5, 8.0, 9.0 and newer"."""
        names = [f"{major}.{minor}" for major, minor in sorted(self.built)]
        more = [f"{major}.{minor} and newer" for major, minor in sorted(self.portable)]
        return ", ".join(names + more)


def needed(file: Path) -> tuple[str, ...]:
    """Return the names of the libraries that a library is linked to, in its order; () for an unknown format."""
    with _mapped(file) as data:
        try:
            return tuple(_elf_needed(data) if data[:4] == b"\x7fELF" else _pe_needed(data))
        except (struct.error, UnicodeDecodeError, ValueError, IndexError):
            return ()


def kernels(file: Path) -> Kernels:
    """Return the compute capabilities for which a library has kernels; empty for an unknown format."""
    found: dict[int, set[tuple[int, int]]] = {PTX: set(), CUBIN: set()}
    with _mapped(file) as data:
        try:
            sections = list(_elf_sections(data) if data[:4] == b"\x7fELF" else _pe_sections(data))
            for section in sections:
                if section.name in FATBIN_SECTIONS:
                    for kind, architecture in _fat_parts(data, section.offset, section.offset + section.size):
                        found.setdefault(kind, set()).add(divmod(architecture, 10))
        except (struct.error, UnicodeDecodeError, ValueError, IndexError):
            return Kernels()
    return Kernels(frozenset(found[CUBIN]), frozenset(found[PTX]))


class _mapped:  # noqa: N801 - a context manager
    """Context manager that maps a file; only accessed pages are read. An empty file is `b""`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> mmap.mmap | bytes:
        with self._file.open("rb") as stream:
            if self._file.stat().st_size == 0:
                self._data: mmap.mmap | bytes = b""
            else:
                self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return self._data

    def __exit__(self, *_: object) -> None:
        if isinstance(self._data, mmap.mmap):
            self._data.close()


def _elf_sections(data: mmap.mmap | bytes) -> Iterator[Section]:
    if data[4] != 2 or data[5] != 1:
        raise ValueError("not of 64 bits, lowest byte first")
    (start,) = struct.unpack_from("<Q", data, 0x28)
    width, count, names = struct.unpack_from("<HHH", data, 0x3A)
    raw = [struct.unpack_from("<IIQQQQI", data, start + index * width) for index in range(count)]
    table = raw[names][4]
    for name, kind, _, address, offset, size, link in raw:
        yield Section(_text(data, table + name), kind, address, offset, size, link)


def _elf_needed(data: mmap.mmap | bytes) -> Iterator[str]:
    sections = list(_elf_sections(data))
    for section in sections:
        if section.kind == DYNAMIC:
            strings = sections[section.link].offset
            for place in range(section.offset, section.offset + min(section.size, 16 * MOST), 16):
                tag, value = struct.unpack_from("<QQ", data, place)
                if tag == NEEDED:
                    yield _text(data, strings + value)


def _pe_header(data: mmap.mmap | bytes) -> tuple[int, int]:
    """Return the offsets of the header and of its optional part; raise `ValueError` if it is not a PE file."""
    if data[:2] != b"MZ":
        raise ValueError("neither ELF nor PE")
    (header,) = struct.unpack_from("<I", data, 0x3C)
    if data[header : header + 4] != b"PE\0\0":
        raise ValueError("no PE file")
    return header, header + 24


def _pe_sections(data: mmap.mmap | bytes) -> Iterator[Section]:
    header, optional = _pe_header(data)
    (count,) = struct.unpack_from("<H", data, header + 6)
    (size,) = struct.unpack_from("<H", data, header + 20)
    for index in range(count):
        name, _, address, length, offset = struct.unpack_from("<8sIIII", data, optional + size + index * 40)
        yield Section(name.rstrip(b"\0").decode("ascii"), 0, address, offset, length, 0)


def _pe_needed(data: mmap.mmap | bytes) -> Iterator[str]:
    """Yield the libraries that are loaded with it, then the delay-loaded ones."""
    _, optional = _pe_header(data)
    sections = list(_pe_sections(data))
    directories = optional + (112 if struct.unpack_from("<H", data, optional)[0] == 0x20B else 96)

    def place(address: int) -> int:
        for each in sections:
            if each.address <= address < each.address + each.size:
                return address - each.address + each.offset
        raise ValueError("an address in no section")

    for directory, width, at in ((IMPORTS, 20, 12), (DELAYED, 32, 4)):
        address, size = struct.unpack_from("<II", data, directories + 8 * directory)
        for index in range(MOST if address and size else 0):
            (name,) = struct.unpack_from("<I", data, place(address) + index * width + at)
            if name == 0:
                break
            yield _text(data, place(name))


def _fat_parts(data: mmap.mmap | bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the kind and the architecture (such as 90) of each part of the fat binaries in a section."""
    place = data.find(FATBIN, start, end)
    while place >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, place + 4)
        if version != 1:
            raise ValueError("a fat binary of another version")
        part = place + header
        stop = min(place + header + size, end)
        while part + 32 <= stop:
            kind, _, head, body = struct.unpack_from("<HHIQ", data, part)
            yield kind, struct.unpack_from("<I", data, part + 28)[0]
            part += max(32, head + body)
        place = data.find(FATBIN, stop, end)


def _text(data: mmap.mmap | bytes, start: int) -> str:
    end = data.find(b"\0", start)
    if end < 0:
        raise ValueError("text without an end")
    return bytes(data[start:end]).decode("ascii")
