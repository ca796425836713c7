"""Build and run the examples, and hold what they print against what txport says: `make examples`.

`python -m examples.run [NAME ...]` runs all, or those. A machine that lacks what one needs is told of it, and goes on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "txport" / "runtimes" / "js"
BUILD = HERE / "build"
WORDS = ("hello", "transformer", "phonetics")
# What a command may say in place of itself -> the first program of these that is there.
PROGRAMS = {
    "node": ("node",),
    "npm": ("npm",),
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "make": ("make",),
    "cc": ("cc",),
    "cxx": ("c++",),
}
INCLUDE = "ORT_INCLUDE"  # names the folder of ONNX Runtime's headers; without it, those that `make examples` installs
HEADERS = HERE.parent / "build" / "headers"
MAKE = ("{make}", "-s", "PYTHON={python}", "ORT_INCLUDE={include}", "-C")
INSTALL = ("{npm}", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--prefix")


@dataclass(frozen=True, kw_only=True)
class Example:
    """A program that is given a bundle of g2p-en and words, and prints how each is pronounced, one a line.

    In `prepare` and `command`, `{bundle}` is the bundle, `{python}` this Python, `{build}` a folder to build in, and a
    key of `PROGRAMS` in braces that program, `{include}` where ONNX Runtime's headers lie; `{words}` are several
    arguments. What they need is what they name.
    `packages` is a folder whose packages of npm it uses, `header` one of ONNX Runtime's. `options` are those of txport
    whose output is expected.
    """

    name: str
    command: tuple[str, ...]
    prepare: tuple[tuple[str, ...], ...] = ()
    packages: Path | None = None
    header: str = ""
    options: Mapping[str, Any] | None = None


EXAMPLES = (
    Example(
        name="python",
        command=("{python}", "python/pronounce.py", "{bundle}", "{words}"),
    ),
    Example(
        name="node",
        packages=HERE / "node",
        command=("{node}", "node/portable.mjs", "{bundle}", "{words}"),
    ),
    Example(
        name="node-package",
        packages=HERE / "node",
        command=("{node}", "node/package.mjs", "{bundle}", "{words}"),
        options={"beams": 5},
    ),
    Example(
        name="browser",
        packages=PACKAGE,
        prepare=(("{python}", "browser/build.py", "--bundle", "{bundle}", "--out", "{build}/browser"),),
        command=("{node}", "browser/check.mjs", "{chromium}", "{build}/browser", "{words}"),
        options={"beams": 5},
    ),
    Example(
        name="c",
        header="onnxruntime_c_api.h",
        prepare=((*MAKE, "c", "CC={cc}"),),
        command=("c/pronounce", "{bundle}", "{words}"),
    ),
    Example(
        name="cpp",
        header="onnxruntime_cxx_api.h",
        prepare=((*MAKE, "cpp", "CXX={cxx}"),),
        command=("cpp/pronounce", "{bundle}", "{words}"),
    ),
)


def steps(example: Example) -> tuple[tuple[str, ...], ...]:
    """The commands before an example runs; packages that are there are not installed again."""
    if example.packages is None or (example.packages / "node_modules").is_dir():
        return example.prepare
    return ((*INSTALL, str(example.packages)), *example.prepare)


def lacks(example: Example) -> list[str]:
    """What an example needs and this machine has not."""
    named = {part.rpartition("=")[2].strip("{}") for command in (*steps(example), example.command) for part in command}
    missing = [each for each, programs in PROGRAMS.items() if each in named and not any(map(shutil.which, programs))]
    if example.header and not (include() / example.header).is_file():
        missing.append(f"{example.header} in {include()}: `make examples` installs it, or ${INCLUDE} names its folder")
    return missing


def include() -> Path:
    """The folder of ONNX Runtime's headers, which may not be there."""
    if given := os.environ.get(INCLUDE):
        return Path(given)
    return next((each.parent for each in sorted(HEADERS.rglob("onnxruntime_c_api.h"))), HEADERS)


def run(example: Example, bundle: Path, build: Path, words: Sequence[str] = WORDS) -> list[str]:
    """What an example prints, a line a word; `CalledProcessError` where it fails."""
    paths = {name: next(filter(None, map(shutil.which, programs)), "") for name, programs in PROGRAMS.items()}
    values = {**paths, "bundle": str(bundle), "python": sys.executable, "build": str(build), "include": str(include())}
    for command in steps(example):
        called(command, values, words)
    return called(example.command, values, words).splitlines()


def called(command: Sequence[str], values: Mapping[str, str], words: Sequence[str]) -> str:
    """What a command prints, which is run in the folder of the examples."""
    parts = [part for each in command for part in (words if each == "{words}" else [each.format_map(values)])]
    done = subprocess.run(parts, cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, parts, done.stdout, done.stderr)
    return done.stdout


def main(names: Sequence[str]) -> int:
    """Run the examples of these names, or all; 1 where one says something else than txport."""
    import txport
    from txport.api.locate import find_bundle

    known = {example.name: example for example in EXAMPLES}
    if strange := [name for name in names if name not in known]:
        print(f"there is no example {strange[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    bundle = find_bundle("g2p-en").path
    model = txport.load("g2p-en")
    wrong = 0
    for example in (known[name] for name in names or known):
        if missing := lacks(example):
            print(f"{example.name:16} skipped: this machine has no {' and no '.join(missing)}")
            continue
        expected = [each.output for each in model.generate(WORDS, **(example.options or {}))]
        try:
            found = run(example, bundle, BUILD)
            problem = "" if found == expected else f"wrong: {found}, expected {expected}"
        except subprocess.CalledProcessError as error:
            problem = f"failed: {error.stderr.strip() or error.stdout.strip()}"
        wrong += bool(problem)
        print(f"{example.name:16} {problem or 'as txport: ' + ', '.join(expected)}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
