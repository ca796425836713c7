"""The checkpoint that ships: small, documented, and as good as its card says."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

import txport
from recipes.g2p_en import g2p
from tests.transformers_js import generate
from txport.api.locate import find_bundle
from txport.checkpoints.folder import SHIPPED

FOLDER = SHIPPED / "g2p-en"


@pytest.fixture(scope="module")
def model() -> txport.Model:
    return txport.load("g2p-en")


def test_it_is_small_and_its_vocabulary_is_the_recipe_s(model: txport.Model) -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 12_000_000
    assert tuple(model.tokenizer.tokens(range(len(g2p.VOCABULARY)))) == g2p.VOCABULARY


def test_common_words_are_right(model: txport.Model) -> None:
    words = {"Transformer": "T R AE N S F AO R M ER", "attention": "AH T EH N SH AH N", "ZEBRA": "Z IY B R AH"}
    assert {each.input: each.output for each in model.generate(list(words), beams=5)} == words


@pytest.mark.parametrize("task", ["translation", "text2text-generation"])
def test_a_pipeline_of_transformers_js_finds_the_same(model: txport.Model, task: str) -> None:
    words = ["hello", "Transformer", "ZEBRA", "'tis", "d'or", "a", "zzz", "onomatopoeia", "O'REILLY'S"]
    assert generate(find_bundle("g2p-en").path, task, words) == [each.output for each in model.generate(words)]


def test_the_test_split_scores_as_the_card_says(model: txport.Model) -> None:
    """On 2,000 words drawn by seed: the card's rate, give or take three standard deviations of such a draw."""
    folder = os.environ.get("TXPORT_G2P")
    if not folder:
        pytest.skip("needs the pronunciation dictionary: set TXPORT_G2P to the folder that holds g014b2b.test")
    dictionary = g2p.read_dictionary(Path(folder) / "g014b2b.test")
    words = random.Random(0).sample(sorted(dictionary), 2000)
    chosen = {word: dictionary[word] for word in words}
    score = g2p.score(chosen, {each.input: each.output.split() for each in model.generate(words, batch_size=64)})
    card = re.search(r"\| greedy \| ([\d.]+) \| ([\d.]+) \|", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert card is not None
    deviation = 100 * (score.wer / 100 * (1 - score.wer / 100) / len(words)) ** 0.5
    assert abs(score.wer - float(card[1])) < 3 * deviation
