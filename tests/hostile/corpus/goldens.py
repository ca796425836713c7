"""`golden.npz` as no export writes it, under hashes that are right."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile.case import BAD, FAILED, GOOD, Case, Command, Place, command, edit_values, fix_hashes
from txport.models.names import GOLDEN, MANIFEST

Members = dict[str, bytes]
Arrays = dict[str, Any]
BOMB = 3_000_000_000  # bytes that a member unfolds to
WRONG = (FAILED, BAD)


def cases() -> Iterator[Case]:
    """Every golden."""
    yield from (Case(f"goldens/{name}", _bytes(change)) for name, change in BYTES.items())
    yield from (Case(f"goldens/{name}", _members(change)) for name, change in MEMBERS.items())
    yield Case("goldens/none", _none)
    for name in ("sources", "sources.lengths", "ids", "values", "noise"):
        yield Case(f"goldens/{name} of objects", _members(_objects(name)))
        yield Case(f"goldens/{name} of 7 TiB", _members(_header(name, "(1000000, 1000000)", "<f8")))


def _checked(bundle: Path, codes: tuple[int, ...] = WRONG) -> list[Command]:
    """`verify` says no; the rest does not read goldens."""
    fix_hashes(bundle)
    verify = [command("verify", bundle, *more, "--threads", 1, codes=codes) for more in ((), ("--json",))]
    run = command("run", bundle, "bad", "--threads", 1, codes=(GOOD, BAD))
    return [*verify, run]


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.bundle()
        file = bundle / GOLDEN
        file.write_bytes(change(file.read_bytes()))
        return _checked(bundle)

    return make


def read_members(file: Path) -> Members:
    """The files in a zip by name."""
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(file: Path, members: Members, method: int = zipfile.ZIP_STORED) -> None:
    """A zip of files."""
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, whole in members.items():
            archive.writestr(name, whole)


def _members(change: Callable[[Members], None], codes: tuple[int, ...] = WRONG) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.bundle()
        members = read_members(bundle / GOLDEN)
        change(members)
        write_members(bundle / GOLDEN, members)
        return _checked(bundle, codes)

    return make


def _none(place: Place) -> list[Command]:
    bundle = place.bundle()
    (bundle / GOLDEN).unlink()
    edit_values(bundle / MANIFEST, lambda values: values["files"].pop(GOLDEN))
    return [command("verify", bundle, codes=[BAD])]


def npy(shape: str, dtype: str, body: bytes = b"") -> bytes:
    """An array file whose header says what it likes."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + body


def _header(name: str, shape: str, dtype: str) -> Callable[[Members], None]:
    return lambda members: members.update({f"{name}.npy": npy(shape, dtype, bytes(64))})


def _objects(name: str) -> Callable[[Members], None]:
    """A pickle, which must not be read: it would leave a file in the working directory."""
    pickle = b"cbuiltins\nopen\n(S'pickled'\nS'w'\ntR."
    return lambda members: members.update({f"{name}.npy": npy("(1,)", "|O", pickle)})


def bomb(member: str = "values.npy") -> bytes:
    """A zip of 3 MB with a member of 3 GB, which is an array of zeros."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(member, "w", force_zip64=True) as file,
    ):
        file.write(npy(f"({BOMB // 4},)", "<f4"))
        chunk = bytes(10_000_000)
        for _ in range(BOMB // len(chunk)):
            file.write(chunk)
    return buffer.getvalue()


def _overlap(whole: bytes) -> bytes:
    """A second entry in the directory for the first member."""
    at = whole.index(b"PK\x01\x02")
    end = whole.index(b"PK\x01\x02", at + 4)
    return whole[:end] + whole[at:end] + whole[end:]


def _encrypted(whole: bytes) -> bytes:
    """All members marked as encrypted."""
    changed = bytearray(whole)
    at = whole.find(b"PK\x01\x02")
    while at >= 0:
        changed[at + 8] |= 1
        at = whole.find(b"PK\x01\x02", at + 4)
    return bytes(changed)


BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "cut by a byte": lambda whole: whole[:-1],
    "a directory alone": lambda whole: whole[whole.index(b"PK\x01\x02") :],
    "a member listed twice": _overlap,
    "a bomb": lambda whole: bomb(),
    "a pickle": lambda whole: b"cbuiltins\nopen\n(S'pickled'\nS'w'\ntR.",
    "encrypted": _encrypted,
}
MEMBERS: dict[str, Callable[[Members], None]] = {
    "a header that overflows": lambda members: members.update({"ids.npy": npy(f"({2**62}, 8)", "<i8", bytes(64))}),
    "a header of 5,000 digits": lambda members: members.update({"ids.npy": npy(f"({'9' * 5000},)", "<i8")}),
    "a header of code": lambda members: members.update({"ids.npy": npy("__import__('os').getcwd()", "<i8")}),
    "a header of many levels": lambda members: members.update({"ids.npy": npy("(" * 5_000 + ")" * 5_000, "<i8")}),
    "a version of the next century": lambda members: members.update({"ids.npy": b"\x93NUMPY\xff\x00\x00\x00"}),
    "members that are no arrays": lambda members: members.update(dict.fromkeys(members, b"text")),
}
