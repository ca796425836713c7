"""Settings that are found, kept for one machine and one bundle, and used where no option places the model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import txport
from tests.tiny import tiny_config, tiny_model, unproven
from txport.api import tuned
from txport.bench import tune
from txport.bench.plan import GOALS
from txport.bundles.bundle import Bundle, load_bundle
from txport.checkpoints.checkpoint import save_checkpoint
from txport.cli.commands import cli
from txport.serving.service.models import Source

FOUND = tuned.Settings(threads=1, workers=2, batch_size=5)


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("tuned")
    save_checkpoint(folder / "toy", tiny_model(tiny_config()))
    return unproven(folder / "toy", folder / "out", target="cpu")


@pytest.fixture
def own(fused: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A copy of the bundle, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(fused.path, tmp_path / "bundle")
    return load_bundle(tmp_path / "bundle")


@pytest.mark.parametrize("goal", GOALS)
def test_the_best_settings_are_first_and_the_defaults_are_among_them(goal: str, fused: Bundle) -> None:
    best, *others = tune.tune(fused, goal, 2.0, ())
    assert {each.settings for each in (best, *others)} == {tune.DEFAULT, *tune.candidates(fused, goal)}
    assert all(each.figure > 0 for each in (best, *others))
    assert best.gain > tune.CLEAR or best.settings == tune.DEFAULT


def test_settings_that_can_not_run_are_left_out(fused: Bundle) -> None:
    """The openvino runtime does not run bundles of the cpu target."""
    wrong = tuned.Settings(runtime="openvino", threads=1)
    (only,) = tune._measure(fused, "latency", [tune.DEFAULT, wrong], 0.5, (), 0)
    assert only.settings == tune.DEFAULT


def test_settings_that_were_found_are_used_and_the_outputs_are_the_same(own: Bundle) -> None:
    plain = txport.load(own.path)
    tuned.store(own.path, FOUND)
    model = txport.load(own.path)
    assert (plain.tuned, model.tuned, model.workers) == (None, FOUND, 2)
    texts = ["4 5 6", "7", "8 9", "5 5 5 5"]
    assert [each.hypotheses[0].tokens for each in model.generate(texts)] == [
        each.hypotheses[0].tokens for each in plain.generate(texts)
    ]


@pytest.mark.parametrize("given", [{"threads": 2}, {"workers": 1}, {"runtime": "ort"}, {"tuned": False}])
def test_options_of_the_user_come_first(given: dict[str, Any], own: Bundle) -> None:
    tuned.store(own.path, FOUND)
    assert txport.load(own.path, **given).tuned is None


def test_settings_of_another_machine_are_not_used(own: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tuned.here()
    monkeypatch.setattr(tuned, "here", lambda: {**here, "usable": 1000})
    file = tuned.store(own.path, FOUND)
    assert tuned.find(own.path) == FOUND
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file.parents[2]))
    assert tuned.find(own.path) is None
    shutil.copyfile(file, tuned.store(own.path, FOUND))
    assert tuned.find(own.path) is None, "a record that was copied from another machine"
    assert txport.load(own.path).tuned is None


def test_settings_of_a_bundle_that_has_changed_are_not_used(own: Bundle) -> None:
    tuned.store(own.path, FOUND)
    assert dict(tuned.every()) == {str(own.path): FOUND}
    manifest = own.path / "txport.json"
    manifest.write_text(manifest.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert tuned.find(own.path) is None
    assert dict(tuned.every()) == {}


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"settings": {}}', {"threads": 0}, {"runtime": "no"}, {"more": 1}])
def test_a_damaged_record_is_not_used(damage: Any, own: Bundle) -> None:
    file = tuned.store(own.path, FOUND)
    if isinstance(damage, dict):
        record = json.loads(file.read_text(encoding="utf-8"))
        damage = json.dumps({**record, "settings": {**record["settings"], **damage}})
    file.write_text(damage, encoding="utf-8")
    assert tuned.find(own.path) is None
    assert list(tuned.every()) == []


def test_a_service_takes_the_threads_of_one_worker(own: Bundle) -> None:
    tuned.store(own.path, FOUND)
    assert Source(str(own.path))._threads(own.path) is None, "two workers of one thread are not an engine of one thread"
    tuned.store(own.path, tuned.Settings(threads=1))
    assert Source(str(own.path))._threads(own.path) == 1
    assert Source(str(own.path), threads=2)._threads(own.path) == 2
    assert Source(str(own.path), tuned=False)._threads(own.path) is None


def test_tune_keeps_what_it_found_and_doctor_shows_it(own: Bundle) -> None:
    before = {file.name: file.read_bytes() for file in own.path.iterdir() if file.is_file()}
    found = CliRunner().invoke(cli, ["tune", str(own.path), "--budget", "2s", "--json"])
    assert found.exit_code == 0, found.output
    best = json.loads(found.stdout)["outcomes"][0]["settings"]
    kept = tuned.find(own.path)
    assert kept == tuned.Settings(**best)
    shown = json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).stdout)["tuned"]
    assert shown == {str(own.path): kept.describe()}
    assert before == {file.name: file.read_bytes() for file in own.path.iterdir() if file.is_file()}


@pytest.mark.parametrize("budget", ["", "5", "0s", "-1m", "1d", "nan"])
def test_a_budget_is_a_time(budget: str, fused: Bundle) -> None:
    found = CliRunner().invoke(cli, ["tune", str(fused.path), "--budget", budget])
    assert found.exit_code == 2
    assert "is not a time such as 90s, 5m or 1h" in found.output
