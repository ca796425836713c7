"""The length of an MP3 file by its frames: decoders trust its first header, which may estimate or describe one part."""

from __future__ import annotations

from typing import BinaryIO

FIRST = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)  # kbit/s of layer III of MPEG-1
OTHERS = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)  # of MPEG-2 and 2.5
RATES = (44_100, 48_000, 32_000)  # samples a second of MPEG-1
HALVINGS = {3: 0, 2: 1, 0: 2}  # of the rates, by the bits of the version


def seconds(file: BinaryIO) -> float:
    """Return the seconds of all frames of layer III up to the first bytes that are neither a frame nor an ID3 tag."""
    found, at = 0.0, 0
    while len(head := _bytes(file, at, 10)) >= 4:
        if head.startswith(b"ID3") and len(head) == 10:
            at += 10 + sum(byte << 7 * (9 - place) for place, byte in enumerate(head) if place > 5)
        elif head.startswith(b"TAG"):
            at += 128
        elif (frame := _frame(head)) is not None:
            size, duration = frame
            at, found = at + size, found + duration
        else:
            break
    return found


def _bytes(file: BinaryIO, at: int, count: int) -> bytes:
    file.seek(at)
    return file.read(count)


def _frame(head: bytes) -> tuple[int, float] | None:
    """Return the bytes and the seconds of a frame with this header; None if it is no header of layer III."""
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    speed, rate, padding = head[2] >> 4, head[2] >> 2 & 3, head[2] >> 1 & 1
    if head[0] != 0xFF or head[1] < 0xE0 or version == 1 or layer != 1 or speed in (0, 15) or rate == 3:
        return None
    is_first = version == 3
    hertz = RATES[rate] >> HALVINGS[version]
    samples = 1152 if is_first else 576
    return samples // 8 * 1000 * (FIRST if is_first else OTHERS)[speed] // hertz + padding, samples / hertz
