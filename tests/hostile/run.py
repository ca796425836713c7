"""Run cases in warm children, many in a row; a child that crashes or hangs costs its case, not the others."""

from __future__ import annotations

import contextlib
import copy
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any
from unittest import mock

from tests.hostile import fork
from tests.hostile.case import Case, Command, Place, read_values
from tests.hostile.judge import Breach, Ended, judge, snapshot
from tests.hostile.sound import Sound

BATCH = 25  # cases that one child runs
LARGE = 600_000_000  # bytes that a child may keep before another takes its place
SHARED = ("memory", "crash")  # what cases that ran before in the same child may have a part in
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod")
HARMLESS = ("/dev", "/proc")


@dataclass(frozen=True)
class Outcome:
    """What became of a case: each broken rule with the command that broke it."""

    name: str
    breaches: tuple[tuple[str, Breach], ...] = ()
    commands: int = 0
    peak: int = 0
    seconds: float = 0.0
    alone: bool = True


Find = Callable[[str], Case]


def run_cases(
    names: Sequence[str], find: Find, sound: Sound, scratch: Path, *, jobs: int, limit: float
) -> Iterator[Outcome]:
    """Run the cases by name, as many at once as `jobs`; one that may have failed by others is run again alone."""
    waiting = [list(names[at : at + BATCH]) for at in range(0, len(names), BATCH)][::-1]
    workers: list[Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(Worker(waiting.pop(), find, sound, scratch, limit))
            wait([each.pipe for each in workers], timeout=1)
            for worker in list(workers):
                for outcome in worker.outcomes():
                    if not outcome.alone and any(breach.kind in SHARED for _, breach in outcome.breaches):
                        waiting.append([outcome.name])
                    else:
                        yield outcome
                if worker.is_done:
                    workers.remove(worker)
                    if worker.left:
                        waiting.append(worker.left)
    finally:
        for worker in workers:
            worker.kill()


class Worker:
    """A child that runs a batch of cases and tells how each ended."""

    def __init__(self, names: list[str], find: Find, sound: Sound, scratch: Path, limit: float) -> None:
        self.left = names
        self.is_done = False
        self._limit = limit
        self._alone = len(names) == 1
        self._current = ""
        self._since = time.monotonic()
        self.pipe, theirs = Pipe(duplex=False)
        self._folder = Path(tempfile.mkdtemp(prefix="w", dir=scratch))

        def work() -> None:
            self.pipe.close()
            _work(theirs, names, find, sound, self._folder)

        self._pid = fork.fork(work)
        theirs.close()

    def outcomes(self) -> Iterator[Outcome]:
        """What has been told by now; a case that never ends, or ends the child, is told of too."""
        try:
            while self.pipe.poll():
                told = self.pipe.recv()
                self._since = time.monotonic()
                if isinstance(told, str):
                    self._current = told
                else:
                    self.left = [name for name in self.left if name != told.name]
                    self._current = ""
                    yield replace(told, alone=self._alone)
        except EOFError:
            yield from self._end("crash")
            return
        if time.monotonic() - self._since > self._limit:
            os.kill(self._pid, signal.SIGKILL)
            yield from self._end("hang")

    def _end(self, kind: str) -> Iterator[Outcome]:
        _, status = os.waitpid(self._pid, 0)
        self._close()
        if self._current or status:
            what = f"no end after {self._limit:g} s" if kind == "hang" else fork.describe_end(status)
            name = self.left.pop(0)
            yield Outcome(name, ((self._current, Breach(kind, what)),), 1, alone=self._alone)

    def kill(self) -> None:
        """End a child that is still at work."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._close()

    def _close(self) -> None:
        self.is_done = True
        self.pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _work(pipe: Connection, names: Sequence[str], find: Find, sound: Sound, folder: Path) -> None:
    """In the child: every case in a place of its own."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    fork.bound()
    sys.dont_write_bytecode = True
    warnings.simplefilter("always", RuntimeWarning)
    warnings.simplefilter("always", UserWarning)
    watch = Watch()
    for name in names:
        root = folder / "c"
        pipe.send(name)
        try:
            pipe.send(_attempt(find(name), Place(root, sound), watch, pipe.send))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            what = f"the attack itself failed: {error!r}, {where.filename}, line {where.lineno}"
            pipe.send(Outcome(name, (("", Breach("crash", what)),)))
        os.chdir(folder)
        shutil.rmtree(root, ignore_errors=True)
        if fork.memory("VmRSS") > LARGE:
            return


def _attempt(case: Case, place: Place, watch: Watch, tell: Callable[[str], None]) -> Outcome:
    commands = case.make(place)
    breaches = []
    peak = 0
    begun = time.perf_counter()
    planted = set(place.out.iterdir())
    for command in commands:
        line = shlex.join(["txport", *command.arguments])
        tell(line)
        ended = call(command, place, watch)
        peak = max(peak, ended.peak)
        breaches += [(line, breach) for breach in judge(command, ended, place)]
        for path in set(place.out.iterdir()) - planted:  # what the next command writes is judged alone
            if not path.is_dir():
                path.unlink()
    return Outcome(case.name, tuple(breaches), len(commands), peak, time.perf_counter() - begun)


class Watch:
    """Notes what Python opens to write, moves or removes outside of a place."""

    def __init__(self) -> None:
        self.root = ""
        self.seen = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.root or not (event in CHANGES or (event == "open" and _writes(arguments))):
            return
        for path in arguments[:2] if event in ("os.rename", "os.link", "os.symlink") else arguments[:1]:
            if isinstance(path, str | bytes | os.PathLike):
                full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links are not followed
                if not full.startswith((self.root, *HARMLESS)):
                    self.seen.append(full)

    @contextlib.contextmanager
    def over(self, root: Path) -> Iterator[list[str]]:
        """What happens outside of a folder in the block."""
        self.root = str(root)
        self.seen = []
        try:
            yield self.seen
        finally:
            self.root = ""


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 else 0
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


def call(command: Command, place: Place, watch: Watch) -> Ended:
    """Run one command here as if it were a process of its own."""
    before = snapshot(place)
    streams = _redirect(command, place)
    os.chdir(place.cwd)
    folders = {"HOME": place.home, "TMPDIR": place.temporary}
    folders |= {f"XDG_{name}_HOME": place.home / name.lower() for name in ("CACHE", "CONFIG", "DATA", "STATE")}
    os.environ.update({name: str(folder) for name, folder in folders.items()})
    tempfile.tempdir = None
    fork.forget_peak()
    with watch.over(place.root) as written, _stand_ins(command, place.sound):
        code = _main(command)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    peak = fork.memory("VmHWM")
    out, err = ((streams / name).read_text(encoding="utf-8", errors="surrogateescape") for name in ("out", "err"))
    return Ended(code, out, err, peak, before, snapshot(place), tuple(written))


def _main(command: Command) -> int:
    """As Python itself ends a program."""
    from txport import cli

    try:
        sys.argv = ["txport", *command.arguments]
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _redirect(command: Command, place: Place) -> Path:
    """Streams that are files, as in a script of CI."""
    folder = place.root / "streams"
    folder.mkdir(exist_ok=True)
    (folder / "in").write_bytes(command.stdin)
    new = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
    for number, (name, flags) in enumerate((("in", os.O_RDONLY), ("out", new), ("err", new))):
        handle = os.open(folder / name, flags)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    return folder


@contextlib.contextmanager
def _stand_ins(command: Command, sound: Sound) -> Iterator[None]:
    """What a hostile report is compared with: the same figures for each, instead of new ones that take seconds."""
    if not command.stand_in:
        yield
        return

    def parity(*arguments: Any, **options: Any) -> Any:
        return copy.deepcopy(sound.report)

    def bench(*arguments: Any, **options: Any) -> Any:
        return read_values(sound.bench_report)

    with mock.patch("txport.api.release.parity", parity), mock.patch("txport.bench.measure.run", bench):
        yield
