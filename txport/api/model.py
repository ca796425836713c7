"""The Python API: what applications import.

import txport

model = txport.load("g2p-en")
print(model.generate(["hello"])[0].output)
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Literal, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from txport.api.answers import Answer
from txport.api.arguments import checked_features, listed, many, paired, require_many, require_unknown, sizes, token_ids
from txport.api.encoding import BATCH_SIZE, Encoder, Fill, Label, Ranked, Tag, require_ability
from txport.api.generated import Generated, Hypothesis, Prepared, finish_of, grown, hypothesis
from txport.api.loading import load
from txport.api.pairs import Pair, PairEncoder
from txport.api.release import export, load_checkpoint, parity
from txport.api.transcription import WINDOWS, Audio, Find, Segment, Told, Transcriber, Transcribing, Transcript
from txport.api.warming import lengths_from, warm
from txport.errors import LongTextError, NoRoomError, TextError, UnsupportedError, quoted
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.runtimes.base import ContinuousRuntime, Runtime, log_softmax
from txport.runtimes.inputs import Source
from txport.runtimes.single import SingleRuntime
from txport.search.batching import at_once, in_batches
from txport.search.constraints import limits
from txport.search.continuous import Scheduler
from txport.search.generate import Ids, begin, prompts_of, require_fit, require_room, search
from txport.search.lanes import GenerationRequest
from txport.search.numbers import numbers_only
from txport.search.options import (
    DEFAULTS,
    Found,
    Searching,
    SearchOptions,
    chosen_options,
    require_length_penalty,
)
from txport.search.scoring import logits, score
from txport.search.single import generate_at_once
from txport.search.stops import Stops
from txport.serving.engine import BUDGET, QUEUE, SLOTS, Engine, Handle
from txport.system.numbers import switch, whole
from txport.text.base import Tokenizer, TokenizerPair, Unknown
from txport.text.chat import ChatReader, chat_line, require_options
from txport.text.languages import LanguageReader
from txport.text.token_bytes import UNFINISHED, without_last_bytes

__all__ = [
    "Answer", "Engine", "Fill", "Generated", "Handle", "Hypothesis", "Label", "Model", "Ranked", "Segment", "Tag",
    "Transcript", "export", "load", "load_checkpoint", "parity",
]  # fmt: skip

Item = TypeVar("Item")
Encoded = tuple[str, list[int], list[int], str | None]  # a text, its ids, those of its prefix, and its error


class Generating(Searching, total=False):
    """The options of `Model.generate_iter`, for methods that pass them on."""

    prefixes: str | Iterable[str]
    batch_size: int
    batch_tokens: int | None
    continuous: bool
    unknown: Unknown
    special: bool
    source_language: str | None
    target_language: str | None
    errors: Literal["raise", "return"]


class Model(Encoder):
    """A loaded model, created by `load`. The available methods depend on its task.

    `defaults` are default values of `SearchOptions`, or of `embed`, for calls that do not give them. `not_followed` are
    the checkpoint's generation options that no search follows, by transformers' names; outputs may differ for them.
    """

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer,
        facts: Facts,
        workers: int = 1,
        defaults: Mapping[str, Any] | None = None,
        chat: ChatReader | None = None,
        not_followed: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(runtime, tokenizer, facts, workers, defaults)
        self.not_followed = dict(not_followed or {})
        self._chat = chat
        self._special = False
        self._spelling = tokenizer.spelling

    @property
    def _numbers(self) -> Runtime:
        """The runtime, which raises an error for scores that are NaN."""
        return numbers_only(self.runtime)

    @property
    def is_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self._chat is not None

    def between(self, source_language: str | None = None, target_language: str | None = None) -> Model:
        """Return this model with source and target languages set, by the tokenizer's names (`eng_Latn`).

        Without a source language, the tokenizer's default is used. Raises `UnsupportedError` if the model has no
        languages.
        """
        pair = self.tokenizer
        if not isinstance(pair, TokenizerPair) or not isinstance(pair.source, LanguageReader):
            given = "source_language" if source_language is not None else "target_language"
            raise UnsupportedError(f"this model has no language option; remove {given}")
        reader = pair.source.between(source_language, target_language)
        model = copy.copy(self)
        model.tokenizer = TokenizerPair(reader, pair.target)
        if reader.forced is not None:
            model.defaults = {**self.defaults, "forced_bos_token_id": reader.forced}
        return model

    def reading_chats(
        self, template_options: Mapping[str, Any] | None = None, continue_final_message: bool | None = None
    ) -> Model:
        """Return this model in chat mode: each text is a user message, or a JSON list of messages.

        The checkpoint's chat template makes the prompt. `template_options` are its variables: `enable_thinking`,
        `tools` as a list of JSON schemas, `documents`, and others. With `continue_final_message`, the output continues
        the last message; by default, it does if that is the model's own (`assistant`). Raises `UnsupportedError` for a
        model without a template, and for options that the template does not read.
        """
        if self._chat is None:
            raise UnsupportedError("this model has no chat template; pass plain prompts")
        options = {} if template_options is None else template_options
        require_options(options)
        continues = None if continue_final_message is None else switch("continue_final_message", continue_final_message)
        model = copy.copy(self)
        reader = dataclasses.replace(self._chat, options=options, continues=continues)
        if options:
            reader.require_read()
        model.tokenizer = TokenizerPair(reader, self.tokenizer)
        return model

    def writing_special_tokens(self) -> Model:
        """Return this model with special tokens (`</s>`) included in outputs."""
        model = copy.copy(self)
        model._special = True
        return model

    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        template_options: Mapping[str, Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool | None = None,
        **options: Unpack[Generating],
    ) -> Generated:
        """Return the model's answer to a list of messages with `role` and `content`, or to one user message.

        `template_options` and `continue_final_message` are those of `reading_chats`; servers call the former
        `chat_template_kwargs`, which is accepted too. Only the template adds special tokens; message content is always
        plain text. `options` are those of `generate`. Raises `TextError` for messages that the template rejects.
        """
        variables = chat_template_kwargs if template_options is None else template_options
        return self.reading_chats(variables, continue_final_message).generate(chat_line(messages), **options)[0]

    def warm(
        self,
        batch_size: int = BATCH_SIZE,
        source_tokens: int | range | None = None,
        prefix_tokens: int = 0,
        **options: Unpack[Searching],
    ) -> None:
        """Warm up: allocate memory and capture steps for requests within these limits.

        `batch_size` is the maximum number of sources, `source_tokens` the maximum length of the longest source of a
        batch (default: 16), or a range; `prefix_tokens` is the maximum length of a prefix, `options` are those of the
        requests. Random sources are run for a few steps, to load memory pages and weights. On a GPU, all steps are
        captured, so that none is captured while serving. Captures are per thread: for the workers if there are several,
        otherwise for this thread if it loaded the model, otherwise for all other threads. `transcribe` with these
        options is covered, except for its `fallback`, which is a search with `do_sample`.

        Raises `UnsupportedError` for impossible limits, for more steps than can be captured, and if `max_new_tokens` is
        missing for a model with long targets.
        """
        batch_size = sizes(batch_size)[0]
        prefix = whole("prefix_tokens", prefix_tokens, 0)
        if self.facts.ability and (given := [*options, *(["prefix_tokens"] if prefix else [])]):
            raise UnsupportedError(f"{given[0]} needs a generating model; this model is encoder-only")
        chosen = None if self.facts.ability else self._options(options, [], self.warm)
        lengths = lengths_from(source_tokens, self.facts, chosen)
        warm(self.runtime, self.facts, chosen, batch_size, lengths, prefix, self.workers)

    def generate(self, texts: str | Iterable[str], **options: Unpack[Generating]) -> list[Generated]:
        """Generate for one text or many, with the options of `generate_iter`; returns one result per text, in order."""
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
        special: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        errors: Literal["raise", "return"] = "raise",
        **options: Unpack[Searching],
    ) -> Iterator[Generated]:
        """Like `generate`, for an iterable of any length; yields results in order, as soon as they are available.

        For a causal model, the output is the continuation of the text. `options` are those of `SearchOptions`
        (docs/search.md); `max_new_tokens` is by default as many as the model can take. `prefixes` are the starts of the
        targets of a seq2seq model, one for all or one per text (finite): vocabulary tokens separated by spaces. A batch
        has up to `batch_size` texts of similar length, and up to `batch_tokens` source tokens. With `continuous`, new
        texts take the slots of finished ones (cpu and cuda bundles). `unknown` controls text outside the vocabulary:
        "token" uses the unknown token, "error" raises, "skip" removes it (a text that becomes empty has an empty output
        and no hypotheses), "auto" is "token", or "error" for a tokenizer that has no unknown token or is
        character-level. With `special`, the spelling of a special token in a text (`</s>`) is read as the token.
        Languages are those of `between`.

        With `errors="return"`, the result of a text that the model can't take has an `error`, an empty output and no
        hypotheses; the others are generated. By default, "raise", such a text raises `TextError`, or `NoRoomError` for
        a prompt that leaves no room. Raises `UnsupportedError` for invalid options.
        """
        self._require_text()
        if source_language is not None or target_language is not None:
            model = self.between(source_language, target_language)
            how: dict[str, Any] = {"batch_size": batch_size, "batch_tokens": batch_tokens, "continuous": continuous}
            how |= {"prefixes": prefixes, "unknown": unknown, "special": special, "errors": errors}
            return model.generate_iter(texts, **how, **options)
        batch_size, batch_tokens = sizes(batch_size, batch_tokens)
        require_unknown(unknown)
        special = switch("special", special)
        if errors not in ("raise", "return"):
            raise UnsupportedError(f"errors must be 'raise' or 'return', got {quoted(errors)}")
        begins = [self._begin(prefix) for prefix in listed("prefixes", many("prefixes", prefixes))]
        chosen = self._options(options, begins, self.generate_iter)
        self._require_continuous(continuous, batch_tokens)
        texts = many("texts", texts)
        pairs = zip(texts, repeat(begins[0])) if isinstance(prefixes, str) else paired(texts, begins, "prefixes")

        def encode(text: str, prefix: list[int]) -> Encoded:
            try:
                return text, self._request(text, unknown, special, chosen), prefix, None
            except (TextError, NoRoomError) as error:
                if errors == "raise":
                    raise
                return text, [], prefix, str(error)

        encoded = itertools.starmap(encode, pairs)
        begin_batch = functools.partial(self._begin_texts, chosen, batch_size if continuous else None)
        size: Callable[[Encoded], int] = lambda item: len(item[1])  # noqa: E731
        return in_batches(encoded, begin_batch, batch_size, size, self.workers, batch_tokens, continuous)

    def _begin_texts(
        self, options: SearchOptions, slots: int | None, batch: list[Encoded]
    ) -> Callable[[], list[Generated]]:
        """Begin a batch of texts; return the function that ends it."""
        requests = [(source, prefix) for _, source, prefix, _ in batch if source]
        find = self._begin_search(requests, options, slots) if requests else list

        def end() -> list[Generated]:
            found = iter(find())
            return [
                self._result(text, source, prefix, next(found) if source else [], options, error)
                for text, source, prefix, error in batch
            ]

        return end

    def check(
        self, text: str, *, unknown: Unknown = "auto", special: bool = False, **options: Unpack[Searching]
    ) -> None:
        """Raise the error that `generate` with these options raises for a text; nothing is generated."""
        self._require_text()
        require_unknown(unknown)
        self._request(text, unknown, switch("special", special), self._options(options, [], self.check))

    def truncate(
        self, text: str, *, unknown: Unknown = "auto", special: bool = False, **options: Unpack[Searching]
    ) -> str:
        """Return the longest beginning of a text that `generate` with these options takes; of a prompt, the end.

        A prompt leaves room for `max_new_tokens`, or for one token if that is not given. Raises `UnsupportedError` in
        chat mode, and the error of `generate` for a text that no cut makes fit.
        """
        self._require_text()
        require_unknown(unknown)
        if isinstance(self.tokenizer, TokenizerPair) and isinstance(self.tokenizer.source, ChatReader):
            raise UnsupportedError("a chat can't be truncated; shorten its messages")
        how = (switch("special", special), self._options(options, [], self.truncate))
        keeps_end = self.facts.is_causal
        part, error = text, self._long(text, unknown, *how)
        if error is None:
            return text
        least, most = 0, len(text)
        while most - least > 1:
            size = (least + most) // 2
            cut = text[-size:] if keeps_end else text[:size]
            if self._long(cut, unknown, *how):
                most = size
            else:
                least, part = size, cut
        if part is text:
            raise error
        return part

    def _long(self, text: str, unknown: Unknown, special: bool, options: SearchOptions) -> Exception | None:
        """Return the error of a text that is too long; None for another one."""
        try:
            self._request(text, unknown, special, options)
        except (LongTextError, NoRoomError) as error:
            return error
        except TextError:
            return None
        return None

    def _request(self, text: str, unknown: Unknown, special: bool, options: SearchOptions) -> list[int]:
        """Return the token ids of a text; raise if the model can't take it."""
        source = self._encode_known(text, unknown, special)
        self._with_room(source, options)
        return source

    def transcribe(self, audio: Audio | Iterable[Audio], **options: Unpack[Transcribing]) -> list[Transcript]:
        """Transcribe audio, with the options of `transcribe_iter`; returns one result per input, in order."""
        return list(self.transcribe_iter(audio, **options))

    def transcribe_iter(
        self,
        audio: Audio | Iterable[Audio],
        *,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        fallback: bool = False,
        no_speech_threshold: float | None = None,
        batch_size: int = WINDOWS,
        **options: Unpack[Searching],
    ) -> Iterator[Transcript]:
        """Transcribe audio: files by path or as bytes, or samples in [-1, 1] at the model's sampling rate, one or many.

        `language` is a code or a name; by default the checkpoint's language, otherwise it is detected. `task` is
        "transcribe" or "translate" (to English). With `timestamps`, and for audio longer than the model's window, the
        model predicts start and end of each segment. `fallback` retries a window with sampling if its text is
        repetitive or improbable. A window whose text is improbable is passed over if the probability of silence
        (`<|nospeech|>`) is above `no_speech_threshold`, which is 0.6 in OpenAI's whisper; by default, none is.
        `batch_size` is the number of inputs that are decoded together; `options` are those of `SearchOptions`.

        Raises `AudioError` for audio that can't be read, `UnsupportedError` for options that this model can't take.
        """
        find: Find = lambda requests, how: self._find(requests, how, None)  # noqa: E731
        told = (language, task, timestamps, fallback, no_speech_threshold)
        return self._transcribe(audio, find, *told, batch_size, **options)

    def _transcribe(
        self,
        audio: Audio | Iterable[Audio],
        find: Find,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        fallback: bool = False,
        no_speech_threshold: float | None = None,
        batch_size: int = WINDOWS,
        **options: Unpack[Searching],
    ) -> Iterator[Transcript]:
        told = Told(self.facts, language, task, timestamps, fallback, no_speech_threshold)
        chosen = self._options(options, [], self.transcribe_iter)
        return Transcriber(self.facts, self.tokenizer, find, chosen, told).run(audio, sizes(batch_size)[0])

    def _require_text(self) -> None:
        if isinstance(self.facts.reads, Features):
            raise UnsupportedError("this model reads audio, not text: use transcribe")

    def stream(
        self,
        text: str,
        *,
        prefix: str = "",
        unknown: Unknown = "auto",
        special: bool = False,
        **options: Unpack[Searching],
    ) -> Generator[str, None, None]:
        """Generate for one text, and yield the output each time it grows; the last value is the complete output.

        Beam search yields the common prefix of all beams. Closing the iterator ends the search.
        """
        prepared = self._prepare(text, self._options(options, [], self.stream), prefix, unknown, special)
        prepared.require_streamed()
        if not prepared.source:
            return (each for each in [""])
        steps = search(self._numbers, [prepared.source], self.facts, prepared.options, [prepared.prefix])
        return grown(steps, prepared.certain, prepared.text_of)

    def engine(self, *, slots: int = SLOTS, queue: int = QUEUE, budget: int = BUDGET) -> Engine:
        """Return a live engine, which takes requests at any time and runs up to `slots` of them together.

        Up to `queue` more may wait. In each step, sources of up to `budget` tokens enter, or one longer source
        (docs/serving.md). Raises `UnsupportedError` for a model that does not generate, and for portable bundles.
        """
        return Engine(self, slots=slots, queue=queue, budget=budget)

    def _prepare(
        self, text: str, options: SearchOptions, prefix: str = "", unknown: Unknown = "auto", special: bool = False
    ) -> Prepared:
        """Return a request for one text; raise the errors that `generate` raises for it."""
        self._require_text()
        require_unknown(unknown)
        source = self._request(text, unknown, switch("special", special), options)
        return self._prepared(text, source, self._begin(prefix), options)

    def _prepared(self, text: str, source: Source, prefix: list[int], options: SearchOptions) -> Prepared:
        if prefix:
            require_fit([prefix], self.facts, options)
        stops = options.stop if isinstance(options.stop, Stops) else None
        text_of: Callable[[Sequence[int]], str] = lambda tokens: self._until_stop(source, tokens, stops)[0]  # noqa: E731
        result: Callable[[list[Found]], Generated] = lambda found: self._result(  # noqa: E731
            text, source, prefix, found, options, None
        )
        return Prepared(source, prefix, options, text_of, functools.partial(self._certain, source, stops), result)

    def search(
        self,
        sources: Iterable[Sequence[int]],
        *,
        prefixes: Iterable[Sequence[int]] | None = None,
        batch_size: int = BATCH_SIZE,
        batch_tokens: int | None = None,
        continuous: bool = False,
        **options: Unpack[Searching],
    ) -> list[list[Found]]:
        """Like `generate`, from token ids to token ids; `options` are those of `SearchOptions`.

        Raises `TextError` for a source that is empty, too long, or has ids outside the vocabulary.
        """
        batch_size, batch_tokens = sizes(batch_size, batch_tokens)
        begins = None if prefixes is None else [token_ids("a prefix", each) for each in listed("prefixes", prefixes)]
        require_many("sources", sources)
        chosen = self._options(options, begins or [], self.search)
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
        pieces: bool = False,
        length_penalty: float = 1.0,
        batch_size: int = BATCH_SIZE,
        unknown: Unknown = "auto",
        special: bool = False,
        add_end: bool = True,
    ) -> Iterator[Hypothesis]:
        """Score given targets, one per text.

        A target is text as `generate` returns it, or with `pieces` vocabulary tokens separated by spaces. The target of
        a causal model is what follows its text, and both are tokenised as one text. With an empty text, the model
        begins at its start token, or at its end token if texts have no start token. `add_end` appends the end token,
        except for causal models. `unknown` and `special` are those of `generate_iter`. Raises `TextError` for texts or
        targets that the model can't process.
        """
        require_length_penalty(length_penalty)
        how = functools.partial(score, length_penalty=length_penalty)
        values = {"pieces": pieces, "special": special, "add_end": add_end}
        scored = self._each_target(texts, targets, batch_size, unknown, values, how)
        return (hypothesis(found, self._text((), found.tokens)) for found in scored)

    def logits(
        self,
        texts: str | Iterable[str],
        targets: str | Iterable[str],
        *,
        pieces: bool = False,
        batch_size: int = BATCH_SIZE,
        unknown: Unknown = "auto",
        special: bool = False,
    ) -> Iterator[NDArray[np.float32]]:
        """Return the logits before each token of given targets (see `score`): (T, V) each."""
        values = {"pieces": pieces, "special": special}
        return self._each_target(texts, targets, batch_size, unknown, values, logits)

    def explain(
        self, text: str, tokens: Sequence[int], *, top: int = 5, unknown: Unknown = "auto", special: bool = False
    ) -> list[list[tuple[str, float]]]:
        """Return the `top` most probable tokens in the place of each of `tokens`, an output of `generate` for the text.

        Each is a token, as the vocabulary writes it, and its log-prob before the rules of a search, the best first.
        """
        require_ability(self.facts, "score")
        self._require_text()
        require_unknown(unknown)
        source = self._encode_known(text, unknown, switch("special", special))
        output = token_ids("an output", tokens)
        (values,) = logits(self._numbers, [source], [output], self.facts, by_step=True)  # the log-probs of `generate`
        best = np.argsort(-values, axis=1, kind="stable")[:, : whole("top", top, 1)]  # -> (T, top)
        log_probs = log_softmax(values, np.take_along_axis(values, best, axis=1))
        return [
            [(self._name(id_), log_prob) for id_, log_prob in zip(*row, strict=True)]
            for row in zip(best.tolist(), log_probs.tolist(), strict=True)
        ]

    def _name(self, id_: int) -> str:
        return f"<{id_}>" if self.tokenizer.lacks([id_]) else self.tokenizer.tokens([id_])[0]

    def _each_target(
        self,
        texts: str | Iterable[str],
        targets: str | Iterable[str],
        batch_size: int,
        unknown: Unknown,
        switches: Mapping[str, bool],
        how: Callable[..., list[Item]],
    ) -> Iterator[Item]:
        require_ability(self.facts, "score")
        self._require_text()
        batch_size, _ = sizes(batch_size)
        require_unknown(unknown)
        chosen = {name: switch(name, value) for name, value in switches.items()}
        first = self.defaults.get("forced_bos_token_id")
        encoder = PairEncoder(self.tokenizer, self.facts, first, unknown=unknown, **chosen)

        def work(batch: list[Pair]) -> list[Item]:
            sources, wanted = zip(*batch, strict=True)
            return how(self._numbers, sources, wanted, self.facts)

        pairs = paired(many("texts", texts), many("targets", targets), "targets")
        encoded = (encoder.encode(text, target) for text, target in pairs)
        return in_batches(encoded, at_once(work), batch_size, length=lambda pair: len(pair[1]), workers=self.workers)

    def _require_continuous(self, continuous: bool, batch_tokens: int | None) -> None:
        if switch("continuous", continuous) and not isinstance(self.runtime, ContinuousRuntime):
            raise UnsupportedError("continuous batching needs a cpu or cuda bundle; use `txport export --target cpu`")
        if continuous and batch_tokens is not None:
            raise UnsupportedError("batch_tokens can't be combined with continuous batching; use batch_size")

    def _find(
        self, requests: Sequence[GenerationRequest], options: SearchOptions, slots: int | None
    ) -> list[list[Found]]:
        """Generate for one batch, or with continuous batching if `slots` is given."""
        return self._begin_search(requests, options, slots)()

    def _begin_search(
        self, requests: Sequence[GenerationRequest], options: SearchOptions, slots: int | None
    ) -> Callable[[], list[list[Found]]]:
        """Like `_find`, in two calls, so that another batch can be encoded between them."""
        if slots is not None and isinstance(self._numbers, ContinuousRuntime):
            numbers = self._numbers
            return lambda: Scheduler(numbers, requests, self.facts, options, slots).run()
        sources, prefixes = zip(*requests, strict=True)
        if isinstance(self.runtime, SingleRuntime):
            return functools.partial(generate_at_once, self.runtime, sources, options, prefixes)
        return begin(self._numbers, sources, self.facts, options, prefixes)

    def _options(self, options: Mapping[str, Any], prefixes: Ids, method: Callable[..., Any]) -> SearchOptions:
        """Return the options of a search; raise `UnsupportedError` for others, with those that `method` takes."""
        require_ability(self.facts, "generate")
        if (strange := next((name for name in options if name not in DEFAULTS), None)) is not None:
            arguments = inspect.signature(method).parameters.values()
            known = [each.name for each in arguments if each.default is not each.empty] + list(DEFAULTS)
            raise UnsupportedError(f"unknown option {strange!r}; supported: {', '.join(known)}")
        chosen = chosen_options(self.defaults, options)
        if chosen.stop:
            chosen = dataclasses.replace(chosen, stop=Stops(chosen.stop, self._spelling))
        require_fit(prefixes, self.facts, chosen)
        return chosen

    def _begin(self, text: str) -> list[int]:
        """Return the token ids of a prefix, written as vocabulary tokens separated by spaces."""
        if not isinstance(text, str):
            raise TextError(f"a prefix must be a string of tokens, got {quoted(text)}")
        return self.tokenizer.ids(text)

    def _checked(self, tokens: Any) -> Source:
        if isinstance(self.facts.reads, Features):
            return checked_features(self.facts.reads, tokens)
        what = "a prompt" if self.facts.is_causal else "a source"
        source = token_ids(what, tokens)
        longest = self.facts.reads.longest
        size = self.facts.reads.size
        if not 1 <= len(source) <= longest:
            raise TextError(f"{what} must have 1 to {longest} tokens, got {len(source)}")
        if not 0 <= min(source) <= max(source) < size:
            raise TextError(f"token ids must lie in 0 to {size - 1}, got {min(source)} to {max(source)}")
        return source

    def _with_room(self, source: Source, options: SearchOptions) -> Source:
        """Return the source; raise if a prompt leaves too little room for the requested tokens."""
        if self.facts.is_causal and len(source):
            require_room(source, self.facts, options)
        return source

    def _text(self, source: Sequence[int], tokens: Sequence[int]) -> str:
        """Return the text of a target; for a causal model, the continuation of the prompt's text."""
        if self.facts.is_causal:
            return self.tokenizer.continuation(source, tokens, self._special)
        return self.tokenizer.decode(tokens, self._special)

    def _until_stop(self, source: Sequence[int], tokens: Sequence[int], stops: Stops | None) -> tuple[str, bool]:
        """Return the text of a target up to its stop string, and whether it has one."""
        text_of = functools.partial(self._text, source)
        before = source if self.facts.start is None else [self.facts.start]
        cut = None if stops is None else stops.cut(before, tokens, text_of)
        return (text_of(tokens), False) if cut is None else (cut, True)

    def _certain(self, source: Sequence[int], stops: Stops | None, tokens: Sequence[int]) -> str:
        """Return the text of the tokens so far, without what further tokens may change.

        These are incomplete characters, and what may be the beginning of a stop string.
        """
        text = self._until_stop(source, without_last_bytes(tokens, self.tokenizer), stops)[0].rstrip(UNFINISHED)
        return text if stops is None else stops.settled(text)

    def _result(
        self,
        text: str,
        source: Sequence[int],
        prefix: Sequence[int],
        found: list[Found],
        options: SearchOptions,
        error: str | None,
    ) -> Generated:
        most = int(limits(options, self.facts, [prefix], prompts_of([source], self.facts))[0])
        ends = options.ends(self.facts)
        stops = options.stop if isinstance(options.stop, Stops) else None
        hypotheses = []
        for one in found:
            output, is_stopped = self._until_stop(source, one.tokens, stops)
            hypotheses.append(hypothesis(one, output, finish_of(one.tokens, ends, most, is_stopped)))
        best = hypotheses[0] if hypotheses else Hypothesis("", 0.0, [], [])
        return Generated(text, best.output, best.score, hypotheses, error)
