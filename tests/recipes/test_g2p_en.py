from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipes.g2p_en import g2p
from recipes.g2p_en import train as recipe
from recipes.g2p_en.g2p import DataError, edit_distance, read_dictionary, score, split_off
from txport.checkpoints.checkpoint import load_checkpoint
from txport.runtimes.pytorch import TorchRuntime
from txport.search.generate import generate
from txport.search.options import SearchOptions
from txport.text.file import FileTokenizer

PHRASE = st.lists(st.sampled_from("ABC"), max_size=7)


@given(first=PHRASE, second=PHRASE)
def test_distance_is_symmetric_and_bounded(first: list[str], second: list[str]) -> None:
    distance = edit_distance(first, second)
    assert distance == edit_distance(second, first)
    assert (distance == 0) == (first == second)
    assert abs(len(first) - len(second)) <= distance <= max(len(first), len(second))


@given(first=PHRASE, second=PHRASE, third=PHRASE)
def test_distance_keeps_the_triangle(first: list[str], second: list[str], third: list[str]) -> None:
    assert edit_distance(first, third) <= edit_distance(first, second) + edit_distance(second, third)


@given(phrase=PHRASE, place=st.integers(0, 7))
def test_one_edit_is_one(phrase: list[str], place: int) -> None:
    place = min(place, len(phrase))
    assert edit_distance(phrase, [*phrase[:place], "X", *phrase[place:]]) == 1
    if place < len(phrase):
        assert edit_distance(phrase, [*phrase[:place], "X", *phrase[place + 1 :]]) == 1


def test_known_distances() -> None:
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("intention", "execution") == 5
    assert edit_distance("", "abc") == 3


def test_score_takes_the_closest_reference() -> None:
    dictionary = {"read": [("R", "EH", "D"), ("R", "IY", "D")], "a": [("AH",), ("EY",)], "is": [("IH", "Z")]}
    perfect = {"read": ("R", "IY", "D"), "a": ("EY",), "is": ("IH", "Z")}
    assert score(dictionary, perfect) == g2p.Score(3, 0.0, 0.0)
    wrong = {**perfect, "read": ("R", "IY", "T"), "is": ()}
    result = score(dictionary, wrong)
    assert result.wer == pytest.approx(100 * 2 / 3)
    assert result.per == pytest.approx(100 * 3 / 6)


def test_score_counts_against_the_reference_that_is_closest_for_its_length() -> None:
    # One error in four phones beats one error in one phone.
    result = score({"x": [("A",), ("B", "C", "D", "E")]}, {"x": ("B", "C", "D", "F")})
    assert (result.wer, result.per) == (100.0, 25.0)


def test_read_dictionary(tmp_path: Path) -> None:
    file = tmp_path / "dictionary"
    file.write_text("READ\tR EH D\nA\tAH\nREAD\tR IY D\n")
    expected = {"read": [("R", "EH", "D"), ("R", "IY", "D")], "a": [("AH",)]}
    assert read_dictionary(file) == expected
    assert list(read_dictionary(file)) == list(expected)


@pytest.mark.parametrize("line", ["WORD R EH D", "WORD\t", "WORD\t ", "\tR EH D", ""])
def test_read_dictionary_names_the_line(line: str, tmp_path: Path) -> None:
    file = tmp_path / "dictionary"
    file.write_text(f"A\tAH\n{line}\nB\tB IY\n")
    with pytest.raises(DataError, match=rf"{file}:2: expected WORD<TAB>P H O N E S, got"):
        read_dictionary(file)


def test_split_off() -> None:
    dictionary = {word: [("AH",)] for word in "abcd"}
    rest, chosen = split_off(dictionary, ["d", "b", "z"])
    assert (list(rest), list(chosen)) == (["a", "c"], ["b", "d"])


def test_vocabulary() -> None:
    assert len(g2p.VOCABULARY) == len(set(g2p.VOCABULARY)) == 4 + 27 + 39


# A language of sixty words whose spelling says all: enough to learn in two epochs that the loss falls.
SOUNDS = {"a": "AH", "b": "B", "d": "D", "e": "EH", "i": "IH", "k": "K", "m": "M", "o": "OW", "s": "S", "t": "T"}
TOY = [f"{c}{v}{d}{w}" for c in "bdk" for v in "aeio" for d in "mst" for w in "aeio"][::2][:60]
RECIPE = ["--epochs", "2", "--size", "16", "--encoder-layers", "1", "--decoder-layers", "1", "--batch-tokens", "60"]


@pytest.fixture(scope="module")
def dictionary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("toy") / "dictionary"
    file.write_text("".join(f"{word.upper()}\t{' '.join(SOUNDS[letter] for letter in word)}\n" for word in TOY))
    return file


def train(dictionary: Path, out: Path) -> dict[str, Any]:
    recipe.main([str(dictionary), str(out), *RECIPE, "--development-words", "8", "--average", "0.5"])
    state: dict[str, Any] = torch.load(out / "training.pt", weights_only=True)
    return state


@pytest.fixture(scope="module")
def trained(dictionary: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("trained")
    return out, train(dictionary, out)


def test_loss_falls(dictionary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(dictionary, tmp_path)
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["epoch"] for record in records] == [1, 2]
    assert records[1]["loss"] < records[0]["loss"] < 2 * math.log(len(g2p.VOCABULARY))


def test_resumes_to_the_same_weights(
    dictionary: Path, trained: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recipe.Training.run_epoch

    def interrupted(self: recipe.Training, pairs: list[recipe.Pair]) -> float:
        if self.epoch == 1:
            raise KeyboardInterrupt
        return whole(self, pairs)

    with monkeypatch.context() as patch:
        patch.setattr(recipe.Training, "run_epoch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(dictionary, tmp_path)
    torch.rand(7)  # whatever happened to the generator in between
    resumed = train(dictionary, tmp_path)
    uninterrupted = trained[1]
    assert resumed["epoch"] == uninterrupted["epoch"] == 2
    for part in ("master", "average"):
        for name, tensor in resumed[part].items():
            torch.testing.assert_close(tensor, uninterrupted[part][name], rtol=1e-3, atol=1e-4)
    assert any(not torch.allclose(tensor, resumed["average"][name]) for name, tensor in resumed["master"].items())


def test_ends_with_a_checkpoint(trained: tuple[Path, dict[str, Any]]) -> None:
    out, state = trained
    checkpoint = load_checkpoint(str(out / "checkpoint"))
    expected = {name: tensor.half().float() for name, tensor in state["average"].items()}
    assert all(torch.equal(tensor, expected[name]) for name, tensor in checkpoint.model.state_dict().items())
    tokenizer = FileTokenizer(out / "checkpoint" / "tokenizer.json")
    assert tokenizer.tokens(tokenizer.encode("Bake")) == ["b", "a", "k", "e", "</s>"]


def test_error_rate_is_that_of_greedy_search() -> None:
    """Every other epoch, from all wrong to nearly all right, some words with two pronunciations."""
    options = ["--epochs", "12", "--rate", "5e-3", "--dropout", "0", "--average", "0.5"]
    args = recipe.parse(["in", "out", *RECIPE, *options])
    training = recipe.Training(recipe.model_config(args), args)
    dictionary = {word: [tuple(SOUNDS[letter] for letter in word)] for word in TOY}
    pairs = recipe.encode_pairs(dictionary)
    for word in TOY[::7]:
        dictionary[word].insert(0, ("AH",))
    rates = set()
    while training.epoch < args.epochs:
        for _ in range(2):
            training.run_epoch(pairs)
        model = training.average
        found = generate(
            TorchRuntime(model), [source for source, _ in pairs], model.facts, SearchOptions(max_new_tokens=9)
        )
        said = [tuple(g2p.VOCABULARY[token] for token in each[0].tokens) for each in found]
        # The end is a phone here: a hypothesis that was cut off is no answer.
        ended = {word: [(*reference, "</s>") for reference in entries] for word, entries in dictionary.items()}
        rate = recipe.error_rate(model, dictionary)
        assert rate == pytest.approx(score(ended, dict(zip(TOY, said, strict=True))).wer)
        rates.add(rate)
    assert len([rate for rate in rates if 0 < rate < 100]) >= 2
