"""CTranslate2, with its `Translator`, its `Generator` for decoder-only models, and its `Whisper` for speech.

CTranslate2 identifies tokens by strings. Here the string of a token is its id, and strings are converted outside of the
measured time.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np

from benchmarks.peers.engines import Ids, Model, Search, Sources, begins

PACKAGES = ("ctranslate2", "transformers", "numpy")
QUANTIZATION = {"fp32": None, "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
KINDS = {"causal": ctranslate2.Generator, "seq2seq": ctranslate2.Translator, "speech": ctranslate2.models.Whisper}
LENGTHS = {"causal": ("max_length", "min_length"), "seq2seq": ("max_decoding_length", "min_decoding_length")}
SIZES = "sizes.json"


def prepare(model: Model, folder: Path) -> None:
    """Convert and quantise a checkpoint; a speech model by CTranslate2's own converter."""
    import torch

    from txport.checkpoints.checkpoint import config_of
    from txport.checkpoints.folder import find_folder, preset_config, preset_name
    from txport.models import architecture
    from txport.system.documents import write_json

    preset = preset_name(model.checkpoint)
    config = preset_config(preset) if preset else config_of(find_folder(model.checkpoint))
    with torch.device("meta"):
        facts = architecture.of(config).build(config).facts
    (fill if facts.speech is None else convert_folder)(model, folder)
    start = facts.writes.start
    begin = begins(facts)
    write_json(
        folder / SIZES,
        {
            "compute_type": TYPES.get(model.precision, model.precision),
            "kind": facts.task if facts.speech is None else "speech",
            "begin": [] if start is None else [start, *begin],
            "end": facts.writes.end,
        },
    )


def convert_folder(model: Model, folder: Path) -> None:
    """Convert a folder of transformers like `ct2-transformers-converter`; one of CTranslate2 is taken as it is."""
    if (Path(model.checkpoint) / "model.bin").exists():
        shutil.copytree(model.checkpoint, folder, dirs_exist_ok=True)
        return
    converter = ctranslate2.converters.TransformersConverter(model.checkpoint)
    converter.convert(str(folder), quantization=QUANTIZATION[model.precision], force=True)


def fill(model: Model, folder: Path) -> None:
    """Write the weights of a txport checkpoint in CTranslate2's format."""
    from benchmarks.peers.engines.ct2_weights import convert  # a process that generates does not import PyTorch
    from txport.checkpoints.checkpoint import load_checkpoint

    spec = convert(load_checkpoint(model.checkpoint).in_memory().model)
    spec.validate()
    spec.optimize(quantization=QUANTIZATION[model.precision])
    spec.save(str(folder))


class Engine:
    """CTranslate2 with the options `threads` (intra_threads), `workers` (inter_threads) and `batch_size`.

    Larger batches are split into batches of `batch_size`. The option `device` selects another device than the CPU,
    which computes half precision in fp32.
    """

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        sizes = json.loads((folder / SIZES).read_text(encoding="utf-8"))
        self._kind = sizes["kind"]
        self._begin = sizes["begin"]
        self._end = sizes["end"]
        device = options.get("device", "cpu")
        kind = sizes["compute_type"]
        self._engine = KINDS[self._kind](
            str(folder),
            device=device,
            compute_type="float32" if device == "cpu" and kind in ("float16", "bfloat16") else kind,
            intra_threads=options["threads"],
            inter_threads=options["workers"],
        )
        self._batch_size = options["batch_size"]
        self._options = self._options_of(search)
        self._first = self._options_of(replace(search, max_new_tokens=1))

    def _options_of(self, search: Search) -> dict[str, Any]:
        most = search.max_new_tokens
        if self._kind == "speech":  # generates at most half of max_length, and at most max_length less the prompt
            length = max(2 * most, most + len(self._begin) - 1)
            options = {"beam_size": search.beams, "max_length": length}  # by default it suppresses the model's tokens
            return options | ({"suppress_tokens": [self._end], "suppress_blank": False} if search.forced else {})
        least = most if search.forced else 1
        options = dict(zip(LENGTHS[self._kind], (most, least), strict=True))
        options |= {"beam_size": search.beams, "max_batch_size": self._batch_size, "return_scores": False}
        return options | ({"include_prompt_in_result": False} if self._kind == "causal" else {})

    def encode(self, sources: Sources) -> Any:
        """Return ids as strings, or features as a `StorageView`."""
        if isinstance(sources, np.ndarray):
            return ctranslate2.StorageView.from_array(sources)
        return self._words(sources)

    def _words(self, rows: Ids) -> list[list[str]]:
        return [[str(id_) for id_ in row] for row in rows]

    def generate(self, inputs: Any) -> Any:
        """Search one batch; the tokens of a prompt are processed in one run."""
        return self._search(inputs, self._options)

    def first(self, inputs: Any) -> Any:
        """See `FirstEngine`."""
        return self._search(inputs, self._first)

    def _search(self, inputs: Any, options: dict[str, Any]) -> Any:
        if self._kind == "speech":
            return self._engine.generate(inputs, [self._begin] * inputs.shape[0], **options)
        search = self._engine.generate_batch if self._kind == "causal" else self._engine.translate_batch
        return search(inputs, **options)

    def decode(self, outputs: Any) -> list[list[int]]:
        """Return the best hypothesis of each source."""
        if self._kind == "speech":
            return [list(each.sequences_ids[0]) for each in outputs]
        found = [each.sequences[0] if self._kind == "causal" else each.hypotheses[0] for each in outputs]
        return [[int(token) for token in tokens] for tokens in found]

    def score(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """See `ScoringEngine`."""
        if self._kind == "causal":
            whole = self._words([[*source, *target] for source, target in zip(sources, targets, strict=True)])
            scores = [each.log_probs for each in self._engine.score_batch(whole)]  # of all tokens except the first
        else:
            scores = [each.log_probs for each in self._engine.score_batch(self._words(sources), self._words(targets))]
            scores = [log_probs[: len(target)] for log_probs, target in zip(scores, targets, strict=True)]  # no end
        return [list(log_probs[-len(target) :]) for log_probs, target in zip(scores, targets, strict=True)]
