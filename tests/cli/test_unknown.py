"""Words that the vocabulary lacks: as an unknown token, or left out, with one answer a line whatever is known of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import txport
from tests.cli.processes import run
from tests.seeded import bundle_of
from tests.text.grown import grown
from tests.text.test_agreement import tokenizers
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.cli.commands import cli
from txport.errors import TextError

TEXTS = ["bad", "€€€", "", "  ", "ch€ief"]
PIPE = "\n".join(TEXTS) + "\n"
NOTE = "txport: 3 of 5 texts have no character of the vocabulary; their output is empty\n"


@pytest.fixture(scope="module")
def known(bundle: Bundle) -> list[str]:
    model = txport.load(bundle.path)
    return [each.output for each in model.generate(["bad", "chief"])]


def test_every_line_has_an_answer(bundle: Bundle, known: list[str], tmp_path: Path) -> None:
    done = run("run", bundle.path, "--unknown", "skip", input=PIPE)
    assert (done.returncode, done.stderr) == (0, NOTE)
    assert done.stdout.splitlines() == [known[0], "", "", "", known[1]]
    file = tmp_path / "lines"
    file.write_text(PIPE, encoding="utf-8")
    for arguments in (["--input", file], TEXTS, ["--input", file, "--batch-size", 2, "--workers", 2]):
        again = run("run", bundle.path, "--unknown", "skip", *arguments)
        assert (again.returncode, again.stdout, again.stderr) == (0, done.stdout, NOTE)
    streamed = run("run", bundle.path, "--unknown", "skip", "--stream", input=PIPE)
    assert (streamed.returncode, streamed.stdout) == (0, done.stdout)


def test_json_and_nbest_keep_their_form(bundle: Bundle) -> None:
    done = run("run", bundle.path, "--unknown", "skip", "--json", input=PIPE)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["input"] for line in lines] == TEXTS
    assert [len(line["hypotheses"]) for line in lines] == [1, 0, 0, 0, 1]
    assert lines[1] == {"input": "€€€", "output": "", "score": 0.0, "hypotheses": []}
    done = run("run", bundle.path, "--unknown", "skip", "--beams", 3, "--nbest", 3, input=PIPE)
    assert len(done.stdout.splitlines()) == 3 * len(TEXTS)
    assert done.stdout.splitlines()[3:12] == ["\t"] * 9


def test_without_skip_the_first_such_line_ends_it(bundle: Bundle, known: list[str]) -> None:
    for line, message in (("€", "outside the vocabulary"), ("", "line 2: the text is empty")):
        done = run("run", bundle.path, input=f"bad\n{line}\nchief\n")
        assert (done.returncode, done.stdout) == (2, f"{known[0]}\n")
        assert message in done.stderr


def test_the_api_says_that_there_is_no_hypothesis(bundle: Bundle, known: list[str]) -> None:
    model = txport.load(bundle.path)
    found = model.generate(TEXTS, unknown="skip", beams=2, nbest=2)
    assert [len(each.hypotheses) for each in found] == [2, 0, 0, 0, 2]
    assert list(model.stream("€", unknown="skip")) == [""]
    with pytest.raises(TextError, match="has no character of the vocabulary"):
        model.encode("€", "skip")
    with pytest.raises(TextError, match="outside the vocabulary"):
        model.generate("€")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes targets, with a tokenizer of SentencePiece's that has an unknown token."""
    folder = tmp_path_factory.mktemp("foreign")
    ids = {"eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 0, "decoder_start_token_id": 2}
    model = grown(folder / "model", "bart", "xlm-roberta", tokenizers("xlm-roberta")[0].size, **ids)
    return bundle_of(load_checkpoint(str(model)), folder / "bundle").path


def test_a_foreign_tokenizer_takes_its_unknown_token_and_commands_say_so(foreign: Path) -> None:
    model = txport.load(foreign)
    assert model.tokenizer.unknown is not None
    assert model.encode("a ☃ b").count(model.tokenizer.unknown) == 1
    note = "txport: 1 piece is not in the vocabulary; the model reads the unknown token there\n"
    (token,) = model.tokenizer.tokens([5])
    commands = [
        ["run", "--max-new-tokens", "3", str(foreign), "a ☃ b"],
        ["run", "--max-new-tokens", "3", "--stream", str(foreign), "a ☃ b"],
        ["score", str(foreign), "--pieces", "a ☃ b", token],
    ]
    for command in commands:
        done = CliRunner().invoke(cli, command)
        assert (done.exit_code, done.stderr) == (0, note)
        assert CliRunner().invoke(cli, [each.replace("☃ ", "") for each in command]).stderr == ""
        done = CliRunner().invoke(cli, [*command, "--unknown", "error"])
        assert (done.exit_code != 0, done.stdout) == (True, "")
        said = "has characters outside the vocabulary: '☃'; --unknown skip leaves them out"
        assert said in str(done.exception)


def test_special_tokens_in_a_text_are_said_or_read(foreign: Path) -> None:
    note = "txport: 1 text spells special tokens (<s>, </s>), which are read as plain characters; "
    note += "--parse-special reads the tokens\n"
    model = txport.load(foreign)
    text = "a<s> b </s><s>"
    start, end = model.tokenizer.ids("<s> </s>")
    ids = [model.encode(text, special=special)[1:-1] for special in (False, True)]
    assert (start in ids[0], [id_ for id_ in ids[1] if id_ in (start, end)]) == (False, [start, end, start])
    run = ["run", "--max-new-tokens", "3", str(foreign), text, "a"]
    score = ["score", str(foreign), "a", text]
    for command in (run, [*run, "--stream"], score):
        done = CliRunner().invoke(cli, command)
        assert (done.exit_code, done.stderr.splitlines(keepends=True)[0]) == (0, note)
        parsed = CliRunner().invoke(cli, [*command, "--parse-special"])
        assert (parsed.exit_code, parsed.stderr) == (0, "")
    (found,) = model.score("a", text, special=True)
    assert found.tokens == [*([] if (id_ := model.defaults.get("forced_bos_token_id")) is None else [id_]), *ids[1], 2]


def test_a_tokenizer_of_letters_takes_its_unknown_token_only_where_it_is_asked_for(bundle: Bundle) -> None:
    done = CliRunner().invoke(cli, ["run", str(bundle.path), "--unknown", "token", "ch€ief", "b€€d"])
    assert done.exit_code == 0
    assert "3 pieces are not in the vocabulary" in done.stderr
    assert CliRunner().invoke(cli, ["run", str(bundle.path), "--unknown", "auto", "ch€ief"]).exit_code != 0
