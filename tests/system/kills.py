"""Writers that are killed before each call that changes the disk, and in the middle of each write.

Then a reader must find the old or the new, whole, and the next writer must leave the new, and nothing beside it.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import txport
from recipes.g2p_en.tokenizer import spelling_tokenizer
from tests.system.stand_in import INTERRUPTED, Step, in_child
from tests.tiny import VOCABULARY, tiny_config, tiny_model
from txport.api import locate, release
from txport.bundles.bundle import Bundle, load_bundle, seal
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.cli import textio
from txport.proof import memory, proven
from txport.system import stages

Tree = dict[str, tuple[int, bytes | None]]
Moment = TypeVar("Moment")


@dataclass(frozen=True)
class Writer:
    """What writes into a folder, what stood there before, and what reads it; `again` is the next command.

    Where what stood there is damaged, all of it may be gone but what `spare` makes.
    """

    name: str
    write: Step
    read: Step
    prepare: Step = lambda folder: None
    again: Step | None = None
    spare: Step | None = None


# ------------------------------------------------------------------------------------------------ writers


def writers(old: Path, new: Path) -> list[Writer]:
    """Every kind of writer of the product; `old` and `new` are bundles, and stand for what an export makes."""

    def export(folder: Path, **how: Any) -> None:
        _export_at_no_cost(new)
        release.export("preset:tiny", folder / "out", **how)

    def replace(folder: Path) -> None:
        export(folder, force=True)

    def replace_in_two_steps(folder: Path) -> None:
        stages.exchange = lambda one, other: False  # type: ignore[attr-defined]
        replace(folder)

    def from_cache(folder: Path) -> None:
        _export_at_no_cost(new)
        locate.find_bundle("preset:tiny")

    def copy_old(folder: Path) -> None:
        shutil.copytree(old, folder / "out")

    def find(folder: Path) -> None:
        locate.find_bundle(str(folder / "out"))

    def make_cache(folder: Path) -> None:
        (folder / entry.parent).mkdir(parents=True)

    def damage_entry(folder: Path) -> None:
        shutil.copytree(old, folder / entry)
        (folder / entry / "txport.json").unlink()

    entry = Path("cache", "txport", "bundles", locate._key("preset:tiny", "portable", "fp32"))
    return [
        Writer("export", export, _ignore, again=replace),
        Writer("export --force", replace, find, copy_old),
        Writer("export --force in two steps", replace_in_two_steps, find, copy_old),
        Writer("export --force where there was nothing", replace, _ignore),
        Writer("the cache", from_cache, _ignore, make_cache),
        Writer("the cache, damaged", from_cache, _ignore, damage_entry, spare=make_cache),
        Writer("save_checkpoint", _save_new, _ignore),
        Writer("save_checkpoint over another", _save_new, _load, _save_old),
        Writer("run --output", _write_lines, _ignore),
        Writer("run --output over a file", _write_lines, _read, _write_old),
        Writer("run --output through a link", _write_lines, _read, _write_old_and_link),
        Writer("parity --report", _write_report, _ignore),
        Writer("parity --report over a file", _write_report, _read, _write_old),
    ]


def _export_at_no_cost(bundle: Path) -> None:
    """What an export is made of, without the work: the files are copied."""

    def write(checkpoint: Any, folder: Path, **how: Any) -> Bundle:
        shutil.copytree(bundle, folder, dirs_exist_ok=True)
        return Bundle(folder, manifest)

    manifest: Manifest = load_bundle(bundle).manifest
    stand_ins: Any = (release, proven, memory)
    toy = SimpleNamespace(name="toy", folder=None, outline=SimpleNamespace(fp32_only=""))
    stand_ins[0].load_checkpoint = lambda name, **how: toy
    stand_ins[1].write = write
    stand_ins[2].require_room = lambda *_, **__: None
    report = SimpleNamespace(passed=True, is_equal=True, beyond=[], about={"ran": {}})
    stand_ins[1].prove = lambda bundle, checkpoint, **how: (bundle, report)


def _ignore(folder: Path) -> None:
    """Where there was nothing, a reader may find nothing."""


OLD_MODEL = tiny_model(tiny_config(norm="pre"))
NEW_MODEL = tiny_model(tiny_config(norm="post"))


def _save_old(folder: Path) -> None:
    out = folder / "out"
    save_checkpoint(out, OLD_MODEL, spelling_tokenizer(VOCABULARY), spelling_tokenizer(VOCABULARY[::-1]))
    for name in ("log", ".git/HEAD", "model.pt"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("precious")


def _save_new(folder: Path) -> None:
    save_checkpoint(str(folder / "out"), NEW_MODEL, spelling_tokenizer(VOCABULARY))


def _load(folder: Path) -> None:
    load_checkpoint(str(folder / "out"))


def _write_lines(folder: Path) -> None:
    with textio.open_output(folder / "out") as stream:
        for number in range(4):
            print(f"line {number}", file=stream, flush=number % 2 == 1)


def _write_report(folder: Path) -> None:
    textio.write_json(folder / "out", {"cases": list(range(3000))})


def _write_old(folder: Path) -> None:
    (folder / "out").write_text("old")
    (folder / "out").chmod(0o600)


def _write_old_and_link(folder: Path) -> None:
    _write_old(folder)
    (folder / "out").rename(folder / "target")
    (folder / "out").symlink_to("target")


def _read(folder: Path) -> None:
    assert (folder / "out").read_text()


# ------------------------------------------------------------------------------------------------ trials


def tree(folder: Path, *, hidden: bool = True) -> Tree:
    """All that lies below a folder: modes, and what is in files and links."""
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if hidden or not any(part.startswith((".out.", ".save.", ".target.", ".preset")) for part in Path(name).parts):
            data = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[name] = (path.lstat().st_mode, data)
    return found


class Trial:
    """One writer, what a folder holds before it and after it, and how many calls it makes."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        with self.world() as world:
            self.before = tree(world / "place")
            ended = in_child(world, writer.write)
            assert ended.code == 0, ended.error
            self.after = tree(world / "place")
            self.calls = ended.calls
        assert self.before != self.after
        self.allowed = [self.before, self.after]
        if writer.spare:
            with self.world(writer.spare) as world:
                self.allowed.append(tree(world / "place"))

    @contextmanager
    def world(self, prepare: Step | None = None) -> Iterator[Path]:
        """A new folder with a place for the writer, and folders that must stay empty."""
        with tempfile.TemporaryDirectory() as name:
            world = Path(name)
            for folder in ("place", "here", "tmp"):
                (world / folder).mkdir()
            (prepare or self.writer.prepare)(world / "place")
            yield world

    def kill(self, at: int, reads: bool) -> str | None:
        """Kill the writer at a call; -> what was lost, if anything, after a reader (or not) and the next writer."""
        with self.world() as world:
            ended = in_child(world, self.writer.write, at)
            if ended.signal != signal.SIGKILL:
                return f"not killed: {ended}"
            if reads and (wrong := self.read(world)):
                return wrong
            ended = in_child(world, self.writer.again or self.writer.write)
            if ended.code != 0:
                return f"the next command fails: {ended.error}"
            return self.differs(world, self.after) or None

    def read(self, world: Path) -> str | None:
        """What is wrong with what a reader finds."""
        ended = in_child(world, self.writer.read)
        if ended.code != 0:
            return f"a reader fails: {ended.error}"
        seen = tree(world / "place", hidden=False)
        is_whole = self.writer.spare or seen in self.allowed
        return None if is_whole else f"neither the old nor the new: {sorted(seen)}"

    def interrupt(self, at: int, number: int) -> str | None:
        """Interrupt the writer at a call; -> what is wrong then, without any further command."""
        with self.world() as world:
            ended = in_child(world, self.writer.write, at, number)
            if ended.code not in (0, INTERRUPTED):
                return f"it ends otherwise: {ended}"
            return min((self.differs(world, each) for each in self.allowed), key=len) or None

    def differs(self, world: Path, expected: Tree) -> str:
        """What there is that should not be, or is not that should be."""
        found = tree(world / "place")
        left = [*tree(world / "tmp"), *tree(world / "here")]
        names = {name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)}
        return f"left or lost: {sorted([*names, *left])}" if names or left else ""


@contextmanager
def trials(bundle: Path | None = None) -> Iterator[list[Trial]]:
    """A trial for each writer; they copy `bundle`, else one that is exported for them."""
    with tempfile.TemporaryDirectory() as name:
        old = Path(name, "old")
        new = Path(name, "new")
        shutil.copytree(bundle or txport.export("preset:tiny", Path(name, "whole")).path, new)
        shutil.copytree(new, old)
        manifest = load_bundle(old).manifest
        seal(old, dataclasses.replace(manifest, generation={**manifest.generation, "max_new_tokens": 7}))
        yield [Trial(writer) for writer in writers(old, new)]


def run_kills(
    seed: int = 0, count: int = 200, bundle: Path | None = None, progress: Callable[[str], object] = print
) -> tuple[int, int]:
    """Kill writers at `count` moments, drawn by seed; -> how many were killed, and after how many something was lost.

    `progress` is told what. Each moment comes once before any comes twice; `bundle` saves an export.
    """
    with trials(bundle) as chosen:
        lost = list(kill_some(chosen, seed, count))
    for wrong in lost:
        progress(wrong)
    return count, len(lost)


def kill_some(chosen: Sequence[Trial], seed: int, count: int) -> Iterator[str]:
    """What was lost, a line each, when writers are killed at `count` moments."""
    moments = [(trial, at, reads) for trial, at in calls_of(chosen) for reads in (True, False)]
    for trial, at, reads in _drawn(moments, seed, count):
        if wrong := trial.kill(at, reads):
            yield f"{trial.writer.name}, killed at call {at} of {trial.calls}: {wrong}"


def interrupt_some(chosen: Sequence[Trial], seed: int, count: int) -> Iterator[str]:
    """The same for Ctrl-C and SIGTERM, after which no further command is needed."""
    moments = [(trial, at, each) for trial, at in calls_of(chosen) for each in (signal.SIGINT, signal.SIGTERM)]
    for trial, at, number in _drawn(moments, seed, count):
        if wrong := trial.interrupt(at, number):
            yield f"{trial.writer.name}, {number.name} at call {at} of {trial.calls}: {wrong}"


def calls_of(chosen: Sequence[Trial]) -> list[tuple[Trial, int]]:
    """Every call of every writer."""
    return [(trial, at) for trial in chosen for at in range(1, trial.calls + 1)]


def _drawn(moments: Sequence[Moment], seed: int, count: int) -> Iterator[Moment]:
    rng = random.Random(seed)
    while count > 0:
        yield from rng.sample(moments, min(count, len(moments)))
        count -= len(moments)
