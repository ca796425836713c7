"""What Optimum's ORTModelForCausalLM finds for prompts: `python -m tests.loading.optimum_causal`, where it is.

A JSON list of jobs on standard input, each with a `bundle`, `prompts`, the `pad` token and `options`; writes the new
tokens of each hypothesis of each job.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from optimum.onnxruntime import ORTModelForCausalLM


def proceed(job: dict[str, Any]) -> list[list[int]]:
    prompts = job["prompts"]
    size = max(map(len, prompts))
    ids = torch.tensor([[job["pad"]] * (size - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (size - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    model = ORTModelForCausalLM.from_pretrained(job["bundle"])
    found = model.generate(ids, attention_mask=mask, do_sample=False, **job["options"])
    tokens: list[list[int]] = found[:, size:].tolist()
    return tokens


if __name__ == "__main__":
    json.dump([proceed(job) for job in json.load(sys.stdin)], sys.stdout)
