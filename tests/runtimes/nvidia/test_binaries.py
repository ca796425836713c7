"""What a library says of itself, read without loading it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import onnxruntime
import pytest
import setuptools
from hypothesis import given
from hypothesis import strategies as st

from tests.runtimes.nvidia.machines import elf
from txport.runtimes.ort.nvidia.binaries import Kernels, kernels, needed

CAPI = Path(onnxruntime.__file__).parent / "capi"
WINDOWS = sorted(Path(setuptools.__file__).parent.glob("*-64.exe"))


def test_needs_and_kernels_are_read(tmp_path: Path) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(elf(["libcudart.so.13", "libc.so.6"], [75, 80, 120], [90]))
    assert needed(file) == ("libcudart.so.13", "libc.so.6")
    assert kernels(file) == Kernels(frozenset({(7, 5), (8, 0), (12, 0)}), frozenset({(9, 0)}))
    assert str(kernels(file)) == "7.5, 8.0, 12.0, 9.0 and newer"


@pytest.mark.parametrize("file", sorted(CAPI.glob("*.so*")), ids=lambda file: file.name)
def test_needs_are_those_that_readelf_reads(file: Path) -> None:
    if (readelf := shutil.which("readelf")) is None:
        pytest.skip("no readelf here")
    lines = subprocess.run([readelf, "-d", file], capture_output=True, text=True, check=True).stdout.splitlines()
    assert list(needed(file)) == [line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line]


@pytest.mark.parametrize("file", WINDOWS, ids=lambda file: file.name)
def test_programs_of_windows_are_read(file: Path) -> None:
    assert "KERNEL32.dll" in needed(file)
    assert kernels(file) == Kernels()


@given(st.binary(max_size=200), st.integers(0, 700), st.integers(0, 255))
def test_no_file_is_so_damaged_that_reading_fails(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int, to: int
) -> None:
    whole = bytearray(elf(["libcudart.so.13"], [80, 90]))
    whole[at % len(whole)] = to
    file = tmp_path_factory.mktemp("damaged") / "lib.so"
    for content in (junk, bytes(whole), bytes(whole[:at]), b"\x7fELF" + junk, b"MZ" + junk):
        file.write_bytes(content)
        assert isinstance(needed(file), tuple)
        assert isinstance(kernels(file), Kernels)


@given(
    st.tuples(st.integers(5, 13), st.integers(0, 9)), st.frozensets(st.tuples(st.integers(5, 13), st.integers(0, 9)))
)
def test_machine_code_is_for_its_generation_and_portable_code_for_all_that_are_newer(
    capability: tuple[int, int], built: frozenset[tuple[int, int]]
) -> None:
    assert Kernels(built).fit(capability) == any(
        major == capability[0] and minor <= capability[1] for major, minor in built
    )
    assert Kernels(frozenset(), built).fit(capability) == any(each <= capability for each in built)
