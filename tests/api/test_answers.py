"""Answers are those of transformers' pipeline, through the graphs of each target, and of windows of any length."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import txport
from tests.recorded import ANSWERS, EXPECTED_ANSWERS
from tests.seeded import bundle_of, saved
from txport.checkpoints.checkpoint import load_checkpoint
from txport.cli.commands import cli
from txport.errors import CheckpointError, LongTextError, TextError, UnsupportedError
from txport.models.architectures.bert import PRESETS
from txport.models.facts import END, START
from txport.proof.proven import prove, write
from txport.proof.verify.encoding import load_golden

OURS = {
    "top_k": "nbest",
    "handle_impossible_answer": "impossible",
    "max_seq_len": "window",
    "doc_stride": "stride",
    "max_answer_len": "longest",
}
CASES = [("bert", "portable"), ("roberta", "cpu"), ("deberta-v2", "cpu"), ("qwen2", "cpu"), ("llama", "portable")]
CASES += [("t5", "cpu"), ("bart", "portable"), ("mbart50", "cpu")]
CONTEXT = "The harbour is old. It was built by Ada Byron in 1842, and it opens at nine."


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    name, target = request.param
    folder = tmp_path_factory.mktemp("answers")
    loaded = txport.load(bundle_of(load_checkpoint(str(ANSWERS / name)), folder / "bundle", target).path)
    return name, loaded, folder / "bundle"


def test_answers_are_those_of_the_pipeline(model: Any) -> None:
    name, ours, _ = model
    recorded = json.loads((ANSWERS / name / EXPECTED_ANSWERS).read_text(encoding="utf-8"))
    assert len({each["answers"][0]["answer"] for each in recorded}) > 5
    for each in recorded:
        options = {OURS[key]: value for key, value in each["options"].items()}
        found = ours.answer(each["question"], each["context"], **options)
        wanted = each["answers"]
        assert [answer.score for answer in found] == pytest.approx([one["score"] for one in wanted], abs=1e-5)
        told = [(answer.text, answer.start, answer.end) for answer in found]
        assert told == [(one["answer"], one["start"], one["end"]) for one in wanted]


def test_questions_of_a_batch_have_the_answers_that_each_has_alone(model: Any) -> None:
    _, ours, _ = model
    pairs = [("who", CONTEXT), ("when", CONTEXT * 9), ("what", "nine"), ("how", CONTEXT * 3)]
    alone = [ours.answer(*pair, nbest=2) for pair in pairs]
    for size in (1, 3, 32):
        together = [*ours.answer_iter(pairs, nbest=2, batch_size=size)]
        for one, other in zip(alone, together, strict=True):
            assert [each.text for each in one] == [each.text for each in other]
            assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-5)
    longer = ours.answer("when", CONTEXT * 9, nbest=3)
    assert all((CONTEXT * 9)[each.start : each.end] == each.text for each in longer)


def test_what_can_not_be_answered_is_refused(model: Any) -> None:
    _, ours, _ = model
    with pytest.raises(LongTextError, match=r"leaves 0 of 64 tokens of a window for the context"):
        ours.answer("who is it " * 40, CONTEXT)
    with pytest.raises(TextError, match="the text is empty"):
        ours.answer("who", " ")
    with pytest.raises(TextError, match="must be a pair of strings, got 'who'"):
        [*ours.answer_iter(["who"])]
    for options, what in (({"nbest": 0}, "nbest must be at least 1"), ({"impossible": 1}, "impossible must be True")):
        with pytest.raises(UnsupportedError, match=what):
            ours.answer("who", CONTEXT, **options)
    with pytest.raises(UnsupportedError, match="use answer"):
        ours.tag(["who"])


def test_the_command_line_answers_from_a_file_and_from_columns(model: Any, tmp_path: Path) -> None:
    _, ours, bundle = model
    (tmp_path / "context.txt").write_text(CONTEXT, encoding="utf-8")
    (wanted,) = ours.answer("who built it", CONTEXT)

    def said(*arguments: str, given: str | None = None) -> str:
        done = CliRunner().invoke(cli, ["run", str(bundle), *arguments], input=given)
        assert done.exit_code == 0, done.output
        return done.stdout

    assert said("who built it", "--context", str(tmp_path / "context.txt")) == f"{wanted.text}\n"
    scored = said("--top", "1", "--pairs", given=f"who built it\t{CONTEXT}\n")
    assert scored == f"{wanted.score:.4f}\t{wanted.text}\n"
    (line,) = said("--json", given=f"who built it\t{CONTEXT}\n").splitlines()
    assert json.loads(line) == {"question": "who built it", "answers": [vars(wanted)]}
    refused = CliRunner().invoke(cli, ["run", str(bundle), "who", "--context", str(bundle / "missing.txt")])
    assert refused.exit_code != 0
    assert "missing.txt can't be read as text in UTF-8" in str(refused.exception)


@pytest.mark.parametrize("settings", [{"padding_side": "left"}, {"padding_side": None}])
def test_a_model_that_read_the_context_first_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    """As transformers does for tokenizers that pad on the left; by default, that of Llama does."""
    folder = shutil.copytree(ANSWERS / "llama", tmp_path / "llama")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings), encoding="utf-8")
    with pytest.raises(CheckpointError, match="the tokenizer pads on the left, so transformers puts a context before"):
        load_checkpoint(str(folder))


@pytest.mark.parametrize(("target", "precision"), [("portable", "fp32"), ("cpu", "int8")])
def test_a_model_of_answers_is_proven_and_verified(target: str, precision: str, tmp_path: Path) -> None:
    checkpoint = saved(dataclasses.replace(PRESETS["bert-tiny"], head="spans", token_types=2), tmp_path / "model")
    (tmp_path / "bundle").mkdir()
    bundle, report = prove(write(checkpoint, tmp_path / "bundle", target=target, precision=precision), checkpoint)
    assert report.passed, report.failures()
    assert {each.search for each in report.tokens} == {"likeliest place"}
    assert load_golden(bundle).outputs.keys() == {START, END}
    assert CliRunner().invoke(cli, ["verify", str(bundle.path)]).exit_code == 0
