"""A bundle of each adapter, once for the session: an export takes seconds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import txport
from tests.checkpoints.adapters import modules
from txport.bundles.bundle import Bundle

PAGE = Path(__file__).parents[3] / "docs" / "adapters.md"


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example of the page about adapters, as a file."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    path = tmp_path_factory.mktemp("example") / "model.py"
    path.write_text(found[1], encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def translator(example: Path) -> Bundle:
    return txport.export(f"{example}:ADAPTER", example.parent / "bundle", trust_code=True)


@pytest.fixture(scope="session")
def alibi(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return txport.export(modules.load_alibi(), tmp_path_factory.mktemp("alibi") / "bundle", adapter=modules.ALIBI)


@pytest.fixture(scope="session")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("tutorial") / "bundle"
    return txport.export(modules.load_tutorial(), out, adapter=modules.TUTORIAL)


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """In fp16, with a tokenizer of its own."""
    out = tmp_path_factory.mktemp("classifier")
    return txport.export(modules.load_classifier(), out / "bundle", adapter=modules.CLASSIFIER, precision="fp16")
