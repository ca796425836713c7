"""CTranslate2: generation by its `Translator`, or its `Generator` where there is no encoder.

Its vocabulary is strings; here a token is written as its id, and strings are made and read outside of the time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ctranslate2

from benchmarks.peers.engines import Model, Search, Sources

PACKAGES = ("ctranslate2", "numpy")
QUANTIZATION = {"fp32": None, "int8": "int8"}
SIZES = "sizes.json"


def prepare(model: Model, folder: Path) -> None:
    """Convert a checkpoint; the weights are quantised in the file already."""
    from benchmarks.peers.engines.ct2_weights import convert  # a process that generates holds no PyTorch
    from txport.models.checkpoint import load_checkpoint
    from txport.system.documents import write_json

    checkpoint = load_checkpoint(model.checkpoint)
    spec = convert(checkpoint.in_memory().model)
    spec.validate()
    spec.optimize(quantization=QUANTIZATION[model.precision])
    spec.save(str(folder))
    compute_type = {"fp32": "float32"}.get(model.precision, model.precision)
    write_json(folder / SIZES, {"compute_type": compute_type, "task": checkpoint.facts.task})


class Engine:
    """Options: `threads` (intra_threads), `workers` (inter_threads), `batch_size` (of those split off a larger one)."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        sizes = json.loads((folder / SIZES).read_text(encoding="utf-8"))
        self._causal = sizes["task"] == "causal"
        self._engine = (ctranslate2.Generator if self._causal else ctranslate2.Translator)(
            str(folder),
            compute_type=sizes["compute_type"],
            intra_threads=options["threads"],
            inter_threads=options["workers"],
        )
        least = search.max_new_tokens if search.forced else 1
        length = ("max_length", "min_length") if self._causal else ("max_decoding_length", "min_decoding_length")
        self._options = {
            "beam_size": search.beams,
            **dict(zip(length, (search.max_new_tokens, least), strict=True)),
            "max_batch_size": options["batch_size"],
            "return_scores": False,
        }

    def encode(self, sources: Sources) -> list[list[str]]:
        """Ids as strings."""
        return [[str(id_) for id_ in source] for source in sources]

    def generate(self, inputs: list[list[str]]) -> Any:
        """Search; a prompt goes through the model at once, as one batch of tokens."""
        if self._causal:
            return self._engine.generate_batch(inputs, include_prompt_in_result=False, **self._options)
        return self._engine.translate_batch(inputs, **self._options)

    def decode(self, outputs: Any) -> list[list[int]]:
        """The best hypothesis of each source."""
        found = [each.sequences[0] if self._causal else each.hypotheses[0] for each in outputs]
        return [[int(token) for token in tokens] for tokens in found]

    def score(self, sources: Sources, targets: Sources) -> list[list[float]]:
        """See `ScoringEngine`."""
        if self._causal:
            whole = self.encode([[*source, *target] for source, target in zip(sources, targets, strict=True)])
            scores = [each.log_probs for each in self._engine.score_batch(whole)]  # of all tokens but the first
        else:
            scores = [each.log_probs for each in self._engine.score_batch(self.encode(sources), self.encode(targets))]
            scores = [log_probs[: len(target)] for log_probs, target in zip(scores, targets, strict=True)]  # no end
        return [list(log_probs[-len(target) :]) for log_probs, target in zip(scores, targets, strict=True)]
