"""Settings that are found, kept for one machine and one bundle, and used where no option places the model."""

from __future__ import annotations

import json
import shlex
import shutil
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import txport
from tests.tiny import tiny_config, tiny_model, unproven
from txport.api import tuned
from txport.bench import tune
from txport.bench.plan import GOALS
from txport.bench.worker import LateError
from txport.bundles.bundle import Bundle, load_bundle
from txport.checkpoints.checkpoint import save_checkpoint
from txport.cli.commands import cli
from txport.errors import ParityError, TxportError
from txport.serving.service.models import Source

DAY = 86_400.0
FOUND = tuned.Settings(threads=1, workers=2, batch_size=5)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned") / "toy"
    save_checkpoint(folder, tiny_model(tiny_config()))
    return folder


@pytest.fixture(scope="module")
def fused(toy: Path) -> Bundle:
    return unproven(toy, toy.parent / "out", target="cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round has one run of each choice, whatever the budget."""
    monkeypatch.setattr(tune, "MAX_ROUND", 0.0)


@pytest.fixture
def own(fused: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A copy of the bundle, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(fused.path, tmp_path / "bundle")
    return load_bundle(tmp_path / "bundle")


@pytest.mark.parametrize("goal", GOALS)
def test_the_best_settings_are_first_and_the_defaults_are_among_them(goal: str, fused: Bundle) -> None:
    best, *others = tune.tune([fused], goal, DAY)
    assert {each.choice for each in (best, *others)} == {tune.BASE, *tune.candidates([fused], goal)}
    assert all(each.figure > 0 for each in (best, *others))
    assert best.gain > tune.CLEAR or best.choice == tune.BASE


def test_answers_to_random_sources_have_an_end(fused: Bundle) -> None:
    outputs: Any = tune.Session(str(fused.path), tune.DEFAULT, ()).outputs()["outputs"]
    assert max(len(each.split()) for each in outputs) == tune.TOKENS


def search_of(*bundles: Bundle) -> tune.Search:
    return tune.Search(bundles, "latency", (), time.monotonic() + DAY)


def measured(search: tune.Search, *choices: tune.Choice) -> list[tune.Choice]:
    return [each for each, *_ in search.measure(choices, 0.0)]


def test_settings_that_can_not_run_are_left_out(fused: Bundle) -> None:
    """The openvino runtime does not run bundles of the cpu target."""
    wrong = tune.Choice(0, tuned.Settings(runtime="openvino", threads=1))
    assert measured(search_of(fused), wrong) == [tune.BASE]


def hanging(pipe: Connection, path: str, settings: tuned.Settings, texts: list[str]) -> None:
    """`tune.work`, which never answers with one thread."""
    if settings.threads == 1:
        threading.Event().wait()
    tune.work(pipe, path, settings, texts)


def test_settings_that_never_answer_are_left_out(fused: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_of(fused)
    monkeypatch.setattr(tune, "work", hanging)
    monkeypatch.setattr(tune, "SLOWER", 1)
    assert measured(search, tune.Choice(0, tuned.Settings(threads=1))) == [tune.BASE]


def test_a_search_ends_with_its_budget(fused: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LateError, match="give a larger budget"):
        tune.tune([fused], "latency", 0.0)
    search = search_of(fused)
    monkeypatch.setattr(search, "_end", time.monotonic())
    with pytest.raises(LateError, match="give a larger budget"):
        measured(search)


def test_outputs_are_compared_with_those_of_the_same_bundle(fused: Bundle, tmp_path: Path) -> None:
    """Another model has other outputs than the first one, with all its settings, and is not left out for them."""
    save_checkpoint(tmp_path / "other", tiny_model(tiny_config(), seed=1))
    other = unproven(tmp_path / "other", tmp_path / "out", target="cpu")
    second = tune.Choice(1, tuned.Settings(threads=1))
    search = search_of(fused, other)
    assert search._outputs[0] != search._outputs[1]
    assert measured(search, second) == [tune.BASE, second]
    search._outputs.reverse()
    assert measured(search, second) == [tune.BASE]


def test_exports_of_a_checkpoint_are_those_that_cost_little_enough(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    made = tune.exports(str(toy), tmp_path, "cpu", ("fp32", "int8"), (8,), progress=notes.append)
    assert [each.describe() for each in made] == ["fp32", "int8", "int8 rows 8"]
    assert [each.options.get("rows") for each in made] == [None, None, 8]
    assert made[0].loss == 0
    assert made[1].loss == made[1].bundle.manifest.loss["share"]
    shutil.rmtree(tmp_path)
    monkeypatch.setattr(tune.Export, "loss", property(lambda each: 0.2 if "int8" in each.describe() else 0.0))
    (kept,) = tune.exports(str(toy), tmp_path, "cpu", ("int8", "fp32"), max_loss=0.1, progress=notes.append)
    assert kept.describe() == "fp32"
    assert "--target cpu --precision int8 is left out: its loss is 0.2" in notes
    with pytest.raises(ParityError, match=r"its loss is 0\.2"):
        tune.exports(str(toy), tmp_path / "more", "cpu", ("int8",), max_loss=0.1)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("out", ["--precision", "int8"], "--precision, --rows or --max-loss needs a checkpoint"),
        ("out", ["--out", "new"], "--out needs a checkpoint"),
        ("toy", ["--rows", "8"], "--rows chooses the kernels of int8 and int4 on the cpu target"),
        ("toy", ["--precision", "bf16"], "target portable does not support precision 'bf16'"),
        ("toy", ["--target", "cuda"], "those of --target cuda need a GPU"),
        ("toy", ["--out", "toy"], "toy exists"),
    ],
)
def test_options_of_an_export_are_for_checkpoints(
    name: str, given: list[str], message: str, fused: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fused.path.parent)
    found = CliRunner().invoke(cli, ["tune", name, *given])
    assert isinstance(found.exception, TxportError)
    assert (found.exception.exit_code, message in str(found.exception)) == (2, True), str(found.exception)


def test_the_printed_command_makes_the_bundle_that_was_tuned(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tune, "BATCHES", (8,))
    arguments = ["tune", str(toy), "--target", "cpu", "--precision", "int8", "--budget", "24h", "--for", "throughput"]
    found = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path / "one")])
    assert found.exit_code == 0, found.output
    (line,) = (each for each in found.output.splitlines() if each.startswith("made by: txport "))
    command = shlex.split(line.replace(str(tmp_path / "one"), str(tmp_path / "two")))[3:]
    assert CliRunner().invoke(cli, command).exit_code == 0
    settings = tuned.find(tmp_path / "one")
    assert settings is not None
    assert txport.load(tmp_path / "two").tuned == settings


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
    found = CliRunner().invoke(cli, ["tune", str(own.path), "--budget", "24h", "--json"])
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
