"""What transformers says through small models of every family that a checkpoint can be of.

tests/recorded/families holds a folder for each, as `save_pretrained` of transformers 4.57.6 wrote it, and what the
model says, which our graphs are held to. Its folder transformers-5 holds what version 5 writes otherwise of the same
models.
`python -m tests.hugging_face.test_families [NAME ...]` records that anew, and models that only version 5 makes.
"""

from __future__ import annotations

import json
import shutil
import sys
from filecmp import cmp
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import GenerationMixin

from tests.hugging_face.family_models import CASES, LONGEST, VOCABULARY, attention, make
from tests.recorded import EXPECTED, FAMILIES, NEWEST, names, whole

NEW, GIVEN = 8, 5
GIVEN_BY_HEADS = ("logits", "start_logits", "end_logits")

SENTENCES: dict[str, dict[str, Any]] = {  # folder -> its files, as sentence-transformers writes them
    "sentences-mean": {"mode": "mean_tokens", "normalize": True, "longest": 12},
    "sentences-first": {"mode": "cls_token", "normalize": False, "longest": 4 * LONGEST},
    "sentences-last": {"mode": "lasttoken", "normalize": True, "longest": LONGEST},
    "sentences-mpnet": {"mode": "mean_tokens", "normalize": True, "longest": LONGEST},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"max_new_tokens": NEW, "num_beams": 1},
    "beams": {"max_new_tokens": NEW, "num_beams": 4, "num_return_sequences": 2},
}
OWN = {"own": {}}  # as the model's generation config says, where that says how long
PROMPTS = [[1, 9, 5, 3, 7], [1], [1, 8, 11], [1, 6, 13, 22, 4, 17, 5, 9, 5]]
SOURCES = [[9, 5, 3, 7, 2], [6, 2], [8, 11, 19, 21, 4, 5, 16, 2]]
TEXTS = [[3, 9, 5, 3, 7, 4], [3, 4], [3, 8, 11, 19, 21, 4, 5, 16, 22, 4]]


@torch.inference_mode()
def said(model: Any) -> dict[str, Any]:
    """Of each text by itself: logits and tokens of what it generates, or the outputs of an encoder."""
    if model.main_input_name == "input_features":
        return from_features(model)
    if not model.can_generate():
        return of_texts(model)
    return from_sources(model) if model.config.is_encoder_decoder else from_prompts(model)


def from_prompts(model: Any) -> dict[str, Any]:
    given = np.random.default_rng(5).integers(4, VOCABULARY, (len(PROMPTS), GIVEN))
    logits = []
    for prompt, more in zip(PROMPTS, given.tolist(), strict=True):
        logits.append(model(torch.tensor([prompt + more])).logits[0, len(prompt) - 1 : -1].numpy())
    return {"given": given, "logits": np.stack(logits), **searched(model, PROMPTS)}


def from_sources(model: Any) -> dict[str, Any]:
    given = np.random.default_rng(5).integers(4, VOCABULARY, (len(SOURCES), GIVEN))
    start = model.config.decoder_start_token_id
    logits = []
    for source, more in zip(SOURCES, given.tolist(), strict=True):
        decoder = torch.tensor([[start, *more]])
        logits.append(model(input_ids=torch.tensor([source]), decoder_input_ids=decoder).logits[0].numpy())
    return {"given": given, "logits": np.stack(logits), **searched(model, SOURCES)}


def from_features(model: Any) -> dict[str, Any]:
    """Of features that look like noise; searched as any model is, without what Whisper does around a search."""
    rng = np.random.default_rng(5)
    config = model.config
    shape = (len(SOURCES), config.num_mel_bins, 2 * config.max_source_positions)
    features = rng.uniform(-1, 1.5, shape).astype(np.float32)
    given = rng.integers(4, VOCABULARY, (len(SOURCES), GIVEN))
    start = torch.full((len(SOURCES), 1), config.decoder_start_token_id)
    decoder = torch.cat([start, torch.from_numpy(given)], 1)
    logits = model(input_features=torch.from_numpy(features), decoder_input_ids=decoder).logits.numpy()
    model.generation_config.suppress_tokens = [5, 9]
    model.generation_config.begin_suppress_tokens = [11, 2]
    found = {"features": features, "given": given, "logits": logits, "greedy": [], "beams": [], "scores": []}
    for source in torch.from_numpy(features):
        for name, how in SEARCHES.items():
            said = GenerationMixin.generate(
                model,
                source[None],
                decoder_input_ids=start[:1],
                return_dict_in_generate=True,
                output_scores=True,
                **how,
            )
            rows = padded([row[1:] for row in said.sequences.tolist()])
            found[name].append(rows if name == "beams" else rows[0])
            if name == "beams":
                found["scores"].append(said.sequences_scores.tolist())
    return {name: np.array(each) for name, each in found.items()}


def searched(model: Any, inputs: list[list[int]]) -> dict[str, Any]:
    """New tokens, padded: greedy (B, T), and two of four beams (B, 2, T) with their scores (B, 2)."""
    found: dict[str, Any] = {}
    has_own = model.generation_config.max_new_tokens or model.generation_config.max_length not in (None, 20)
    for name, how in (SEARCHES | (OWN if has_own else {})).items():
        rows, scores = zip(*(generated(model, ids, **how) for ids in inputs), strict=True)
        found[name] = np.array(rows) if name == "beams" else np.array(rows)[:, 0]
        if name == "beams":
            found["scores"] = np.array(scores)
    return found


def generated(model: Any, ids: list[int], **how: Any) -> tuple[list[list[int]], list[float]]:
    found = model.generate(torch.tensor([ids]), **how, return_dict_in_generate=True, output_scores=True)
    scores = found.get("sequences_scores")
    first = 1 if model.config.is_encoder_decoder else len(ids)
    rows = padded([row[first:] for row in found.sequences.tolist()])
    return rows, [] if scores is None else scores.tolist()


def padded(rows: list[list[int]]) -> list[list[int]]:
    return [row + [-1] * (NEW - len(row)) for row in rows]


def of_texts(model: Any) -> dict[str, Any]:
    outputs = {}
    for number, text in enumerate(TEXTS):
        found = model(input_ids=torch.tensor([text]), attention_mask=torch.ones(1, len(text)).long())
        for name in [name for name in GIVEN_BY_HEADS if name in found] or ["last_hidden_state"]:
            outputs[f"{name}.{number}"] = found[name][0].numpy()
    return outputs


@torch.inference_mode()
def vectors(model: Any, mode: str, normalize: bool) -> np.ndarray:
    """What a Pooling and perhaps a Normalize make of the last hidden states of each text: (texts, D)."""
    found = []
    whole = getattr(model, "model", model)  # without the head of text
    for text in TEXTS:
        hidden = whole(input_ids=torch.tensor([text])).last_hidden_state[0]  # (T, D)
        vector = {"cls_token": hidden[0], "lasttoken": hidden[-1]}.get(mode, hidden.sum(0) / len(text))
        found.append(vector / vector.square().sum().sqrt() if normalize else vector)
    return torch.stack(found).numpy()


def write_sentences(folder: Path, mode: str, normalize: bool, longest: int) -> None:
    """The files that sentence-transformers has beside a model."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = []
    for number, kind in enumerate(kinds):
        path = f"{number}_{kind}" if number else ""
        modules.append(
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        )
        (folder / path).mkdir(exist_ok=True)
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    pooling = {"word_embedding_dimension": 32, **{f"pooling_mode_{each}": each == mode for each in modes}}
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": {**pooling, "include_prompt": True},
        "sentence_bert_config.json": {"max_seq_length": longest, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def record(name: str) -> None:
    """Write what this version saves of a model: all of it with version 4, with version 5 what that did not write."""
    is_old = transformers.__version__.startswith("4.")
    folder = FAMILIES / name if is_old else FAMILIES / NEWEST / name
    shutil.rmtree(folder, ignore_errors=True)
    model = loaded(name) if (FAMILIES / name).is_dir() else make(name)
    model.save_pretrained(folder)
    if name in SENTENCES and is_old:
        write_sentences(folder, **SENTENCES[name])
    for path in [*folder.iterdir()]:
        if (
            not is_old
            and (FAMILIES / name / path.name).is_file()
            and cmp(path, FAMILIES / name / path.name, shallow=False)
        ):
            path.unlink()
    if (folder / "model.safetensors").is_file():
        np.savez(folder / EXPECTED, **all_said(model, name))


def all_said(model: Any, name: str) -> dict[str, Any]:
    if name not in SENTENCES:
        return said(model)
    return {"vectors": vectors(model, SENTENCES[name]["mode"], SENTENCES[name]["normalize"])}


LAST_BITS = 64  # of the largest number


def loaded(name: str) -> Any:
    case = Path(name).name
    build = getattr(transformers, CASES[case][0])
    with TemporaryDirectory() as folder:
        return build.from_pretrained(whole(name, Path(folder)), **attention(case)).eval()


@pytest.mark.parametrize("name", names())
def test_what_our_graphs_are_held_to_is_what_transformers_says(name: str, tmp_path: Path) -> None:
    """To the last bits of fp32, which another processor's kernels sum otherwise: those also choose between two beams
    of one score.
    """
    found = all_said(loaded(name), Path(name).name)
    with np.load(whole(name, tmp_path) / EXPECTED) as stored:
        assert set(stored) == set(found)
        for key in stored:
            if stored[key].dtype.kind == "f":
                bits = LAST_BITS * np.finfo(np.float32).eps * np.abs(stored[key]).max()
                np.testing.assert_allclose(found[key], stored[key], rtol=0, atol=bits)
            else:
                other = (found[key] != stored[key]).any(-1)
                assert not other.any() or (key == "beams" and other.sum() == 1), (key, found[key], stored[key])


if __name__ == "__main__":
    for each in sys.argv[1:] or CASES:
        record(each)
