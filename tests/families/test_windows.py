"""Beyond the windows of their layers, models in other programs find what they find in transformers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests import transformers_js
from tests.architectures.seeded import bundle_of
from tests.architectures.test_gpt2 import PEERS
from tests.families.test_families import FOLDER, PROMPTS, cut, said
from txport.bundles.bundle import Bundle
from txport.models.checkpoint import load_checkpoint

NAMES = ["mistral-window", "qwen2-window", "gemma3", "smollm3-window"]
OPTIMUM = Path(__file__).parents[1] / "architectures" / "optimum_causal.py"
NEW = 8  # tokens


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def bundle(name: str, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp(name) / "bundle"
    return bundle_of(load_checkpoint(str(FOLDER / name)), folder, "portable")


def wanted(name: str, bundle: Bundle) -> list[list[int]]:
    return [cut(row, bundle.manifest.facts.writes.ends) for row in said(name)["greedy"]]


def test_optimum_finds_the_same_in_a_batch_that_is_padded_at_the_left(name: str, bundle: Bundle) -> None:
    if not PEERS.is_file():
        pytest.skip("needs Optimum: `make test` installs it")
    facts = bundle.manifest.facts
    given = {"prompts": PROMPTS, "pad": facts.writes.pad, "options": {"max_new_tokens": NEW}}
    command = [str(PEERS), str(OPTIMUM), str(bundle.path)]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [cut(np.array(row), facts.writes.ends) for row in json.loads(done.stdout)] == wanted(name, bundle)


def test_transformers_js_finds_the_same(name: str, bundle: Bundle) -> None:
    found = transformers_js.proceed(bundle.path, PROMPTS, NEW)
    assert [cut(np.array(row), bundle.manifest.facts.writes.ends) for row in found] == wanted(name, bundle)
