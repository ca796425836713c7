"""What `run` and `score` take and give beside text: token ids, and special tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import txport
from tests.recorded import FAMILIES
from tests.seeded import bundle_of
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.cli.commands import cli
from txport.errors import UnsupportedError

SOURCES = ["9 5 3 7 2", "6 2"]


def call(*arguments: Any) -> list[str]:
    done = CliRunner().invoke(cli, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_score_says_of_ids_that_run_gives_what_run_says(name: str, tmp_path: Path) -> None:
    path = bundle_of(load_checkpoint(str(FAMILIES / name)), tmp_path / "bundle", "portable").path
    for beams in (1, 3):
        search = ("--json", "--max-new-tokens", 6, "--beams", beams, "--nbest", beams)
        for line, source in zip(call("run", path, "--ids", *SOURCES, *search), SOURCES, strict=True):
            for found in json.loads(line)["hypotheses"]:
                (scored,) = call("score", path, "--ids", "--json", source, " ".join(map(str, found["tokens"])))
                values = json.loads(scored)
                assert values["score"] == pytest.approx(found["score"], abs=1e-4)
                assert values["token_scores"] == pytest.approx(found["token_scores"], abs=1e-4)


def test_score_adds_no_end_to_ids(bundle: Bundle) -> None:
    model = txport.load(bundle.path)
    tokens = model.generate("bad")[0].hypotheses[0].tokens
    source = " ".join(map(str, model.encode("bad")))
    end = model.facts.writes.end
    assert tokens[-1] == end
    target = " ".join(map(str, tokens))
    (line,) = call("score", bundle.path, "--ids", "--json", source, target)
    assert len(json.loads(line)["token_scores"]) == len(tokens)
    (whole,) = model.score("bad", " ".join(model.tokenizer.tokens(tokens[:-1])))
    assert json.loads(line)["score"] == pytest.approx(whole.score, abs=1e-5)
    (open_ended,) = model.score("bad", " ".join(model.tokenizer.tokens(tokens[:-1])), add_end=False)
    assert open_ended.token_scores == whole.token_scores[:-1]
    for wrong in ("", "5 x", "-1", "100000"):
        done = CliRunner().invoke(cli, ["score", str(bundle.path), "--ids", source, wrong])
        assert done.exit_code != 0
        assert not done.stdout


def test_outputs_have_special_tokens_where_they_are_asked_for(bundle: Bundle) -> None:
    model = txport.load(bundle.path)
    found = model.generate(["bad", "chief"])
    shown = call("run", bundle.path, "--special-tokens", "bad", "chief")
    for text, line, each in zip(["bad", "chief"], shown, found, strict=True):
        tokens = each.hypotheses[0].tokens
        assert line == " ".join(model.tokenizer.tokens(tokens))
        assert (line != each.output) == (tokens[-1] == model.facts.writes.end)
        assert list(model.writing_special_tokens().stream(text))[-1] == line
    assert call("run", bundle.path, "--special-tokens", "--stream", "bad") == shown[:1]
    assert shown[0] != found[0].output
    assert model.generate("bad") == found[:1]
    with pytest.raises(UnsupportedError, match=r"--ids gives all tokens as numbers; .* --special-tokens"):
        call("run", bundle.path, "--ids", "--special-tokens", "5")


def test_a_prompt_is_none_of_the_output_with_special_tokens(tmp_path: Path) -> None:
    path = bundle_of(load_checkpoint(str(FAMILIES / "gpt2")), tmp_path / "bundle", "portable").path
    run = ("run", path, "9 5 3 7", "--max-new-tokens", 5, "--forced-eos-token", 2)
    (plain,), (shown,) = (call(*run, *more) for more in ([], ["--special-tokens"]))
    assert shown.split() == [*plain.split(), "2"]
