"""The Python API: what applications import.

import txport

model = txport.load("g2p-en")
print(model.generate(["hello"])[0].output)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from txport import runtimes
from txport.arguments import listed, many, paired, require_many, require_unknown, sizes, token_ids
from txport.encoding import BATCH_SIZE, Encoder, Fill, Label, Tag, require_ability
from txport.errors import BundleError, TextError, UnsupportedError, quoted
from txport.locate import checkpoint_of, find_bundle
from txport.models.audio.facts import Features
from txport.models.facts import Facts
from txport.models.tokenizer import Tokenizer, Unknown, load_tokenizer
from txport.release import Progress, export, load_checkpoint, parity, silent
from txport.runtimes.base import ContinuousRuntime, Runtime
from txport.search.batching import in_batches
from txport.search.continuous import GenerationRequest, Scheduler
from txport.search.generate import Ids, Steps, generate, require_fit, require_room, search
from txport.search.numbers import numbers_only
from txport.search.options import Alignment, Found, SearchOptions, require_defaults, require_length_penalty
from txport.search.scoring import logits, score
from txport.system.numbers import switch, whole

__all__ = ["Fill", "Generated", "Hypothesis", "Label", "Model", "Tag", "export", "load", "load_checkpoint", "parity"]

UNFINISHED = "\ufffd"  # what a decoder shows of a character whose other bytes are still to come
Item = TypeVar("Item")


@dataclass(frozen=True)
class Hypothesis:
    """One answer: its text, its score (log-probability over a power of its length), its token ids and their log-probs.

    `alignment`, if it was asked for, says the attention of each token: to each token of the source how much, or the
    token to which it is largest.
    """

    output: str
    score: float
    tokens: list[int]
    token_scores: list[float]
    alignment: Alignment = ()


@dataclass(frozen=True)
class Generated:
    """What came of one input; `output` and `score` are the best hypothesis's, or "" and 0 if there is none."""

    input: str
    output: str
    score: float
    hypotheses: list[Hypothesis]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; alignment only where it was asked for."""
        values = dataclasses.asdict(self)
        for each in (each for each in values["hypotheses"] if not each["alignment"]):
            del each["alignment"]
        return values


class Model(Encoder):
    """A model that is loaded and ready; `load` makes one. What it can do beside `infer` follows from its task.

    `defaults` are the options of its searches, of those in `SearchOptions`, or of `embed`, where a call names none.
    """

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer,
        facts: Facts,
        workers: int = 1,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(runtime, tokenizer, facts, workers, defaults)
        self._numbers = numbers_only(runtime)

    def generate(self, texts: str | Iterable[str], **options: Any) -> list[Generated]:
        """Generate for one text or many; the options are those of `generate_iter`. -> one result a text, in order."""
        return list(self.generate_iter(texts, **options))

    def generate_iter(
        self,
        texts: str | Iterable[str],
        *,
        prefixes: str | Iterable[str] = "",
        batch_size: int = BATCH_SIZE,
        batch_tokens: int | None = None,
        continuous: bool = False,
        unknown: Unknown = "error",
        **options: Any,
    ) -> Iterator[Generated]:
        """As `generate`, over an iterable of any length, each result as soon as all before it are there.

        A causal model continues each text; the output is what it adds. `options` are those of `SearchOptions`, which
        docs/search.md tells; `max_new_tokens` is by default all that the model can take. `prefixes` are what the
        targets of a seq2seq model begin with, one for all or one a text (a list, or what has an end): tokens as the
        vocabulary writes them, apart by spaces. A batch has up to `batch_size` texts of similar length, and up to
        `batch_tokens` source tokens; if it is `continuous`, others take the places of those that are done, which cpu
        bundles can. `unknown="skip"` leaves out characters that are not in the vocabulary; a text of which nothing is
        left has an empty output and no hypotheses.

        Raises `TextError` for text that the model can't take, `UnsupportedError` for options that make no sense.
        """
        batch_size, batch_tokens = sizes(batch_size, batch_tokens)
        require_unknown(unknown)
        begin = [self._begin(prefix) for prefix in listed("prefixes", many("prefixes", prefixes))]
        chosen = self._options(options, begin)
        self._require_continuous(continuous, batch_tokens)

        def work(batch: list[tuple[str, list[int], list[int]]]) -> list[Generated]:
            requests = [(source, prefix) for _, source, prefix in batch if source]
            found = iter(self._find(requests, chosen, batch_size if continuous else None) if requests else ())
            return [self._result(text, source, next(found) if source else []) for text, source, _ in batch]

        texts = many("texts", texts)
        pairs = zip(texts, repeat(begin[0])) if isinstance(prefixes, str) else paired(texts, begin, "prefixes")
        encoded = ((text, self._with_room(self._encode_known(text, unknown), chosen), prefix) for text, prefix in pairs)
        size: Callable[[tuple[str, list[int], list[int]]], int] = lambda item: len(item[1])  # noqa: E731
        return in_batches(encoded, work, batch_size, size, self.workers, batch_tokens, continuous)

    def stream(
        self, text: str, *, prefix: str = "", unknown: Unknown = "error", **options: Any
    ) -> Generator[str, None, None]:
        """One text, token by token: the output as far as it is certain, each time that it grows, and at last all of it.

        In beam search that is what all beams begin with. Leaving the loop, or closing the iterator, ends the search.
        """
        require_unknown(unknown)
        begin = self._begin(prefix)
        chosen = self._options(options, [begin])
        if chosen.nbest > 1:
            raise UnsupportedError(f"only one hypothesis can be streamed, got nbest {chosen.nbest}")
        if not (source := self._with_room(self._encode_known(text, unknown), chosen)):
            return (each for each in [""])
        steps = search(self._numbers, [source], self.facts, chosen, [begin])
        return _grow(steps, functools.partial(self._text, source))

    def search(
        self,
        sources: Iterable[Sequence[int]],
        *,
        prefixes: Iterable[Sequence[int]] | None = None,
        batch_size: int = BATCH_SIZE,
        batch_tokens: int | None = None,
        continuous: bool = False,
        **options: Any,
    ) -> list[list[Found]]:
        """As `generate`, from token ids to token ids; `options` are those of `SearchOptions`.

        Raises `TextError` for a source that is empty, too long, or has ids outside the vocabulary.
        """
        batch_size, batch_tokens = sizes(batch_size, batch_tokens)
        begin = None if prefixes is None else [token_ids("a prefix", each) for each in listed("prefixes", prefixes)]
        require_many("sources", sources)
        chosen = self._options(options, begin or [])
        self._require_continuous(continuous, batch_tokens)

        def work(batch: list[GenerationRequest]) -> list[list[Found]]:
            return self._find(batch, chosen, batch_size if continuous else None)

        pairs: Iterable[GenerationRequest]
        pairs = zip(sources, repeat(())) if begin is None else paired(sources, begin, "prefixes")
        checked: Iterable[GenerationRequest] = (
            (self._with_room(self._checked(source), chosen), prefix) for source, prefix in pairs
        )
        size: Callable[[GenerationRequest], int] = lambda pair: len(pair[0])  # noqa: E731
        return list(in_batches(checked, work, batch_size, size, self.workers, batch_tokens, continuous))

    def score(
        self,
        texts: str | Iterable[str],
        targets: str | Iterable[str],
        *,
        length_penalty: float = 1.0,
        batch_size: int = BATCH_SIZE,
        unknown: Unknown = "error",
    ) -> Iterator[Hypothesis]:
        """How likely given targets are, one each: tokens as the vocabulary writes them, apart by spaces.

        The end token is added to each, unless it continues the prompt of a causal model. Raises `TextError` for what
        the model can't take or say.
        """
        require_length_penalty(length_penalty)
        how = functools.partial(score, length_penalty=length_penalty)
        return map(self._hypothesis, self._each_target(texts, targets, batch_size, unknown, how))

    def logits(
        self,
        texts: str | Iterable[str],
        targets: str | Iterable[str],
        *,
        batch_size: int = BATCH_SIZE,
        unknown: Unknown = "error",
    ) -> Iterator[NDArray[np.float32]]:
        """What the model says before each token of given targets, as `score` takes them: (T, V) each."""
        return self._each_target(texts, targets, batch_size, unknown, logits)

    def _each_target(
        self,
        texts: str | Iterable[str],
        targets: str | Iterable[str],
        batch_size: int,
        unknown: Unknown,
        how: Callable[..., list[Item]],
    ) -> Iterator[Item]:
        require_ability(self.facts, "score")
        batch_size, _ = sizes(batch_size)
        require_unknown(unknown)

        def work(batch: list[tuple[list[int], list[int]]]) -> list[Item]:
            sources, wanted = zip(*batch, strict=True)
            return how(self._numbers, sources, wanted, self.facts)

        end = [] if self.facts.task == "causal" else [self.facts.writes.end]
        encoded = (
            (self.encode(text, unknown), [*self._begin(target, "a target"), *end])
            for text, target in paired(many("texts", texts), many("targets", targets), "targets")
        )
        return in_batches(encoded, work, batch_size, length=lambda pair: len(pair[1]), workers=self.workers)

    def _require_continuous(self, continuous: bool, batch_tokens: int | None) -> None:
        if switch("continuous", continuous) and not isinstance(self.runtime, ContinuousRuntime):
            raise UnsupportedError("continuous batches need a bundle of the cpu target: export --target cpu")
        if continuous and batch_tokens is not None:
            raise UnsupportedError("batch_tokens are for fixed batches; a continuous one has up to batch_size texts")

    def _find(
        self, requests: Sequence[GenerationRequest], options: SearchOptions, slots: int | None
    ) -> list[list[Found]]:
        """Search one batch, or, with so many slots, one after the other as slots get free."""
        if slots is not None and isinstance(self._numbers, ContinuousRuntime):
            return Scheduler(self._numbers, requests, self.facts, options, slots).run()
        sources, prefixes = zip(*requests, strict=True)
        return generate(self._numbers, sources, self.facts, options, prefixes)

    def _options(self, options: dict[str, Any], prefixes: Ids) -> SearchOptions:
        require_ability(self.facts, "generate")
        known = [entry.name for entry in dataclasses.fields(SearchOptions)]
        for name in options:
            if name not in known:
                raise UnsupportedError(f"there is no option {name!r}; there are {', '.join(known)}")
        chosen = SearchOptions(**{**self.defaults, **options})
        require_fit(prefixes, self.facts, chosen)
        return chosen

    def _begin(self, text: str, what: str = "a prefix") -> list[int]:
        """Token ids of what a target begins with, or all of it, as the vocabulary writes tokens."""
        if not isinstance(text, str):
            raise TextError(f"{what} must be a string of tokens, got {quoted(text)}")
        return self.tokenizer.ids(text)

    def _checked(self, tokens: Sequence[int]) -> list[int]:
        if isinstance(self.facts.reads, Features):
            raise NotImplementedError
        what = "a prompt" if self.facts.task == "causal" else "a source"
        source, longest, size = token_ids(what, tokens), self.facts.reads.longest, self.facts.reads.size
        if not 1 <= len(source) <= longest:
            raise TextError(f"{what} must have 1 to {longest} tokens, got {len(source)}")
        if not 0 <= min(source) <= max(source) < size:
            raise TextError(f"token ids must lie in 0 to {size - 1}, got {min(source)} to {max(source)}")
        return source

    def _with_room(self, source: list[int], options: SearchOptions) -> list[int]:
        """The same, if it is no prompt that leaves too little room for what is asked."""
        if self.facts.task == "causal" and source:
            require_room(source, self.facts, options)
        return source

    def _text(self, source: Sequence[int], tokens: Sequence[int]) -> str:
        """The text of a target: of a causal model, what it adds to that of its prompt."""
        if self.facts.task == "causal":
            return self.tokenizer.continuation(source, tokens)
        return self.tokenizer.decode(tokens)

    def _result(self, text: str, source: Sequence[int], found: list[Found]) -> Generated:
        hypotheses = [self._hypothesis(one, source) for one in found]
        best = hypotheses[0] if hypotheses else Hypothesis("", 0.0, [], [])
        return Generated(text, best.output, best.score, hypotheses)

    def _hypothesis(self, found: Found, source: Sequence[int] = ()) -> Hypothesis:
        output, tokens = self._text(source, found.tokens), list(found.tokens)
        return Hypothesis(output, found.score, tokens, list(found.token_scores), found.alignment)


def _grow(steps: Steps, text_of: Callable[[Sequence[int]], str]) -> Generator[str, None, None]:
    output = ""
    with contextlib.closing(steps):
        while True:
            try:
                certain = text_of(next(steps)()[0]).rstrip(UNFINISHED)
            except StopIteration as end:
                whole = text_of(end.value[0][0].tokens)
                if whole != output or not whole:
                    yield whole
                return
            if certain != output and certain.startswith(output):
                output = certain
                yield output


def load(
    name: str | Path,
    *,
    runtime: str = "ort",
    provider: str = "cpu",
    threads: int | None = None,
    workers: int = 1,
    checkpoint: str | Path | None = None,
    progress: Progress = silent,
) -> Model:
    """Load a bundle: a folder that `export` wrote, or the name of a checkpoint that ships.

    `threads` work on one operator, by default one for each core; for bulk work, as many `workers` as there
    are cores, each on a batch of its own with one thread, get more done.

    The provider is the one asked for, or `UnavailableError` says what it lacks; there is no fallback.
    The `torch` runtime needs the `checkpoint` that the bundle was made from, if it does not ship.
    """
    runtimes.require(runtime, provider)
    workers = whole("workers", workers, 1)
    runtimes.require_threads("workers", workers)
    runtimes.require_threads("threads", threads)
    threads = 1 if threads is None and workers > 1 else threads
    if checkpoint is not None and runtime != "torch":
        raise UnsupportedError(f"a checkpoint is for the torch runtime; {runtime} runs the bundle by itself")
    bundle = find_bundle(str(name), progress=progress)
    bundle.require_weights()
    if runtime == "torch":
        source = load_checkpoint(checkpoint_of(bundle) if checkpoint is None else checkpoint)
        bundle.require_source(source.name, source.sha256)
        bundle.require_model(source.described)
        engine = runtimes.load_torch(source, provider=provider, threads=threads)
    else:
        engine = runtimes.load(runtime, bundle, provider=provider, threads=threads)
    facts, defaults = bundle.manifest.facts, bundle.manifest.generation
    try:
        require_defaults(defaults, facts)
    except UnsupportedError as error:
        raise BundleError(
            f"{bundle.path} says how to {facts.ability or 'search'}, which can't be done: {error}; export it again"
        ) from error
    return Model(engine, load_tokenizer(bundle.path, facts), facts, workers, defaults)
