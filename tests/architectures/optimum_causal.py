"""`python optimum_causal.py BUNDLE`, where Optimum is installed: what its ORTModelForCausalLM finds for prompts.

A JSON object of `prompts`, the `pad` token and `options` on standard input; writes the new tokens of each hypothesis.
"""

from __future__ import annotations

import json
import sys

import torch
from optimum.onnxruntime import ORTModelForCausalLM

given = json.load(sys.stdin)
prompts = given["prompts"]
pad = given["pad"]
size = max(map(len, prompts))
ids = torch.tensor([[pad] * (size - len(prompt)) + prompt for prompt in prompts])
mask = torch.tensor([[0] * (size - len(prompt)) + [1] * len(prompt) for prompt in prompts])
model = ORTModelForCausalLM.from_pretrained(sys.argv[1])
found = model.generate(ids, attention_mask=mask, do_sample=False, **given["options"])
json.dump(found[:, size:].tolist(), sys.stdout)
