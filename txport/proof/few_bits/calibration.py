"""The texts by which `export --calibrate` rounds weights to 4 bits."""

from __future__ import annotations

from pathlib import Path

from txport.errors import TextError, UnsupportedError
from txport.models.checkpoint import Checkpoint
from txport.models.names import LARGEST_SAMPLES
from txport.models.tokenizers.load import chat_of, tokenizer_of
from txport.proof.parity.cases import sides
from txport.runtimes.pytorch import TorchRuntime
from txport.search.generate import generate
from txport.search.options import SearchOptions
from txport.system.documents import DocumentError, read_lines

NEW_TOKENS = 96  # that a model writes after each text
MOST_TEXTS = 256


def calibration_texts(checkpoint: Checkpoint, path: Path) -> list[list[int]]:
    """Return the tokens of the texts in a file, one a line; a model that generates text continues each of them.

    With a chat template, each line is a message, and the model answers it. Raises `UnsupportedError` for a model whose
    weights are not rounded so, and `TextError` for a file without text.
    """
    facts = checkpoint.facts
    if facts.is_encoder_decoder:
        raise UnsupportedError("calibrate is for models that continue text, and encoders; this one reads a source")
    if checkpoint.packed:
        raise UnsupportedError(f"calibrate rounds weights, and these are quantised already: {checkpoint.quantised}")
    try:
        lines = [line for line in read_lines(path, LARGEST_SAMPLES) if line.strip()]
    except DocumentError as error:
        raise TextError(str(error)) from error
    if not 0 < len(lines) <= MOST_TEXTS:
        raise TextError(f"{path} must hold 1 to {MOST_TEXTS} texts, one a line, got {len(lines)}")
    files, place = checkpoint.companions, checkpoint.folder or path.parent
    tokenizer = tokenizer_of(files, place, facts)
    reader = chat_of(files, place, tokenizer) or tokenizer
    texts = [reader.encode(line)[: sides(facts)[0]] for line in lines]
    if not facts.generates:
        return texts
    options = SearchOptions(max_new_tokens=min(NEW_TOKENS, sides(facts)[1]), scores=False)
    answers = generate(TorchRuntime(checkpoint.model), texts, facts, options)
    return [[*text, *each[0].tokens] for text, each in zip(texts, answers, strict=True)]
