"""`txport bulk`: its speed beside `txport run`, and what SIGKILL at random moments leaves.

    python -m benchmarks.bulk BUNDLE LINES speed
    python -m benchmarks.bulk BUNDLE LINES kills [--of actor|driver|local] [--count 20]

It needs the extra `ray`. Times are of whole commands, less those for the first line alone: start-up apart.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

COMMAND = (sys.executable, "-c", "from txport.cli import main; main()")
LOCAL = ("--workers", "2")
RAY = ("--engine", "ray", "--actors", "2")
ROWS = ("--rows", "128")  # of a file, so that many are written in a short run
END = 60.0  # seconds in which the actors of a killed driver end


def main() -> None:
    """Measure or kill, as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("lines", type=Path)
    parser.add_argument("what", choices=["speed", "kills"])
    parser.add_argument("--of", choices=["actor", "driver", "local"], default="driver")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.what == "speed":
            speed(given.bundle, given.lines, Path(folder))
        else:
            kills(given.bundle, given.lines, Path(folder), given.of, given.count, random.Random(given.seed))  # noqa: S311 - no secret


def speed(bundle: str, lines: Path, folder: Path) -> None:
    """Print the lines per second of three commands, and the share of the first one."""
    first = folder / "first.txt"
    with lines.open(encoding="utf-8") as stream:
        first.write_text(next(stream), encoding="utf-8")
        count = sum(1 for _ in stream)
    out = str(folder / "out")
    run = ["run", bundle, "--output", out, *LOCAL, "--errors", "column"]  # else `run` first checks all texts
    commands: dict[str, Callable[[Path], list[str]]] = {
        "run --workers 2": lambda file: [*run, "--input", str(file)],
        "bulk --engine ray --actors 2": lambda file: ["bulk", bundle, str(file), f"{out}-ray-{file.stem}", *RAY],
        "bulk --workers 2": lambda file: ["bulk", bundle, str(file), f"{out}-local-{file.stem}", *LOCAL],
    }
    base = 0.0
    for name, command in commands.items():
        start = seconds(command(first))
        rate = count / (seconds(command(lines)) - start)
        base = base or rate
        print(f"{name:30} {rate:7.0f} lines/s  {rate / base:6.1%}  start-up {start:.1f} s", flush=True)


def seconds(arguments: list[str]) -> float:
    """Run a command of txport; return its time."""
    begun = time.perf_counter()
    subprocess.run([*COMMAND, *arguments], check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def kills(bundle: str, lines: Path, folder: Path, of: str, count: int, draw: random.Random) -> None:
    """Kill an actor, the driver or a local run, each in a run of its own; compare with an undisturbed one.

    Raises `AssertionError` for a row that is missing, there twice or other than that of the undisturbed run.
    """
    engine = LOCAL if of == "local" else RAY
    begun = time.perf_counter()
    bulk(bundle, lines, folder / "whole", engine).communicate()
    length = time.perf_counter() - begun
    expected = rows(folder / "whole")
    for number in range(1, count + 1):
        moment = draw.uniform(0.0, length)
        begin = partial(bulk, bundle, lines, folder / str(number))
        kept = killed(begin, engine, moment) if of != "actor" else killed_actor(begin, engine, moment)
        assert rows(folder / str(number)) == expected, f"other rows after a kill at {moment:.2f} s"
        print(f"{number:3}: SIGKILL of {of} at {moment:5.2f} s, {kept}; all rows once", flush=True)


def killed(begin: Callable[..., subprocess.Popen[bytes]], engine: tuple[str, ...], moment: float) -> str:
    """Begin a run, kill it after `moment` seconds and resume it; return what the kill has left."""
    process = begin(engine)
    time.sleep(moment)
    actors = actors_of(process)
    process.kill()
    process.wait()
    require_ended(actors)
    again = begin((*engine, "--resume", "--verbose"))
    errors = again.communicate()[1].decode()
    assert again.returncode == 0, errors
    found = re.search(r"of which \d+ were there", errors)
    return f"{found[0] if found else 'none were there'} at the resume"


def killed_actor(begin: Callable[..., subprocess.Popen[bytes]], engine: tuple[str, ...], moment: float) -> str:
    """Begin a run, and kill an actor after `moment` seconds, or as soon as there is one; return what was there."""
    process = begin(engine)
    time.sleep(moment)
    actors = actors_of(process)
    while not actors and process.poll() is None:  # still starting
        actors = actors_of(process)
    for pid in actors[:1]:
        os.kill(pid, signal.SIGKILL)
    errors = process.communicate()[1].decode()
    assert process.returncode == 0, errors
    return f"{len(actors)} actors were there"


def bulk(bundle: str, lines: Path, out: Path, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Begin a run."""
    arguments = ["bulk", bundle, str(lines), str(out), *ROWS, *options]
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def rows(folder: Path) -> list[tuple[object, ...]]:
    """Return the rows of all files in the order of their numbers."""
    import pyarrow.parquet as pq

    assert (folder / "_SUCCESS").exists()
    table = pq.read_table(folder)
    return sorted(zip(*(table.column(name).to_pylist() for name in ("row", "text", "output", "error")), strict=True))


def actors_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the processes with the model that a run on Ray has."""
    return [pid for pid in below(process.pid) if named(pid).startswith("ray::Actor")]


def below(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started, and those that these have."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text(encoding="ascii").split()
        except OSError:  # it has ended
            continue
        for child in map(int, children):
            yield child
            yield from below(child)


def named(pid: int) -> str:
    """Return the command line of a process; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ")
    except OSError:
        return ""


def require_ended(pids: list[int]) -> None:
    """Raise `AssertionError` if actors of a killed driver go on."""
    until = time.monotonic() + END
    while alive := [pid for pid in pids if named(pid)]:
        assert time.monotonic() < until, f"processes go on: {[named(pid) for pid in alive]}"
        time.sleep(0.1)


if __name__ == "__main__":
    main()
