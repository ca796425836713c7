"""What runs where Optimum is: `python -m tests.loading.optimum_loads`, what its classes give for our bundles.

A JSON list of jobs on standard input, as tests/transformers_js/loads.mjs takes them; writes what each gives, or
{"error": ...}, where a class or a pipeline does not load or run a bundle.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from optimum import onnxruntime as loaders
from transformers import AutoFeatureExtractor, AutoTokenizer

OF_TASKS = {
    "translation": "ORTModelForSeq2SeqLM",
    "summarization": "ORTModelForSeq2SeqLM",
    "text2text-generation": "ORTModelForSeq2SeqLM",
    "text-generation": "ORTModelForCausalLM",
    "feature-extraction": "ORTModelForFeatureExtraction",
    "fill-mask": "ORTModelForMaskedLM",
    "text-classification": "ORTModelForSequenceClassification",
    "token-classification": "ORTModelForTokenClassification",
    "automatic-speech-recognition": "ORTModelForSpeechSeq2Seq",
}


def load(bundle: str, kind: str) -> Any:
    file = {} if (Path(bundle) / "onnx" / "encoder_model.onnx").is_file() else {"file_name": "model.onnx"}
    return getattr(loaders, kind).from_pretrained(bundle, subfolder="onnx", **file)


def generate(model: Any, inputs: torch.Tensor, start: int, count: int) -> list[int]:
    given = {} if inputs.is_floating_point() else {"attention_mask": torch.ones_like(inputs)}
    found = model.generate(inputs, **given, max_new_tokens=count, do_sample=False, num_beams=1)
    tokens: list[int] = found[0, start:].tolist()
    return tokens


def encode(model: Any, ids: torch.Tensor) -> dict[str, Any]:
    names = {"token_type_ids"} & set(
        model.input_names
    )  # as the bundle's tokenizer_config.json tells a tokenizer to give
    types = dict.fromkeys(names, torch.zeros_like(ids))
    found = model(input_ids=ids, attention_mask=torch.ones_like(ids), **types)
    arrays = {name: torch.as_tensor(value) for name, value in found.items() if value is not None}
    return {name: {"dims": list(each.shape), "data": each.flatten().tolist()} for name, each in arrays.items()}


def with_class(job: dict[str, Any]) -> list[Any]:
    model = load(job["bundle"], job["kind"])
    count = job.get("count", 0)
    if "features" in job:  # of speech, transformers leaves the start token out
        return [generate(model, torch.tensor([each]), 0, count) for each in job["features"]]
    each_ids = [torch.tensor([ids]) for ids in job["ids"]]
    if not count:
        return [encode(model, ids) for ids in each_ids]
    return [generate(model, ids, ids.shape[1] if job.get("prompted") else 1, count) for ids in each_ids]


def with_pipeline(job: dict[str, Any]) -> list[Any]:
    model = load(job["bundle"], OF_TASKS[job["task"]])
    parts: dict[str, Any] = {"tokenizer": AutoTokenizer.from_pretrained(job["bundle"])}
    if "audio" in job:
        parts["feature_extractor"] = AutoFeatureExtractor.from_pretrained(job["bundle"])
    run = loaders.pipeline(job["task"], model=model, **parts)
    inputs = job.get("texts", []) + [np.array(each, np.float32) for each in job.get("audio", [])]
    found: list[Any] = json.loads(json.dumps([run(each, **job.get("how", {})) for each in inputs], default=float))
    return found


def attempt(job: dict[str, Any]) -> Any:
    try:
        return with_pipeline(job) if "task" in job else with_class(job)
    except Exception as error:  # whatever it is, that class does not take this bundle
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(sys.stderr):
        results = [attempt(job) for job in json.load(sys.stdin)]
    json.dump(results, sys.stdout)
