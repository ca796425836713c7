"""The package as npm would publish it: typed, formatted, light, and in no wheel."""

from __future__ import annotations

import json
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest
import setuptools

import txport
from docs import options
from tests.javascript import INSTALLED, PACKAGE, node, on_node
from txport.bundles.bundle import Bundle
from txport.bundles.manifest import FORMAT

ROOT = Path(txport.__file__).parents[1]
LOCKS = [PACKAGE / "package-lock.json", ROOT / "tests" / "transformers_js" / "package-lock.json"]


def tool(name: str, *arguments: str) -> str:
    """What a tool of the package's says, which must be content."""
    command = [node(), str(INSTALLED / name), *arguments]
    done = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_types_are_right() -> None:
    """Of the code, which says them in comments, of what it tells callers, and of a caller."""
    assert tool("typescript/bin/tsc") == ""


def test_it_is_formatted() -> None:
    tool("prettier/bin/prettier.cjs", "--check", ".")
    sources = sorted((PACKAGE / "src").rglob("*.*"))
    long = [(file.name, line) for file in sources for line in file.read_text(encoding="utf-8").splitlines()
            if len(line) > 120]  # fmt: skip
    assert sources
    assert long == []


def test_versions_agree() -> None:
    described = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))
    assert described["version"] == txport.__version__
    assert "dependencies" not in described
    assert f"export const FORMAT = {FORMAT};" in (PACKAGE / "src" / "manifest.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_no_lock_names_a_registry(lock: Path) -> None:
    packages = json.loads(lock.read_text(encoding="utf-8"))["packages"]
    assert [name for name, entry in packages.items() if "resolved" in entry] == []


def test_it_is_in_no_wheel() -> None:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        find = tomllib.load(stream)["tool"]["setuptools"]["packages"]["find"]
    packages = setuptools.find_namespace_packages(str(ROOT), **find)
    assert "txport.runtimes.ort" in packages
    assert [name for name in packages if name.startswith("txport.runtimes.js")] == []


def test_what_npm_packs_runs(bundle: Bundle, tmp_path: Path) -> None:
    """As a user has it, beside onnxruntime-node, which it finds by itself."""
    node()
    packed = subprocess.run(
        ["npm", "pack", "--silent", "--offline", "--pack-destination", str(tmp_path)],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        check=True,
    )
    with tarfile.open(tmp_path / packed.stdout.split()[-1]) as archive:
        archive.extractall(tmp_path / "node_modules", filter="data")
    own = (tmp_path / "node_modules" / "package").rename(tmp_path / "node_modules" / "txport")
    assert {path.name for path in own.iterdir()} == {"package.json", "README.md", "LICENSE", "src"}
    (tmp_path / "node_modules" / "onnxruntime-node").symlink_to(INSTALLED / "onnxruntime-node")
    (found,) = on_node(bundle.path, [("generate", "bad")], package=str(own / "src" / "index.js"), found=True)
    assert found["output"] == txport.load(bundle.path).generate("bad")[0].output


def test_the_options_of_a_search_are_those_of_python() -> None:
    """`python -m docs.options` writes both files again."""
    assert options.TABLE.read_text(encoding="utf-8") == options.table()
    assert options.TYPES.read_text(encoding="utf-8") == options.types()
