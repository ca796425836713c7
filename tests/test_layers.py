"""Imports point one way and through the package, and the ones that cost time happen only where they are used."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import setuptools

import txport
from txport.api import locate

PACKAGE = Path(txport.__file__).parent
ROOT = PACKAGE.parent
LINKED = ("models", "exporters", "runtimes")
# What each room may import of ours; the command line may import everything.
LOWEST = {"system", "errors"}
CHECKPOINTS = {"checkpoints", "text", "audio", "models", *LOWEST}
BUNDLES = {"bundles", "targets", *CHECKPOINTS}
PROOF_ROOMS = {"proof", "search", "exporters", "runtimes", *BUNDLES}
PRODUCT = {"api", "bench", "inspection", "serving", *PROOF_ROOMS}
ALLOWED = {
    "errors": {"errors"},
    "system": LOWEST,
    "models": {"models", *LOWEST},
    "text": {"text", "models", *LOWEST},
    "audio": {"audio", "models", *LOWEST},
    "checkpoints": CHECKPOINTS,
    "targets": {"targets", "models", *LOWEST},
    "bundles": BUNDLES,
    "exporters": {"exporters", *BUNDLES},
    "runtimes": {"runtimes", *BUNDLES},
    "search": {"search", "runtimes", *CHECKPOINTS},
    "proof": PROOF_ROOMS,
    "inspection": {"inspection", "exporters", *BUNDLES},
    "bench": PRODUCT,
    "api": PRODUCT - {"inspection"},
    "serving": PRODUCT - {"inspection"},
    "bulk": {"bulk", *PRODUCT} - {"inspection"},
}
ROOMS = tuple(ALLOWED)
PROOF = {  # rooms of proof -> what of proof they may import; what lies beside them joins them
    "parity": {
        "parity",
        "few_bits",
        "masks",
        "metrics",
        "reports.report",
        "context.check",
    },  # its check alone starts that of context
    "few_bits": {"few_bits", "bisect", "faults", "masks", "parity", "reports.report"},
    "context": {"context", "bisect", "parity"},
    "verify": {"verify", "masks", "parity"},
    "bisect": {"bisect", "faults", "few_bits", "parity"},
    "against": {"against", "faults", "masks", "parity"},
    "faults": {"faults"},
    "reports": {"reports", "parity", "bisect", "matrix"},
}
MOST_MODULES = 12
VERSION = "txport.version"


def room_of(module: str) -> str:
    """`runtimes` of `txport.runtimes.ort`, `product` of all that lies in no room."""
    first = module.removeprefix("txport").lstrip(".").partition(".")[0]
    return first if first in ROOMS else "product"


def breaches(source: str, room: str) -> Iterator[str]:
    """The imports in a file of `room` that break a rule."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"line {node.lineno}: relative"
        elif isinstance(node, ast.ImportFrom | ast.Import):
            for module, name in imported(node):
                wanted = room_of(f"{module}.{name}" if module == "txport" else module)
                if module.partition(".")[0] in ROOMS:
                    yield f"line {node.lineno}: {module} is not ours; txport.{module} is"
                elif module.partition(".")[0] != "txport" or wanted in ALLOWED.get(room, {wanted}):
                    continue
                elif room in ("models", "search") or module != VERSION:  # a constant above the rooms
                    yield f"line {node.lineno}: {room} imports {wanted} ({module})"


def imported(node: ast.ImportFrom | ast.Import) -> Iterator[tuple[str, str]]:
    for alias in node.names:
        yield (alias.name, "") if isinstance(node, ast.Import) else (node.module or "", alias.name)


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", files(), ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_imports_point_one_way(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert list(breaches(file.read_text(encoding="utf-8"), room if room in ROOMS else "product")) == []


def test_nothing_imports_an_architecture() -> None:
    """A new one is one more file: the registry finds it by its name, and only another architecture may build on it."""
    imports = re.compile(r"^ *(?:from|import) txport\.models\.architectures\b.*", re.MULTILINE)
    outside = [file for file in files() if file.parent.name != "architectures"]
    assert {file.name: found for file in outside if (found := imports.findall(file.read_text(encoding="utf-8")))} == {}
    assert "txport.models import architectures" in (PACKAGE / "models" / "architecture.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("room", PROOF)
def test_a_room_of_proof_is_small_and_imports_one_way(room: str) -> None:
    folder = PACKAGE / "proof" / room
    assert len([file for file in folder.glob("*.py") if file.stem != "__init__"]) <= MOST_MODULES
    imports = re.compile(r"^ *from txport\.proof\.([\w.]+) import", re.MULTILINE)
    used = {name for file in folder.rglob("*.py") for name in imports.findall(file.read_text(encoding="utf-8"))}
    assert {name for name in used if not {name, name.partition(".")[0]} & PROOF[room]} == set()


def test_a_cached_export_depends_on_every_room_that_makes_it() -> None:
    """Otherwise a bundle that older code exported would be run for ever."""
    assert {*ALLOWED["exporters"], "proof"} - LOWEST == set(locate.EXPORTING)


def test_tests_mirror_the_package() -> None:
    tests = Path(__file__).parent
    folders = {file.parent.relative_to(tests) for file in tests.rglob("test_*.py")}
    rooms = {folder for folder in folders if folder.parts and folder.parts[0] in {"cli", *ROOMS}}
    assert len(rooms) > len(ROOMS)
    assert [folder for folder in sorted(rooms) if not (PACKAGE / folder).is_dir()] == []


def test_every_room_was_looked_at() -> None:
    names = {file.relative_to(PACKAGE).as_posix() for file in files()}
    assert {
        "cli/guard.py",
        "models/config.py",
        "exporters/export.py",
        "runtimes/ort/runtime.py",
        "search/generate.py",
        "proof/parity/check.py",
    } <= names


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("exporters", "from txport.runtimes import load"),
        ("exporters", "import txport.runtimes.ort.runtime"),
        ("exporters", "from txport import runtimes"),
        ("exporters", "from txport.proof.parity.check import check"),
        ("exporters", "from txport import load"),
        ("runtimes", "from txport.exporters.check import operators"),
        ("runtimes", "def f():\n    from txport.search.generate import generate"),
        ("search", "from txport.api.model import load"),
        ("search", "from txport.proof.parity.check import check"),
        ("proof", "from txport.api.release import export"),
        ("models", "from txport.runtimes.base import Ints"),
        ("models", "from txport.version import __version__"),
        ("models", "import txport"),
        ("product", "from models.config import TransformerConfig"),
        ("product", "import runtimes"),
        ("models", "from .config import TransformerConfig"),
        ("product", "from . import api"),
    ],
)
def test_breach_is_found(room: str, source: str) -> None:
    assert len(list(breaches(source, room))) == 1


@pytest.mark.parametrize(
    ("room", "source"),
    [
        (
            "exporters",
            "from txport.version import __version__\nfrom txport.models.architectures import transformer\nimport torch",
        ),
        ("runtimes", "from txport.runtimes.base import Ints\nfrom txport.targets import ports"),
        ("models", "from txport.models import config\nimport txport.models.names"),
        ("product", "from txport import runtimes\nfrom txport.exporters.export import export_graphs"),
    ],
)
def test_what_is_allowed_is_no_breach(room: str, source: str) -> None:
    assert list(breaches(source, room)) == []


@pytest.mark.parametrize("name", LINKED)
def test_links_show_the_rooms_at_first_sight(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert link.readlink() == Path("txport") / name
    assert link.resolve() == PACKAGE / name


def test_links_are_in_no_wheel() -> None:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        include = tomllib.load(stream)["tool"]["setuptools"]["packages"]["find"]["include"]
    assert set(LINKED) <= set(setuptools.find_packages(str(ROOT)))  # setuptools does follow links
    packages = setuptools.find_packages(str(ROOT), include=include)
    assert {"txport", *(f"txport.{name}" for name in ROOMS if name != "errors"), "txport.cli"} <= set(packages)
    assert {package.partition(".")[0] for package in packages} == {"txport"}


def test_links_are_on_no_import_path(tmp_path: Path) -> None:
    code = "import importlib.util as u, sys; sys.exit(any(u.find_spec(name) for name in sys.argv[1:]))"
    subprocess.run([sys.executable, "-I", "-c", code, *LINKED], cwd=tmp_path, check=True)
    assert importlib.util.find_spec("txport") is not None


HEAVY = {"torch", "onnxruntime", "onnx", "onnxscript", "onnx_ir", "safetensors", "tokenizers", "numpy"}


def loaded_by(code: str) -> set[str]:
    """The top-level modules that a new interpreter has loaded after `code`."""
    ending = "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + ending], check=True, capture_output=True, text=True)
    return set(done.stderr.splitlines()[-1].split())


def test_import_is_light() -> None:
    modules = loaded_by("import txport; txport.__version__")
    assert "txport" in modules
    assert not modules & {*HEAVY, "click", "rich"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["run", "--help"], ["export", "--help"], ["nonsense"]]
)
def test_help_loads_neither_torch_nor_onnxruntime(arguments: list[str]) -> None:
    modules = loaded_by(f"from txport.cli import main\ntry:\n    main({arguments!r})\nexcept SystemExit:\n    pass")
    assert "click" in modules
    assert not modules & HEAVY


def test_every_public_name_is_there() -> None:
    for name in txport.__all__:
        assert getattr(txport, name) is not None
    with pytest.raises(AttributeError, match="module 'txport' has no attribute 'nonsense'"):
        _ = txport.nonsense
