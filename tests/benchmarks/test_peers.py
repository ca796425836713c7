"""The peers' benchmark: what is compared, that both sides do the same work, that one process works at a time."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import txport
from benchmarks.peers import candidates, duel, report
from benchmarks.peers.__main__ import RESULTS, TABLE, earlier, joined, possible, result_of
from benchmarks.peers.candidates import Candidate
from benchmarks.peers.duel import Place
from benchmarks.peers.engines import Model, Search, before_end, hf_folder, txport_cpu
from benchmarks.peers.environments import DEFAULTS, PEERS, REQUIREMENTS, environment_of, pythons_of
from benchmarks.peers.lines import (
    BASE,
    LINES,
    AbsentError,
    Line,
    Task,
    facts_of,
    quick,
    search_of,
    sources_of,
    with_folder,
)
from benchmarks.peers.process import ROOT, Worker, WorkerError
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.checkpoints.folder import digest
from txport.errors import UnavailableError, UnsupportedError

TINY = Task(checkpoint="preset:tiny", batch=2, sources=4)
LINE = Line(name="greedy", against="a peer", task=TINY, precisions=("int8",), required=2.0)

# Its targets repeat the source's first id; its process's clock counts the seconds that it is told; it is noisy.
FAKE = """
import os, time
PACKAGES = ("numpy", "there-is-no-such-package")
clock = 0.0
time.perf_counter = lambda: clock

def prepare(model, folder):
    print("noise from Python")
    os.write(1, b"noise from a library\\n")
    if model.precision == "int4":
        raise ValueError("int4 did not pass")
    (folder / "weights").write_text(model.precision)

class Engine:
    def __init__(self, folder, search, options):
        self.precision, self.search, self.options = (folder / "weights").read_text(), search, options

    def encode(self, sources):
        return [[str(id_) for id_ in source] for source in sources]

    def generate(self, inputs):
        print("more noise")
        if self.options.get("dies"):
            os._exit(9)
        global clock
        clock += self.options["seconds"]
        return [[source[0]] * self.options.get("tokens", self.search.max_new_tokens) for source in inputs]

    def decode(self, outputs):
        return [[int(id_) for id_ in target] for target in outputs]

    def score(self, sources, targets):
        return [[self.options.get("log_prob", -1.0)] * len(target) for target in targets]
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "fake_engine.py").write_text(FAKE, encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(work=tmp_path / "work", pythons={PEERS: Path(sys.executable)}, cores=2, rounds=4)


def fake(environment: dict[str, str], precision: str = "int8", **options: Any) -> Candidate:
    model = Model(checkpoint="preset:tiny", precision=precision)
    return Candidate(engine="fake_engine", model=model, options=options, environment=environment)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.title)
def test_one_caller_is_never_split_and_bulk_uses_every_core(line: Line) -> None:
    for each in [*candidates.ours(line, 4), *candidates.theirs(line, 4)]:
        threads = each.options["threads"]
        workers = each.options.get("workers", 1)
        if line.task.batch is None:
            assert (threads, workers) == (1, 4)
        else:
            assert workers == 1
            assert threads in (1, 4)
            assert each.options.get("batch_size", line.task.batch) == line.task.batch


def test_a_peer_has_the_weights_that_txport_has() -> None:
    for line in LINES:
        sides = [*candidates.ours(line, 2), *candidates.theirs(line, 2)]
        assert {each.model.checkpoint for each in sides} == {line.task.checkpoint}


def test_pythias_lines_race_openvino_where_its_folder_has_been_written() -> None:
    (line,) = (each for each in LINES if each.title == "folder pythia-160m, greedy, batch 32, int8, against Optimum")
    located = replace(line, task=replace(line.task, checkpoint="/somewhere"))
    assert candidates.PORTABLE in {each.engine for each in candidates.ours(located, 2)}


def test_sources_are_seeded_whole_and_end() -> None:
    facts = facts_of(TINY)
    sources = sources_of(TINY, None)
    assert sources == sources_of(TINY, None)
    assert len({tuple(source) for source in sources}) == TINY.sources
    assert all(len(source) == 32 and source[-1] == facts.writes.end for source in sources)
    assert not set(facts.writes.special) & {id_ for source in sources for id_ in source[:-1]}


def test_words_come_from_the_dictionary_and_end_by_themselves(tmp_path: Path) -> None:
    task = Task(checkpoint="g2p-en", sources=2)
    with pytest.raises(AbsentError, match=r"there is no g014b2b\.test"):
        sources_of(task, tmp_path)
    (tmp_path / "g014b2b.test").write_text("AB\tAE B\nAB\tEY B\nBAD\tB AE D\nCAB\tK AE B\n", encoding="utf-8")
    assert [len(source) for source in sources_of(task, tmp_path)] == [3, 4]  # an end token each
    assert search_of(task) == Search(max_new_tokens=48, forced=False)
    assert search_of(TINY) == Search(max_new_tokens=32, forced=True)


def test_a_worker_keeps_stdout_for_answers(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    log = tmp_path / "log"
    with Worker(Path(sys.executable), environment, log) as worker:
        assert worker.request("prepare", engine="fake_engine", folder=str(folder), model={"checkpoint": "x"}) == {}
        options = {"search": {"max_new_tokens": 3}, "options": {"seconds": 0.05}}
        sources = {"sources": [[7, 2], [8, 2], [9, 2]], "batch": 2}
        answer = worker.request("load", engine="fake_engine", folder=str(folder), **options, **sources)
        assert {"python", "numpy"} == set(answer["versions"])
        assert worker.request("round")["seconds"] == pytest.approx(0.1), "two batches"
        assert worker.request("tokens")["tokens"] == [[7, 7, 7], [8, 8, 8], [9, 9, 9]]
        assert worker.request("memory")["peak"] > 1
    for noise in ("noise from Python", "noise from a library", "more noise"):
        assert noise in log.read_text(encoding="utf-8")


def test_an_engine_s_error_is_one_line_and_the_worker_goes_on(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    model = {"checkpoint": "x", "precision": "int4"}
    with Worker(Path(sys.executable), environment, tmp_path / "log") as worker:
        with pytest.raises(WorkerError, match="ValueError: int4 did not pass"):
            worker.request("prepare", engine="fake_engine", folder=str(folder), model=model)
        assert not folder.exists(), "what was not prepared must not be taken for prepared"
        with pytest.raises(WorkerError, match="no_such_engine"):
            worker.request("prepare", engine="no_such_engine", folder=str(folder), model=model)
        assert worker.request("memory")["peak"] > 1
    assert "Traceback" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_line_is_measured_with_the_fastest_of_each_side(
    environment: dict[str, str], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = [fake(environment, "int4", seconds=1), fake(environment, seconds=6), fake(environment, seconds=60)]
    wrong = fake(environment, seconds=1, log_prob=-1.5)
    theirs = [fake(environment, seconds=90), fake(environment, seconds=45, log_prob=-1.1), wrong]
    monkeypatch.setattr(candidates, "ours", lambda line, cores: ours)
    monkeypatch.setattr(candidates, "theirs", lambda line, cores: theirs)
    monkeypatch.setattr(duel, "TRIALS", 2)
    record = duel.run(LINE, replace(place, rounds=2))
    assert record["settings"]["txport"]["options"] == {"seconds": 6}
    assert record["settings"]["peer"]["options"] == {"seconds": 45, "log_prob": -1.1}
    assert record["log_probs_apart"] == pytest.approx(0.1)
    assert record["candidates"]["txport"][0]["error"] == "ValueError: int4 did not pass"
    assert [len(record["candidates"][side]) for side in ("txport", "peer")] == [3, 3]
    assert "0.500 apart, expected at most 0.2" in record["candidates"]["peer"][2]["error"]
    assert record["ratio"] == pytest.approx({"q1": 7.5, "median": 7.5, "q3": 7.5})
    assert record["peer"]["median"] == pytest.approx(4 * 32 / 90), "two batches of 45 s"
    assert (record["equal_rows"], record["rows"]) == (4, 4)
    assert report.verdict({**record, "required": 1.0}) == "reached"
    assert report.verdict({**record, "required": 8.0}) == "falls short"


def test_ratios_are_of_rounds_and_memory_is_better_when_smaller() -> None:
    seconds = {"txport": [1.0, 2.0, 4.0], "peer": [2.0, 6.0, 8.0]}
    memory = {"txport": 100.0, "peer": 150.0}
    sources = sources_of(TINY, None)
    speed = duel.figures(LINE, sources, seconds, memory)
    assert speed["ratio"] == {"q1": 2.0, "median": 2.0, "q3": 2.5}
    assert speed["txport"]["median"] == 4 * 32 / 2.0
    space = duel.figures(replace(LINE, unit="MB"), sources, seconds, memory)
    assert (space["txport"]["median"], space["ratio"]["median"]) == (100.0, 1.5)
    with pytest.raises(WorkerError, match="peak memory"):
        duel.figures(replace(LINE, unit="MB"), sources, seconds, {"txport": float("nan"), "peer": 1.0})


def test_a_side_that_generates_less_is_refused() -> None:
    whole = [[5] * 32] * 4
    duel.require_length(LINE, {"txport": whole, "peer": whole})
    with pytest.raises(WorkerError, match=r"the peer side generated \[31, 32\] tokens a source, expected 32"):
        duel.require_length(LINE, {"txport": whole, "peer": [*whole[1:], [5] * 31]})


def test_sides_that_say_otherwise_are_refused(
    environment: dict[str, str], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "ours", lambda line, cores: [fake(environment, seconds=1)])
    monkeypatch.setattr(candidates, "theirs", lambda line, cores: [fake(environment, seconds=1, log_prob=-1.5)])
    monkeypatch.setattr(duel, "TRIALS", 1)
    with pytest.raises(WorkerError, match=r"0\.500 apart, expected at most 0\.2"):
        duel.run(LINE, place)
    assert duel.distance([[-1.0]], None) is None, "an engine that can't score is compared by its tokens alone"


MACHINE = {"cpu": "a processor", "instructions": ["avx2", "fma"], "cores": 2, "system": "Linux x86_64", "gpu": None}
RUN = {"date": "2000-01-01", "machine": MACHINE, "rounds": 9}
RECORD: dict[str, Any] = {
    **RUN,
    **duel.describe(LINE),
    **{name: {"q1": 1.0, "median": 2.0, "q3": 3.0} for name in ("txport", "peer", "ratio")},
    "equal_rows": 3,
    "rows": 4,
}


def test_only_a_line_that_was_measured_can_pass() -> None:
    skipped, failed = ({**RUN, **duel.describe(LINE), what: "the reason"} for what in ("skipped", "failed"))
    assert [report.verdict(each) for each in (RECORD, skipped, failed)] == ["reached", "skipped", "failed"]
    assert [report.falls_short(each) for each in (RECORD, skipped, failed)] == [False, True, True]
    short = {**RECORD, "required": 2.01}
    assert (report.verdict(short), report.falls_short(short)) == ("falls short", True)
    free = {**RECORD, "required": None}
    assert (report.verdict(free), report.falls_short(free)) == ("not judged", False)
    assert "skipped: greedy, against a peer: the reason" in report.text([RECORD, skipped])


def test_the_page_and_its_picture_are_those_of_the_record() -> None:
    pytest.importorskip("altair")
    from docs import peers_picture

    result = json.loads((ROOT / RESULTS).read_text(encoding="utf-8"))
    command = "run `python -m docs.peers_picture`"
    assert (ROOT / TABLE).read_text(encoding="utf-8") == report.markdown(result), command
    assert peers_picture.PICTURE.read_text(encoding="utf-8") == peers_picture.render(result["lines"]), command


def test_the_picture_of_limits_is_that_of_its_record() -> None:
    pytest.importorskip("altair")
    from docs import limits_picture

    lines = json.loads(limits_picture.RESULTS.read_text(encoding="utf-8"))["lines"]
    drawn = limits_picture.PICTURE.read_text(encoding="utf-8")
    assert drawn == limits_picture.render(lines), "run `python -m docs.limits_picture`"


def test_the_overview_has_the_fastest_peer_of_each_line_and_machine() -> None:
    def line(name: str, ratio: float, **changes: Any) -> dict[str, Any]:
        settings = {"txport": {"model": {"precision": "int8"}}}
        return {**RECORD, "name": name, "ratio": {"median": ratio}, "settings": settings, **changes}

    elsewhere = {"machine": {**MACHINE, "cpu": "another"}}
    memory = line("memory", 0.1, unit="MB")
    records = [line("one", 4), line("one", 2), line("two", 0.5), line("one", 3, **elsewhere), memory]
    assert [each["ratio"]["median"] for each in report.hardest(records)] == [2, 0.5, 3]
    table = report.overview(records, report.machines_of(records)).splitlines()
    assert "in 2 of 3 lines" in table[2]
    assert table[-1] == "| preset:tiny, int8 | 1.00 (0.50 to 2.00) | 3.00 |"


def test_lines_of_an_earlier_run_stay_or_are_replaced(tmp_path: Path) -> None:
    first, second, third = ({**RUN, **duel.describe(line)} for line in LINES[:3])
    path = tmp_path / "results.json"
    assert earlier(path) == []
    gone = {**first, "name": "a line of long ago"}
    path.write_text(json.dumps(result_of([third, first, gone], Place(work=tmp_path, pythons={PEERS: path}), BASE)))
    again = {**first, "date": "2000-01-02"}
    other = {**first, "name": "a folder of the user's"}
    assert joined(earlier(path), [other, second, again]) == [again, second, third, other]
    failed = [{**RUN, **duel.describe(line), "failed": "the process died"} for line in LINES[:2]]
    assert joined(earlier(path), failed) == [first, failed[1], third]
    elsewhere = {**again, "machine": {**MACHINE, "instructions": ["avx2", "avx512f"]}}
    assert joined(earlier(path), [elsewhere]) == [first, elsewhere, third] == joined([third, first, elsewhere], [third])


def test_a_quick_run_is_a_toy_and_judges_nothing() -> None:
    for line in map(quick, LINES):
        assert line.required is None
        assert line.task.checkpoint != "preset:base"
        if line.task.converted:
            assert hf_folder.RECIPES[line.task.checkpoint.removeprefix("folder:").removesuffix("-toy")].small
        else:
            assert digest(line.task.checkpoint)


def test_a_folder_of_the_user_takes_the_place_of_random_weights(tmp_path: Path) -> None:
    for name, encodes in (("llama-tiny", False), ("bert-tiny", True)):
        folder = tmp_path / name
        save_checkpoint(folder, load_checkpoint(f"preset:{name}").in_memory().model)
        lines = with_folder(LINES, folder)
        assert {line.task.checkpoint for line in lines} == {str(folder)}
        assert {line.task.encodes for line in lines} == {encodes}
        assert all(line.name.startswith(f"{name}, ") and line.required is None for line in lines)
        assert quick(lines[0]).task.checkpoint == str(folder)


def test_a_line_without_its_environment_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [sys.executable, *(f"{name}={sys.executable}" for name in ("openvino", "genai", "whisper-cpp"))]
    place = Place(work=tmp_path, pythons=pythons_of([*given, f"llama-cpp={tmp_path / 'none'}"]))
    kept = possible(LINES, place)
    passed = [line for line in LINES if line not in kept]
    assert passed == [line for line in LINES if line.against.startswith("llama.cpp")]
    assert f"{passed[0].title} is passed over: there is no {tmp_path / 'none'}" in capsys.readouterr().err
    with pytest.raises(UnavailableError, match="every line needs an environment that is missing"):
        possible(passed, place)
    with pytest.raises(UnsupportedError, match="there is no environment 'genay'"):
        pythons_of(["genay=python"])


def test_each_environment_has_its_requirements() -> None:
    assert {path.stem for path in REQUIREMENTS.glob("*.txt")} == DEFAULTS.keys()
    for line in LINES:
        assert environment_of(candidates.theirs(line, 1)[0].engine) in DEFAULTS


def test_vectors_must_point_the_same_way_in_fp32() -> None:
    vectors = [[1.0, 2.0], [3.0, -1.0]]
    line = replace(LINE, task=replace(TINY, encodes=True))
    assert duel.alike(line, {"txport": vectors, "peer": [[2.0, 4.0], [3.0, -1.0]]})["cosine_apart"] == pytest.approx(0)
    assert duel.cosine_apart(vectors, [[2.0, -1.0], [3.0, -1.0]]) == pytest.approx(0.5)
    record = {**{k: v for k, v in RECORD.items() if k != "equal_rows"}, "cosine_apart": 0.0006}
    assert "1 - cosine 0.0006" in report.row(record)


def test_sides_that_convert_a_folder_must_find_the_same_in_fp32(
    environment: dict[str, str], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "ours", lambda line, cores: [fake(environment, "fp32", seconds=1)])
    monkeypatch.setattr(candidates, "theirs", lambda line, cores: [fake(environment, "fp32", seconds=1)])
    sources = sources_of(TINY, None)
    assert duel.require_agreement(LINE, sources, place) == 16
    other = replace(place, tried={})
    monkeypatch.setattr(candidates, "theirs", lambda line, cores: [fake(environment, "fp32", seconds=1, tokens=7)])
    assert duel.require_agreement(LINE, sources, place) == 16, "it is asked once"
    with pytest.raises(WorkerError, match=r"in fp32, txport found .* expected the same tokens"):
        duel.require_agreement(LINE, sources, other)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "bundle"
    txport_cpu.prepare(Model(checkpoint="preset:tiny", precision="int8", rows=8), folder)
    return folder


@pytest.mark.parametrize("search", [Search(max_new_tokens=6), Search(max_new_tokens=6, beams=2, forced=False)])
def test_our_engine_finds_what_a_model_finds(search: Search, prepared: Path) -> None:
    engine = txport_cpu.Engine(prepared, search, {"threads": 1, "workers": 2, "batch_size": 2})
    sources = [[5, 6, 2], [7, 2], [8, 9, 10, 2]]
    least = 6 if search.forced else 0
    found = txport.load(prepared, threads=1).search(
        sources, beams=search.beams, max_new_tokens=6, min_new_tokens=least, batch_size=2
    )
    expected = [before_end(each[0].tokens, engine.end) for each in found]
    assert engine.decode(engine.generate(engine.encode(sources))) == expected
    assert not search.forced or {len(target) for target in expected} == {6}


def test_random_weights_come_from_the_same_pytorch_on_both_sides() -> None:
    """A preset is a seed: another version may draw other weights."""
    pins = [(ROOT / name).read_text(encoding="utf-8").split() for name in ("constraints.txt",)]
    pins.append((ROOT / "benchmarks/peers/requirements/peers.txt").read_text(encoding="utf-8").split())
    ours, theirs = ([pin for pin in each if pin.startswith("torch==")] for each in pins)
    assert ours == theirs
    assert len(ours) == 1
