"""How scores are made of the logits of labels: as the checkpoint says, in every bundle and on the command line."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import txport
from tests.recorded import FAMILIES
from tests.seeded import bundle_of, saved
from txport.api.encoding import scores
from txport.checkpoints.checkpoint import config_of, load_checkpoint
from txport.cli.commands import cli
from txport.errors import BundleError, ConfigError
from txport.models.architecture import of
from txport.models.architectures.bert import BertConfig
from txport.models.names import CONFIG, MANIFEST

LABELS = ("no", "perhaps", "yes")
TEXTS = ["5 17 3", "9", "4 4 6 8 11"]
CASES = {  # problem_type, labels -> what makes scores, and what other programs are told
    "exclusive": ("single_label_classification", LABELS, "softmax", "single_label_classification"),
    "any": ("multi_label_classification", tuple("abcdefghij"), "sigmoid", "multi_label_classification"),
    "one": ("single_label_classification", LABELS[:1], "sigmoid", "multi_label_classification"),
    "one of any": ("multi_label_classification", LABELS[:1], "sigmoid", "multi_label_classification"),
    "value": ("regression", LABELS[:1], "none", "regression"),
    "values": ("regression", LABELS, "none", "regression"),
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A portable bundle of each case."""
    folder = tmp_path_factory.mktemp("labels")
    found = {}
    for name, (problem, labels, _, _) in CASES.items():
        config = tiny(problem_type=problem, labels=labels)
        found[name] = bundle_of(saved(config, folder / name), folder / f"{name}-out", "portable").path
    return found


def tiny(**changes: Any) -> BertConfig:
    sizes = {"vocab_size": 24, "d_model": 16, "heads": 2, "feed_forward": 24, "encoder_layers": 1, "max_length": 16}
    ids = {"cls_id": 1, "sep_id": 2, "mask_id": 3}
    return BertConfig(**{**sizes, **ids, "head": "labels", "labels": LABELS, **changes})


SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 5))
LOGITS = arrays.arrays(np.float32, SHAPES, elements=st.floats(-1e4, 1e4, width=32))


@given(LOGITS)
def test_functions_are_what_their_names_say(logits: Any) -> None:
    shares = scores(logits, "softmax")
    each = scores(logits, "sigmoid")
    np.testing.assert_allclose(shares.sum(axis=-1), 1)
    assert ((each >= 0) & (each <= 1)).all()
    assert (each[logits >= 0] >= 0.5).all()
    assert (each[logits < -1e-3] < 0.5).all()
    np.testing.assert_allclose(each + scores(-logits, "sigmoid"), 1)
    np.testing.assert_array_equal(scores(logits, "none"), logits)


@pytest.mark.parametrize("name", CASES)
def test_scores_are_made_as_the_checkpoint_says(name: str, bundles: dict[str, Path]) -> None:
    _, labels, function, told = CASES[name]
    model = txport.load(bundles[name])
    assert model.facts.function_to_apply == function
    for found, outputs in zip(model.classify(TEXTS), model.infer(TEXTS), strict=True):
        right = scores(outputs["logits"], function)  # type: ignore[arg-type]
        order = np.argsort(-right)
        assert [each.label for each in found] == [labels[at] for at in order]
        assert [each.score for each in found] == pytest.approx(right[order])
    described = json.loads((bundles[name] / CONFIG).read_text(encoding="utf-8"))
    assert described["problem_type"] == told
    assert list(described["id2label"].values()) == list(labels)


@pytest.mark.parametrize("name", CASES)
def test_run_prints_what_the_labels_mean(name: str, bundles: dict[str, Path]) -> None:
    found = txport.load(bundles[name]).classify(TEXTS)
    shown = {
        "exclusive": lambda labels: labels[0].label,
        "any": lambda labels: "\t".join(scored(each) for each in labels if each.score >= 0.5),
    }
    lines = run(bundles[name])
    assert lines == [shown.get(name, lambda labels: "\t".join(map(scored, labels)))(labels) for labels in found]
    assert run(bundles[name], "--top", 2) == [scored(each) for labels in found for each in labels[:2]]
    values = [json.loads(line)["labels"] for line in run(bundles[name], "--json")]
    assert values == [[dataclasses.asdict(each) for each in labels] for labels in found]
    if name == "any":
        assert len({line.count("\t") for line in lines}) > 1  # texts with more labels and with fewer


def scored(each: Any) -> str:
    return f"{each.score:.4f}\t{each.label}"


def run(bundle: Path, *options: Any) -> list[str]:
    found = CliRunner().invoke(cli, ["run", str(bundle), *map(str, options), *TEXTS], catch_exceptions=False)
    assert found.exit_code == 0
    return found.stdout.splitlines()


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mpnet", "electra", "albert-groups"])
def test_every_family_reads_the_problem_type(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / (name if "-" in name else f"{name}-labels"), tmp_path / name))
    functions = {
        None: "softmax",
        "single_label_classification": "softmax",
        "multi_label_classification": "sigmoid",
        "regression": "none",
    }
    values = json.loads((folder / CONFIG).read_text())
    for problem, function in functions.items():
        (folder / CONFIG).write_text(json.dumps({**values, "problem_type": problem}))
        config = config_of(folder)
        assert of(config).build(config).facts.function_to_apply == function
    (folder / CONFIG).write_text(json.dumps({**values, "problem_type": "ranking"}))
    with pytest.raises(ConfigError, match="problem_type 'ranking' is not supported; it must be 'single_label_class"):
        config_of(folder)


def test_labels_of_tokens_exclude_each_other_whatever_the_problem_type(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "bert-token-labels", tmp_path / "tokens"))
    values = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**values, "problem_type": "multi_label_classification"}))
    assert load_checkpoint(str(folder)).facts.function_to_apply == "softmax"


def test_a_problem_type_is_one_of_labels_of_texts() -> None:
    with pytest.raises(ConfigError, match="problem_type 'regression' is for the head 'labels', got 'token_labels'"):
        tiny(head="token_labels", problem_type="regression")


def test_a_manifest_that_does_not_say_how_scores_are_made_is_refused(bundles: dict[str, Path], tmp_path: Path) -> None:
    """As one of an older version, which took a softmax of all."""
    place = Path(shutil.copytree(bundles["any"], tmp_path / "bundle"))
    values = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    del values["facts"]["function_to_apply"]
    (place / MANIFEST).write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(BundleError, match=r"function_to_apply of a model with labels .*, got None; export the bundle"):
        txport.load(place)
