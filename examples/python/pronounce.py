"""Greedy search over a portable bundle, without txport: onnxruntime, tokenizers and NumPy.

python pronounce.py BUNDLE WORD...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

SIDES = {"row": "decoder", "source": "encoder"}


class Pronouncer:
    """A bundle of one encoder and one decoder."""

    def __init__(self, folder: Path) -> None:
        manifest = json.loads((folder / "txport.json").read_text(encoding="utf-8"))
        files = {role: str(folder / graph["file"]) for role, graph in manifest["graphs"].items()}
        self.target = manifest["facts"]["target"]
        self.state = manifest["facts"]["state"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.encoder, self.decoder = (ort.InferenceSession(files[role]) for role in ("encoder", "decoder"))
        self.outputs = [port.name for port in self.decoder.get_outputs()]

    def generate(self, text: str) -> str:
        """The likeliest token each time, until the end token."""
        ids = np.array([self.tokenizer.encode(text).ids])
        mask = np.ones_like(ids)
        (hidden,) = self.encoder.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})
        held = {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}
        caches = self.empty_caches()
        found = [self.target["start"]]
        while len(found) <= self.target["longest"]:
            given = {"input_ids": np.array([found[-1:]]), **held, **caches}
            results = dict(zip(self.outputs, self.decoder.run(self.outputs, given), strict=True))
            token = int(results["logits"][0, -1].argmax())
            if token in self.target["ends"]:
                break
            for name in caches:
                if len(found) == 1 or ".decoder." in name:  # the source's stay as the first step made them
                    caches[name] = results[name.replace("past_key_values", "present")]
            found.append(token)
        return str(self.tokenizer.decode(found[1:]))

    def empty_caches(self) -> dict[str, np.ndarray[Any, Any]]:
        """Keys and values of no token, (1, heads, 0, size) each."""
        return {
            f"past_key_values.{each['layer']}.{SIDES[each['owner']]}.{each['role']}": np.zeros(
                (1, each["dims"][0], 0, each["dims"][2]), np.float32
            )
            for each in self.state
        }


if __name__ == "__main__":
    pronouncer = Pronouncer(Path(sys.argv[1]))
    for word in sys.argv[2:]:
        print(pronouncer.generate(word))
