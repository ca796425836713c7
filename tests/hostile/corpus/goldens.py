"""`golden.npz` as no export writes it, under hashes that are right."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile.case import BAD, FAILED, GOOD, Case, Command, Place, command, edit_values, fix_hashes
from txport.models.names import GOLDEN, MANIFEST

Members = dict[str, bytes]
Arrays = dict[str, Any]
BOMB = 3_000_000_000  # bytes that a member unfolds to
WRONG = (FAILED, BAD)
HARMLESS = (GOOD, FAILED, BAD)


def cases() -> Iterator[Case]:
    """Every golden."""
    yield from (Case(f"goldens/{name}", _bytes(change)) for name, change in BYTES.items())
    yield from (Case(f"goldens/{name}", _members(change)) for name, change in MEMBERS.items())
    yield from (Case(f"goldens/{name}", _arrays(change)) for name, change in ARRAYS.items())
    yield from (Case(f"goldens/{name}", _members(change, HARMLESS)) for name, change in MORE.items())
    yield from (Case(f"goldens/{name}", _arrays(change, HARMLESS)) for name, change in LESS.items())
    yield Case("goldens/none", _none)
    for name in ("sources", "sources.lengths", "ids", "values", "sums", "largest", "rms", "noise", "steady", "longest"):
        yield Case(f"goldens/without {name}", _arrays(_without(name)))
        yield Case(f"goldens/{name} of objects", _members(_objects(name)))
        yield Case(f"goldens/{name} of 7 TiB", _members(_header(name, "(1000000, 1000000)", "<f8")))
        yield Case(f"goldens/{name} of texts", _arrays(_set(name, np.array(["a" * 1_000] * 100))))
        yield Case(f"goldens/{name} of dates", _arrays(_set(name, np.array(["2017-06-12"], "datetime64[D]"))))
        yield Case(f"goldens/{name} of complex numbers", _arrays(_set(name, np.ones(3, complex))))
        yield Case(f"goldens/{name} of five dims", _arrays(_set(name, np.ones((2, 1, 2, 1, 2)))))
        yield Case(f"goldens/{name} of nothing", _arrays(_set(name, np.zeros((0,)))))
        yield Case(f"goldens/{name} of NaN", _arrays(_nan(name)))


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


def _arrays(change: Callable[[Arrays], object], codes: tuple[int, ...] = WRONG) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.bundle()
        with np.load(bundle / GOLDEN) as file:
            arrays = dict(file)
        change(arrays)
        np.savez(bundle / GOLDEN, **arrays)
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


def _without(name: str) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.pop(name)


def _set(name: str, value: Any) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.update({name: value})


def _nan(name: str) -> Callable[[Arrays], object]:
    def change(arrays: Arrays) -> None:
        arrays[name] = np.full(arrays[name].shape, np.nan)

    return change


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
    "no zip": lambda whole: b"no zip" * 100,
    "cut": lambda whole: whole[: len(whole) // 2],
    "cut by a byte": lambda whole: whole[:-1],
    "a directory alone": lambda whole: whole[whole.index(b"PK\x01\x02") :],
    "a member listed twice": _overlap,
    "another checksum": lambda whole: whole[:400] + bytes([whole[400] ^ 255]) + whole[401:],
    "a bomb": lambda whole: bomb(),
    "an array without a zip": lambda whole: npy("(1000000, 1000000)", "<f8"),
    "a pickle": lambda whole: b"cbuiltins\nopen\n(S'pickled'\nS'w'\ntR.",
    "encrypted": _encrypted,
}
MEMBERS: dict[str, Callable[[Members], None]] = {
    "a header of no shape": lambda members: members.update({"ids.npy": npy("None", "<i8")}),
    "a header of negative shape": lambda members: members.update({"ids.npy": npy("(-5, 8)", "<i8", bytes(320))}),
    "a header that overflows": lambda members: members.update({"ids.npy": npy(f"({2**62}, 8)", "<i8", bytes(64))}),
    "a header of 5,000 digits": lambda members: members.update({"ids.npy": npy(f"({'9' * 5000},)", "<i8")}),
    "a header of code": lambda members: members.update({"ids.npy": npy("__import__('os').getcwd()", "<i8")}),
    "a header of many levels": lambda members: members.update({"ids.npy": npy("(" * 5_000 + ")" * 5_000, "<i8")}),
    "a header of an unknown type": lambda members: members.update({"ids.npy": npy("(1,)", "<q99")}),
    "a header of no end": lambda members: members.update({"ids.npy": b"\x93NUMPY\x01\x00\xff\xff{"}),
    "a version of the next century": lambda members: members.update({"ids.npy": b"\x93NUMPY\xff\x00\x00\x00"}),
    "members that are no arrays": lambda members: members.update(dict.fromkeys(members, b"text")),
    "empty members": lambda members: members.update(dict.fromkeys(members, b"")),
}


def _lengths(arrays: Arrays, name: str, values: list[int]) -> None:
    arrays[f"{name}.lengths"] = np.array(values)


ARRAYS: dict[str, Callable[[Arrays], object]] = {
    "negative lengths": lambda arrays: _lengths(arrays, "targets", [-5, arrays["targets"].size + 5]),
    "one length": lambda arrays: _lengths(arrays, "sources", [arrays["sources"].size]),
    "no sources": lambda arrays: [_lengths(arrays, "sources", []), arrays.update(sources=np.zeros(0, int))],
    "ids beyond the vocabulary": lambda arrays: arrays.update(ids=arrays["ids"] + 10_000),
    "negative ids": lambda arrays: arrays.update(ids=arrays["ids"] - 10_000),
    "ids that are floats": lambda arrays: arrays.update(ids=arrays["ids"] + 0.5),
    "sources beyond the vocabulary": lambda arrays: arrays.update(sources=arrays["sources"] + 10_000),
    "sources of floats": lambda arrays: arrays.update(sources=arrays["sources"] + 0.5),
    "longest below zero": lambda arrays: arrays.update(longest=np.array(-5)),
    "fewer likely tokens": lambda arrays: arrays.update(ids=arrays["ids"][:, :1]),
    "fewer sums": lambda arrays: arrays.update(sums=arrays["sums"][:, :1]),
    "more noise than all": lambda arrays: arrays.update(values=arrays["values"] * np.inf),
    "noise of no size": lambda arrays: arrays.update(noise=arrays["noise"] * 0),
    "scores of NaN for beams": lambda arrays: arrays.update({"beam 4": arrays["beam 4"][::-1].copy()}),
}
# What is not read, or is cut to what the model can say, or leaves enough to compare
MORE: dict[str, Callable[[Members], None]] = {
    "10,000 members": lambda members: members.update({f"{n}.npy": npy("(1,)", "<i8", bytes(8)) for n in range(10_000)}),
    "a member that leaves": lambda members: members.update({"../../outside/a.npy": npy("(1,)", "<i8", bytes(8))}),
}
LESS: dict[str, Callable[[Arrays], object]] = {
    "longest beyond all": lambda arrays: arrays.update(longest=np.array(10**12)),
    "no likely tokens": lambda arrays: arrays.update(ids=arrays["ids"][:, :0], values=arrays["values"][:, :0]),
}
