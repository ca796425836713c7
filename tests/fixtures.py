"""One tiny checkpoint and its bundle for the whole session: an export takes seconds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import txport
from recipes.g2p_en.tokenizer import spelling_tokenizer
from tests.called import call as call
from tests.fake_cuda.fixture import fake_cuda as fake_cuda
from tests.instruction_sets import SETS
from tests.runtimes.driven import driven as driven
from tests.tiny import SAMPLES, VOCABULARY, tiny_config, tiny_model
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import save_checkpoint
from txport.runtimes.ort import onnx_runtime as onnx_runtime  # before a test imports ONNX Runtime by itself

# Each worker has a core of its own: threads that wait for one another on the same cores take ten times as long.
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
    torch.set_num_threads(1)

# No deadline, since the machine may be busy; the same examples in every run, so that a failure is a change.
settings.register_profile("txport", deadline=None, derandomize=True)
settings.load_profile("txport")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a worker say which kernels it had."""
    if output := getattr(session.config, "workeroutput", None):
        output["kernels"] = describe_kernels()


def describe_kernels() -> str:
    """PyTorch's, and what was switched off."""
    switched = {name: os.environ[name] for each in SETS.values() for name in each if name in os.environ}
    return f"PyTorch's kernels: {torch.backends.cpu.get_cpu_capability()}; switched off: {switched}"


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's own cache is out of bounds; all workers share one, since an export into it takes seconds."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder with all that one can have."""
    folder = tmp_path_factory.mktemp("checkpoints") / "toy"
    save_checkpoint(folder, tiny_model(tiny_config()), spelling_tokenizer(VOCABULARY))
    (folder / "samples.txt").write_text("".join(f"{sample}\n" for sample in SAMPLES), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """What `export` makes of it. Read only: a test that alters it takes `copied`."""
    return txport.export(checkpoint, tmp_path_factory.mktemp("bundles") / "toy")


@pytest.fixture
def copied(bundle: Bundle, tmp_path: Path) -> Path:
    """A copy of the bundle that a test may alter."""
    return Path(shutil.copytree(bundle.path, tmp_path / "bundle"))
