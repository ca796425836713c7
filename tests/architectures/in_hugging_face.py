"""What runs where Hugging Face's libraries and Optimum are: `python -m tests.architectures.in_hugging_face FOLDER`.

`make` writes a checkpoint of ours for each family, and what Hugging Face's model gives for some ids; `load` runs each
bundle beside it with Optimum.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from tests.hugging_face.bert import FAMILIES, draw, our_config, our_weights, outputs, seeded


def make(folder: Path) -> None:
    ids, mask = draw(1)
    for name in FAMILIES:
        model = seeded(name)
        place = folder / name.replace(" ", "-")
        place.mkdir()
        (place / "config.json").write_text(json.dumps(our_config(name)), encoding="utf-8")
        save_file(our_weights(model), place / "model.safetensors")
        found = {key: tensor.numpy() for key, tensor in outputs(model, ids, mask).items()}
        np.savez(place / "expected.npz", ids=ids.numpy(), mask=mask.numpy(), **found)


def load(folder: Path) -> None:
    from optimum import onnxruntime as loaders

    kinds = {
        "hidden": loaders.ORTModelForFeatureExtraction,
        "pooled": loaders.ORTModelForFeatureExtraction,
        "tokens": loaders.ORTModelForMaskedLM,
        "labels": loaders.ORTModelForSequenceClassification,
        "token_labels": loaders.ORTModelForTokenClassification,
    }
    ids, mask = draw(1)
    for name, family in FAMILIES.items():
        place = folder / name.replace(" ", "-")
        kind = kinds[family.ours["head"]]
        model = kind.from_pretrained(place / "portable", subfolder="onnx", file_name="model.onnx")
        found = model(input_ids=ids, attention_mask=mask.long())
        given = {key: torch.as_tensor(value).numpy() for key, value in found.items() if value is not None}
        np.savez(place / "optimum.npz", **given)


if __name__ == "__main__":
    {"make": make, "load": load}[sys.argv[1]](Path(sys.argv[2]))
