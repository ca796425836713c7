"""Prompts of a decoder-only model: what is found for each does not depend on the others, and every limit is its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models

import txport
from tests.runtimes.driven import ENGINES
from tests.seeded import bundle_of
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.cli import cli
from txport.errors import TextError, TxportError, UnsupportedError
from txport.models.architectures.gpt2 import GPT2, GPT2Config
from txport.runtimes.base import ContinuousRuntime, Floats, Ints
from txport.runtimes.pytorch import TorchRuntime
from txport.search.generate import generate
from txport.search.options import SearchOptions
from txport.text.file import FileTokenizer

VOCABULARY, LONGEST, PAD, END = 30, 24, 0, 1
PROMPTS = [[5, 9, 5, 3, 7, 11], [4], [8, 8, 12, 3], [20, 6, 13, 22, 2, 17, 5, 9, 5, 28, 14], [7, 7], [29] * 20]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"beams": 3, "nbest": 3},
    "beams that look far": {"beams": 3, "early_stopping": "never", "length_penalty": 1.5},
    "groups": {"beams": 4, "beam_groups": 2, "diversity_penalty": 0.7, "nbest": 4},
    "samples": {"do_sample": True, "nbest": 3, "seed": 4, "temperature": 1.5},
    "samples of a few": {"do_sample": True, "seed": 4, "top_k": 5},
}
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "penalty": {"repetition_penalty": 1.8},
    "no bigram twice": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[7, 11], [4, 9], [3], [22, 2, 8]]},
    "least": {"min_new_tokens": 3, "max_new_tokens": 4},
    "last": {"forced_eos_token_id": END},
}

# Each way without a rule, and each rule greedily and in one other way
SEARCHES = [
    *((way, "none") for way in WAYS),
    *(("greedy", rule) for rule in list(RULES)[1:]),
    *zip(list(WAYS)[1:], ("bad words", "least", "penalty", "no bigram twice", "last"), strict=True),
]


@pytest.fixture(scope="module")
def model() -> GPT2:
    """Random weights that make lively text, in which texts end."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        d_model=32,
        heads=4,
        decoder_layers=2,
        max_length=LONGEST,
        pad_id=PAD,
        eos_id=END,
        tied=False,
    )
    torch.manual_seed(1)
    model = GPT2(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


@pytest.fixture(scope="module")
def folder(model: GPT2, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint, and its bundle for each target."""
    folder = tmp_path_factory.mktemp("prompts")
    save_checkpoint(folder / "model", model)
    for target in ENGINES:
        bundle_of(load_checkpoint(str(folder / "model")), folder / target, target)
    return folder


@pytest.fixture(scope="module", params=ENGINES)
def loaded(folder: Path, request: pytest.FixtureRequest) -> txport.Model:
    return txport.load(folder / request.param, runtime=ENGINES[request.param], threads=1)


def tokens(found: Any) -> list[list[tuple[int, ...]]]:
    return [[each.tokens for each in row] for row in found]


@pytest.mark.parametrize(("way", "rule"), SEARCHES)
def test_a_prompt_alone_finds_what_it_finds_beside_others(loaded: txport.Model, way: str, rule: str) -> None:
    options = {**WAYS[way], **RULES[rule]}
    alone = [tokens(loaded.search([prompt], **options))[0] for prompt in PROMPTS]
    assert tokens(loaded.search(PROMPTS, **options)) == alone
    assert tokens(loaded.search(PROMPTS, batch_size=4, batch_tokens=24, **options)) == alone
    if isinstance(loaded.runtime, ContinuousRuntime):
        assert tokens(loaded.search(PROMPTS, batch_size=2, continuous=True, **options)) == alone
    for prompt, row in zip(PROMPTS, alone, strict=True):
        assert all(1 <= len(each) <= LONGEST - len(prompt) for each in row)


def test_every_prompt_has_what_room_is_left(loaded: txport.Model) -> None:
    found = tokens(loaded.search(PROMPTS, suppress_tokens=[END]))
    assert [len(row[0]) for row in found] == [LONGEST - len(prompt) for prompt in PROMPTS]
    (full,) = loaded.search([[3] * (LONGEST - 1)], suppress_tokens=[END])
    assert len(full[0].tokens) == 1


def test_a_processor_sees_the_prompt_and_padding_before_it(model: GPT2) -> None:
    seen: list[Ints] = []

    def watch(scores: Floats, so_far: Ints) -> Floats:
        seen.append(so_far.copy())
        return scores

    options = SearchOptions(max_new_tokens=2, logits_processor=watch, suppress_tokens=[END])
    found = generate(TorchRuntime(model), [[5, 6, 7], [9]], model.facts, options)
    assert seen[0].tolist() == [[5, 6, 7], [PAD, PAD, 9]]
    assert seen[1].tolist() == [[5, 6, 7, found[0][0].tokens[0]], [PAD, PAD, 9, found[1][0].tokens[0]]]


def test_scores_are_those_of_what_was_added_alone(loaded: txport.Model) -> None:
    texts = [" ".join(map(str, prompt)) for prompt in PROMPTS]
    found = loaded.generate(texts, max_new_tokens=4, beams=2)
    targets = [" ".join(map(str, each.hypotheses[0].tokens)) for each in found]
    for one, other in zip(loaded.score(texts, targets), found, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)
        np.testing.assert_allclose(one.token_scores, other.hypotheses[0].token_scores, atol=1e-5)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([3] * 20, {"max_new_tokens": 5}, "a prompt of 20 tokens and max_new_tokens 5 exceed .*, 24; .* up to 4"),
        ([3] * 20, {"min_new_tokens": 5}, "a prompt of 20 tokens and min_new_tokens 5 exceed .*, 24; .* up to 4"),
        ([3] * 24, {}, "a prompt of 24 tokens leaves no room for another one in .*, 24; shorten it"),
        ([3] * 25, {}, "a prompt must have 1 to 24 tokens, got 25"),
        ([], {}, "a prompt must have 1 to 24 tokens, got 0"),
        ([30], {}, "token ids must lie in 0 to 29, got 30 to 30"),
        ([3], {"prefixes": [[4]]}, "prefixes begin targets, and a causal model continues its prompt"),
        ([3], {"alignment": "soft"}, "alignment needs attention over a source, which this causal model has not"),
        ([3], {"coverage_penalty": 1.0, "beams": 2}, "coverage_penalty needs attention over a source"),
        ([3], {"forced_bos_token_id": 4}, "forced_bos_token_id comes after a start token, and a causal model starts"),
        ([3], {"max_new_tokens": 25}, "max_new_tokens must not exceed the model's longest sequence, 24; got 25"),
    ],
)
@pytest.mark.parametrize("continuous", [False, True])
def test_refusals(folder: Path, prompt: list[int], options: dict[str, Any], message: str, continuous: bool) -> None:
    with pytest.raises((TextError, UnsupportedError), match=message):
        txport.load(folder / "cpu", threads=1).search([prompt], continuous=continuous, **options)


def test_a_target_that_does_not_fit_behind_its_prompt_is_refused(folder: Path) -> None:
    model = txport.load(folder / "cpu", threads=1)
    with pytest.raises(TextError, match="a prompt of 20 tokens and a target of 5 exceed the model's longest sequence"):
        list(model.score(" ".join(["3"] * 20), "4 4 4 4 4"))
    with pytest.raises(TxportError, match="a target must have 1 to 24 tokens, got 0"):
        list(model.score("3", ""))


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, [str(each) for each in arguments])
    return done.exit_code, done.output


def test_ids_in_place_of_text_on_the_command_line(folder: Path) -> None:
    model = txport.load(folder / "cpu", threads=1)
    text = "5 9 5 3 7 11"
    ((found,),) = model.search([PROMPTS[0]], max_new_tokens=6)
    code, output = run("run", folder / "cpu", "--ids", text, "--max-new-tokens", 6)
    assert (code, output) == (0, " ".join(map(str, found.tokens)) + "\n")
    code, output = run("run", folder / "cpu", "--ids", text, "--max-new-tokens", 6, "--json")
    assert json.loads(output)["hypotheses"][0]["tokens"] == list(found.tokens)
    code, output = run("run", folder / "cpu", "--ids", text, "--max-new-tokens", 6, "--stream")
    assert (code, output) == (0, " ".join(map(str, found.tokens)) + "\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["5 30"], "text is read as token ids, numbers from 0 to 29; got '30'"),
        ([""], "the text is empty; text is read as token ids such as '5 17 3'"),
        (["5", "--alignment", "soft", "--json"], "--alignment needs attention over a source, which this causal model"),
        (["5", "--prefixes", "3"], "--prefixes begin targets, and a causal model continues its prompt"),
        (["3 " * 20, "--max-new-tokens", "9"], "a prompt of 20 tokens and --max-new-tokens 9 exceed"),
    ],
)
def test_refusals_on_the_command_line(folder: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(TxportError) as caught:
        CliRunner().invoke(cli, ["run", str(folder / "cpu"), "--ids", *arguments], catch_exceptions=False)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_text_of_what_was_added_begins_where_the_prompt_ends(tmp_path: Path) -> None:
    """By itself a first word is written without the space before it."""
    tokenizer = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1, "c": 2, "?": 3}, unk_token="?"))  # noqa: S106 - no password
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    own = FileTokenizer(tmp_path / "tokenizer.json")
    assert own.decode([1, 2]) == "bc"
    assert own.continuation([0], [1, 2]) == " bc"
    assert own.continuation([0, 1], [2]) == "c"
