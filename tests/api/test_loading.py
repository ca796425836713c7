"""What is read while a runtime starts: modules, and files of the bundle whose hashes are still being computed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import txport
from tests.tiny import unproven
from txport.api import loading
from txport.bundles import bundle
from txport.bundles.bundle import LARGE
from txport.errors import BundleError, UnavailableError

MANY = ("asyncio", "email", "importlib.metadata", "onnx", "tomllib", "torch", "txport.bundles.foreign.read")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unproven("g2p-en", tmp_path_factory.mktemp("g2p") / "out", external_above=0).path


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "copy"))


def flip(file: Path) -> None:
    """Change one byte of the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x55
    file.write_bytes(content)


@pytest.mark.parametrize("large", [LARGE, 1])
@pytest.mark.parametrize("name", ["onnx/encoder_model.onnx_data", "tokenizer.json", "samples.txt"])
def test_an_altered_file_is_refused_by_name(copy: Path, name: str, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LARGE", large)
    flip(copy / name)
    with pytest.raises(BundleError, match=rf"{name} was altered \(its SHA-256 does not match\); export it again"):
        txport.load(copy)


def fail(*_: object, **__: object) -> None:
    raise UnavailableError("no room")


def test_an_error_while_an_altered_file_is_hashed_is_that_of_the_file(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "LARGE", 1)
    monkeypatch.setattr(loading.runtimes, "load", fail)
    flip(copy / "onnx/encoder_model.onnx_data")
    with pytest.raises(BundleError, match=r"encoder_model\.onnx_data was altered") as caught:
        txport.load(copy)
    assert isinstance(caught.value.__context__, UnavailableError)


def test_an_altered_graph_is_refused_before_a_runtime_reads_it(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.runtimes, "load", None)
    flip(copy / "onnx/encoder_model.onnx")
    with pytest.raises(BundleError, match=r"encoder_model\.onnx was altered"):
        txport.load(copy)


def test_an_error_of_a_runtime_stays_that_of_a_sound_bundle(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.runtimes, "load", fail)
    with pytest.raises(UnavailableError, match="no room"):
        txport.load(written)


def test_a_limited_address_space_starts_no_thread(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LARGE", 1)
    monkeypatch.setattr(bundle, "_in_a_thread", None)
    monkeypatch.setattr(loading, "ThreadPoolExecutor", None)
    monkeypatch.setattr(loading, "address_limit", lambda: 1 << 40)
    assert txport.load(written).generate("cat")[0].output


def test_a_process_that_only_runs_a_bundle_imports_little(written: Path) -> None:
    code = f"import sys, txport; txport.load({str(written)!r}).generate('cat'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {*MANY} & {*done.stdout.split()}
