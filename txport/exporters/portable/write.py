"""The portable target: standard operators only, with the file names that Optimum and transformers.js expect."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from txport.bundles.hugging_face import label_config, write_tokenizers
from txport.bundles.manifest import PRECISIONS, Manifest
from txport.checkpoints.adapters.adapted import Adapted
from txport.checkpoints.adapters.adapter import published
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.streamed import copied
from txport.exporters.check import check_graph
from txport.exporters.exporter import Job, exporter_of
from txport.exporters.single.graph import single_model
from txport.exporters.tracing.trace import sign
from txport.exporters.weights import leave_out, standing_in
from txport.models import architecture
from txport.models.audio import Features, preprocessor_config, speech_config
from txport.models.facts import Facts
from txport.models.generation import published_names
from txport.system.documents import write_json
from txport.targets.ports import GENERATE, SELECT

EXTERNAL_ABOVE = 600_000_000  # bytes of weights; protobuf is limited to 2 GiB and needs three times the memory to write


def write(checkpoint: Checkpoint, manifest: Manifest, folder: Path, external_above: int = EXTERNAL_ABOVE) -> Manifest:
    """Write and check the graphs and the JSON files of other programs; return the manifest with the records of it."""
    models, manifest = _build(checkpoint, manifest)
    lies_beside = manifest.weightless or manifest.single  # a single graph reads the weights of the other graphs
    external = lies_beside or any(_weight_bytes(model) > external_above for model in models.values())
    for role, model in models.items():
        graph = manifest.graphs[role]
        path = folder / graph.file
        data = f"{path.name}_data"
        if manifest.weightless:
            leave_out([model], path.parent, data)
        ir.save(model, path, external_data=data if external and role != SELECT and not manifest.weightless else None)
        with standing_in(path.with_name(data), manifest.weightless):
            check_graph(path, graph, manifest)
    if manifest.single:
        _write_single(manifest, folder)
    facts = checkpoint.facts
    described = _published(checkpoint)
    js = transformers_js_config(manifest.precision, external)
    described |= token_config(facts) | label_config(facts)
    write_json(folder / "config.json", {**described, "transformers.js_config": js})
    if facts.target is not None:
        write_json(folder / "generation_config.json", generation_config(facts) | published_names(manifest.generation))
    if isinstance(facts.source, Features):
        write_json(folder / "preprocessor_config.json", preprocessor_config(facts.source))
    write_tokenizers(folder, facts)
    return manifest


def _write_single(manifest: Manifest, folder: Path) -> None:
    """Write the single graph, which contains the search; it reads the weight files of the other graphs."""
    graph = manifest.graphs[GENERATE]
    model = single_model({role: ir.load(folder / each.file) for role, each in manifest.driven.items()}, manifest)
    sign(model, GENERATE, manifest)
    ir.save(model, folder / graph.file)
    check_graph(folder / graph.file, graph, manifest)


def _published(checkpoint: Checkpoint) -> dict[str, object]:
    if isinstance(checkpoint.outline, Adapted):
        return published(checkpoint.facts)
    return architecture.of(checkpoint.config).hugging_face(checkpoint.config)


def _build(checkpoint: Checkpoint, manifest: Manifest) -> tuple[dict[str, ir.Model], Manifest]:
    dtype = getattr(torch, manifest.dtype)
    module = checkpoint.outline if dtype == torch.float32 else copied(checkpoint.outline, dtype)
    target = exporter_of(manifest.target)
    shared: dict[str, Any] = {"read": checkpoint.reader, "quantised": {}, "packed": checkpoint.packed}
    jobs = {role: Job(module, manifest, role, **shared) for role in manifest.driven}
    models = {role: target.trace(job) for role, job in jobs.items()}
    for role, job in jobs.items():
        target.run(models[role], job)
    forms = None
    if manifest.is_quantised:
        assert target.forms_of is not None
        forms = target.forms_of(checkpoint, manifest, models, {})
    for role, job in jobs.items():
        target.finish(models[role], job, forms)
        sign(models[role], role, manifest)
    counts = {role: job.counts for role, job in jobs.items() if job.counts}
    weights = {name: stored for job in jobs.values() for name, stored in job.weights.items()}
    return models, dataclasses.replace(manifest, passes=counts, weights=weights)


def _weight_bytes(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def token_config(facts: Facts) -> dict[str, object]:
    """Return the special tokens for `config.json`; a single end token is a number, several are a list."""
    tokens = facts.writes
    ends = tokens.ends or tokens.after
    found: dict[str, object] = {"pad_token_id": tokens.pad}
    if tokens.start is not None:
        found |= {"bos_token_id": tokens.start, "decoder_start_token_id": tokens.start}
    if ends:
        found["eos_token_id"] = ends[0] if len(ends) == 1 else list(ends)
    if facts.target is not None:
        found["use_cache"] = True
    return found


def transformers_js_config(precision: str, external: bool) -> dict[str, object]:
    """Return the settings of transformers.js; its "fp32" means file names without a suffix, for any precision."""
    return {"dtype": "fp32", "kv_cache_dtype": PRECISIONS[precision], "use_external_data_format": external}


def generation_config(facts: Facts) -> dict[str, object]:
    """Return the default `generation_config.json`: greedy search up to an end token."""
    speech = {} if facts.speech is None else speech_config(facts.speech)
    return {**token_config(facts), "max_length": facts.writes.longest + facts.start_tokens, "num_beams": 1, **speech}
