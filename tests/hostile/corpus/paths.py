"""Paths in a manifest that lead out of the bundle, or to what is no file; and links that are right."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.hostile.case import (
    BAD,
    FAILED,
    GOOD,
    Case,
    Command,
    Place,
    command,
    edit_values,
    fix_hashes,
    provers,
    readers,
    refused,
)
from tests.hostile.corpus.values import NAME
from txport.models.names import MANIFEST
from txport.system.files import sha256

TAMPERED = (FAILED,)  # what `verify` says of a file that is not what its hash says
NOT_WHOLE = (FAILED, BAD)

LISTED = {  # a path in `files`, and what its entry is made of
    "out of the bundle": ("../../outside/precious.bin", "../../outside/precious.bin"),
    "absolute": ("/etc/passwd", "/etc/passwd"),
    "out by a detour": ("onnx/../../../outside/precious.bin", "../../outside/precious.bin"),
    "out of the root": ("/../etc/passwd", "/etc/passwd"),
    "a folder": ("onnx", None),
    "the bundle itself": (".", None),
    "empty": ("", None),
    "with backslashes": ("..\\..\\outside\\precious.bin", None),
    "with a NUL": ("a\0b", None),
    "of 5,000 characters": ("a" * 5_000, None),
    "of escapes": (NAME, None),
    "a lone surrogate": ("\ud800", None),
    "a device": ("/dev/zero", None),
    "standard input": ("/dev/stdin", None),
    "the kernel's": ("/proc/self/environ", None),
}


def cases() -> Iterator[Case]:
    """Every path."""
    for name, (path, source) in LISTED.items():
        yield Case(f"paths/listed {name}", _listed(path, source))
        yield Case(f"paths/shared weights {name}", _shared(path, source))
    yield from (Case(f"paths/{name}", _file(change)) for name, change in FILES.items())
    yield Case("paths/links into a store of contents", _store)
    yield Case("paths/the bundle is a link", _linked_folder)
    yield Case("paths/a link that leaves with the right hash", _right_link)
    yield from (Case(f"paths/bundle {name}", _name(path)) for name, path in NAMES.items())


def _listed(path: str, source: str | None) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        bundle = place.bundle()
        file = bundle / source if source else None
        entry = {"sha256": sha256(file) if file else "0" * 64, "bytes": file.stat().st_size if file else 0}
        edit_values(bundle / MANIFEST, lambda values: values["files"].update({path: entry}))
        return refused(bundle, place, verify=NOT_WHOLE)

    return make


def _shared(path: str, source: str | None) -> Callable[[Place], list[Command]]:
    """Shared weights that lie elsewhere; their file may be listed too."""

    def make(place: Place) -> list[Command]:
        bundle = place.bundle("cpu")
        file = bundle / source if source else None
        entry = {"sha256": sha256(file) if file else "0" * 64, "bytes": file.stat().st_size if file else 0}

        def edit(values: dict[str, dict[str, dict[str, object]]]) -> None:
            values["files"][path] = dict(entry)
            next(iter(values["shared"].values()))["file"] = path

        edit_values(bundle / MANIFEST, edit)
        return refused(bundle, place, verify=NOT_WHOLE)

    return make


def _replace(file: Path, make: Callable[[Path], object]) -> None:
    file.unlink()
    make(file)


FILES: dict[str, Callable[[Path], object]] = {
    "a byte more": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "a byte less": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "another byte": lambda file: file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:]),
    "removed": lambda file: file.unlink(),
    "a folder": lambda file: _replace(file, Path.mkdir),
    "a FIFO": lambda file: _replace(file, lambda path: os.mkfifo(path)),
    "an endless device": lambda file: _replace(file, lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": lambda file: _replace(file, lambda path: path.symlink_to(path)),
    "a link to nothing": lambda file: _replace(file, lambda path: path.symlink_to("nowhere")),
    "a link out": lambda file: _replace(file, lambda path: path.symlink_to("/etc/passwd")),
    "a link to its folder": lambda file: _replace(file, lambda path: path.symlink_to(path.parent)),
}


def _file(change: Callable[[Path], object]) -> Callable[[Place], list[Command]]:
    """Each kind of file of a bundle, under the hashes of what it was."""

    def make(place: Place) -> list[Command]:
        commands = []
        for number, name in enumerate(("onnx/encoder_model.onnx", "golden.npz", "tokenizer.json", "samples.txt")):
            bundle = place.bundle(name=f"bundle {number}")
            change(bundle / name)
            commands += refused(bundle, place, verify=TAMPERED)
        return commands

    return make


def _store(place: Place) -> list[Command]:
    """What a download cache makes of a bundle: links to files that are named by their hashes."""
    bundle = place.bundle()
    store = place.inputs / "blobs"
    store.mkdir()
    for file in [path for path in bundle.rglob("*") if path.is_file()]:
        blob = store / sha256(file)
        shutil.move(file, blob)
        file.symlink_to(os.path.relpath(blob, file.parent))
    return _works(bundle, place)


def _linked_folder(place: Place) -> list[Command]:
    link = place.inputs / "link"
    link.symlink_to(place.bundle())
    return _works(link, place)


def _works(bundle: Path, place: Place) -> list[Command]:
    return [
        *readers(bundle, place, inspect=[GOOD], run=[GOOD], verify=[GOOD]),
        *provers(bundle, place, [GOOD]),
    ]


def _right_link(place: Place) -> list[Command]:
    bundle = place.bundle()
    file = bundle / "samples.txt"
    other = place.outside / "samples.txt"
    shutil.move(file, other)
    file.symlink_to(other)
    fix_hashes(bundle)
    return readers(bundle, place, inspect=[GOOD, BAD], run=[GOOD, BAD])


NAMES: dict[str, str] = {
    "of no characters": "",
    "that is the root": "/",
    "that is a device": "/dev/null",
    "that is an endless device": "/dev/zero",
    "of nowhere": "nowhere",
    "of escapes": "\x1b[31mred\u202e<img src=x>",
    "of 5,000 characters": "a" * 5_000,
    "of bytes that are no UTF-8": "\udcff",
    "of lines": "a\nb\nc",
    "of an unknown preset": "preset:\x1b[31m",
    "that is a file": "/etc/passwd",
}


def _name(path: str) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        benchmark = command("bench", path, "--runtime", "ort", "--rounds", 3, codes=[BAD])
        cheap = readers(path, place, inspect=[BAD], run=[BAD], verify=[BAD])
        exports = [command("export", path, place.out / "made", codes=[BAD]), command("matrix", path, codes=[BAD])]
        return [*cheap, *provers(path, place, [BAD]), benchmark, *exports]

    return make
