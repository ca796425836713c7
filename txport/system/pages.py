"""Huge pages for the weights of a model, on Linux with glibc.

A step reads all weights. With pages of 4 kB, a processor spends a fifth to a third of a step on looking up where they
are, and more in a virtual machine (docs/cpu-target.md). Linux has pages of 2 MB for memory that asks for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from txport.system.memory import address_limit

ENABLED = "/sys/kernel/mm/transparent_hugepage/enabled"  # has brackets around what is chosen
SIZE = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
MAPS = "/proc/self/maps"
LEAST = 16 << 20  # bytes of weights; fewer stay in the processor's caches, with their places

# Options of mallopt(3), and the values that malloc finds by itself in a process that frees a block of 32 MB
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
USUAL = {M_TRIM_THRESHOLD: 64 << 20, M_MMAP_THRESHOLD: 32 << 20, M_MMAP_MAX: 1 << 16}
NO_LIMIT = (1 << 31) - 1
FULL = 0.75
MADV_COLLAPSE = 25  # of madvise(2), since Linux 6.1


@contextlib.contextmanager
def huge_pages(size: int) -> Iterator[None]:
    """Let about `size` bytes that the block allocates by malloc be in huge pages, where the system has them.

    Only the main thread's heap can be asked for them before it has memory. What else was allocated is moved to huge
    pages at the end of the block, which takes longer. Nothing changes if the environment has settings of malloc, or if
    the address space is limited.
    """
    page = _huge_page() if size >= LEAST else None
    if page is None:
        yield
        return
    library = ctypes.CDLL(None)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    before = set(_places(page))
    library.mallopt(M_MMAP_MAX, 0)  # matrices side by side, in place of each in a map of its own
    library.mallopt(M_TRIM_THRESHOLD, NO_LIMIT)
    try:
        if threading.current_thread() is threading.main_thread():
            _reserve(library, size)
        yield
    finally:
        for option, value in USUAL.items():
            library.mallopt(option, value)
        library.malloc_trim(0)  # of what was read from a file, and is packed now
    for place in sorted(set(_places(page)) - before):
        if _is_full(library, place, page):
            library.madvise(place, page, MADV_COLLAPSE)  # an error leaves the pages as they are


def _huge_page() -> int | None:
    """Return the size of a huge page in bytes; None if this process can't have any."""
    is_set = "malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(name.startswith("MALLOC_") for name in os.environ)
    if sys.platform != "linux" or is_set or address_limit() is not None:
        return None
    try:
        is_off = not os.confstr("CS_GNU_LIBC_VERSION") or "[never]" in Path(ENABLED).read_text(encoding="ascii")
        return None if is_off else int(Path(SIZE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _reserve(library: Any, size: int) -> None:
    """Take `size` bytes at the end of the heap, ask for huge pages there, and give them back to malloc.

    They have no memory yet, and malloc takes what follows from there. The main thread alone has this heap.
    """
    library.malloc.argtypes, library.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    library.free.argtypes = (ctypes.c_void_p,)
    if place := library.malloc(size):
        begin = -(-place // mmap.PAGESIZE) * mmap.PAGESIZE
        library.madvise(begin, (place + size - begin) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)
        library.free(place)


def _places(page: int) -> Iterator[int]:
    """Yield the addresses of this process's private memory where a huge page would fit."""
    for line in Path(MAPS).read_text(encoding="utf-8").splitlines():
        span, mode, _, _, inode, *_ = line.split(maxsplit=5)
        if mode == "rw-p" and inode == "0":
            begin, end = (int(each, 16) for each in span.split("-"))
            yield from range(-(-begin // page) * page, end // page * page, page)


def _is_full(library: Any, place: int, page: int) -> bool:
    """Return whether most of the memory where a huge page would fit is in use."""
    states = ctypes.create_string_buffer(page // mmap.PAGESIZE)
    return library.mincore(place, page, states) == 0 and sum(states.raw) > len(states) * FULL
