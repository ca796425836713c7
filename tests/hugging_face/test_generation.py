"""The options of generation_config.json: all are known, and those that are followed find transformers' tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, StoppingCriteriaList, StopStringCriteria

from tests.hugging_face.models import (
    EOS,
    FAMILIES,
    LONGEST,
    PAD,
    START,
    VOCABULARY,
    HuggingFaceRuntime,
    facts_of,
    seeded,
)
from tests.hugging_face.test_agreement import compare
from txport.models.architectures import gpt2
from txport.models.facts import Facts
from txport.models.generation import ELSEWHERE, NAMES, NOT_FOLLOWED, UNUSED, search_defaults
from txport.runtimes.base import Ints, Scores, scores
from txport.search.generate import generate
from txport.search.options import SearchOptions, chosen_options
from txport.search.stops import Stops

IS_OLD = transformers.__version__.startswith("4.")
COMBINATIONS = 150
OTHERS = [token for token in range(VOCABULARY) if token not in (PAD, EOS, START)]
PIECES = ["<pad>", "</s>", "<s>", *(f"{'abcdefg'[id_ % 7]}{'xyz'[id_ % 3]}" for id_ in range(3, VOCABULARY))]
KINDS = ("greedy", "beams", "samples")
Drawn = dict[str, Any]


def test_every_option_is_known() -> None:
    tables = (NAMES, ELSEWHERE, NOT_FOLLOWED, UNUSED)
    for name in vars(GenerationConfig()):
        if not name.startswith("_"):
            assert sum(name in table for table in tables) == 1, name


@dataclass(frozen=True)
class Prompted:
    """`Runtime` over a causal model of transformers, for one prompt; every step computes all tokens anew."""

    model: Any

    def start(self, source: Ints, source_lengths: Ints, *, max_length: int) -> Ints:
        assert len(source) == 1
        return source[:, :-1]

    @torch.inference_mode()
    def step(
        self, tokens: Ints, state: Ints, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, Ints]:
        state = np.concatenate([state, tokens[:, None]], axis=1)
        logits = self.model(torch.from_numpy(state), use_cache=False).logits[:, -1]
        return scores(logits.clone().numpy(), top, normalise), state

    def select(self, state: Ints, rows: Ints) -> Ints:
        return state[rows]


def causal(seed: int) -> tuple[Any, Facts]:
    """A model whose tokens differ clearly, and its facts."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCABULARY, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": LONGEST}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=START, eos_token_id=EOS, pad_token_id=PAD)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5 / parameter.std() / parameter.shape[-1] ** 0.5)
    config = gpt2.GPT2Config(
        vocab_size=VOCABULARY, d_model=16, heads=2, decoder_layers=1, max_length=LONGEST, pad_id=PAD, eos_id=EOS
    )
    return model, gpt2.facts(config)


def words(rng: random.Random) -> list[int]:
    return rng.sample(OTHERS, rng.randint(1, 3))


def draw(rng: random.Random, kind: str) -> Drawn:
    """Values of a `generation_config.json`; each of the offers is left out more often than not."""
    longest = rng.randint(2, 14)
    offers: Drawn = {
        "min_length": rng.randint(1, 2 * longest),
        "sequence_bias": [[words(rng) if rng.random() < 0.7 else [EOS], rng.uniform(-6, 6)] for _ in range(4)],
        "encoder_repetition_penalty": rng.choice([0.6, 1.3, 2.0]),
        "repetition_penalty": rng.choice([0.7, 1.2, 2.0]),
        "no_repeat_ngram_size": rng.randint(2, 3),
        "encoder_no_repeat_ngram_size": rng.randint(1, 3),
        "bad_words_ids": [words(rng) for _ in range(3)],
        "forced_eos_token_id": EOS,
        "exponential_decay_length_penalty": [rng.randint(0, 5), rng.choice([0.8, 1.05, 1.5])],
        "suppress_tokens": rng.sample(OTHERS, 3),
        "begin_suppress_tokens": rng.sample(OTHERS, 3),
        "renormalize_logits": True,
    }
    if kind == "beams":
        offers |= {"length_penalty": rng.choice([-1.0, 0.6, 2.0]), "early_stopping": rng.choice([True, "never"])}
    narrowing: Drawn = {
        "temperature": rng.choice([0.7, 1.6]),
        "top_h": rng.choice([0.3, 0.7, 0.9]),
        "top_k": rng.choice([4, 9]),
        "top_p": rng.choice([0.6, 0.9]),
        "min_p": rng.choice([0.02, 0.2]),
        "typical_p": rng.choice([0.2, 0.6, 0.9]),
        "epsilon_cutoff": rng.choice([0.02, 0.2]),
        "eta_cutoff": rng.choice([0.05, 0.4]),
    }
    if IS_OLD:
        del narrowing["top_h"]
        if kind != "greedy":  # version 4 penalises only the first rows of a batch
            del offers["encoder_repetition_penalty"]
    drawn = {name: value for name, value in offers.items() if rng.random() < 0.3}
    if IS_OLD and "exponential_decay_length_penalty" in drawn:  # version 4 finds NaN where the end token is banned
        drawn = {
            name: value for name, value in drawn.items() if name not in ("min_length", "encoder_no_repeat_ngram_size")
        }
    drawn |= {name: value for name, value in narrowing.items() if rng.random() < (0.4 if kind == "samples" else 0.1)}
    count = rng.randint(2, 5)
    kinds: Drawn = {
        "greedy": {},
        "beams": {"num_beams": count, "num_return_sequences": rng.randint(1, count)},
        "samples": {"do_sample": True, "top_k": 0, "num_return_sequences": rng.randint(1, 3)},
    }
    return {"max_new_tokens": longest, **kinds[kind], **drawn}


def with_stops(rng: random.Random, drawn: Drawn) -> Drawn:
    """Often with stop strings too; these take the padding away, so that it is no token of a target."""
    if rng.random() < 0.6:
        return drawn
    strings = ["".join(rng.choices("abcdefgxyz", k=rng.randint(1, 2))) for _ in range(rng.randint(0, 3))]
    strings.append(rng.choice(PIECES[3:]))  # transformers refuses strings that no token completes
    return {**drawn, "stop_strings": strings, "suppress_tokens": [*drawn.get("suppress_tokens", ()), PAD]}


class Pieces:
    """What stop strings need of a tokenizer: texts are the pieces, one after the other."""

    def get_vocab(self) -> dict[str, int]:
        return {piece: id_ for id_, piece in enumerate(PIECES)}

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[str]]:
        return {"input_ids": list(text)}

    def _convert_id_to_token(self, letter: str) -> str:
        return letter

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


MOST = 64  # tokens of a sample


def drawing(seed: int, samples: int, *, best_first: bool) -> Any:
    """`torch.multinomial` by our random numbers: those of the seed and the sample, one a token.

    They are held against sums of the probabilities in the order of the vocabulary, or the likeliest first.
    """
    rows = np.array([np.random.default_rng([seed, sample]).random(MOST) for sample in range(samples)])
    numbers = iter(rows.T)

    def multinomial(weights: torch.Tensor, num_samples: int) -> torch.Tensor:
        assert num_samples == 1
        order = torch.arange(weights.shape[1]).expand(weights.shape)
        if best_first:
            order = weights.argsort(dim=1, descending=True, stable=True)
        reached = weights.double().gather(1, order).cumsum(1)
        goal = torch.from_numpy(next(numbers).copy())[:, None] * reached[:, -1:]
        return order.gather(1, (reached > goal).long().argmax(1, keepdim=True))

    return multinomial


def bound(options: SearchOptions) -> SearchOptions:
    spelling = lambda id_: PIECES[id_].encode() if id_ >= 0 else None  # noqa: E731
    return replace(options, stop=Stops(options.stop, spelling)) if options.stop else options


@torch.inference_mode()
def theirs(model: Any, source: list[int], drawn: Drawn, seed: int) -> tuple[list[tuple[int, ...]], np.ndarray | None]:
    """The new tokens of each hypothesis, and the scores of beams."""
    named = {**drawn, "pad_token_id": PAD, "eos_token_id": EOS, "use_cache": False}
    first = 1 if model.config.is_encoder_decoder else len(source)
    if model.config.is_encoder_decoder:
        named["decoder_start_token_id"] = START
    config = GenerationConfig(**named, return_dict_in_generate=True, output_scores=True)
    model.generation_config = GenerationConfig()
    with pytest.MonkeyPatch.context() as patch:
        best_first = bool(drawn.get("top_k") or drawn.get("top_h"))
        samples = drawn.get("num_return_sequences", 1)
        patch.setattr(torch, "multinomial", drawing(seed, samples, best_first=best_first))
        ids = torch.tensor([source])
        stops: Drawn = {"tokenizer": Pieces()} if "stop_strings" in drawn else {}
        if stops and IS_OLD:  # version 4 hands the tokenizer on to models that take none
            criteria = StopStringCriteria(Pieces(), config.stop_strings)
            config.stop_strings = None
            stops = {"stopping_criteria": StoppingCriteriaList([criteria])}
        found = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **stops)
    rows = [row[first:] for row in found.sequences.tolist()]
    cut = [tuple(row[: row.index(EOS) + 1]) if EOS in row else tuple(row) for row in rows]
    if "stop_strings" in drawn:  # padding follows a target that was stopped; in beams the end token, since PAD is 0
        cut = [tuple(token for token in row if token != PAD) for row in cut]
        ends = StopStringCriteria(Pieces(), drawn["stop_strings"])
        cut = [row[:-1] if len(row) > 1 and ends(torch.tensor([row[:-1]]), None).all() else row for row in cut]
    return cut, found.sequences_scores.numpy() if drawn.get("num_beams", 1) > 1 else None


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")  # min_length beyond the maximum is one of the cases
@pytest.mark.parametrize("kind", KINDS)
def test_followed_options_find_the_tokens_of_transformers(kind: str) -> None:
    rng = random.Random(KINDS.index(kind))
    models = {name: (seeded(name, 1), facts_of()) for name in FAMILIES} | {"gpt2": causal(1)}
    ties = targets = 0
    for number in range(COMBINATIONS):
        family = list(models)[number % len(models)]
        model, facts = models[family]
        drawn = with_stops(random.Random(number), draw(rng, kind))
        source = [*rng.choices(OTHERS, k=rng.randint(1, 6)), *([EOS] if family != "gpt2" else [])]
        expected, their_scores = theirs(model, source, drawn, number)
        runtime = Prompted(model) if family == "gpt2" else HuggingFaceRuntime(model)
        given = {"seed": number} if kind == "samples" else {}
        options = bound(chosen_options(search_defaults(drawn, facts).options, given))
        (found,) = generate(runtime, [source], facts, options)
        where = f"combination {number}, {family}, {source}: {drawn}"
        ties += compare(found, expected, their_scores, where)
        targets += len(expected)
    assert targets >= COMBINATIONS
    assert ties <= 1
