"""Checkpoint -> the files of a bundle: the graphs, the tokenizer, and the JSON that other programs read."""

from __future__ import annotations

import contextlib
import copy
import logging
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from txport import __version__
from txport.exporters.check import check_graph
from txport.exporters.graphs import MODULES
from txport.exporters.passes import run_passes
from txport.exporters.select import select_model
from txport.models.bundle import PRECISIONS, Manifest, write_json
from txport.models.checkpoint import Checkpoint
from txport.models.config import TransformerConfig
from txport.models.errors import UnsupportedError
from txport.models.ports import BATCH, DECODER, PAST_SOURCE, PAST_TARGET, SELECT, SOURCE, TARGET, Graph, Port
from txport.models.transformer import Transformer

DEFAULT_OPSET = 18
OPSETS = range(18, 26)
EXTERNAL_ABOVE = 1_900_000_000  # bytes of weights; protobuf ends at 2 GiB, and a graph is more than weights


@dataclass(frozen=True)
class Exported:
    """What `export_graphs` did: the manifest, not sealed yet, and how often each pass fired on each graph."""

    manifest: Manifest
    passes: dict[str, dict[str, int]]


def export_graphs(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    precision: str = "fp32",
    opset: int = DEFAULT_OPSET,
    external_above: int = EXTERNAL_ABOVE,
) -> Exported:
    """Write the files of a portable bundle into `folder`, checked, all but the manifest."""
    if opset not in OPSETS:
        raise UnsupportedError(f"opset must lie in {OPSETS.start} to {OPSETS.stop - 1}, got {opset}")
    manifest = Manifest(
        target="portable",
        precision=precision,
        opset=opset,
        config=checkpoint.config,
        checkpoint={"name": checkpoint.name, "sha256": checkpoint.sha256},
        tools={"txport": __version__, **{name: version(name) for name in ("torch", "onnx", "onnxscript")}},
        generation={"beams": 1, "max_new_tokens": checkpoint.config.max_length},
    )
    models, counts = _build(checkpoint, manifest)
    external = any(_weight_bytes(model) > external_above for model in models.values())
    (folder / "onnx").mkdir()
    for role, model in models.items():
        graph = manifest.graphs[role]
        path = folder / graph.file
        ir.save(model, path, external_data=f"{path.name}_data" if external and role != SELECT else None)
        check_graph(path, graph, opset)
    for path in checkpoint.companions:
        shutil.copyfile(path, folder / path.name)
    write_json(folder / "config.json", marian_config(checkpoint.config, precision, external))
    write_json(folder / "generation_config.json", generation_config(checkpoint.config))
    return Exported(manifest, counts)


def _build(checkpoint: Checkpoint, manifest: Manifest) -> tuple[dict[str, ir.Model], dict[str, dict[str, int]]]:
    dtype = getattr(torch, manifest.dtype)
    module = checkpoint.model if dtype == torch.float32 else copy.deepcopy(checkpoint.model).to(dtype)
    models, counts = {}, {}
    for role, graph in manifest.graphs.items():
        if role == SELECT:
            models[role] = select_model(graph, manifest.opset)
        else:
            models[role] = trace(module, graph, manifest.opset)
            counts[role] = run_passes(models[role], graph)
        _sign(models[role], role, manifest)
    return models, counts


def trace(model: Transformer, graph: Graph, opset: int) -> ir.Model:
    """One graph, straight from PyTorch's exporter, with every dynamic dim of its ports."""
    module = MODULES[graph.role](model).eval()
    with _quiet():
        program = torch.onnx.export(
            module,
            tuple(example(port) for port in graph.inputs),
            dynamic_shapes=_dynamic_shapes(graph),
            input_names=[port.name for port in graph.inputs],
            output_names=[port.name for port in graph.outputs],
            opset_version=opset,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    return program.model


def example(port: Port) -> Tensor:
    """A tensor for tracing; each dynamic dim has a length of its own, none of them 0 or 1."""
    sizes = {name: number for number, name in enumerate((BATCH, TARGET, PAST_SOURCE, PAST_TARGET, SOURCE), 2)}
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in port.dims]
    return torch.ones(shape, dtype=getattr(torch, port.dtype))


def _dynamic_shapes(graph: Graph) -> tuple[Any, ...]:
    """The names of the dynamic dims, nested as the module's `forward` takes its arguments."""
    shapes = [{axis: dim for axis, dim in enumerate(port.dims) if isinstance(dim, str)} for port in graph.inputs]
    return (*shapes[:3], tuple(shapes[3:])) if graph.role == DECODER else tuple(shapes)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of its own deprecations and of dims that it renames; none of it is the user's to mend."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _sign(model: ir.Model, role: str, manifest: Manifest) -> None:
    model.producer_name, model.producer_version = "txport", __version__
    model.graph.name = role
    model.metadata_props.update(
        {
            "txport.target": manifest.target,
            "txport.precision": manifest.precision,
            "txport.checkpoint": manifest.checkpoint["sha256"],
        }
    )


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
        "max_length": config.max_length,
        "num_beams": 1,
        "use_cache": True,
    }
