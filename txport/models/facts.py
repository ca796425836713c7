"""Facts about a model that ports, runtimes, search, tokenizers and proof use. Does not import PyTorch.

An architecture derives the facts from its config, and a bundle's manifest stores them. Code that runs a bundle
therefore needs no architecture.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from txport.errors import quoted
from txport.models.audio import Features, Speech, features, speech
from txport.models.config import LONGEST
from txport.models.json_values import listed, require_keys, several, switch, text, token_id, whole_number

Task = Literal["seq2seq", "causal", "encode"]
Owner = Literal["row", "source"]
Role = Literal["key", "value"]
Pooled = Literal["mean", "first", "last", "max", "weighted-mean"]  # how vectors of tokens become one
Pooling = Literal[Pooled, "none"]
VectorPrecision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
Ability = Literal["embed", "classify", "tag", "fill", "answer"]
Function = Literal["softmax", "sigmoid", "none"]

HIDDEN, LOGITS, SENTENCE = "last_hidden_state", "logits", "sentence_embedding"  # outputs of encoder-only models
START, END = "start_logits", "end_logits"  # those of the first and the last token of an answer
INPUTS = ("input_ids", "input_features", "attention_mask", "position_ids", "token_type_ids", "source_lengths")
LENGTH = "length"  # name of the dim whose size is the number of tokens
MOST_STATE = 1 << 14  # maximum number of state tensors
MOST_NUMBERS = 1 << 31  # maximum number of elements of the state per token of a row
MOST_TOKENS = 1 << 10  # maximum number of special tokens of one kind
MOST_OUTPUTS = 16
MOST_LABELS = 1 << 16
RARE: dict[str, Any] = {
    "speech": None,
    "windows": (),
    "function_to_apply": None,
    "has_token_types": False,
}  # omitted from JSON if they have these values


class Sides(NamedTuple):
    """What a task has: a source that an encoder reads, a target that a decoder writes, and owners of a state."""

    source: bool
    target: bool
    owners: frozenset[Owner]


TASKS: dict[Task, Sides] = {
    "seq2seq": Sides(source=True, target=True, owners=frozenset({"row", "source"})),
    "causal": Sides(source=False, target=True, owners=frozenset({"row"})),
    "encode": Sides(source=True, target=False, owners=frozenset()),
}


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A vocabulary and its special tokens.

    `size` is the number of ids, `longest` the maximum length. `start` is the decoder's start token, None for causal
    models. `before` and `after` are the special tokens around each sequence in training, unless `tokenizer.json` adds
    them. `mask` is the mask token.
    """

    size: int
    longest: int
    pad: int
    start: int | None = None
    ends: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    mask: int | None = None

    def with_special(self, ids: Sequence[int]) -> list[int]:
        """Return a sequence with the special tokens that the model expects around it."""
        return [*self.before, *ids, *self.after]

    @property
    def special(self) -> tuple[int, ...]:
        """All special tokens."""
        ones = tuple(each for each in (self.pad, self.start, self.mask) if each is not None)
        return tuple(dict.fromkeys((*ones, *self.ends, *self.before, *self.after)))

    @property
    def begins(self) -> bool:
        """Whether a special token before a text stands for no answer: not in decoders and mBART, as in transformers."""
        return not self.ends or self.start is not None

    @property
    def end(self) -> int:
        """The end token; the first one if there are several."""
        return self.ends[0]


@dataclass(frozen=True)
class StateTensor:
    """One cache tensor of a decoder layer; `dims` exclude the batch dimension.

    `owner` is "row" for a separate tensor per row, "source" for one that all rows of a source share.
    """

    layer: int
    role: Role
    owner: Owner
    dims: tuple[int | str, ...]  # LENGTH stands for the number of tokens

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        """Return the shape for this many rows (or sources) of `length` tokens."""
        return rows, *(length if isinstance(dim, str) else dim for dim in self.dims)


@dataclass(frozen=True)
class Output:
    """One output of an encoder-only model: its name and its dims without the batch dimension."""

    name: str
    dims: tuple[int | str, ...]

    @property
    def is_of_tokens(self) -> bool:
        """True if the output has one value per token, not per text."""
        return self.dims[0] == LENGTH

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        """Return the shape for this many rows of `length` tokens."""
        return rows, *(length if isinstance(dim, str) else dim for dim in self.dims)


@dataclass(frozen=True)
class CrossAttention:
    """The cross-attention used for alignment: its decoder layer and number of heads."""

    layer: int
    heads: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a model, independent of its architecture.

    `width` is the hidden size. `source` is the encoder's input, `target` the decoder's output. A causal model has only
    `target`, and its prompts use the same vocabulary. `has_plain_logits`: logits are one matrix product without bias or
    later operations. `speech` has the special tokens of a speech model. `windows` are the distinct sizes of sliding
    windows, in tokens. `function_to_apply` converts the logits over `labels` to scores: "softmax" for exclusive labels,
    "sigmoid" for independent labels or a single label, "none" for regression. `has_token_types`: a source may be a pair
    of texts whose tokens differ in their type; an id of the second text is its token's id + `source.size`.
    """

    task: Task
    width: int
    source: Tokens | Features | None = None
    target: Tokens | None = None
    state: tuple[StateTensor, ...] = ()
    attention: CrossAttention | None = None
    outputs: tuple[Output, ...] = ()
    labels: tuple[str, ...] = ()
    has_plain_logits: bool = False
    speech: Speech | None = None
    windows: tuple[int, ...] = ()
    function_to_apply: Function | None = None
    has_token_types: bool = False

    @property
    def is_encoder_decoder(self) -> bool:
        """True if an encoder reads a source, and a decoder writes a target from it."""
        return self.source is not None and self.target is not None

    @property
    def is_causal(self) -> bool:
        """True if a decoder continues a prompt."""
        return self.source is None

    @property
    def generates(self) -> bool:
        """True if a decoder writes tokens, one a step; False for an encoder-only model."""
        return self.target is not None

    @property
    def start(self) -> int | None:
        """Start token of a target; None for a model without one, which continues its prompt."""
        return self.writes.start if self.is_encoder_decoder else None

    @property
    def start_tokens(self) -> int:
        """Number of tokens of a decoder's sequence that are no part of the target: 1 or 0."""
        return int(self.is_encoder_decoder)

    def before_steps(self, length: int) -> int:
        """Return the tokens in the cache of a row before the first step, with a source of `length` tokens."""
        return length - 1 if self.is_causal else 0

    @property
    def reads(self) -> Tokens | Features:
        """Input: tokens or features of the source; for causal models, tokens of the prompt."""
        found = self.target if self.source is None else self.source
        assert found is not None
        return found

    @property
    def vocabulary(self) -> Tokens:
        """Vocabulary of the input text, or of the output if the input is audio."""
        return self.reads if isinstance(self.reads, Tokens) else self.writes

    @property
    def source_ids(self) -> int:
        """Number of ids that an input can have: the size of the vocabulary for each type of tokens."""
        return self.vocabulary.size * (2 if self.has_token_types else 1)

    @property
    def masks_source(self) -> bool:
        """True if sources have different lengths and need a mask."""
        return isinstance(self.source, Tokens)

    @property
    def writes(self) -> Tokens:
        """Output tokens; for encoder-only models, those of the input."""
        found = self.source if self.target is None else self.target
        assert isinstance(found, Tokens)
        return found

    @property
    def ability(self) -> Ability | None:
        """Ability of an encoder-only model: embed, classify, tag, fill or answer; None for other models."""
        if self.generates:
            return None
        if any(each.name == START for each in self.outputs):
            return "answer"
        logits = next((each for each in self.outputs if each.name == LOGITS), None)
        if logits is None:
            return "embed"
        if not self.labels:
            return "fill"
        return "tag" if logits.is_of_tokens else "classify"

    @property
    def pools(self) -> bool:
        """True if an output of the graph is the vector of a text."""
        return any(each.name == SENTENCE for each in self.outputs)

    @property
    def vector_size(self) -> int:
        """Number of elements of the vector of a text."""
        return next((int(each.dims[0]) for each in self.outputs if each.name == SENTENCE), self.width)

    def owned(self, owner: Owner) -> tuple[StateTensor, ...]:
        """Return the state tensors that belong to each row, or to each source, in order."""
        return tuple(each for each in self.state if each.owner == owner)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON values, without the values of `RARE` that are empty."""
        values: dict[str, Any] = listed(dataclasses.asdict(self))
        return {name: value for name, value in values.items() if value or name not in RARE}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Facts:
        """Read facts from JSON values; raise `KeyError`, `TypeError` or `ValueError` for invalid values."""
        values = {**RARE, **values} if isinstance(values, Mapping) else values
        require_keys("facts", values, cls)
        source = values["source"]
        target = values["target"]
        attention = values["attention"]
        facts = cls(
            task=values["task"],
            width=whole_number("width", values["width"], 1),
            source=None if source is None else _source(source),
            target=(writes := None if target is None else _tokens("target", target)),
            state=tuple(map(_state_tensor, several("state", values["state"], MOST_STATE))),
            attention=None if attention is None else _cross_attention(attention),
            outputs=tuple(map(_output, several("outputs", values["outputs"], MOST_OUTPUTS))),
            labels=tuple(text("a label", each) for each in several("labels", values["labels"], MOST_LABELS)),
            has_plain_logits=switch("has_plain_logits", values["has_plain_logits"]),
            speech=None if values["speech"] is None else speech(values["speech"], writes.size if writes else 0),
            windows=_windows(values["windows"]),
            function_to_apply=values["function_to_apply"],
            has_token_types=switch("has_token_types", values["has_token_types"]),
        )
        for problem in _problems(facts):
            raise ValueError(problem)
        return facts


def _problems(facts: Facts) -> Iterator[str]:
    """Yield a message for each inconsistency."""
    if facts.task not in tuple(TASKS):
        yield f"task must be one of {', '.join(TASKS)}, got {quoted(facts.task)}"
        return
    sides = TASKS[facts.task]
    if (facts.source is not None, facts.target is not None) != (sides.source, sides.target):
        yield f"a model of the task {facts.task} has other sides than source and target as given"
    if not facts.is_encoder_decoder and (isinstance(facts.source, Features) or facts.speech is not None):
        yield f"a model of the task {facts.task} reads no features"
        return
    yield from _problems_of_state(facts)
    if facts.is_causal and facts.writes.longest < 2:
        yield f"target.longest of a causal model must be 2 or more, a prompt and a token, got {facts.writes.longest}"
    if facts.is_encoder_decoder and (facts.start is None or not facts.writes.ends):
        yield "a target needs a start token and an end token"
    if facts.windows and facts.is_encoder_decoder:
        yield f"a model of the task {facts.task} has no windows"
    if facts.has_token_types and facts.generates:
        yield f"a model of the task {facts.task} has no types of tokens"
    if bool(facts.outputs) == facts.generates:
        yield f"a model of the task {facts.task} has other outputs"
    if not facts.generates:
        yield from _problems_of_outputs(facts)
    yield from _problems_of_labels(facts)
    if facts.attention is not None and not facts.is_encoder_decoder:
        yield f"a model of the task {facts.task} has no attention over a source"
    elif facts.attention is not None and facts.attention.layer not in {each.layer for each in facts.owned("source")}:
        yield f"attention.layer must be a layer of the state over a source, got {facts.attention.layer}"


def _problems_of_state(facts: Facts) -> Iterator[str]:
    """Check that each layer has a key and a value per row, and a key and a value per source if there is a source."""
    if {each.owner for each in facts.state} != TASKS[facts.task].owners:
        yield f"the state is none of a model of the task {facts.task}"
    for owner in get_args(Owner):
        found = sorted((each.layer, each.role) for each in facts.owned(owner))
        if found != [(layer, role) for layer in range(len(found) // 2) for role in get_args(Role)]:
            need = f"each layer from 0 on must have one key and one value of a {owner}"
            yield f"the state is none of a model of the task {facts.task}: {need}"
    if sum(numbers_of(each, 1) for each in facts.state) > MOST_NUMBERS:
        yield f"the state must have at most {MOST_NUMBERS} numbers for each token"


def _problems_of_outputs(facts: Facts) -> Iterator[str]:
    """Check the outputs of an encoder-only model: their names, and the dims that its ability requires."""
    dims = {each.name: each.dims for each in facts.outputs}
    if len(dims) != len(facts.outputs):
        yield "outputs have one name twice"
    if taken := sorted(dims.keys() & set(INPUTS)):
        yield f"an output can't be called {taken[0]}, as an input is"
    if facts.ability == "answer":
        if dims != {START: (LENGTH,), END: (LENGTH,)}:
            yield f"a model with {START} gives {START} and {END}, a number for each token"
        return
    if facts.ability == "embed":
        if dims.get(HIDDEN) != (LENGTH, facts.width):
            yield f"a model without {LOGITS} gives {HIDDEN}, {LENGTH} times {facts.width}"
        if SENTENCE in dims and (len(dims[SENTENCE]) != 1 or LENGTH in dims[SENTENCE]):
            yield f"{SENTENCE} is one vector for each text, got {quoted(list(dims[SENTENCE]))}"
    elif SENTENCE in dims:
        yield f"a model with {LOGITS} has no {SENTENCE}"
    elif dims[LOGITS][-1] != (len(facts.labels) or facts.writes.size):
        yield f"{LOGITS} are over the labels, or else over the vocabulary"
    if facts.ability == "fill" and (dims[LOGITS][0] != LENGTH or facts.vocabulary.mask is None):
        yield f"{LOGITS} over the vocabulary are those of each token, and need a mask"


def _problems_of_labels(facts: Facts) -> Iterator[str]:
    """Check `function_to_apply`: models with labels need one that fits their labels, other models must have none."""
    function = facts.function_to_apply
    allowed = get_args(Function)
    if function is not None and not facts.labels:
        yield f"function_to_apply needs a model with labels, got {quoted(function)}"
    elif facts.labels and function not in allowed:
        yield f"function_to_apply of a model with labels must be one of {', '.join(allowed)}, got {quoted(function)}"
    elif function == "softmax" and len(facts.labels) == 1:
        yield "function_to_apply of a single label can't be softmax, which is always 1"
    elif function == "none" and facts.ability == "tag":
        yield "function_to_apply of labels of tokens must be softmax or sigmoid, got 'none'"


EXCLUSIVE, MULTI_LABEL, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
FUNCTIONS: dict[str, Function] = {  # by the `problem_type` of a config of transformers, which few configs set
    MULTI_LABEL: "sigmoid",
    REGRESSION: "none",
}


def function_of(problem_type: object, labels: Sequence[str]) -> Function | None:
    """Return the function that converts logits over labels to scores, by the `problem_type` of a config."""
    found = FUNCTIONS.get(problem_type) if isinstance(problem_type, str) else None
    return found or usual_function(labels)


def usual_function(labels: Sequence[str]) -> Function | None:
    """Return the default function that converts logits over labels to scores; None if there are no labels."""
    if not labels:
        return None
    return "softmax" if len(labels) > 1 else "sigmoid"


def _source(values: object) -> Tokens | Features:
    """Read a source: `Features` if it has frames or a sampling rate, otherwise `Tokens`."""
    is_heard = isinstance(values, Mapping) and ("frames" in values or "sampling_rate" in values)
    return features(values) if is_heard else _tokens("source", values)


def _tokens(side: str, values: Any) -> Tokens:
    require_keys(side, values, Tokens)
    size = whole_number(f"{side}.size", values["size"], 1)
    ids = {
        name: tuple(token_id(f"{side}.{name}", each, size) for each in several(name, values[name], MOST_TOKENS))
        for name in ("ends", "before", "after")
    }
    ones = [
        None if values[name] is None else token_id(f"{side}.{name}", values[name], size) for name in ("start", "mask")
    ]
    return Tokens(
        size=size,
        longest=whole_number(f"{side}.longest", values["longest"], 1, LONGEST),
        pad=token_id(f"{side}.pad", values["pad"], size),
        start=ones[0],
        mask=ones[1],
        **ids,
    )


def _state_tensor(values: Any) -> StateTensor:
    require_keys("a tensor of the state", values, StateTensor)
    if values["role"] not in get_args(Role) or values["owner"] not in get_args(Owner):
        raise ValueError(f"a tensor of the state can't be {quoted(values['role'])} of {quoted(values['owner'])}")
    dims = _dims(values["dims"])
    if len(dims) != 3 or dims[1] != LENGTH or dims.count(LENGTH) != 1:
        raise ValueError(f"a tensor of the state has heads, {LENGTH} and a size, got {quoted(values['dims'])}")
    return StateTensor(whole_number("layer", values["layer"], 0), values["role"], values["owner"], dims)


def _cross_attention(values: Any) -> CrossAttention:
    require_keys("attention", values, CrossAttention)
    return CrossAttention(whole_number("layer", values["layer"], 0), whole_number("heads", values["heads"], 1))


def _windows(values: object) -> tuple[int, ...]:
    found = tuple(whole_number("a window", each, 1, LONGEST) for each in several("windows", values, MOST_STATE))
    if len(set(found)) < len(found):
        raise ValueError(f"windows must be named once each, got {quoted(list(found))}")
    return found


def _output(values: Any) -> Output:
    require_keys("an output", values, Output)
    dims = _dims(values["dims"])
    if not dims or LENGTH in dims[1:]:
        raise ValueError(f"an output has {LENGTH}, if at all, as its first dim, got {quoted(values['dims'])}")
    return Output(text("an output", values["name"]), dims)


def _dims(values: object) -> tuple[int | str, ...]:
    dims = several("dims", values, 4)
    return tuple(dim if dim == LENGTH else whole_number("a dim", dim, 1) for dim in dims)


def key_values(layers: int, owner: Owner, heads: int, head_size: int) -> tuple[StateTensor, ...]:
    """Return the key tensor and the value tensor of each decoder layer, each of shape (rows, G, length, H)."""
    roles: tuple[Role, ...] = get_args(Role)
    return tuple(
        StateTensor(layer, role, owner, (heads, LENGTH, head_size)) for layer in range(layers) for role in roles
    )


def by_layer(*groups: Sequence[StateTensor]) -> tuple[StateTensor, ...]:
    """Merge groups of state tensors, sorted by layer; the tensors of one layer keep the order of the groups."""
    return tuple(sorted((each for group in groups for each in group), key=lambda each: each.layer))


def numbers_of(tensor: StateTensor, length: int) -> int:
    """Return the number of elements that a state tensor has for one row of `length` tokens."""
    return math.prod(tensor.shape(1, length))
