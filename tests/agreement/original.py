"""What one version of transformers says of small seeded models, where that version is installed.

`python -m tests.agreement.original OUT NAME ...` saves each model as a folder OUT/NAME, and what it says of 50 inputs
as OUT/NAME.npz. With `--near` in place of names, it reads a list of [name, search, number] from standard input and
prints for each the answers that the model gives if its scores are moved by next to nothing; with `--models`, it prints
the version and the `model_type` of each name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import GenerationConfig, GenerationMixin
from transformers.utils import logging

from tests.agreement.asked import FILL, INPUTS, MOVED, SEARCHES, SECONDS, SPEECH, TRIES
from tests.audio.noise import RATE, drawn_noise
from tests.hugging_face.family_models import CASES, attention, make

Said = dict[str, NDArray[Any]]
# Version 4 does not read `layer_types` of the first one's config, and `swiglu_limit` of the other's.
OF_FIVE = ("modernbert-token-labels", "gpt_oss-limited")
VOCABULARY = 64  # small, so that tokens end and repeat
LENGTHS = 10  # of inputs, in turn
DISTINCT = 15  # outputs at least, of 50 inputs
# A model forgets its inputs where its feed-forward layers or its biases outweigh attention.
SCALES = {("embed_tokens", "shared", "wte", "lm_head"): 2.0, ("fc", "mlp", "DenseRelu"): 0.5, ("",): 6.0}
# A padding token amid a target has no position in M2M-100, and what follows it depends on `use_cache` in transformers.
MORE: dict[str, dict[str, Any]] = {"m2m_100": {"suppress_tokens": [1]}}


def record(out: Path, names: list[str]) -> None:
    """Save and ask models."""
    for name in names:
        said = of_speech(out / name) if name == SPEECH else of_case(name, out / name)
        if "greedy" in said:
            count = len(np.unique(said["greedy"], axis=0))
            assert count >= DISTINCT, f"{name} says {count} things of {INPUTS} inputs, too few to show a fault"
        np.savez(out / f"{name}.npz", **said)


def of_case(name: str, folder: Path) -> Said:
    model = make(name, **sizes(CASES[name][1]), **MORE.get(name, {}))
    if model.can_generate():
        enliven(model)
    model.save_pretrained(folder)
    model = loaded(folder)
    if not model.can_generate():
        return of_texts(model)
    config = model.config
    if model.main_input_name == "input_features":
        shape = (INPUTS, config.num_mel_bins, 2 * config.max_source_positions)
        inputs = np.random.default_rng(11).uniform(-1, 1.5, shape).astype(np.float32)
    else:
        inputs = drawn_ids(first=[], last=np.atleast_1d(config.eos_token_id)[:1] if config.is_encoder_decoder else [])
    return {"inputs": inputs, **{search: searched(model, inputs, search) for search in SEARCHES}}


def sizes(values: dict[str, Any]) -> dict[str, Any]:
    """The size of the vocabulary, by the key that has it."""
    if "text_config" in values:
        return {"text_config": {**values["text_config"], "vocab_size": VOCABULARY}}
    return {"vocab_size": VOCABULARY}


@torch.no_grad()
def enliven(model: Any) -> None:
    """Scale the weights so that what a model says depends on all that it is given."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and parameter.requires_grad:
            scale = next(scale for parts, scale in SCALES.items() if any(part in name for part in parts))
            parameter.mul_(scale / parameter.std() / parameter.shape[-1] ** 0.5)
        elif name.endswith("bias"):
            parameter.mul_(0.5)
    for name, bias in model.named_buffers():
        if name == "final_logits_bias":
            bias.mul_(0.3)


def loaded(folder: Path) -> Any:
    return getattr(transformers, CASES[folder.name][0]).from_pretrained(folder, **attention(folder.name)).eval()


def drawn_ids(first: Any, last: Any) -> NDArray[Any]:
    """Inputs of 1 to 28 tokens that are not special ones, and these around them; each row is filled up at its end."""
    rng = np.random.default_rng(11)
    rows = np.full((INPUTS, 3 * LENGTHS), FILL)
    for number, row in enumerate(rows):
        count = 1 + 3 * (number % LENGTHS) - len(first) - len(last)
        ids = [*first, *rng.integers(6, VOCABULARY, max(1, count)), *last]
        row[: len(ids)] = ids
    return rows


def searched(model: Any, inputs: NDArray[Any], search: str) -> NDArray[Any]:
    """The new tokens of each input; those of one length at a time, since then none is padded."""
    rows: Any = [None] * len(inputs)
    lengths = lengths_of(inputs)
    for length in np.unique(lengths):
        group = np.flatnonzero(lengths == length)
        for number, tokens in zip(group, generated(model, inputs[group, :length], search), strict=True):
            rows[number] = tokens
    return filled(rows)


def lengths_of(inputs: NDArray[Any]) -> NDArray[Any]:
    return (inputs != FILL).sum(1) if inputs.ndim == 2 else np.full(len(inputs), inputs.shape[1])


@torch.inference_mode()
def generated(model: Any, inputs: NDArray[Any], search: str, **how: Any) -> list[list[int]]:
    """The new tokens of inputs of one length; Whisper's without what it does around a search."""
    given = torch.from_numpy(inputs)
    if model.main_input_name == "input_features":
        how["decoder_input_ids"] = torch.full((len(given), 1), model.config.decoder_start_token_id)
    else:
        how["attention_mask"] = torch.ones_like(given)
    found = GenerationMixin.generate(model, given, **SEARCHES[search], **how)
    tokens: list[list[int]] = found[:, 1 if model.config.is_encoder_decoder else given.shape[1] :].tolist()
    return tokens


@torch.inference_mode()
def of_texts(model: Any) -> Said:
    """The outputs of an encoder for each position of each input."""
    inputs = drawn_ids(first=[3], last=[4])
    said: Said = {"inputs": inputs}
    for number, row in enumerate(inputs):
        ids = torch.from_numpy(row[row != FILL])[None]
        found = model(input_ids=ids, attention_mask=torch.ones_like(ids))
        if "start_logits" in found:
            said[f"outputs.{number}"] = torch.cat([found["start_logits"], found["end_logits"]]).numpy()
            continue
        said[f"outputs.{number}"] = found["logits" if "logits" in found else "last_hidden_state"][0].numpy()
    return said


@torch.inference_mode()
def of_speech(folder: Path) -> Said:
    """The tokens that the whole of Whisper's own `generate` writes down of audio, window by window."""
    from tests.hugging_face.test_whisper import GENERATION, extractor
    from tests.recorded import WHISPER

    model = transformers.WhisperForConditionalGeneration.from_pretrained(WHISPER).eval()
    enliven(model)
    model.generation_config = GenerationConfig(**GENERATION)
    model.save_pretrained(folder)
    extractor().save_pretrained(folder)
    said: Said = {}
    for search, asked in SEARCHES.items():
        rows = []
        for number in range(INPUTS):
            samples = drawn_noise(SECONDS[number % len(SECONDS)], number)
            is_long = len(samples) > RATE
            how: dict[str, Any] = {"truncation": False, "padding": "longest"} if is_long else {}
            given = extractor()(samples, sampling_rate=RATE, return_tensors="pt", **how).input_features
            how = {"return_timestamps": True} if is_long else {}
            found = model.generate(given, return_segments=True, do_sample=False, num_beams=asked["num_beams"], **how)
            rows.append([token for part in found["segments"][0] for token in part["tokens"].tolist()])
        said[search] = filled(rows)
    return said


def filled(rows: list[list[int]]) -> NDArray[Any]:
    """Rows of one length."""
    longest = max(map(len, rows))
    return np.array([row + [FILL] * (longest - len(row)) for row in rows])


class Moved:
    """Moves all scores by random numbers of next to nothing."""

    def __init__(self) -> None:
        self._random = torch.Generator().manual_seed(0)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + MOVED * (2 * torch.rand(scores.shape, generator=self._random) - 1)


def near(out: Path, name: str, search: str, number: int) -> list[list[int]]:
    """The answers to one input if scores are moved by next to nothing; none of audio."""
    if name == SPEECH:
        return []
    with np.load(out / f"{name}.npz") as said:
        one = said["inputs"][number : number + 1]
    model = loaded(out / name)
    given = np.repeat(one[:, : lengths_of(one)[0]], TRIES, 0)
    answers = generated(model, given, search, logits_processor=[Moved()])
    return np.unique(filled(answers), axis=0).tolist()  # type: ignore[no-any-return]


def models() -> dict[str, str]:
    """Name -> `model_type`, of the models that this version has."""
    known = {name: kind for name, (kind, _) in CASES.items() if hasattr(transformers, kind)}
    if transformers.__version__.startswith("4."):
        known = {name: kind for name, kind in known.items() if name not in OF_FIVE}
    cases = {name: getattr(transformers, kind).config_class.model_type for name, kind in known.items()}
    return {name: kind for name, kind in cases.items() if not name.startswith("sentences")} | {SPEECH: "whisper"}


def main(out: Path, names: list[str]) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    if names == ["--models"]:
        sys.stdout.write(json.dumps({"version": transformers.__version__, "models": models()}))
    elif names == ["--near"]:
        sys.stdout.write(json.dumps([near(out, *asked) for asked in json.load(sys.stdin)]))
    else:
        record(out, names)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
