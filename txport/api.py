"""The Python API: what applications import.

import txport

model = txport.load("g2p-en")
print(model.generate(["hello"])[0].output)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txport import runtimes
from txport.batching import in_batches
from txport.generate import generate
from txport.locate import checkpoint_of, find_bundle
from txport.models.config import TransformerConfig
from txport.models.errors import TextError, UnsupportedError
from txport.models.tokenizer import Tokenizer, Unknown, load_tokenizer, shorten
from txport.options import EarlyStopping, Found, SearchOptions
from txport.release import Say, export, load_checkpoint, parity, silent
from txport.runtimes.base import Runtime

__all__ = ["Generated", "Hypothesis", "Model", "export", "load", "load_checkpoint", "parity"]

BATCH_SIZE = 32


@dataclass(frozen=True)
class Hypothesis:
    """One answer: its text, its score (log-probability over a power of its length), its token ids."""

    output: str
    score: float
    tokens: list[int]


@dataclass(frozen=True)
class Generated:
    """What came of one input; `output` and `score` are the best hypothesis's."""

    input: str
    output: str
    score: float
    hypotheses: list[Hypothesis]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)


class Model:
    """A model that is loaded and ready; `load` makes one."""

    def __init__(self, runtime: Runtime, tokenizer: Tokenizer, config: TransformerConfig, workers: int = 1) -> None:
        self.runtime, self.tokenizer, self.config, self.workers = runtime, tokenizer, config, workers

    def generate(self, texts: str | Iterable[str], **options: Any) -> list[Generated]:
        """Generate for one text or many; the options are those of `stream`. -> one result a text, in order."""
        return list(self.stream([texts] if isinstance(texts, str) else texts, **options))

    def stream(
        self,
        texts: Iterable[str],
        *,
        beams: int = 1,
        nbest: int = 1,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        max_new_tokens: int | None = None,
        min_new_tokens: int = 0,
        batch_size: int = BATCH_SIZE,
        unknown: Unknown = "error",
    ) -> Iterator[Generated]:
        """As `generate`, over an iterable of any length, each result as soon as its turn comes.

        Raises `TextError` for text that the model can't take, `UnsupportedError` for options that make
        no sense; `unknown="skip"` leaves out characters that are not in the vocabulary.
        """
        _require_batch_size(batch_size)
        if unknown not in ("error", "skip"):
            raise UnsupportedError(f"unknown must be 'error' or 'skip', got {unknown!r}")
        options = SearchOptions(
            beams=beams,
            nbest=nbest,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            max_new_tokens=self.config.max_length if max_new_tokens is None else max_new_tokens,
            min_new_tokens=min_new_tokens,
        )

        def work(batch: list[tuple[str, list[int]]]) -> list[Generated]:
            found = generate(self.runtime, [ids for _, ids in batch], self.config, options)
            return [self._result(text, each) for (text, _), each in zip(batch, found, strict=True)]

        encoded = ((text, self.encode(text, unknown)) for text in texts)
        return in_batches(encoded, work, batch_size, length=lambda item: len(item[1]), workers=self.workers)

    def search(
        self, sources: Iterable[Sequence[int]], *, batch_size: int = BATCH_SIZE, **options: Any
    ) -> list[list[Found]]:
        """As `generate`, from token ids to token ids; `options` are those of `SearchOptions`.

        Raises `TextError` for a source that is empty, too long, or has ids outside the vocabulary.
        """
        _require_batch_size(batch_size)
        chosen = SearchOptions(**{"max_new_tokens": self.config.max_length, **options})

        def work(batch: list[Sequence[int]]) -> list[list[Found]]:
            return generate(self.runtime, batch, self.config, chosen)

        checked = (self._checked(source) for source in sources)
        return list(in_batches(checked, work, batch_size, length=len, workers=self.workers))

    def encode(self, text: str, unknown: Unknown = "error") -> list[int]:
        """Token ids of a text, checked against the longest sequence of the model."""
        ids, longest = self.tokenizer.encode(text, unknown), self.config.max_length
        if len(ids) > longest:
            raise TextError(f"{shorten(text)} has {len(ids)} tokens, the model takes at most {longest}; split the text")
        return ids

    def _checked(self, source: Sequence[int]) -> Sequence[int]:
        longest, size = self.config.max_length, self.config.source_vocab_size
        if not 1 <= len(source) <= longest:
            raise TextError(f"a source must have 1 to {longest} tokens, got {len(source)}")
        if not 0 <= min(source) <= max(source) < size:
            raise TextError(f"token ids must lie in 0 to {size - 1}, got {min(source)} to {max(source)}")
        return source

    def _result(self, text: str, found: list[Found]) -> Generated:
        hypotheses = [Hypothesis(self.tokenizer.decode(one.tokens), one.score, list(one.tokens)) for one in found]
        return Generated(text, hypotheses[0].output, hypotheses[0].score, hypotheses)


def _require_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise UnsupportedError(f"batch_size must be at least 1, got {batch_size}")


def load(
    name: str | Path,
    *,
    runtime: str = "ort",
    provider: str = "cpu",
    threads: int | None = None,
    workers: int = 1,
    checkpoint: str | Path | None = None,
    say: Say = silent,
) -> Model:
    """Load a bundle: a folder that `export` wrote, or the name of a checkpoint that ships.

    `threads` work on one operator, by default one for each core; for bulk work, as many `workers` as there
    are cores, each on a batch of its own with one thread, get more done.

    The provider is the one asked for, or `UnavailableError` says what it lacks; there is no fallback.
    The `torch` runtime needs the `checkpoint` that the bundle was made from, if it does not ship.
    """
    runtimes.require(runtime, provider)
    if workers < 1:
        raise UnsupportedError(f"workers must be at least 1, got {workers}")
    threads = 1 if threads is None and workers > 1 else threads
    if checkpoint is not None and runtime != "torch":
        raise UnsupportedError(f"a checkpoint is for the torch runtime; {runtime} runs the bundle by itself")
    bundle = find_bundle(str(name), say=say)
    if runtime == "torch":
        source = load_checkpoint(checkpoint_of(bundle) if checkpoint is None else checkpoint)
        bundle.require_source(source.name, source.sha256)
        engine = runtimes.load_torch(source, provider=provider, threads=threads)
    else:
        engine = runtimes.load(runtime, bundle, provider=provider, threads=threads)
    config = bundle.manifest.config
    return Model(engine, load_tokenizer(bundle.tokenizer, config), config, workers)
