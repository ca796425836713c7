"""Beyond the windows of their layers, models in other programs find what they find in transformers."""

from __future__ import annotations

import numpy as np
import pytest

from tests import peers, transformers_js
from tests.checkpoints.families.test_families import PROMPTS, cut, said
from tests.recorded import FAMILIES
from tests.seeded import bundle_of
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint

NAMES = ["mistral-window", "qwen2-window", "gemma3", "smollm3-window"]
NEW = 8  # tokens


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("windows")
    return {name: bundle_of(load_checkpoint(str(FAMILIES / name)), folder / name, "portable") for name in NAMES}


def wanted(name: str, bundle: Bundle) -> list[list[int]]:
    return [cut(row, bundle.manifest.facts.writes.ends) for row in said(name)["greedy"]]


def test_optimum_finds_the_same_in_a_batch_that_is_padded_at_the_left(bundles: dict[str, Bundle]) -> None:
    jobs = [
        {
            "bundle": str(bundle.path),
            "prompts": PROMPTS,
            "pad": bundle.manifest.facts.writes.pad,
            "options": {"max_new_tokens": NEW},
        }
        for bundle in bundles.values()
    ]
    for (name, bundle), found in zip(bundles.items(), peers.proceed(jobs), strict=True):
        ends = bundle.manifest.facts.writes.ends
        assert [cut(np.array(row), ends) for row in found] == wanted(name, bundle), name


@pytest.mark.parametrize("name", NAMES)
def test_transformers_js_finds_the_same(name: str, bundles: dict[str, Bundle]) -> None:
    found = transformers_js.proceed(bundles[name].path, PROMPTS, NEW)
    ends = bundles[name].manifest.facts.writes.ends
    assert [cut(np.array(row), ends) for row in found] == wanted(name, bundles[name])
