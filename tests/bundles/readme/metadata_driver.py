"""A driver that reads what graphs say in their metadata and ports, and no other file: greedy search, or an encoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class Graph:
    """A session, and its metadata as numbers."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(str(path))
        self.said = {
            name.removeprefix("txport."): value
            for name, value in self.session.get_modelmeta().custom_metadata_map.items()
        }
        self.inputs = {port.name: port for port in self.session.get_inputs()}
        self.outputs = [port.name for port in self.session.get_outputs()]

    def ids(self, name: str) -> list[int]:
        return [int(each) for each in self.said.get(name, "").split()]

    def run(self, given: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in given.items() if name in self.inputs}
        return dict(zip(self.outputs, self.session.run(self.outputs, kept), strict=True))

    def caches(self, length: int) -> dict[str, Any]:
        ports = [port for name, port in self.inputs.items() if name.startswith(self.said["past"])]
        return {port.name: np.zeros((1, port.shape[1], length, port.shape[3]), TYPES[port.type]) for port in ports}

    def carried(self, found: dict[str, Any]) -> dict[str, Any]:
        """The state of the next run."""
        present = self.said["present"]
        past = self.said["past"]
        return {past + name.removeprefix(present): value for name, value in found.items() if name.startswith(present)}


def run(folder: Path, source: Any) -> Any:
    """What a bundle makes of ids or of features, by its graphs alone."""
    graphs = {graph.said["role"]: graph for graph in (Graph(path) for path in sorted(folder.glob("*.onnx")))}
    said = next(iter(graphs.values())).said
    if said["task"] == "encode":
        return encode(graphs["model"], source)
    return generate(graphs, source)


def encode(graph: Graph, ids: list[int]) -> Any:
    tokens = np.array([ids], np.int64)
    given = {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "source_lengths": np.array([len(ids)], np.int32),
    }
    found = graph.run(given)
    ability = graph.said["ability"]
    how = json.loads(graph.said.get("generation", "{}"))
    if "sentence_embedding" in found:
        return found["sentence_embedding"][0].astype(np.float32)
    if ability == "embed":
        vectors = found["last_hidden_state"][0].astype(np.float32)
        vector = vectors[0] if how["pooling"] == "first" else vectors.mean(axis=0)
        return vector / np.linalg.norm(vector) if how["normalize"] else vector
    if ability == "answer":
        starts, ends = (found[name][0, 1:-1].astype(np.float64) for name in ("start_logits", "end_logits"))
        sums = np.triu(np.tril(starts[:, None] + ends + 1e6, 14))
        first, last = divmod(int(sums.argmax()), len(starts))
        return 1 + first, 1 + last
    function = graph.said.get("function_to_apply")
    if ability == "classify" and function != "softmax":
        logits = found["logits"][0].astype(np.float64)
        return 1 / (1 + np.exp(-logits)) if function == "sigmoid" else logits
    best = found["logits"][0].argmax(axis=-1)
    if ability == "classify":
        assert len(json.loads(graph.said["labels"])) == found["logits"].shape[1]
        return int(best)
    if ability == "tag":
        return (
            best.tolist() if function == "softmax" else 1 / (1 + np.exp(-found["logits"][0, :, 0].astype(np.float64)))
        )
    return [int(best[place]) for place, id_ in enumerate(ids) if id_ == graph.ids("source_mask")[0]]


def generate(graphs: dict[str, Graph], source: Any) -> list[int]:
    graph = graphs["step"] if "step" in graphs else graphs["decoder"]
    how = json.loads(graph.said.get("generation", "{}"))
    start = graph.ids("start")
    ends = graph.ids("ends")
    longest = int(graph.said["longest"])
    room = longest - (len(source) if graph.said["task"] == "causal" else 0)
    room -= len(start) if "sampling_rate" in graph.said else 0
    most = min(room, how.get("max_new_tokens") or room)
    tokens = start or list(source)
    target: list[int] = []
    given = first(graphs, source, len(tokens) + most)
    past = 0
    while len(target) < most:
        if graph.said["role"] == "decoder":
            length = past + len(tokens)
            given |= {
                "input_ids": np.array([tokens], np.int64),
                "position_ids": np.arange(past, length)[None],
                "attention_mask": np.ones((1, length), np.int64),
            }
            found = graph.run(given)
            given |= graph.carried(found)
            past = length
            scores = found["logits"][0, -1]
        else:
            for token in tokens:  # prompts too: to read them at once is no more than speed
                place = np.array([past], np.int32)
                given |= {"input_ids": np.array([[token]]), "past_lengths": place, "last_places": place}
                found = graph.run(given)
                given |= graph.carried(found)
                past += 1
            scores = found["logits"][0]
        tokens = [choose(scores.astype(np.float32), how, len(target), most, ends)]
        target += tokens
        if tokens[0] in ends:
            break
    return target


def first(graphs: dict[str, Graph], source: Any, capacity: int) -> dict[str, Any]:
    """What the first step reads beside its tokens."""
    graph = graphs["step"] if "step" in graphs else graphs["decoder"]
    given: dict[str, Any] = graph.caches(capacity if "step" in graphs else 0)
    size = np.array([capacity], np.int32)
    given |= {"cache_capacity": size, "total_sequence_length": size, "logits_at": np.array([0])}
    given |= {"k": np.array([0]), "align": np.array([False])}
    if "encoder" not in graphs:
        return given
    encoder = graphs["encoder"]
    if "input_features" in encoder.inputs:
        features = np.array([source], TYPES[encoder.inputs["input_features"].type])
        lengths = np.array([int(encoder.said["source_places"])], np.int32)
        return given | _encoded(encoder, {"input_features": features, "source_lengths": lengths})
    ids = np.array([source], np.int64)
    lengths = np.array([len(source)], np.int32)
    mask = {"attention_mask": np.ones_like(ids)}
    return (
        given
        | _encoded(encoder, {"input_ids": ids, "source_lengths": lengths, **mask})
        | {"encoder_attention_mask": mask["attention_mask"]}
    )


def _encoded(encoder: Graph, read: dict[str, Any]) -> dict[str, Any]:
    found = encoder.run(read)
    if "last_hidden_state" in found:
        found["encoder_hidden_states"] = found.pop("last_hidden_state")
    return found | {"source_lengths": read["source_lengths"]}


def choose(scores: Any, how: dict[str, Any], count: int, most: int, ends: list[int]) -> int:
    forced = how.get("forced_bos_token_id")
    if count == 0 and forced is not None:
        return int(forced)
    if count == most - 1 and how.get("forced_eos_token_id") is not None:
        return int(how["forced_eos_token_id"])
    scores[how.get("suppress_tokens", [])] = -np.inf
    if count == int(forced is not None):
        scores[how.get("begin_suppress_tokens", [])] = -np.inf
    if count < how.get("min_new_tokens", 0):
        scores[ends] = -np.inf
    return int(scores.argmax())
