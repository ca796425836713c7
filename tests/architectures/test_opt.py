"""OPT as transformers has it: logits and tokens through the graphs of both targets, and every variant proven."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import txport
from tests.architectures.seeded import PLANS, bundle_of, drawn, proven
from tests.runtimes.driven import ENGINES
from txport.errors import ConfigError
from txport.models.architectures.opt import OPT, PRESETS
from txport.models.checkpoint import load_checkpoint

FOLDER = Path(__file__).parent / "opt"
VARIANTS = sorted(path.name for path in FOLDER.iterdir())
# as tests/hugging_face/test_opt.py recorded it
PROMPTS = [[2, 9, 5, 3, 7], [2], [2, 8, 11], [2, 6, 13, 22, 4, 17, 5, 9, 5]]
NEW, END = 10, 2


@pytest.mark.parametrize("target", ENGINES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_graphs_say_what_transformers_says(variant: str, target: str, tmp_path: Path) -> None:
    bundle = bundle_of(load_checkpoint(str(FOLDER / variant)), tmp_path / "bundle", target)
    model = txport.load(bundle.path, runtime=ENGINES[target])
    runtime = model.runtime
    lengths = np.array([len(prompt) for prompt in PROMPTS])
    ids = np.array([prompt + [1] * (max(lengths) - len(prompt)) for prompt in PROMPTS])
    with np.load(FOLDER / variant / "expected.npz") as said:
        given = np.column_stack([[prompt[-1] for prompt in PROMPTS], said["given"]])
        state = runtime.start(ids, lengths, max_length=given.shape[1] + max(lengths))
        for place in range(given.shape[1] - 1):
            scores, state = runtime.step(np.ascontiguousarray(given[:, place]), state)
            np.testing.assert_allclose(scores.values, said["logits"][:, place], rtol=0, atol=1e-4)
        for name, how in {"greedy": {}, "beams": {"beams": 4, "nbest": 2}}.items():
            found = model.search(PROMPTS, max_new_tokens=NEW, **how)
            assert [[tuple(each.tokens) for each in row] for row in found] == [[*map(cut, row)] for row in said[name]]


def cut(tokens: Any) -> tuple[int, ...]:
    """Without the padding behind an end token."""
    row = tokens.tolist()
    return tuple(row[: row.index(END) + 1] if END in row else row)


@pytest.mark.parametrize("seed", range(len(PLANS)))
def test_every_variant_is_proven(seed: int, tmp_path: Path) -> None:
    target, precision = PLANS[seed % len(PLANS)]
    report = proven(drawn("opt", seed), tmp_path, target, precision, seed)
    assert report.passed, report.failures()


def test_the_drawn_variants_are_of_every_kind() -> None:
    configs = [drawn("opt", seed) for seed in range(len(PLANS))]
    kinds = {(each.norm, each.embedding_width == each.d_model) for each in configs}
    assert kinds == {("pre", True), ("pre", False), ("post", True), ("post", False)}


# Parameters of the published models.
SIZES = {"125m": 125239296, "350m": 331196416, "1.3b": 1315758080, "2.7b": 2651596800, "6.7b": 6658473984}


@pytest.mark.parametrize("name", SIZES)
def test_published_sizes(name: str) -> None:
    with torch.device("meta"):
        model = OPT(PRESETS[f"opt-{name}"])
    assert sum(each.numel() for each in model.parameters()) == SIZES[name]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"heads": 3}, "heads must divide d_model, got 3 for 32"),
        ({"bos_id": 64}, "bos_id must lie in the model's vocabulary of 64, got 64"),
        ({"norm": "both"}, "norm must be one of pre, post; got 'both'"),
        ({"max_length": 1}, "max_length must be at least 2, got 1"),
    ],
)
def test_a_config_that_does_not_go_together_says_why(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(PRESETS["opt-tiny"], **changes)
    assert str(error.value) == problem
