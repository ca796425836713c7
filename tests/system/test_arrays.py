"""Arrays of strangers: none is read that is not expected, compressed, or longer than its file."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from txport.system.arrays import Expected, read_arrays
from txport.system.documents import DocumentError

NOT_EXPECTED = "not those that are expected"
ONE = {"a": Expected("i", 1)}


def member(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def header(text: str) -> bytes:
    text = text.ljust(-(10 + len(text) + 1) % 64 + len(text)) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def write(path: Path, members: list[tuple[str, bytes]], how: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", how) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def test_what_numpy_writes_is_read_back(tmp_path: Path) -> None:
    arrays = {"a": np.arange(5), "b": np.eye(3, dtype=np.float32), "c": np.array([True, False]), "d": np.array(7)}
    np.savez(tmp_path / "file.npz", **arrays)  # type: ignore[arg-type]
    wanted = {name: Expected(array.dtype.kind, array.ndim) for name, array in arrays.items()}
    found = read_arrays(tmp_path / "file.npz", wanted)
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], arrays[name]) and found[name].dtype == arrays[name].dtype for name in found)


SHAPE = "{'descr': '<i8', 'fortran_order': False, 'shape': %s, }"
FAULTS = {
    "a bomb": ([("a.npy", member(np.zeros(1 << 20, np.int64)))], zipfile.ZIP_DEFLATED, "is compressed"),
    "one too many": (
        [("a.npy", member([1])), ("b.npy", member([1]))],
        zipfile.ZIP_STORED,
        "not those that are expected",
    ),
    "one twice": ([("a.npy", member([1])), ("a.npy", member([2]))], 0, NOT_EXPECTED),
    "none": ([], 0, NOT_EXPECTED),
    "7 TiB": ([("a.npy", header(SHAPE % f"({2**40},)"))], 0, "which are no array of shape"),
    "less than nothing": ([("a.npy", header(SHAPE % "(-1,)"))], 0, "which are no array of shape"),
    "beyond 64 bits": ([("a.npy", header(SHAPE % f"({2**70},)"))], 0, "which are no array of shape"),
    "objects": (
        [("a.npy", header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"))],
        0,
        "expected an array",
    ),
    "a pickle": ([("a.npy", b"cos\nsystem\n(S'true'\ntR.")], 0, "is damaged"),
    "no header": ([("a.npy", b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16)], 0, "is damaged"),
    "a long header": ([("a.npy", header("{" + "'x': 1, " * 4000))], 0, "is damaged"),
    "code": ([("a.npy", header("__import__('os').abort()"))], 0, "is damaged"),
    "other dims": ([("a.npy", member([[1]]))], 0, "is int64 with 2 dims"),
    "other kind": ([("a.npy", member([0.5]))], 0, "is float64 with 1 dims"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("fault", FAULTS)
def test_damage_is_named(fault: str, tmp_path: Path) -> None:
    members, how, message = FAULTS[fault]
    with pytest.raises(DocumentError, match=message):
        read_arrays(write(tmp_path / "file.npz", members, how), ONE)


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x05\x06" + bytes(18) + b"x" * 9, b"\x93NUMPY", bytes(1000)])
def test_what_is_no_archive_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file.npz").write_bytes(content)
    with pytest.raises(DocumentError, match="is damaged"):
        read_arrays(tmp_path / "file.npz", ONE)


def test_nan_is_damage_where_it_means_nothing(tmp_path: Path) -> None:
    np.savez(tmp_path / "file.npz", a=np.array([np.nan]))
    with pytest.raises(DocumentError, match="holds NaN or infinity"):
        read_arrays(tmp_path / "file.npz", {"a": Expected("f", 1)})
    assert np.isnan(read_arrays(tmp_path / "file.npz", {"a": Expected("f", 1, finite=False)})["a"]).all()
