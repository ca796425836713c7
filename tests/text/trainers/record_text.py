"""Writes `text_models`: what subword-nmt cuts lines into, and how CTranslate2 translates lines that SentencePiece cut.

Run where ctranslate2, sentencepiece and subword-nmt are: `python -m tests.text.trainers.record_text`.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import sentencepiece
from ctranslate2.specs import transformer_spec
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from tests.recorded import TEXTS, TOKENIZERS
from tests.text.corpus import SENTENCES, lines

PIECES = TOKENIZERS / "marian"
LINES = 200
WIDTH, STEPS = 16, 12


def words_of(line: str) -> str:
    """A line whose words and signs are apart, as Moses would have it, more or less."""
    return " ".join("".join(each if each.isalnum() else f" {each} " for each in line).split())


def subword_nmt(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    codes = io.StringIO()
    learn_bpe(io.StringIO("\n".join(map(words_of, SENTENCES)) + "\n"), codes, 400, min_frequency=1)
    (folder / "codes").write_text(codes.getvalue(), encoding="utf-8")
    codes.seek(0)
    bpe = BPE(codes)
    cut = [bpe.process_line(words_of(line)) for line in lines(LINES, 2)]
    (folder / "expected.json").write_text(json.dumps(cut, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def model(sizes: list[int]) -> Any:
    """A small model of these vocabularies, that starts from the end token."""
    rng = np.random.default_rng(3)
    spec = transformer_spec.TransformerSpec.from_config((1, 1), 2, pre_norm=True)

    def weights(*shape: int) -> Any:
        return (rng.integers(-64, 65, shape) / 24).astype(np.float32)

    def linear(at: Any, outputs: int, inputs: int) -> None:
        at.weight = weights(outputs, inputs)
        at.bias = weights(outputs)

    def norm(at: Any) -> None:
        at.gamma = 1 + weights(WIDTH)
        at.beta = 0.1 * weights(WIDTH)

    spec.encoder.embeddings[0].weight, spec.decoder.embeddings.weight = (weights(size, WIDTH) for size in sizes)
    spec.decoder.projection.weight = weights(sizes[1], WIDTH)
    spec.decoder.projection.bias = 0.5 * weights(sizes[1])
    for side in (spec.encoder, spec.decoder):
        norm(side.layer_norm)
        for layer in side.layer:
            for attention in (layer.self_attention, getattr(layer, "attention", None)):
                if attention is not None:
                    norm(attention.layer_norm)
                    sizes = (48, 16) if len(attention.linear) == 2 else (16, 32, 16)
                    for at, outputs in zip(attention.linear, sizes, strict=True):
                        linear(at, outputs, WIDTH)
            norm(layer.ffn.layer_norm)
            linear(layer.ffn.linear_0, 24, WIDTH)
            linear(layer.ffn.linear_1, WIDTH, 24)
    return spec


def translated(folder: Path) -> None:
    files = [str(PIECES / f"{side}.spm") for side in ("source", "target")]
    cutters = [sentencepiece.SentencePieceProcessor(model_file=file) for file in files]
    pieces = [{cutter.id_to_piece(number) for number in range(2, len(cutter))} for cutter in cutters]
    tokens = [["<unk>", "<s>", "</s>", *sorted(each)[::-1]] for each in pieces]
    spec = model([*map(len, tokens)])
    spec.register_source_vocabulary(tokens[0])
    spec.register_target_vocabulary(tokens[1])
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = "</s>"  # noqa: S105
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))
    translator = ctranslate2.Translator(str(folder), compute_type="float32")
    texts = [line for line in lines(LINES, 4) if cutters[0].unk_id() not in cutters[0].encode(line)][:24]
    cut = [cutters[0].encode(line, out_type=str) for line in texts]
    how = {"beam_size": 1, "max_decoding_length": STEPS, "min_decoding_length": 0}
    found = [each.hypotheses[0] for each in translator.translate_batch(cut, **how)]
    values = [
        {"source": line, "tokens": row, "target": cutters[1].decode(row)}
        for line, row in zip(texts, found, strict=True)
    ]
    (folder / "expected.json").write_text(json.dumps(values, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    subword_nmt(TEXTS / "subword_nmt")
    translated(TEXTS / "ctranslate2")
