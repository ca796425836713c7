"""Audio that no recorder writes, given to a model that reads audio."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile.bases import sounds, wav
from tests.hostile.case import BAD, GOOD, Case, Command, Place, command
from tests.hostile.corpus.values import NAME

EITHER = (GOOD, BAD)
DAY = 24 * 3600
FLAC_TOTAL = 18  # bytes before the rate in the first block of a FLAC file


def cases() -> Iterator[Case]:
    """Every file, and every option beside a sound one."""
    yield from (Case(f"audio/{name}", _file(*what)) for name, what in FILES.items())
    yield from (Case(f"audio/{name}", _node(change)) for name, change in NODES.items())
    yield from (Case(f"audio/option {' '.join(options)[:60]!a}", _option(options)) for options in OPTIONS)
    yield Case("audio/to a model that reads text", _to_text)
    yield Case("audio/lines of names", _lines)


def heard(place: Place, file: object, *more: object, codes: tuple[int, ...] = EITHER) -> Command:
    """What is said in a file."""
    return command("run", place.sound.bundle("speech"), file, "--threads", 1, *more, codes=codes)


def _file(ending: str, make: Callable[[Place], bytes], *codes: int) -> Callable[[Place], list[Command]]:
    def attack(place: Place) -> list[Command]:
        file = place.inputs / f"talk.{ending}"
        file.write_bytes(make(place))
        ways: tuple[tuple[str, ...], ...] = ((), ("--json", "--fallback"), ("--timestamps",))
        return [heard(place, file, *way, codes=codes or (BAD,)) for way in ways[: 3 if GOOD in codes else 1]]

    return attack


def _of(name: str, change: Callable[[bytes], bytes]) -> Callable[[Place], bytes]:
    return lambda place: change((place.sound.base("audio") / name).read_bytes())


def _wav(data: bytes | None = None, **header: int) -> Callable[[Place], bytes]:
    return lambda place: wav(sounds(4_000) if data is None else data, **header)


def _rate(rate: int) -> Callable[[bytes], bytes]:
    """A FLAC file of another rate, which has 20 bits there."""

    def change(whole: bytes) -> bytes:
        (old,) = struct.unpack(">I", whole[FLAC_TOTAL : FLAC_TOTAL + 4])
        return whole[:FLAC_TOTAL] + struct.pack(">I", rate << 12 | old & 0xFFF) + whole[FLAC_TOTAL + 4 :]

    return change


def _total(count: int) -> Callable[[bytes], bytes]:
    """A FLAC file that promises so many samples, of 36 bits."""

    def change(whole: bytes) -> bytes:
        at = FLAC_TOTAL + 3
        (old,) = struct.unpack(">Q", b"\0\0\0" + whole[at : at + 5])
        return whole[:at] + struct.pack(">Q", old >> 36 << 36 | count)[3:] + whole[at + 5 :]

    return change


def _silence(place: Place) -> bytes:
    """Half a minute, packed to little."""
    import soundfile

    soundfile.write(place.cwd / "a.flac", np.zeros(30 * 8_000, np.int16), 8_000)
    whole = (place.cwd / "a.flac").read_bytes()
    (place.cwd / "a.flac").unlink()
    return whole


def _floats(*values: float, form: str = "<f4") -> Callable[[Place], bytes]:
    data = np.array(values * 50, form).tobytes()
    return _wav(data, form=3, bits=32 if form == "<f4" else 64)


LIST = b"LIST" + struct.pack("<I", 2**32 - 1) + b"INFO"
FILES: dict[str, tuple[Any, ...]] = {
    "nothing": ("wav", lambda place: b""),
    "cut in the data": ("wav", _of("a.wav", lambda whole: whole[:-999]), *EITHER),
    "4 GB in the header": ("wav", _wav(size=2**32 - 1), *EITHER),
    "nothing in the header": ("wav", _wav(size=0), *EITHER),
    "no channels": ("wav", _wav(channels=0)),
    "65,535 channels": ("wav", _wav(channels=65_535)),
    "0 samples a second": ("wav", _wav(rate=0)),
    "1 sample a second": ("wav", _wav(rate=1)),
    "1 sample a second, a day": ("wav", _wav(bytes(2 * DAY), rate=1)),
    "100 samples a second, a day": ("wav", _wav(bytes(200 * DAY), rate=100)),
    "44,101 samples a second": ("wav", _wav(rate=44_101), GOOD),
    "4 billion samples a second": ("wav", _wav(rate=2**32 - 1)),
    "NaN": ("wav", _floats(0.1, float("nan"))),
    "infinity against infinity": (
        "wav",
        _wav(np.array([[np.inf, -np.inf]] * 50, "<f4").tobytes(), form=3, bits=32, channels=2),
    ),
    "the largest floats": ("wav", _floats(3e38, -3e38)),
    "the smallest floats": ("wav", _floats(1e-45), GOOD),
    "silence": ("wav", _wav(bytes(20_000)), GOOD),
    "one sample": ("wav", _wav(b"\x01\x02"), GOOD),
    "an unknown form": ("wav", _wav(form=0xABCD)),
    "broken ADPCM": ("wav", _wav(form=2, bits=4), *EITHER),
    "an endless chunk": ("wav", lambda place: wav(sounds(1_000), more=LIST), *EITHER),
    "a FLAC of 2**36 samples": ("flac", _of("a.flac", _total(2**36 - 1))),
    "a FLAC of 2**31 samples": ("flac", _of("a.flac", _total(2**31 - 1)), *EITHER),
    "a FLAC of no samples": ("flac", _of("a.flac", _total(0)), *EITHER),
    "a FLAC of 1 sample a second": ("flac", _of("a.flac", _rate(1)), *EITHER),
    "a FLAC of 655,350 samples a second": ("flac", _of("a.flac", _rate(655_350)), *EITHER),
    "half a minute of silence": ("flac", _silence, *EITHER),
}
NODES: dict[str, Callable[[Path], object]] = {
    "of a folder": Path.mkdir,
    "of a FIFO": os.mkfifo,
    "of an endless device": lambda file: file.symlink_to("/dev/zero"),
    "of a link to itself": lambda file: file.symlink_to(file),
    "of a link to nothing": lambda file: file.symlink_to("nowhere"),
    "of the kernel": lambda file: file.symlink_to("/proc/self/mem"),
    "of nowhere": lambda file: None,
}


def _node(change: Callable[[Path], object]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        file = place.inputs / "talk.wav"
        change(file)
        return [heard(place, file, codes=(BAD,))]

    return make


OPTIONS: tuple[tuple[str, ...], ...] = (
    ("--language", NAME),
    ("--language", "\udcff"),
    ("--language", ""),
    ("--language", "x" * 100_000),
    ("--language", "german", "--task", "translate", "--timestamps", "--json"),
    ("--task", "translate", "--fallback", "--do-sample", "--temperature", "1e-320"),
    ("--timestamps", "--beams", "3", "--max-new-tokens", "1"),
    ("--beams", "1000000"),
    ("--max-length", "1"),
    ("--batch-size", "1000000000000"),
    ("--nbest", "2", "--beams", "2"),
    ("--stream",),
    ("--chat",),
    ("--source-language", "de"),
    ("--ids",),
    ("--suppress-tokens", "5 6 7 8 9 10 11 12"),
    ("--repetition-penalty", "1e308"),
    ("--begin-suppress-tokens", NAME),
)


def _option(options: tuple[str, ...]) -> Callable[[Place], list[Command]]:
    return lambda place: [heard(place, place.sound.base("audio") / "a.wav", *options)]


def _to_text(place: Place) -> list[Command]:
    file = place.sound.base("audio") / "a.wav"
    kinds = ("portable", "chat", "languages", "sentences")
    return [command("run", place.sound.bundle(kind), file, "--threads", 1, codes=(BAD,)) for kind in kinds]


def _lines(place: Place) -> list[Command]:
    """Names of files, of which some are none."""
    run = ("run", place.sound.bundle("speech"), "--threads", 1)
    sound = str(place.sound.base("audio") / "a.wav")
    shutil.copyfile(sound, place.inputs / "\x1b[31mred.wav")
    named = str(place.inputs / "\x1b[31mred.wav")
    lines = [b"", b"\0", b"\xff", b"a" * 5_000, b"/", b"-", b"../" * 1_000, b"http://localhost:1/a.wav", b"|true"]
    return [
        command(*run, "--json", codes=(GOOD,), stdin=f"{sound}\n{named}\n".encode()),
        command(*run, "--output", place.out / "said.txt", codes=(BAD,), stdin=f"{sound}\nnowhere.wav\n".encode()),
        *(command(*run, codes=EITHER if not line else (BAD,), stdin=line + b"\n") for line in lines),
    ]
