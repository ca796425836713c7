"""Places to write that are in the way, lead elsewhere, or are no files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.hostile.case import BAD, GOOD, Case, Command, Place, command

Plant = Callable[[Place], object]


def cases() -> Iterator[Case]:
    """Every place, for OUT and for each option that names a file."""
    for name, (plant, path, codes) in PLACES.items():
        yield Case(f"outputs/{name}", _out(plant, path, codes))
    for name, (plant, path, codes) in FILES.items():
        yield Case(f"outputs/report {name}", _report(plant, path, codes))


def _out(plant: Plant, path: str, codes: tuple[int, ...]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        plant(place)
        checkpoint = place.sound.checkpoint
        out = path.format(out=place.out, outside=place.outside, inputs=place.inputs)
        narrow = ("--target", "portable", "--precision", "fp32", "--runtime", "ort")
        return [
            command("export", checkpoint, out, codes=codes),
            command("export", checkpoint, out, "--force", codes=codes),
            command("matrix", checkpoint, *narrow, "--keep", out, codes=codes),
        ]

    return make


def _file(place: Place) -> None:
    (place.out / "there").write_text("precious", encoding="utf-8")


def _link(target: str) -> Plant:
    def plant(place: Place) -> None:
        (place.out / "link").symlink_to(target.format(outside=place.outside))

    return plant


def _nothing(place: Place) -> None:
    pass


PLACES: dict[str, tuple[Plant, str, tuple[int, ...]]] = {
    "a file": (_file, "{out}/there", (BAD,)),
    "below a file": (_file, "{out}/there/made", (BAD,)),
    "a folder of others": (_nothing, "{outside}", (BAD,)),
    "a link to a file of others": (_link("{outside}/precious.bin"), "{out}/link", (BAD,)),
    "a link to a folder of others": (_link("{outside}"), "{out}/link", (BAD,)),
    "a link to itself": (_link("link"), "{out}/link", (BAD,)),
    "a device": (_nothing, "/dev/null", (BAD,)),
    "a full device": (_nothing, "/dev/full", (BAD,)),
    "below a device": (_nothing, "/dev/null/made", (BAD,)),
    "the kernel's": (_nothing, "/proc/made", (BAD,)),
    "of 5,000 characters": (_nothing, "{out}/" + "a" * 5_000, (BAD,)),
    "of 250 characters": (_nothing, "{out}/" + "a" * 250, (GOOD, BAD)),
    "the root": (_nothing, "/", (BAD,)),
    "of nothing": (_nothing, "", (BAD,)),
}
FILES: dict[str, tuple[Plant, str, tuple[int, ...]]] = {
    "in a missing folder": (_nothing, "{out}/nowhere/report", (BAD,)),
    "that is a folder": (_nothing, "{outside}", (BAD,)),
    "below a file": (_file, "{out}/there/report", (BAD,)),
    "by a link to itself": (_link("link"), "{out}/link", (BAD,)),
    "on a full device": (_nothing, "/dev/full", (BAD,)),
    "on a device that takes all": (_nothing, "/dev/null", (GOOD,)),
    "of 5,000 characters": (_nothing, "{out}/" + "a" * 5_000, (BAD,)),
    "of the kernel": (_nothing, "/proc/made", (BAD,)),
    "of nothing": (_nothing, "", (BAD,)),
    "of escapes": (_nothing, "{out}/nowhere/\x1b[31mred\u202e", (BAD,)),
}


def _report(plant: Plant, path: str, codes: tuple[int, ...]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        plant(place)
        bundle = place.sound.bundle("portable")
        checkpoint = place.sound.checkpoint
        file = path.format(out=place.out, outside=place.outside)
        parity = ("parity", bundle, "--checkpoint", checkpoint, "--runtime", "ort")
        options = ("--report", "--junit", "--markdown")
        narrow = ("--target", "portable", "--precision", "fp32", "--runtime", "ort")
        bench = ("bench", bundle, "--runtime", "ort", "--rounds", 3)
        return [
            command("run", bundle, "bad", "--threads", 1, "--output", file, codes=codes),
            *(command(*parity, option, file, codes=codes, stand_in=True) for option in options),
            command(*bench, "--report", file, codes=codes, stand_in=True),
            *(command("matrix", checkpoint, *narrow, option, file, codes=codes) for option in ("--html",)),
        ]

    return make
