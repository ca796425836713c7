"""Methods of encoder-only models: embed, classify, tag, fill, answer. `api.Model` inherits them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, NoReturn, Self, TypedDict, TypeVar, Unpack, get_args, overload

import numpy as np
from numpy.typing import NDArray

from txport.api.answers import Answer, Spans, Window, answers, windows_of
from txport.api.arguments import many, require_unknown, sizes
from txport.api.tuned import Settings
from txport.api.vectors import quantize, require_precision
from txport.errors import LongTextError, TextError, UnknownTextError, UnsupportedError, quoted
from txport.models.facts import (
    HIDDEN,
    LOGITS,
    SENTENCE,
    Ability,
    Facts,
    Function,
    Pooled,
    Pooling,
    VectorPrecision,
)
from txport.runtimes.base import EncoderRuntime, Outputs, Runtime
from txport.runtimes.inputs import infer
from txport.search.batching import at_once, in_batches
from txport.system.arrays import Array
from txport.system.numbers import switch, whole
from txport.text.base import Tokenizer, Unknown, encode_within, reading_pairs, shorten
from txport.text.numbers import NumberTokenizer

BATCH_SIZE = 32
Text = str | tuple[str, str]  # or two texts that are read as one input
Texts = str | Iterable[Text]
Floats = NDArray[np.float32]
Result = TypeVar("Result")
TINY = 1e-12
TEMPLATE = "This example is {}."  # of hypotheses, as in transformers
NOTHING: Floats = np.zeros(0, np.float32)
OTHERWISE = {"replaced": "original"}  # the opposite of a model's only label


class Batches(TypedDict, total=False):
    """Options of all methods: how texts are read and put into batches. `Encoder.infer` explains them."""

    batch_size: int
    batch_tokens: int | None
    unknown: Unknown
    special: bool
    truncate: bool


class Vectors(Batches, total=False):
    """Options of `Encoder.embed`, which explains them."""

    normalize: bool | None
    dimensions: int | None
    prompt: str | None


class Classifying(Batches, total=False):
    """Options of `Encoder.classify`, which explains them."""

    top: int | None
    labels: Sequence[str] | None
    template: str
    multi_label: bool


class Answering(Batches, total=False):
    """Options of `Encoder.answer`, which explains them."""

    nbest: int
    longest: int
    stride: int | None
    window: int | None
    impossible: bool


@dataclass(frozen=True)
class Label:
    """A label and its score: its probability, or the logit of a regression model."""

    label: str
    score: float


@dataclass(frozen=True)
class Ranked:
    """A text, its index among the given ones, and its score for a query."""

    index: int
    text: str
    score: float


@dataclass(frozen=True)
class Tag:
    """A token of a text, its most probable label, and the probability of the label."""

    token: str
    label: str
    score: float


@dataclass(frozen=True)
class Fill:
    """A token that replaces a mask: its text, its id and its probability."""

    token: str
    id: int
    score: float


def require_ability(facts: Facts, requested: str) -> None:
    """Raise `UnsupportedError` unless the model supports the method named `requested`."""
    able = facts.ability
    if able is None and requested in (*get_args(Ability), "infer"):
        raise UnsupportedError(f"{requested} needs an encoder-only model; this model generates: use generate or score")
    if able is not None and requested not in (able, "infer"):
        gives = ", ".join(each.name for each in facts.outputs)
        raise UnsupportedError(f"{requested} is not for this encoder-only model with the outputs {gives}: use {able}")


class Encoder:
    """A loaded model with the methods of encoder-only models."""

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer,
        facts: Facts,
        workers: int = 1,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self._runtime: Runtime | None = runtime
        self.tokenizer = tokenizer
        self.facts = facts
        self.workers = workers
        self.defaults = dict(defaults or {})
        self.described: str = facts.task
        self.tuned: Settings | None = None  # those of `txport tune` that it runs with

    def __repr__(self) -> str:
        return f"<txport.{type(self).__name__}: {self.described}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the graphs and their memory; later calls raise `UnsupportedError`. Copies keep them."""
        self._runtime = None

    @property
    def runtime(self) -> Runtime:
        """What runs the graphs; raise `UnsupportedError` if the model is closed."""
        if self._runtime is None:
            raise UnsupportedError("this model is closed; load the bundle again")
        return self._runtime

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> NoReturn:
        """Raise `UnsupportedError`: sessions and their memory belong to one process."""
        raise UnsupportedError(
            "a model can't be pickled or copied deeply: pass the bundle's path, and call txport.load in each process"
        )

    def encode(self, text: Text, unknown: Unknown = "auto", special: bool = False, truncate: bool = False) -> list[int]:
        """Tokenize a text, or a pair of texts for a classifier; raise `TextError` if it is too long.

        With `special`, the spelling of a special token in the text (`</s>`) is read as the token. With `truncate`, the
        longer text of a pair loses its end until the model takes both, as in transformers. In a model with types of
        tokens, the ids of the second text are their tokens' ids + the size of the vocabulary.
        """
        longest = self.facts.vocabulary.longest
        if isinstance(text, str) and not truncate:
            return encode_within(self.tokenizer, longest, text, unknown, special)
        texts: Sequence[str] = (text,) if isinstance(text, str) else text
        reads_pairs = self.facts.ability in ("classify", "answer")
        if not isinstance(text, str) and not (reads_pairs and _is_pair(text)):
            pair = " or a pair of strings" if reads_pairs else ""
            raise TextError(f"a text must be a string{pair}, got {quoted(text)}")
        ids, types, _ = reading_pairs(self.tokenizer).encode_texts(texts, unknown, special, truncate)
        if len(ids) > longest:
            what = " with ".join(map(shorten, texts))
            raise LongTextError(f"{what} has {len(ids)} tokens, the most is {longest}; truncate=True cuts it")
        return self._typed(ids, types)

    def _typed(self, ids: Sequence[int], types: Sequence[int]) -> list[int]:
        """Return ids that say the types of their tokens, if the model has types."""
        size = self.facts.vocabulary.size if self.facts.has_token_types else 0
        if size and max(types) > 1:
            raise TextError(f"the tokenizer gives tokens the type {max(types)}; the model has the types 0 and 1")
        return [id_ + size * type_ for id_, type_ in zip(ids, types, strict=True)]

    def _encode_known(self, text: Text, unknown: Unknown, special: bool, truncate: bool = False) -> list[int]:
        """Like `encode`, but return [] if "skip" removes the whole text."""
        try:
            return self.encode(text, unknown, special, truncate)
        except UnknownTextError:
            if unknown != "skip":
                raise
            return []

    def infer(self, texts: Texts, **how: Unpack[Batches]) -> Iterator[Outputs]:
        """Yield all outputs of the model for each text in order, by name; outputs per token have shape (T, ...).

        A batch has up to `batch_size` texts of similar length (default: 32), and up to `batch_tokens` tokens, padding
        included; the other texts of a batch do not change a result. A classifier reads a tuple in `texts` as one input.
        `unknown` controls text outside the vocabulary: "token" uses the unknown token, "error" raises, "skip" removes
        it (a text that becomes empty has the outputs {}), "auto" is "token", or "error" for a tokenizer that has no
        unknown token or is character-level. With `special`, the spelling of a special token in a text (`</s>`) is read
        as the token. With `truncate`, texts that are too long lose their ends, of a pair the longer one first. Raises
        `TextError` for text that the model can't take.
        """
        require_ability(self.facts, "infer")
        return self._each(texts, lambda _, outputs: outputs, {}, **how)

    @overload
    def embed(self, texts: Texts, *, pooling: Pooled | None = None, **how: Unpack[Vectors]) -> Floats: ...

    @overload
    def embed(self, texts: Texts, *, pooling: Literal["none"], **how: Unpack[Vectors]) -> list[Floats]: ...

    @overload
    def embed(
        self,
        texts: Texts,
        *,
        pooling: Pooled | None = None,
        precision: VectorPrecision,
        ranges: object = None,
        **how: Unpack[Vectors],
    ) -> NDArray[Any]: ...

    def embed(
        self,
        texts: Texts,
        *,
        pooling: Pooling | None = None,
        precision: VectorPrecision = "float32",
        ranges: Any = None,
        **how: Unpack[Vectors],
    ) -> NDArray[Any] | list[Floats]:
        """Return one vector per text: (B, D).

        `pooling` is "mean" over the tokens' vectors, "weighted-mean" with the weights 1, 2, 3, ..., "max" of each
        number, or the vector of the "first" or the "last" token. With "none", return the vectors of all tokens: (T, D)
        per text. `dimensions`: only the first so many numbers of each vector. `normalize` scales it to length 1, after
        that. If the graph has the output `sentence_embedding`, that is the vector, and another pooling is refused.
        `prompt` is the name of a prompt of the bundle, such as sentence-transformers' "query"; it is put before
        each text, and "" is none. The defaults are the bundle's, otherwise "mean", all, False and "". `how` are the
        options of `infer`. `precision` and `ranges` are those of `api.vectors.quantize`: "int8", "uint8", "binary" or
        "ubinary". Raises `UnknownTextError` for a text that "skip" leaves empty.
        """
        require_precision(precision, ranges)
        if pooling == "none" and precision != "float32":
            raise UnsupportedError(f"the vectors of tokens have the precision float32, got {precision}")
        found = list(self.embed_iter(texts, pooling=pooling, **how))
        if pooling == "none":
            return found
        return quantize(stacked(found, how.get("dimensions") or self.facts.vector_size), precision, ranges)

    def embed_iter(
        self,
        texts: Texts,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt: str | None = None,
        **how: Unpack[Batches],
    ) -> Iterator[Floats]:
        """Like `embed`, for an iterable of any length; a text that "skip" leaves empty has an empty vector: (0,)."""
        require_ability(self.facts, "embed")
        kind: Pooling = self.defaults.get("pooling", "mean") if pooling is None else pooling
        if kind not in get_args(Pooling):
            raise UnsupportedError(f"pooling must be one of {', '.join(get_args(Pooling))}, got {quoted(kind)}")
        is_unit = switch("normalize", self.defaults.get("normalize", False) if normalize is None else normalize)
        pools = self.facts.pools and kind != "none"
        if pools:
            self._require_own(kind, is_unit=is_unit)
        size = self.facts.vector_size if pools else self.facts.width
        width = size if dimensions is None else whole("dimensions", dimensions, 1, size)
        before = self._prompt(prompt)
        read = partial(
            self._encode_known,
            unknown=how.get("unknown", "auto"),
            special=how.get("special", False),
            truncate=how.get("truncate", False),
        )
        skip = 0 if not before or self.defaults.get("include_prompt", True) else self._unended(read(before))

        def finish(_: Sequence[int], outputs: Outputs) -> Floats:
            found = outputs[SENTENCE if pools else HIDDEN].astype(np.float32, copy=False)
            vectors = (found if pools else pool(found, kind, skip))[..., :width]
            return unit(vectors) if is_unit else vectors

        nothing = np.zeros((0, width) if kind == "none" else 0, np.float32)
        given = many("texts", texts)
        if before:  # a text of which nothing is left has none
            given = (before + each if isinstance(each, str) and read(each) else each for each in given)
        return self._each(given, finish, nothing, **how)

    def _require_own(self, kind: Pooling, *, is_unit: bool) -> None:
        """Raise `UnsupportedError` for another pooling than that of the graph, or if its vectors must stay longer."""
        own = self.defaults.get("pooling", kind)
        if kind != own:
            raise UnsupportedError(f"the graph of this bundle has the pooling {own!r} or 'none', got {quoted(kind)}")
        if self.defaults.get("normalize") and not is_unit:
            raise UnsupportedError("the graph of this bundle normalises its vectors: normalize must be true, got false")

    def _prompt(self, name: str | None) -> str:
        """Return the text of a prompt of the bundle: None is its default, but not before token ids; "" is none."""
        prompts: Mapping[str, str] = self.defaults.get("prompts", {})
        if isinstance(self.tokenizer, NumberTokenizer):
            if name:
                raise UnsupportedError(f"prompt {quoted(name)} needs a tokenizer: these texts are token ids")
            return ""
        name = self.defaults.get("prompt", "") if name is None else name
        if not isinstance(name, str) or (name and name not in prompts):
            known = f"one of {', '.join(prompts)}" if prompts else "left out, since the bundle has none"
            raise UnsupportedError(f"prompt must be {known}, got {quoted(name)}")
        return prompts[name] if name else ""

    def _unended(self, ids: Sequence[int]) -> int:
        """Return the number of tokens without a special one at their end."""
        return len(ids) - (bool(ids) and ids[-1] in self.facts.vocabulary.special)

    def classify(self, texts: Texts, **how: Unpack[Classifying]) -> list[list[Label]]:
        """Return the `top` labels of each text (default: all), highest score first; `how` has those of `infer` too.

        Scores are softmax probabilities if labels are exclusive, sigmoid probabilities if they are independent, and the
        logits themselves for a regression model (`Facts.function_to_apply`).

        With `labels`, a model of natural language inference says how well each of these labels fits a text (zero-shot
        classification): the text is the premise, and `template` with the label in place of `{}` the hypothesis. Scores
        are the softmax over the labels of the logits of entailment; with `multi_label` or for one label, that over
        entailment and contradiction. `truncate` is then true by default. Raises `UnsupportedError` for another model.
        """
        return list(self.classify_iter(texts, **how))

    def classify_iter(
        self,
        texts: Texts,
        *,
        top: int | None = None,
        labels: Sequence[str] | None = None,
        template: str = TEMPLATE,
        multi_label: bool = False,
        **how: Unpack[Batches],
    ) -> Iterator[list[Label]]:
        """Like `classify`, for an iterable of any length; yield results in order."""
        require_ability(self.facts, "classify")
        names = self.facts.labels if labels is None else labels_given(labels)
        count = len(names) if top is None else whole("top", top, 1)

        def listed(found: NDArray[np.float64]) -> list[Label]:
            return [Label(names[at], float(found[at])) for at in best(found, count)]

        if labels is None:
            if multi_label or template != TEMPLATE:
                raise UnsupportedError("template and multi_label are for given labels: add labels")
            function = _function(self.facts)
            return self._each(texts, lambda _, outputs: listed(scores(outputs[LOGITS], function)), [], **how)
        hypotheses = [hypothesis(template, name) for name in names]
        fit = entailment(self.facts, alone=switch("multi_label", multi_label) or len(names) == 1)
        how.setdefault("truncate", True)
        pairs: Iterator[Any] = ((text, each) for text in many("texts", texts) for each in hypotheses)
        logits = self._each(pairs, lambda _, outputs: outputs[LOGITS], NOTHING, **how)
        grouped = iter(lambda: list(islice(logits, len(names))), [])
        return (listed(fit(np.stack(each))) if all(map(len, each)) else [] for each in grouped)

    def rank(self, query: str, texts: Iterable[str], *, top: int | None = None, **how: Unpack[Batches]) -> list[Ranked]:
        """Return the `top` texts (default: all) with the highest scores for a query, best first.

        For cross-encoders: models with one label that read a query and a text as a pair. A score is that of `classify`.
        `how` are the options of `infer`, but `truncate` is true by default; a text that "skip" leaves empty is not
        ranked. Raises `UnsupportedError` for a model with several labels.
        """
        require_ability(self.facts, "classify")
        if len(self.facts.labels) != 1:
            raise UnsupportedError(f"rank needs a model with one label, not {len(self.facts.labels)}: use classify")
        count = None if top is None else whole("top", top, 1)
        if not isinstance(query, str):
            raise TextError(f"a query must be a string, got {quoted(query)}")
        listed = list(many("texts", texts))
        how.setdefault("truncate", True)
        found = self.classify([(query, text) for text in listed], **how)
        known = [Ranked(at, listed[at], labels[0].score) for at, labels in enumerate(found) if labels]
        return sorted(known, key=lambda each: -each.score)[:count]

    def tag(self, texts: Texts, **how: Unpack[Batches]) -> list[list[Tag]]:
        """Return the tokens of each text, except special tokens, with their most probable labels.

        `how` are the options of `infer`. See `likeliest` for models with a single label (ELECTRA's discriminator).
        """
        return list(self.tag_iter(texts, **how))

    def tag_iter(self, texts: Texts, **how: Unpack[Batches]) -> Iterator[list[Tag]]:
        """Like `tag`, for an iterable of any length; yield results in order."""
        require_ability(self.facts, "tag")
        left_out = self.facts.vocabulary.special
        labels = self.facts.labels
        function = _function(self.facts)

        def finish(ids: Sequence[int], outputs: Outputs) -> list[Tag]:
            found = scores(outputs[LOGITS], function)
            kept = [place for place, id_ in enumerate(ids) if id_ not in left_out]
            tokens = self.tokenizer.tokens([ids[place] for place in kept])
            return [Tag(token, *likeliest(found[place], labels)) for token, place in zip(tokens, kept, strict=True)]

        return self._each(texts, finish, [], **how)

    def fill(self, texts: Texts, *, top: int = 5, **how: Unpack[Batches]) -> list[list[list[Fill]]]:
        """Return the `top` tokens for each mask of each text, most probable first; `how` are the options of `infer`."""
        return list(self.fill_iter(texts, top=top, **how))

    def fill_iter(self, texts: Texts, *, top: int = 5, **how: Unpack[Batches]) -> Iterator[list[list[Fill]]]:
        """Like `fill`, for an iterable of any length; yield results in order."""
        require_ability(self.facts, "fill")
        finish = partial(self._fill, whole("top", top, 1))
        return self._each(texts, finish, [], masked=True, **how)

    def _fill(self, top: int, ids: Sequence[int], outputs: Outputs) -> list[list[Fill]]:
        filled = []
        for place in (place for place, id_ in enumerate(ids) if id_ == self.facts.vocabulary.mask):
            found = scores(outputs[LOGITS][place], "softmax")
            chosen = best(found, top)
            lacking = self.tokenizer.lacks(chosen)  # the size of a model's vocabulary is often rounded up
            tokens = [str(at) if at in lacking else self.tokenizer.tokens([at])[0] for at in chosen]
            filled.append([Fill(token, at, float(found[at])) for token, at in zip(tokens, chosen, strict=True)])
        return filled

    def answer(self, question: str, context: str, **how: Unpack[Answering]) -> list[Answer]:
        """Return the `nbest` most probable answers (default: 1) to a question that are parts of a context, best first.

        A window has up to `window` tokens with the question (default: 384, or what the model takes); a longer context
        has several, of which neighbours share `stride` tokens (default: 128, at most half a window). An answer has up
        to `longest` tokens (default: 15), and whole words. With `impossible`, one of the answers may be "": that there
        is none. Answers and scores are those of transformers' `question-answering`. The other options are those of
        `infer`; nothing is cut. Raises `LongTextError` for a question that leaves no room for the context.
        """
        return next(self.answer_iter([(question, context)], **how))

    def answer_iter(
        self,
        texts: Iterable[tuple[str, str]],
        *,
        nbest: int = 1,
        longest: int = 15,
        stride: int | None = None,
        window: int | None = None,
        impossible: bool = False,
        **how: Unpack[Batches],
    ) -> Iterator[list[Answer]]:
        """Like `answer`, for an iterable of pairs (question, context) of any length; yield results in order."""
        require_ability(self.facts, "answer")
        spans = Spans(nbest, longest, stride, window, impossible)
        asked = deque[tuple[str, list[Window]]]()
        ids = self._windows(texts, spans, asked, how)
        sized = how.get("batch_size", BATCH_SIZE), how.get("batch_tokens")
        nothing: Outputs = {}
        found = self._batched(ids, lambda _, outputs: outputs, nothing, *sized)
        return (
            answers(context, own, [first, *islice(found, len(own) - 1)], spans)
            for first in found
            for context, own in [asked.popleft()]
        )

    def _windows(
        self, texts: Iterable[tuple[str, str]], spans: Spans, asked: deque[tuple[str, list[Window]]], how: Batches
    ) -> Iterator[list[int]]:
        """Yield the ids of all windows of pairs of texts; add each context and its windows to `asked`."""
        for pair in many("texts", texts):
            if isinstance(pair, str) or not _is_pair(pair):
                raise TextError(f"a question and its context must be a pair of strings, got {quoted(pair)}")
            own = [*self.windows(*pair, spans, how.get("unknown", "auto"), how.get("special", False))]
            asked.append((pair[1], own))
            yield from (each.ids for each in own)

    def windows(
        self, question: str, context: str, spans: Spans, unknown: Unknown = "auto", special: bool = False
    ) -> Iterator[Window]:
        """Yield the windows in which `answer` looks for spans; raise its errors."""
        require_unknown(unknown)
        read = reading_pairs(self.tokenizer).encode_aligned(question, context, unknown, switch("special", special))
        typed = read._replace(ids=self._typed(read.ids, read.types))
        yield from windows_of(question, typed, spans, self.facts.vocabulary)

    def _masked(self, ids: list[int], text: Text) -> list[int]:
        if (mask := self.facts.vocabulary.mask) not in ids:
            token = "" if mask is None else self.tokenizer.tokens([mask])[0]
            raise TextError(f"{quoted(text)} has no mask token; insert {token}")
        return ids

    def _each(
        self,
        texts: Texts,
        finish: Callable[[Sequence[int], Outputs], Result],
        nothing: Result,
        *,
        masked: bool = False,
        batch_size: int = BATCH_SIZE,
        batch_tokens: int | None = None,
        unknown: Unknown = "auto",
        special: bool = False,
        truncate: bool = False,
    ) -> Iterator[Result]:
        """Yield `finish(ids, outputs)` of each text, or `nothing` for a text that "skip" leaves empty.

        With `masked`, raise `TextError` for a non-empty text without a mask token.
        """
        require_unknown(unknown)
        special, truncate = switch("special", special), switch("truncate", truncate)
        given = ((text, self._encode_known(text, unknown, special, truncate)) for text in many("texts", texts))
        encoded = (self._masked(ids, text) if masked and ids else ids for text, ids in given)
        return self._batched(encoded, finish, nothing, batch_size, batch_tokens)

    def _batched(
        self,
        encoded: Iterator[list[int]],
        finish: Callable[[Sequence[int], Outputs], Result],
        nothing: Result,
        batch_size: int,
        batch_tokens: int | None,
    ) -> Iterator[Result]:
        """Yield `finish(ids, outputs)` of each input, or `nothing` for one without tokens."""
        batch_size, batch_tokens = sizes(batch_size, batch_tokens)

        def work(batch: list[list[int]]) -> list[Result]:
            assert isinstance(self.runtime, EncoderRuntime)
            known = [ids for ids in batch if ids]
            found = iter(infer(self.runtime, known, self.facts) if known else ())
            return [finish(ids, next(found)) if ids else nothing for ids in batch]

        return in_batches(encoded, at_once(work), batch_size, len, self.workers, batch_tokens)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(each, str) for each in value)


def pool(vectors: Floats, pooling: Pooling, skip: int = 0) -> Floats:
    """Pool token vectors (T, D) without the first `skip` -> (D,); the pooling "none" returns (T, D)."""
    if pooling == "none":
        return vectors
    skip = min(skip, len(vectors) - 1)
    kept = vectors[skip:].astype(np.float64)
    weights = np.arange(skip, len(vectors)) + 1
    ways: dict[Pooling, Callable[[], NDArray[np.float64]]] = {
        "mean": lambda: kept.mean(axis=0),
        "first": lambda: kept[0],
        "last": lambda: kept[-1],
        "max": lambda: kept.max(axis=0),
        "weighted-mean": lambda: np.average(kept, axis=0, weights=weights),
    }
    return ways[pooling]().astype(np.float32)


def stacked(vectors: Sequence[Floats], width: int) -> Floats:
    """Stack the vectors of all texts: (B, D); raise `UnknownTextError` for a text without a vector."""
    for number, vector in enumerate(vectors, 1):
        if not vector.size:
            fix = "leave it out, or take vectors one by one"
            raise UnknownTextError(f"text {number} has no character of the vocabulary, so it has no vector; {fix}")
    return np.array(vectors, np.float32).reshape(len(vectors), width)


def unit(vectors: Floats) -> Floats:
    """Scale vectors (..., D) to length 1."""
    length = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=-1, keepdims=True))
    found: Floats = (vectors / np.maximum(length, TINY)).astype(np.float32)
    return found


def labels_given(labels: object) -> list[str]:
    """Return the labels of a caller; raise `UnsupportedError` unless they are different strings, at least one."""
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise UnsupportedError(f"labels must be a list of strings, got {quoted(labels)}")
    found = list(labels)
    if not found or not all(isinstance(each, str) and each.strip() for each in found) or len(set(found)) < len(found):
        raise UnsupportedError(f"labels must be different strings, at least one, got {quoted(found)}")
    return found


def hypothesis(template: object, label: str) -> str:
    """Return a template with a label in place of `{}`; raise `UnsupportedError` unless it has just one `{}`."""
    if not isinstance(template, str) or template.count("{}") != 1:
        example = f"one {{}} for the label, as in {quoted(TEMPLATE)}"
        raise UnsupportedError(f"template must have {example}, got {quoted(template)}")
    return template.replace("{}", label)


def entailment(facts: Facts, *, alone: bool) -> Callable[[Array], NDArray[np.float64]]:
    """Return a function from the logits of L hypotheses (L, C) to their scores (L,).

    `alone`: each score is that of entailment beside contradiction, else beside the entailment of the other hypotheses.
    Raises `UnsupportedError` for a model without these labels.
    """
    named = [name.lower() for name in facts.labels]
    entails = next((at for at, name in enumerate(named) if name.startswith("entail")), None)
    others = [at for at in range(len(named)) if at != entails]
    against = others if len(others) == 1 else [at for at in others if named[at].startswith("contradict")]
    if entails is None or (alone and not against):
        needs = "entailment and contradiction" if alone else "entailment"
        fix = f"use a model of natural language inference, with {needs} among its labels"
        raise UnsupportedError(f"this model has the labels {', '.join(facts.labels)}, and takes no others: {fix}")
    if alone:
        return lambda logits: scores(logits[:, [against[0], entails]], "softmax")[:, 1]
    return lambda logits: scores(logits[:, entails], "softmax")


def _function(facts: Facts) -> Function:
    """Return the function that converts logits over labels to scores."""
    assert facts.function_to_apply is not None
    return facts.function_to_apply


def scores(logits: Array, function: Function) -> NDArray[np.float64]:
    """Convert logits (..., C) to scores (..., C) in float64."""
    values = logits.astype(np.float64)
    if function == "none":
        return values
    if function == "sigmoid":
        found: NDArray[np.float64] = np.exp(-np.logaddexp(0, -values))  # does not overflow for any logit
        return found
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    probabilities: NDArray[np.float64] = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def likeliest(found: NDArray[np.float64], labels: Sequence[str]) -> tuple[str, float]:
    """Return the most probable label of probabilities (C,), and its probability.

    A single label with a probability below 0.5 becomes its opposite: "original" for "replaced", otherwise "not-LABEL".
    """
    at = int(found.argmax())
    if len(labels) == 1 and found[at] < 0.5:
        return OTHERWISE.get(labels[at], f"not-{labels[at]}"), float(1 - found[at])
    return labels[at], float(found[at])


def best(values: NDArray[np.float64], count: int) -> list[int]:
    """Return the indices of the `count` largest values (C,), largest first; equal values in order of index."""
    order: list[int] = np.argsort(-values, kind="stable")[:count].tolist()
    return order
