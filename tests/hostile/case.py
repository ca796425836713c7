"""A case: hostile files in a place of their own, and the commands that meet them, with their right exit codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hostile.sound import Sound
from txport.models.names import MANIFEST
from txport.system.files import sha256

GOOD, FAILED, BAD, ABSENT = 0, 1, 2, 3
ANY = {GOOD, BAD, ABSENT}  # of what may be harmless; only `verify` and `parity` say 1


@dataclass(frozen=True)
class Command:
    """Arguments of `txport`, and the exit codes of which one is right.

    With `stand_in`, what PyTorch says and what `bench` measures is not computed again for each command.
    """

    arguments: tuple[str, ...]
    codes: frozenset[int]
    stdin: bytes = b""
    stand_in: bool = False

    @property
    def name(self) -> str:
        """`run` of `txport run ...`."""
        return self.arguments[0] if self.arguments else ""


class Place:
    """Folders of one case: what it reads, what it may write, and what must stay as it is."""

    def __init__(self, root: Path, sound: Sound) -> None:
        self.root = root
        self.sound = sound
        self.inputs = root / "in"
        self.out = root / "out"
        self.cwd = root / "cwd"
        self.home = root / "home"
        self.temporary = root / "tmp"
        self.outside = root / "outside"
        for folder in (self.inputs, self.out, self.cwd, self.home, self.temporary, self.outside):
            folder.mkdir(parents=True)
        (self.outside / "precious.bin").write_bytes(b"outside the bundle" * 100)

    def bundle(self, kind: str = "portable", name: str = "bundle") -> Path:
        """A copy of a sound bundle."""
        return Path(shutil.copytree(self.sound.bundle(kind), self.inputs / name))

    def checkpoint(self, name: str = "model") -> Path:
        """A copy of the sound checkpoint."""
        return Path(shutil.copytree(self.sound.checkpoint, self.inputs / name))

    def base(self, base: str, name: str = "model") -> Path:
        """A copy of a folder of `bases`."""
        return Path(shutil.copytree(self.sound.base(base), self.inputs / name))


@dataclass(frozen=True)
class Case:
    """One attack: `make` lays its files in a place and says which commands meet them."""

    name: str
    make: Callable[[Place], list[Command]]

    @property
    def kind(self) -> str:
        """What is attacked."""
        return self.name.partition("/")[0]


def command(*arguments: object, codes: Iterable[int], stdin: bytes = b"", stand_in: bool = False) -> Command:
    """One command line."""
    return Command(tuple(map(str, arguments)), frozenset(codes), stdin, stand_in)


def readers(
    bundle: Path | str,
    place: Place,
    *,
    inspect: Iterable[int] = ANY,
    run: Iterable[int] = ANY,
    verify: Iterable[int] = (GOOD, FAILED, BAD),
) -> list[Command]:
    """The cheap commands that read a bundle."""
    return [
        command("inspect", bundle, "--html", place.out / "page.html", codes=inspect),
        command("inspect", bundle, "--json", codes=inspect),
        command("run", bundle, "bad", "chief", "--threads", 1, codes=run),
        command("run", bundle, "bad", "--json", "--beams", 3, "--threads", 1, codes=run),
        command("score", bundle, "bad", "AA B", "--threads", 1, codes=run),
        command("verify", bundle, "--threads", 1, codes=verify),
        command("verify", bundle, "--json", "--threads", 1, codes=verify),
    ]


def provers(bundle: Path | str, place: Place, codes: Iterable[int]) -> list[Command]:
    """The commands that hold a bundle against the checkpoint, which is sound."""
    out = place.out
    checkpoint = place.sound.checkpoint
    files = ("--report", out / "r.json", "--junit", out / "j.xml", "--markdown", out / "m.md")
    parity = ("parity", bundle, "--checkpoint", checkpoint, "--runtime", "ort")
    return [command(*parity, *files, codes=codes), command(*parity, "--bisect", codes=codes)]


def refused(bundle: Path, place: Place, verify: Iterable[int] = (BAD,)) -> list[Command]:
    """All commands that read a bundle, none of which may take it."""
    benchmark = ("bench", bundle, "--runtime", "ort", "--rounds", 3)
    cheap = readers(bundle, place, inspect=[BAD], run=[BAD], verify=verify)
    return [*cheap, *provers(bundle, place, [BAD]), command(*benchmark, codes=[BAD])]


def read_values(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_values(path: Path, values: Any) -> None:
    """A JSON file, with whatever numbers Python writes."""
    path.write_text(json.dumps(values), encoding="utf-8", errors="surrogatepass")


def edit_values(path: Path, edit: Callable[[Any], None]) -> None:
    """Change the values of a JSON file."""
    values = read_values(path)
    edit(values)
    write_values(path, values)


def fix_hashes(bundle: Path) -> None:
    """Seal a bundle again as its attacker would, without a look at what it holds."""

    def edit(values: Any) -> None:
        for name in values["files"]:
            file = bundle / name
            values["files"][name] = {"sha256": sha256(file), "bytes": file.stat().st_size}

    edit_values(bundle / MANIFEST, edit)
