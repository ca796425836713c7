"""Huge pages for the weights of a model, on Linux with glibc.

A step reads all weights. With pages of 4 kB, a processor in a virtual machine spends a quarter of a step of one row on
looking up where they are (docs/cpu-target.md). Linux has pages of 2 MB for memory that asks for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from txport.system.memory import address_limit

ENABLED = "/sys/kernel/mm/transparent_hugepage/enabled"  # has brackets around what is chosen
SIZE = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
MAPS = "/proc/self/maps"
MEMORY = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0(?: |$)")  # a line of it: memory of no file
LEAST = 16 << 20  # bytes of weights; fewer stay in the processor's caches, with their places
LARGEST = 32 << 20  # bytes of a huge page; some processors of Arm have 512 MB
FULL = 0.75

# Options of mallopt(3), and the values that malloc finds by itself in a process that frees a block of 32 MB
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
USUAL = {M_TRIM_THRESHOLD: 64 << 20, M_MMAP_THRESHOLD: 32 << 20, M_MMAP_MAX: 1 << 16}
NEVER = -1
# The same in a process's environment; with one of them, malloc stays as it is
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE = 14, 15, 25  # of madvise(2), the last since Linux 6.1

_working = threading.Lock()  # malloc is one for all threads


@contextlib.contextmanager
def huge_pages(size: int) -> Iterator[None]:
    """Let about `size` bytes that the block allocates by malloc be in huge pages, where the system has them.

    Only the main thread's heap can be asked for them before it has memory. What else was allocated is moved to huge
    pages at the end of the block, which takes longer. Afterwards malloc has the thresholds `USUAL` for the rest of the
    process. Nothing changes if the environment sets these, if the address space is limited, or while another thread is
    in such a block.
    """
    page = _huge_page() if size >= LEAST else None
    if page is None or not _working.acquire(blocking=False):
        yield
        return
    try:
        with _side_by_side(size, page):
            yield
    finally:
        _working.release()


@contextlib.contextmanager
def _side_by_side(size: int, page: int) -> Iterator[None]:
    library = _library()
    is_main = threading.current_thread() is threading.main_thread()
    library.malloc_trim(0)  # of models that are gone
    before = set(_places(page))
    library.mallopt(M_MMAP_MAX, 0)  # in place of a map for each matrix
    library.mallopt(M_TRIM_THRESHOLD, NEVER)
    try:
        if is_main:
            library.free(library.malloc(size))  # what malloc takes next is here
            _advise_heap(library, MADV_HUGEPAGE)
        yield
    finally:
        for option, value in USUAL.items():
            library.mallopt(option, value)
        library.malloc_trim(0)  # of what was read from a file, and is packed now
        for place in sorted(set(_places(page)) - before):
            if _is_full(library, place, page):
                library.madvise(place, page, MADV_COLLAPSE)  # an error leaves the pages as they are
        if is_main:
            _advise_heap(library, MADV_NOHUGEPAGE)  # or the system would fill again what was given back


def _huge_page() -> int | None:
    """Return the size of a huge page in bytes; None if this process can't have any."""
    is_set = "malloc" in os.environ.get("GLIBC_TUNABLES", "") or not os.environ.keys().isdisjoint(SETTINGS)
    if sys.platform != "linux" or is_set or address_limit() is not None:
        return None
    try:
        is_off = not os.confstr("CS_GNU_LIBC_VERSION") or "[never]" in Path(ENABLED).read_text(encoding="ascii")
        size = int(Path(SIZE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if is_off or size > LARGEST else size


def _library() -> Any:
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    library.free.argtypes = (ctypes.c_void_p,)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    return library


def _advise_heap(library: Any, advice: int) -> None:
    """Ask for huge pages in the main thread's heap, or no longer, where the system gives them to those that ask."""
    if "[madvise]" in Path(ENABLED).read_text(encoding="ascii"):
        for begin, end in _spans(b"[heap]"):
            library.madvise(begin, end - begin, advice)


def _places(page: int) -> Iterator[int]:
    """Yield the addresses of this process's private memory where a huge page would fit."""
    for begin, end in _spans():
        yield from range(-(-begin // page) * page, end // page * page, page)


def _spans(name: bytes = b"") -> Iterator[tuple[int, int]]:
    """Yield where private memory begins and ends, of all or of a name; nothing if the system does not tell it."""
    try:
        lines = Path(MAPS).read_bytes().splitlines()  # names of files are any bytes
    except OSError:
        return
    for line in lines:
        if (found := MEMORY.match(line)) is not None and line.endswith(name):
            yield int(found[1], 16), int(found[2], 16)


def _is_full(library: Any, place: int, page: int) -> bool:
    """Return whether most of the memory where a huge page would fit is in use."""
    states = ctypes.create_string_buffer(page // mmap.PAGESIZE)
    return library.mincore(place, page, states) == 0 and sum(states.raw) > len(states) * FULL
