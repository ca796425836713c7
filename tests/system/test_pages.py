"""The weights of a session are in huge pages, where Linux has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import unproven
from txport.system import pages

SIZE = 48 << 20
START = """
import contextlib, ctypes, resource, threading
from pathlib import Path
from txport.system import pages

def of_process(name):
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

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


@pytest.fixture(scope="module", autouse=True)
def _has_huge_pages() -> None:
    if sys.platform != "linux" or "[never]" in Path(pages.ENABLED).read_text(encoding="ascii"):
        pytest.skip("this system has no huge pages")


@pytest.mark.parametrize("call", ["take()", "in_thread(take)"])
def test_what_a_block_allocates_is_in_huge_pages(call: str) -> None:
    [huge] = run(f"{call}\nprint(of_process('AnonHugePages'))")
    assert SIZE * 3 // 4 <= huge <= SIZE * 5 // 4  # a thread's blocks are in several heaps, which have ends


def test_the_main_thread_moves_nothing() -> None:
    program = "pages._is_full = lambda *_: False\n{call}\nprint(of_process('AnonHugePages'))"
    assert run(program.format(call="take()"))[0] >= SIZE * 3 // 4
    assert run(program.format(call="in_thread(take)")) == [0]


@pytest.mark.parametrize(
    "settings",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
)
def test_settings_of_malloc_stay(settings: dict[str, str]) -> None:
    assert run("take()\nprint(of_process('AnonHugePages'))", **settings) == [0]


def test_a_process_with_limited_memory_reserves_none() -> None:
    limited = "resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))\n"
    assert run(f"{limited}take()\nprint(of_process('AnonHugePages'))") == [0]


def test_large_blocks_go_back_to_the_system_afterwards() -> None:
    taken, given_back = run(GIVEN_BACK)
    assert taken >= 80 << 20
    assert given_back >= 79 << 20


def test_an_error_of_the_block_restores_malloc() -> None:
    failing = "with contextlib.suppress(KeyError), pages.huge_pages(48 << 20): raise KeyError\n"
    taken, given_back = run(failing + GIVEN_BACK.replace("take()\n", ""))
    assert given_back >= 79 << 20
    assert taken >= 80 << 20


def test_few_bytes_change_nothing() -> None:
    assert run("pages._huge_page = lambda: 1 / 0\nwith pages.huge_pages(pages.LEAST - 1): print(1)") == [1]


@pytest.mark.parametrize("target", ["cpu", "portable"])
def test_a_session_has_them(target: str, tmp_path: Path) -> None:
    bundle = unproven("g2p-en", tmp_path / "bundle", target=target)
    [huge] = run(BUNDLE.format(bundle=str(bundle.path)))
    assert huge >= 4 << 20
