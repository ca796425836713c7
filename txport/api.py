"""The Python API: what applications import.

import txport

model = txport.load("g2p-en")
print(model.generate(["hello"])[0].output)
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from txport import runtimes
from txport.arguments import checked_features, listed, many, paired, require_many, require_unknown, sizes, token_ids
from txport.bundles.bundle import Bundle
from txport.encoding import BATCH_SIZE, Encoder, Fill, Label, Tag, require_ability
from txport.errors import BundleError, TextError, UnsupportedError, quoted
from txport.generated import Generated, Hypothesis, grown
from txport.locate import checkpoint_of, find_bundle, is_on_demand
from txport.models.audio.facts import Features
from txport.models.facts import Facts
from txport.models.tokenizers.base import Tokenizer, TokenizerPair, Unknown
from txport.models.tokenizers.chat import ChatReader, chat_line
from txport.models.tokenizers.languages import LanguageReader
from txport.models.tokenizers.load import chat_of, tokenizer_of
from txport.release import Progress, export, load_checkpoint, parity, silent
from txport.runtimes.base import ContinuousRuntime, Runtime
from txport.runtimes.inputs import Source
from txport.runtimes.single import SingleRuntime
from txport.search.batching import at_once, in_batches
from txport.search.continuous import GenerationRequest, Scheduler
from txport.search.generate import Ids, begin, require_fit, require_room, search
from txport.search.numbers import numbers_only
from txport.search.options import Found, SearchOptions, require_defaults, require_length_penalty
from txport.search.scoring import logits, score
from txport.search.single import generate_at_once
from txport.system.numbers import switch, whole
from txport.transcription import WINDOWS, Audio, Find, Segment, Told, Transcriber, Transcript
from txport.warming import lengths_from, warm

__all__ = [
    "Fill", "Generated", "Hypothesis", "Label", "Model", "Segment", "Tag", "Transcript",
    "export", "load", "load_checkpoint", "parity",
]  # fmt: skip

Item = TypeVar("Item")


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
        chat: ChatReader | None = None,
    ) -> None:
        super().__init__(runtime, tokenizer, facts, workers, defaults)
        self._chat, self._special = chat, False
        self._numbers = numbers_only(runtime)

    def between(self, source_language: str | None = None, target_language: str | None = None) -> Model:
        """The same model for sources and targets of these languages, named as its tokenizer names them (`eng_Latn`).

        Without a source's, it is the tokenizer's own. Raises `UnsupportedError` for a model that is told none.
        """
        pair = self.tokenizer
        if not isinstance(pair, TokenizerPair) or not isinstance(pair.source, LanguageReader):
            given = "source_language" if source_language is not None else "target_language"
            raise UnsupportedError(f"this model is not told languages; leave {given} out")
        reader = pair.source.between(source_language, target_language)
        model = copy.copy(self)
        model.tokenizer = TokenizerPair(reader, pair.target)
        if reader.forced is not None:
            model.defaults = {**self.defaults, "forced_bos_token_id": reader.forced}
        return model

    def reading_chats(self) -> Model:
        """The same model, which reads a text as what a user says, and a JSON list of messages as a chat.

        The template of its checkpoint makes a prompt of it. Raises `UnsupportedError` for a model without one.
        """
        if self._chat is None:
            raise UnsupportedError("this model has no chat template; give it prompts as they are")
        model = copy.copy(self)
        model.tokenizer = TokenizerPair(self._chat, self.tokenizer)
        return model

    def writing_special_tokens(self) -> Model:
        """The same model, whose outputs have special tokens too, as its vocabulary writes them (`</s>`)."""
        model = copy.copy(self)
        model._special = True
        return model

    def chat(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> Generated:
        """The model's answer to messages, each with a `role` and a `content`, or to what one user says.

        Special tokens are those of the template: what messages say is never read as one. `options` are those of
        `generate`. Raises `TextError` for messages that the template does not take.
        """
        return self.reading_chats().generate(chat_line(messages), **options)[0]

    def warm(
        self,
        batch_size: int = BATCH_SIZE,
        source_tokens: int | range | None = None,
        prefix_tokens: int = 0,
        **options: Any,
    ) -> None:
        """Do now what the first requests would wait for, if they stay within what is said here.

        Batches have up to `batch_size` sources, whose longest has up to `source_tokens` (default: 16), or as many as a
        range holds; targets begin with up to `prefix_tokens`; `options` are those of the requests. Made-up sources take
        a few steps, which touches memory and weights. On a GPU, all steps of such requests are captured, so that none
        is while they are served: for the workers, if there are several; else for this thread, where it loaded the
        model, or for all other threads. `transcribe` with these options is covered, but not its `fallback`, which is a
        search with `do_sample`.

        Raises `UnsupportedError` for what no request can have, for more steps than can be captured, and where a model
        that writes long targets is not told `max_new_tokens`.
        """
        batch_size, prefix = sizes(batch_size)[0], whole("prefix_tokens", prefix_tokens, 0)
        if self.facts.ability and (given := [*options, *(["prefix_tokens"] if prefix else [])]):
            raise UnsupportedError(f"{given[0]} is for models that generate; this one only encodes")
        chosen = None if self.facts.ability else self._options(options, [])
        lengths = lengths_from(source_tokens, self.facts, chosen)
        warm(self.runtime, self.facts, chosen, batch_size, lengths, prefix, self.workers)

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
        unknown: Unknown = "auto",
        source_language: str | None = None,
        target_language: str | None = None,
        **options: Any,
    ) -> Iterator[Generated]:
        """As `generate`, over an iterable of any length, each result as soon as all before it are there.

        A causal model continues each text; the output is what it adds. `options` are those of `SearchOptions`, which
        docs/search.md tells; `max_new_tokens` is by default all that the model can take. `prefixes` are what the
        targets of a seq2seq model begin with, one for all or one a text (a list, or what has an end): tokens as the
        vocabulary writes them, apart by spaces. A batch has up to `batch_size` texts of similar length, and up to
        `batch_tokens` source tokens; if it is `continuous`, others take the places of those that are done, which cpu
        and cuda bundles can. What is not in the vocabulary becomes the tokenizer's unknown token; `unknown="error"`
        refuses it, which a tokenizer without that token, or of letters, does unless told otherwise ("token"), and
        "skip" leaves it out: a text of which nothing is left has an empty output and no hypotheses. Languages are those
        of `between`.

        Raises `TextError` for text that the model can't take, `UnsupportedError` for options that make no sense.
        """
        self._require_text()
        if source_language is not None or target_language is not None:
            model = self.between(source_language, target_language)
            how: dict[str, Any] = {"batch_size": batch_size, "batch_tokens": batch_tokens, "continuous": continuous}
            return model.generate_iter(texts, prefixes=prefixes, unknown=unknown, **how, **options)
        batch_size, batch_tokens = sizes(batch_size, batch_tokens)
        require_unknown(unknown)
        begins = [self._begin(prefix) for prefix in listed("prefixes", many("prefixes", prefixes))]
        chosen = self._options(options, begins)
        self._require_continuous(continuous, batch_tokens)

        def begin_batch(batch: list[tuple[str, list[int], list[int]]]) -> Callable[[], list[Generated]]:
            requests = [(source, prefix) for _, source, prefix in batch if source]
            find = self._begin_search(requests, chosen, batch_size if continuous else None) if requests else list

            def end() -> list[Generated]:
                found = iter(find())
                return [self._result(text, source, next(found) if source else []) for text, source, _ in batch]

            return end

        texts = many("texts", texts)
        pairs = zip(texts, repeat(begins[0])) if isinstance(prefixes, str) else paired(texts, begins, "prefixes")
        encoded = ((text, self._with_room(self._encode_known(text, unknown), chosen), prefix) for text, prefix in pairs)
        size: Callable[[tuple[str, list[int], list[int]]], int] = lambda item: len(item[1])  # noqa: E731
        return in_batches(encoded, begin_batch, batch_size, size, self.workers, batch_tokens, continuous)

    def transcribe(self, audio: Audio | Iterable[Audio], **options: Any) -> list[Transcript]:
        """What is said in audio; the options are those of `transcribe_iter`. -> one result a piece, in order."""
        return list(self.transcribe_iter(audio, **options))

    def transcribe_iter(
        self,
        audio: Audio | Iterable[Audio],
        *,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        fallback: bool = False,
        batch_size: int = WINDOWS,
        **options: Any,
    ) -> Iterator[Transcript]:
        """Write down what is said in audio: files by path, or samples in -1 to 1 at the model's rate, one or many.

        `language` is a code or a name; without one, the checkpoint's own counts, or the model tells what it hears.
        `task` is "transcribe" or "translate", to English. With `timestamps`, and where audio is longer than the model's
        window, the model tells when each part begins and ends. With the `fallback`, a window whose text repeats itself
        or is unlikely is drawn anew. Windows of `batch_size` pieces are searched together, by `SearchOptions`.

        Raises `AudioError` for audio that can't be read, `UnsupportedError` for options that this model can't take.
        """
        told = Told(self.facts, language, task, timestamps, fallback)
        batch_size, _ = sizes(batch_size)
        find: Find = lambda requests, how: self._find(requests, how, None)  # noqa: E731
        return Transcriber(self.facts, self.tokenizer, find, self._options(options, []), told).run(audio, batch_size)

    def _require_text(self) -> None:
        if isinstance(self.facts.reads, Features):
            raise UnsupportedError("this model reads audio, not text: use transcribe")

    def stream(
        self, text: str, *, prefix: str = "", unknown: Unknown = "auto", **options: Any
    ) -> Generator[str, None, None]:
        """One text, token by token: the output as far as it is certain, each time that it grows, and at last all of it.

        In beam search that is what all beams begin with. Leaving the loop, or closing the iterator, ends the search.
        """
        self._require_text()
        require_unknown(unknown)
        start = self._begin(prefix)
        chosen = self._options(options, [start])
        if chosen.nbest > 1:
            raise UnsupportedError(f"only one hypothesis can be streamed, got nbest {chosen.nbest}")
        if not (source := self._with_room(self._encode_known(text, unknown), chosen)):
            return (each for each in [""])
        steps = search(self._numbers, [source], self.facts, chosen, [start])
        return grown(steps, functools.partial(self._text, source))

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
        begins = None if prefixes is None else [token_ids("a prefix", each) for each in listed("prefixes", prefixes)]
        require_many("sources", sources)
        chosen = self._options(options, begins or [])
        self._require_continuous(continuous, batch_tokens)

        def begin_batch(batch: list[GenerationRequest]) -> Callable[[], list[list[Found]]]:
            return self._begin_search(batch, chosen, batch_size if continuous else None)

        pairs: Iterable[GenerationRequest]
        pairs = zip(sources, repeat(())) if begins is None else paired(sources, begins, "prefixes")
        checked: Iterable[GenerationRequest] = (
            (self._with_room(self._checked(source), chosen), prefix) for source, prefix in pairs
        )
        size: Callable[[GenerationRequest], int] = lambda pair: len(pair[0])  # noqa: E731
        return list(in_batches(checked, begin_batch, batch_size, size, self.workers, batch_tokens, continuous))

    def score(
        self,
        texts: str | Iterable[str],
        targets: str | Iterable[str],
        *,
        length_penalty: float = 1.0,
        batch_size: int = BATCH_SIZE,
        unknown: Unknown = "auto",
        add_end: bool = True,
    ) -> Iterator[Hypothesis]:
        """How likely given targets are, one each: tokens as the vocabulary writes them, apart by spaces.

        With `add_end`, the end token is added to each, unless it continues the prompt of a causal model. Raises
        `TextError` for what the model can't take or say.
        """
        require_length_penalty(length_penalty)
        how = functools.partial(score, length_penalty=length_penalty)
        add_end = switch("add_end", add_end)
        return map(self._hypothesis, self._each_target(texts, targets, batch_size, unknown, how, add_end))

    def logits(
        self,
        texts: str | Iterable[str],
        targets: str | Iterable[str],
        *,
        batch_size: int = BATCH_SIZE,
        unknown: Unknown = "auto",
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
        add_end: bool = True,
    ) -> Iterator[Item]:
        require_ability(self.facts, "score")
        self._require_text()
        batch_size, _ = sizes(batch_size)
        require_unknown(unknown)

        def work(batch: list[tuple[list[int], list[int]]]) -> list[Item]:
            sources, wanted = zip(*batch, strict=True)
            return how(self._numbers, sources, wanted, self.facts)

        end = [self.facts.writes.end] if add_end and self.facts.task != "causal" else []
        encoded = (
            (self.encode(text, unknown), [*self._begin(target, "a target"), *end])
            for text, target in paired(many("texts", texts), many("targets", targets), "targets")
        )
        return in_batches(encoded, at_once(work), batch_size, length=lambda pair: len(pair[1]), workers=self.workers)

    def _require_continuous(self, continuous: bool, batch_tokens: int | None) -> None:
        if switch("continuous", continuous) and not isinstance(self.runtime, ContinuousRuntime):
            raise UnsupportedError(
                "continuous batches need a bundle of the cpu target, or of cuda: export --target cpu"
            )
        if continuous and batch_tokens is not None:
            raise UnsupportedError("batch_tokens are for fixed batches; a continuous one has up to batch_size texts")

    def _find(
        self, requests: Sequence[GenerationRequest], options: SearchOptions, slots: int | None
    ) -> list[list[Found]]:
        """Search one batch, or, with so many slots, one after the other as slots get free."""
        return self._begin_search(requests, options, slots)()

    def _begin_search(
        self, requests: Sequence[GenerationRequest], options: SearchOptions, slots: int | None
    ) -> Callable[[], list[list[Found]]]:
        """As `_find` in two calls: a batch may be encoded between them."""
        if slots is not None and isinstance(self._numbers, ContinuousRuntime):
            numbers = self._numbers
            return lambda: Scheduler(numbers, requests, self.facts, options, slots).run()
        sources, prefixes = zip(*requests, strict=True)
        if isinstance(self.runtime, SingleRuntime):
            return functools.partial(generate_at_once, self.runtime, sources, options, prefixes)
        return begin(self._numbers, sources, self.facts, options, prefixes)

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

    def _checked(self, tokens: Any) -> Source:
        if isinstance(self.facts.reads, Features):
            return checked_features(self.facts.reads, tokens)
        what = "a prompt" if self.facts.task == "causal" else "a source"
        source, longest, size = token_ids(what, tokens), self.facts.reads.longest, self.facts.reads.size
        if not 1 <= len(source) <= longest:
            raise TextError(f"{what} must have 1 to {longest} tokens, got {len(source)}")
        if not 0 <= min(source) <= max(source) < size:
            raise TextError(f"token ids must lie in 0 to {size - 1}, got {min(source)} to {max(source)}")
        return source

    def _with_room(self, source: Source, options: SearchOptions) -> Source:
        """The same, if it is no prompt that leaves too little room for what is asked."""
        if self.facts.task == "causal" and len(source):
            require_room(source, self.facts, options)
        return source

    def _text(self, source: Sequence[int], tokens: Sequence[int]) -> str:
        """The text of a target: of a causal model, what it adds to that of its prompt."""
        if self.facts.task == "causal":
            return self.tokenizer.continuation(source, tokens, self._special)
        return self.tokenizer.decode(tokens, self._special)

    def _result(self, text: str, source: Sequence[int], found: list[Found]) -> Generated:
        hypotheses = [self._hypothesis(one, source) for one in found]
        best = hypotheses[0] if hypotheses else Hypothesis("", 0.0, [], [])
        return Generated(text, best.output, best.score, hypotheses)

    def _hypothesis(self, found: Found, source: Sequence[int] = ()) -> Hypothesis:
        output, tokens = self._text(source, found.tokens), list(found.tokens)
        return Hypothesis(output, found.score, tokens, list(found.token_scores), found.alignment)


def _defaults_of(bundle: Bundle) -> Mapping[str, Any]:
    """How a bundle says to search, or to pool; `BundleError` where that can't be done."""
    facts, defaults = bundle.manifest.facts, bundle.manifest.generation
    try:
        require_defaults(defaults, facts)
    except UnsupportedError as error:
        what = f"{bundle.path} says how to {facts.ability or 'search'}, which can't be done"
        raise BundleError(f"{what}: {error}; export it again") from error
    return defaults


def load(
    name: str | Path,
    *,
    runtime: str = "ort",
    provider: str = "cpu",
    threads: int | None = None,
    workers: int = 1,
    checkpoint: str | Path | None = None,
    variant: str | None = None,
    trust_code: bool = False,
    single: bool = False,
    user_compute_stream: int | None = None,
    progress: Progress = silent,
) -> Model:
    """Load a bundle: a folder that `export` wrote, or the name of a checkpoint that ships.

    It may be a folder of graphs that Optimum or transformers.js's converter exported (docs/foreign-bundles.md), of
    which `variant` chooses one ("quantized"), by default the plain one.

    `threads` work on one operator, by default one for each core; for bulk work, as many `workers` as there
    are cores, each on a batch of its own with one thread, get more done.

    The provider is the one asked for, or `UnavailableError` says what it lacks; there is no fallback.
    The `torch` runtime needs the `checkpoint` that the bundle was made from, if it does not ship; behind `trust_code`
    it may be a file of code and the name of an adapter in it, `model.py:NAME`. The `single` graph of a bundle that has
    one searches by itself. A cuda bundle does all its work on the `user_compute_stream`, the address of a CUDA stream
    (`torch.cuda.Stream().cuda_stream`), or else on two of its own, one for encoders.
    """
    runtimes.require_known(runtime, provider)
    workers = whole("workers", workers, 1)
    runtimes.require_threads("workers", workers)
    runtimes.require_threads("threads", threads)
    threads = 1 if threads is None and workers > 1 else threads
    if trust_code and runtime != "torch":
        raise UnsupportedError(f"trust_code is for the torch runtime's checkpoint; {runtime} runs no code of yours")
    if checkpoint is not None and runtime != "torch":
        raise UnsupportedError(f"a checkpoint is for the torch runtime; {runtime} runs the bundle by itself")
    if is_on_demand(str(name)) or runtime == "torch":  # else the bundle says first where it can run
        runtimes.require(runtime, provider)
    bundle = find_bundle(str(name), variant=variant, progress=progress)
    bundle.require_weights()
    if user_compute_stream is not None and (single or runtime == "torch"):
        raise UnsupportedError("user_compute_stream is for the ort runtime on cuda, and for no single graph")
    engine: Runtime
    if switch("single", single):
        engine = runtimes.load_single(runtime, bundle, provider=provider, threads=threads)
    elif runtime == "torch":
        source = load_checkpoint(checkpoint_of(bundle) if checkpoint is None else checkpoint, trust_code=trust_code)
        bundle.require_source(source.name, source.sha256)
        bundle.require_model(source.described)
        engine = runtimes.load_torch(source, provider=provider, threads=threads)
    else:
        how: dict[str, Any] = {"threads": threads, "workers": workers, "user_compute_stream": user_compute_stream}
        engine = runtimes.load(runtime, bundle, provider=provider, **how)
    facts, defaults = bundle.manifest.facts, _defaults_of(bundle)
    tokenizer = tokenizer_of(bundle.texts, bundle.path, facts)
    chat = chat_of(bundle.texts, bundle.path, tokenizer) if facts.task == "causal" else None
    return Model(engine, tokenizer, facts, workers, defaults, chat)
