"""The portable target: standard operators only, in the files that Optimum and transformers.js look for."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from txport.bundles.manifest import PRECISIONS, Manifest
from txport.bundles.ports import SELECT
from txport.exporters.check import check_graph
from txport.exporters.graphs import PORTABLE
from txport.exporters.passes import run_passes
from txport.exporters.select import select_model
from txport.exporters.trace import sign, trace
from txport.models.checkpoint import Checkpoint
from txport.models.config import TransformerConfig
from txport.models.hugging_face import write_tokenizers
from txport.system.documents import write_json

EXTERNAL_ABOVE = 1_900_000_000  # bytes of weights; protobuf ends at 2 GiB, and a graph is more than weights

Counts = dict[str, dict[str, int]]


def write(checkpoint: Checkpoint, manifest: Manifest, folder: Path, external_above: int = EXTERNAL_ABOVE) -> Manifest:
    """Write the graphs, checked, and the JSON that other programs read; -> the manifest with what was done to them."""
    models, counts = _build(checkpoint, manifest)
    external = any(_weight_bytes(model) > external_above for model in models.values())
    for role, model in models.items():
        graph = manifest.graphs[role]
        path = folder / graph.file
        ir.save(model, path, external_data=f"{path.name}_data" if external and role != SELECT else None)
        check_graph(path, graph, manifest)
    write_json(folder / "config.json", marian_config(checkpoint.config, manifest.precision, external))
    write_json(folder / "generation_config.json", generation_config(checkpoint.config))
    write_tokenizers(folder, checkpoint.config)
    return dataclasses.replace(manifest, passes=counts)


def _build(checkpoint: Checkpoint, manifest: Manifest) -> tuple[dict[str, ir.Model], Counts]:
    dtype = getattr(torch, manifest.dtype)
    module = checkpoint.model if dtype == torch.float32 else copy.deepcopy(checkpoint.model).to(dtype)
    models, counts = {}, {}
    for role, graph in manifest.graphs.items():
        if role == SELECT:
            models[role] = select_model(graph, manifest.opset)
        else:
            models[role] = trace(PORTABLE[role](module), graph, manifest.opset)
            counts[role] = run_passes(models[role], graph, manifest.target)
        sign(models[role], role, manifest)
    return models, counts


def _weight_bytes(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def marian_config(config: TransformerConfig, precision: str, external: bool) -> dict[str, Any]:
    """`config.json` in the words of a model type that Optimum and transformers.js know; ours is `txport.json`."""
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "vocab_size": config.target_vocab_size,
        "decoder_vocab_size": config.target_vocab_size,
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "num_hidden_layers": config.encoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.feed_forward,
        "decoder_ffn_dim": config.feed_forward,
        "activation_function": config.activation,
        "scale_embedding": config.scale_embedding,
        "max_position_embeddings": config.max_length,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
        "decoder_start_token_id": config.bos_id,
        "use_cache": True,
        "transformers.js_config": transformers_js_config(precision, external),
    }


def transformers_js_config(precision: str, external: bool) -> dict[str, Any]:
    """What transformers.js must know; its "fp32" means the file names without a suffix, whatever is in them."""
    return {"dtype": "fp32", "kv_cache_dtype": PRECISIONS[precision], "use_external_data_format": external}


def generation_config(config: TransformerConfig) -> dict[str, Any]:
    """`generation_config.json`: greedy, from the start token to the end token."""
    return {
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
        "decoder_start_token_id": config.bos_id,
        "max_length": config.max_length + 1,  # the start token counts too
        "num_beams": 1,
        "use_cache": True,
    }
