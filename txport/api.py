"""The Python API: what applications import.

import txport

model = txport.load("g2p-en")
print(model.generate(["hello"])[0].output)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txport import runtimes
from txport.batching import in_batches
from txport.generate import EarlyStopping, Found, SearchOptions, generate
from txport.locate import Say, checkpoint_of, find_bundle, silent
from txport.models.bundle import Bundle, seal
from txport.models.config import TransformerConfig
from txport.models.errors import ParityError, TextError, UnavailableError, UnsupportedError
from txport.models.files import staged_folder
from txport.models.tokenizer import Tokenizer, Unknown, load_tokenizer
from txport.runtimes.base import Runtime

if TYPE_CHECKING:
    from txport.models.checkpoint import Checkpoint
    from txport.parity import Report

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

    def __init__(self, runtime: Runtime, tokenizer: Tokenizer, config: TransformerConfig) -> None:
        self.runtime, self.tokenizer, self.config = runtime, tokenizer, config

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
        batch_size: int = BATCH_SIZE,
        unknown: Unknown = "error",
    ) -> Iterator[Generated]:
        """As `generate`, over an iterable of any length, each result as soon as its turn comes.

        Raises `TextError` for text that the model can't take, `UnsupportedError` for options that make
        no sense; `unknown="skip"` leaves out characters that are not in the vocabulary.
        """
        if batch_size < 1:
            raise UnsupportedError(f"batch_size must be at least 1, got {batch_size}")
        options = SearchOptions(
            beams=beams,
            nbest=nbest,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            max_new_tokens=self.config.max_length if max_new_tokens is None else max_new_tokens,
        )

        def work(batch: list[tuple[str, list[int]]]) -> list[Generated]:
            found = generate(self.runtime, [ids for _, ids in batch], self.config, options)
            return [self._result(text, each) for (text, _), each in zip(batch, found, strict=True)]

        encoded = ((text, self.encode(text, unknown)) for text in texts)
        return in_batches(encoded, work, batch_size, length=lambda item: len(item[1]))

    def encode(self, text: str, unknown: Unknown = "error") -> list[int]:
        """Token ids of a text, checked against the longest sequence of the model."""
        ids, longest = self.tokenizer.encode(text, unknown), self.config.max_length
        if len(ids) > longest:
            shown = text if len(text) <= 40 else text[:37] + "..."
            raise TextError(f"{shown!r} has {len(ids)} tokens, the model takes at most {longest}; split the text")
        return ids

    def _result(self, text: str, found: list[Found]) -> Generated:
        hypotheses = [Hypothesis(self.tokenizer.decode(one.tokens), one.score, list(one.tokens)) for one in found]
        return Generated(text, hypotheses[0].output, hypotheses[0].score, hypotheses)


def load(
    name: str | Path,
    *,
    runtime: str = "ort",
    provider: str = "cpu",
    threads: int | None = None,
    checkpoint: str | Path | None = None,
    say: Say = silent,
) -> Model:
    """Load a bundle: a folder that `export` wrote, or the name of a checkpoint that ships.

    The provider is the one asked for, or `UnavailableError` says what it lacks; there is no fallback.
    The `torch` runtime needs the `checkpoint` that the bundle was made from, if it does not ship.
    """
    runtimes.require(runtime, provider)
    bundle = find_bundle(str(name), say=say)
    if runtime == "torch":
        source = load_checkpoint(checkpoint_of(bundle) if checkpoint is None else checkpoint)
        engine = runtimes.load_torch(source, provider=provider, threads=threads)
    else:
        engine = runtimes.load(runtime, bundle, provider=provider, threads=threads)
    config = bundle.manifest.config
    return Model(engine, load_tokenizer(bundle.tokenizer, config), config)


def load_checkpoint(name: str | Path) -> Checkpoint:
    """Load a checkpoint by path or name; `UnavailableError` where PyTorch is not installed."""
    try:
        from txport.models import checkpoint
    except ModuleNotFoundError as error:
        raise _needs_export(error) from error
    return checkpoint.load_checkpoint(str(name))


def export(
    name: str | Path,
    out: str | Path,
    *,
    precision: str = "fp32",
    opset: int | None = None,
    force: bool = False,
    say: Say = silent,
) -> Bundle:
    """Export a checkpoint to a portable bundle at `out`, compare it with PyTorch, and only then put it there.

    Raises `CheckpointError` or `ConfigError` for a checkpoint that does not fit, `OutputError` for a place
    that can't be written, `ParityError` if the exported graphs do not compute what PyTorch computes.
    """
    try:
        from txport.exporters.export import DEFAULT_OPSET, export_graphs
        from txport.parity import check
    except ModuleNotFoundError as error:
        raise _needs_export(error) from error
    with staged_folder(Path(out), force=force) as folder:
        checkpoint = load_checkpoint(name)
        say(f"exporting {checkpoint.name} ({precision})")
        exported = export_graphs(checkpoint, folder, precision=precision, opset=opset or DEFAULT_OPSET)
        say("comparing with PyTorch")
        report = check(seal(folder, exported.manifest), checkpoint, {"ort": "cpu"})
        if not report.passed:
            raise ParityError(f"the export of {checkpoint.name} differs from PyTorch: {report.describe_worst()}")
        bundle = seal(folder, dataclasses.replace(exported.manifest, parity=report.summary()))
    return Bundle(Path(out), bundle.manifest)


def parity(bundle: Bundle, checkpoint: str | Path, providers: Mapping[str, str], *, seed: int = 0) -> Report:
    """Compare a bundle with the checkpoint that it was made from, on each runtime of `providers` (name -> provider)."""
    try:
        from txport.parity import check
    except ModuleNotFoundError as error:
        raise _needs_export(error) from error
    return check(bundle, load_checkpoint(checkpoint), providers, seed=seed)


def _needs_export(error: ModuleNotFoundError) -> UnavailableError:
    if error.name is None or error.name.startswith("txport"):
        raise error
    return UnavailableError(f"this needs {error.name}, which is not installed: pip install 'txport[export]'")
