"""The weights of a session are in huge pages, where Linux has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import unproven

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what tells a process's memory is Linux's")

SIZE = 48 << 20
START = """
import contextlib, ctypes, resource, threading
from pathlib import Path
from txport.system import pages

def of_process(name):
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

def heaps():
    lines = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    for span, *_, name in lines:
        if name == "[heap]":
            yield range(*(int(each, 16) for each in span.split("-")))

def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""
BLOCKS = """
held = []
def take():
    with pages.huge_pages({size}):
        held.extend(ctypes.create_string_buffer(1 << 20) for _ in range({size} >> 20))
"""
GIVEN_BACK = """
take()
held.clear()
before = of_process("Rss")
block = ctypes.create_string_buffer(b"1" * (80 << 20), 80 << 20)
between = of_process("Rss")
del block
print(between - before, between - of_process("Rss"))
"""
NEXT = """
before = of_process("Rss")
take()
pin = [ctypes.create_string_buffer(5000) for _ in range(100)]
held.clear()
between = of_process("Rss")
with pages.huge_pages(pages.LEAST):
    print(before, between, of_process("Rss"))
"""
COLLAPSE = """
import mmap
library, page = ctypes.CDLL(None), pages._huge_page()
block = mmap.mmap(-1, 2 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block.write(b"1" * 2 * page)
start = -(-ctypes.addressof(ctypes.c_char.from_buffer(block)) // page) * page
print(library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(page), pages.MADV_COLLAPSE))
"""
MAPPED = """
import mmap, os
files = [os.open(path, os.O_RDONLY) for path in Path({folder!r}).iterdir()]
maps = [mmap.mmap(file, 0, access=mmap.ACCESS_COPY) for file in files]
assert list(pages._places(mmap.PAGESIZE))
print(len(maps))
"""
BUNDLE = """
pages.LEAST = 0
import txport
model = txport.load({bundle!r})
assert model.generate(["transformer"])
print(of_process("AnonHugePages"))
"""


def run(program: str, **settings: str) -> list[int]:
    """Return the numbers that a process prints."""
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name and "GLIBC" not in name}
    command = [sys.executable, "-c", START + BLOCKS.format(size=SIZE) + program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**environment, **settings})
    return [int(number) for number in done.stdout.split()]


@pytest.fixture(scope="module")
def place() -> None:
    if run("print(pages._huge_page() or 0)") == [0]:
        pytest.skip("a process of this system can't have huge pages")


@pytest.fixture(scope="module")
def moves(place: None) -> None:
    del place
    if run(COLLAPSE) != [0]:
        pytest.skip("this system moves nothing into huge pages")


@pytest.mark.usefixtures("place")
def test_what_the_main_thread_allocates_is_in_huge_pages_at_once() -> None:
    [huge] = run("pages._is_full = lambda *_: False\ntake()\nprint(of_process('AnonHugePages'))")
    assert SIZE * 3 // 4 <= huge <= SIZE * 5 // 4


@pytest.mark.usefixtures("moves")
def test_what_another_thread_has_allocated_is_moved() -> None:
    [huge] = run("in_thread(take)\nprint(of_process('AnonHugePages'))")
    assert SIZE * 3 // 4 <= huge <= SIZE * 5 // 4  # its blocks are in several heaps, which have ends


@pytest.mark.usefixtures("place")
def test_more_than_2_gb_can_be_reserved() -> None:
    [size] = run("with pages.huge_pages(3 << 30): print(max(len(each) for each in heaps()))")
    assert size > 2 << 30


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "setting",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
)
def test_settings_of_malloc_stay(setting: dict[str, str]) -> None:
    assert run("print(pages._huge_page() or 0)", **setting) == [0]


@pytest.mark.usefixtures("place")
def test_a_process_with_limited_memory_reserves_none() -> None:
    assert run("resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))\nprint(pages._huge_page() or 0)") == [0]


def test_large_blocks_go_back_to_the_system_afterwards() -> None:
    taken, given_back = run(GIVEN_BACK)
    assert taken >= 80 << 20
    assert given_back >= 79 << 20


def test_an_error_of_the_block_restores_malloc() -> None:
    failing = "with contextlib.suppress(KeyError), pages.huge_pages(48 << 20): raise KeyError\n"
    taken, given_back = run(failing + GIVEN_BACK.replace("take()\n", ""))
    assert taken >= 80 << 20
    assert given_back >= 79 << 20


@pytest.mark.usefixtures("place")
def test_the_next_block_gives_back_what_was_freed() -> None:
    before, between, after = run(NEXT)
    assert between - before >= SIZE * 3 // 4  # what was allocated after the blocks keeps malloc from giving them back
    assert after - before <= SIZE // 8


@pytest.mark.usefixtures("place")
def test_blocks_of_several_threads_do_not_disturb_each_other() -> None:
    program = "with pages.huge_pages(256 << 20):\n in_thread(take)\n print(max(len(each) for each in heaps()))"
    assert run(program)[0] > 255 << 20  # what the main thread has reserved


def test_names_of_mapped_files_do_not_matter(tmp_path: Path) -> None:
    for name in (b"caf\xe9.bin", "a\u2028b \u0085.bin".encode()):
        (Path(os.fsdecode(bytes(tmp_path) + b"/" + name))).write_bytes(bytes(8192))
    assert run(MAPPED.format(folder=str(tmp_path))) == [2]


def test_few_bytes_change_nothing() -> None:
    assert run("pages._huge_page = lambda: 1 / 0\nwith pages.huge_pages(pages.LEAST - 1): print(1)") == [1]


@pytest.mark.usefixtures("moves")
@pytest.mark.parametrize("target", ["cpu", "portable"])
def test_a_session_has_them(target: str, tmp_path: Path) -> None:
    bundle = unproven("g2p-en", tmp_path / "bundle", target=target)
    [huge] = run(BUNDLE.format(bundle=str(bundle.path)))
    assert huge >= 4 << 20
