"""The role in a Transformer that the name of each tensor states, and the tensors that repeat in each layer."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from txport.checkpoints.weights.steps import Shape

LEAST = 3  # minimum number of tensors per layer
NUMBER = re.compile(r"(?<!\d)(0|[1-9]\d{0,3})(?!\d)")  # of a layer
ALIKE = 0.7  # minimum share of the tensors of layers that all layers have
Stack = tuple[str, tuple[int, ...]]  # the prefix before the numbers of layers, and the numbers

CROSS = (
    r"(encoder|enc_?dec|enc|src|source|cross|multihead)[._]?(attn|attention)|encdecattention|xattn|crossattn"
    r"|(attn|attention)_?2(?!\d)"
)
# A last linear layer that is named for its place alone: `decoder.fc_out`, `dense`.
LAST_LINEAR = re.compile(
    r"((decoder|dec)[._/])?(fc_out|out|dense|linear|output|out_proj|proj|fc)[._/](weight|bias|kernel|w|b)"
)
PHRASES = ((CROSS, "cross"), (r"layer_?norm|rms_?norm", "norm"), (r"feed_?forward|dense_?relu_?dense", "ffn"))
IDIOMS = ((r"in_proj", "inproj"), (r"(?<![a-z])c_attn", "attn_qkv"), (r"(?<![a-z])c_fc", "fc_up"))
NUMBERED_LINEAR = r"(?:fc|linear|lin|dense|w)[._]?([12])\b"  # the linear layers of a feed-forward
WORDS = {
    "encoder": "encoder enc source src",
    "decoder": "decoder dec target tgt trg",
    "cross": "cross encdec",
    "attention": "attn attention att mha self sa",
    "ffn": "ffn mlp ff fc linear lin intermediate",
    "norm": "norm ln norms",
    "query": "query q wq queries",
    "key": "key k wk keys",
    "value": "value v wv values val",
    "qkv": "qkv wqkv inproj",
    "kv": "kv wkv",
    "output": "o out output wo proj dense",
    "gate": "gate",
    "inner": "inner up wi expand intermediate",
    "outer": "outer down",
    "embedding": "embed embedding embeddings emb wte tok token tokens lut shared",
    "positions": "pos position positions wpe positional",
    "projection": "head generator projection logits classifier unembed lm",
    "bias": "bias b beta",
    "weight": "weight w gamma scale g kernel",
}
MEANINGS: dict[str, set[str]] = defaultdict(set)
for _meaning, _several in WORDS.items():
    for _word in _several.split():
        MEANINGS[_word].add(_meaning)
QKV = ("query", "key", "value")
FFN = ("gate", "inner", "outer")
FUSED = {"qkv": QKV, "kv": ("key", "value"), "gate_up": ("gate", "inner")}


@dataclass(frozen=True)
class Role:
    """The role of a tensor: its side ("encoder", "decoder"), the part of the layer, and the tensor in that part.

    "" means that the name does not state it.
    """

    side: str
    part: str  # "attention", "cross", "ffn", "embedding", "positions", "projection"
    what: str  # "query", ..., "qkv", "kv", "inner", "outer", "gate", "norm", "query_norm"
    kind: str  # "weight", "bias"
    number: int = 0  # after the words, such as 2 in ln_2

    @property
    def is_norm(self) -> bool:
        """True for a norm of a layer, not one of queries or keys."""
        return self.what == "norm"

    @property
    def is_ffn(self) -> bool:
        """True for a tensor of the feed-forward."""
        return self.part == "ffn"

    @property
    def is_output(self) -> bool:
        """True for an output whose name does not state of which part."""
        return self.what == "output" and not self.part

    @property
    def is_last(self) -> bool:
        """True for the last linear layer of a part of the model."""
        return self.what in ("output", "outer")


@dataclass(frozen=True)
class Template:
    """A tensor, or the same tensor of each layer: `{}` in `name` is the number of the layer, `shape` is one layer's."""

    name: str
    shape: Shape
    numbers: tuple[int, ...]  # the layers; () outside of layers
    role: Role
    is_stacked: bool = False  # one tensor holds all layers

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors in the file."""
        if self.is_stacked or not self.numbers:
            return (self.name,)
        return tuple(self.name.replace("{}", str(number)) for number in self.numbers)

    @property
    def pattern(self) -> str:
        """A regular expression that matches the names; its group is the number of the layer."""
        return pattern_of(self.name)

    @property
    def replacement(self) -> str:
        """The names as the replacement of a match, whose group 1 is the number of the layer."""
        return self.name.replace("{}", r"\1")

    def has_axes_of(self, other: Template) -> bool:
        """Return True if both are of layers or neither is, and both have the same number of axes."""
        return bool(self.numbers) == bool(other.numbers) and len(self.shape) == len(other.shape)


def templates(shapes: Mapping[str, Shape]) -> list[Template]:
    """Return the tensors of a file; a tensor that repeats in each layer is one template."""
    stacks = _stacks(shapes)
    numbers: dict[tuple[str, Shape], list[int]] = defaultdict(list)
    plain: dict[str, Shape] = {}
    for name, shape in shapes.items():
        if stack := _stack_of(name, stacks):
            number = int(NUMBER.match(name, len(stack[0]))[0])  # type: ignore[index]  # stacks have numbers
            rest = name[len(stack[0]) + len(str(number)) :]
            numbers[f"{stack[0]}{{}}{rest}", shape].append(number)
        else:
            plain[name] = shape
    layered = [Template(*each, tuple(sorted(of)), role_of(*each)) for each, of in numbers.items()]
    layered = layered or list(_whole_stacks(plain))
    whole = {each.name for each in layered}
    return [*layered, *(Template(name, plain[name], (), role_of(name)) for name in plain if name not in whole)]


def _stacks(shapes: Mapping[str, Shape]) -> list[Stack]:
    """Return the prefixes of layers: contiguous numbers from 0 or 1 follow, with mostly the same tensors for each."""
    behind: dict[str, dict[int, set[tuple[str, Shape]]]] = defaultdict(lambda: defaultdict(set))
    for name, shape in shapes.items():
        for number in NUMBER.finditer(name):
            behind[name[: number.start()]][int(number[0])].add((name[number.end() :], shape))
    found = []
    for prefix, layers in behind.items():
        numbers = tuple(sorted(layers))
        common = set.intersection(*layers.values())
        is_counted = numbers[0] in (0, 1) and numbers == tuple(range(numbers[0], numbers[0] + len(numbers)))
        if is_counted and len(common) >= max(LEAST, ALIKE * len(set.union(*layers.values()))):
            found.append((prefix, numbers))
    return found


def _stack_of(name: str, stacks: Sequence[Stack]) -> Stack | None:
    """Return the stack of a tensor, or None; of several, the one with most layers, then the shortest prefix."""
    around = [each for each in stacks if name.startswith(each[0]) and NUMBER.match(name, len(each[0]))]
    return max(around, key=lambda each: (len(each[1]), -len(each[0])), default=None)


def _whole_stacks(shapes: Mapping[str, Shape]) -> Iterator[Template]:
    """Yield tensors that hold all layers along axis 0.

    They have the common prefix of the tensors with three axes, and the same size along axis 0.
    """
    sides: dict[str, list[str]] = defaultdict(list)
    for name, shape in shapes.items():
        if len(shape) == 3:
            sides[role_of(name).side].append(name)
    for names in sides.values():
        lengths = {shapes[name][0] for name in names}
        ends = zip(min(names), max(names), strict=False)
        alike = "".join(one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], ends))
        prefix = re.sub(r"[^./]*$", "", alike)
        if len(lengths) == 1 and len(names) > 1 and prefix:
            (length,) = lengths
            for name, shape in shapes.items():
                if name.startswith(prefix) and len(shape) > 1 and shape[0] == length:
                    role = role_of(f"{prefix}{{}}.{name.removeprefix(prefix)}", shape[1:])
                    yield Template(name, shape[1:], tuple(range(length)), role, is_stacked=True)


def role_of(name: str, shape: Shape = ()) -> Role:
    """Return the role that a name states; `{}` is the number of the layer, and the name of the part follows it."""
    before, is_layered, behind = name.partition("{}")
    above = _words(before, has_parts=False)
    own = _words(behind) if is_layered else above
    numbers = [int(each) for each in re.findall(r"(?<=[a-z_./])\d{1,9}", behind or name)]
    side = _first(("decoder", "encoder"), above)
    kind = _first(("bias", "weight"), _words(re.split(r"[./_]", name)[-1])) or "weight"
    if is_layered:
        part, what = _part(own, behind, shape)
    else:
        part = _first(("positions", "embedding", "projection"), own)
        part = part or ("projection" if LAST_LINEAR.fullmatch(name) else "")
        what = "norm" if "norm" in own else ""
    return Role(side, part, what, kind, numbers[-1] if numbers else 0)


def _first(meanings: Sequence[str], words: Iterable[str]) -> str:
    return next((each for each in meanings if each in words), "")


def _part(own: frozenset[str], behind: str, shape: Shape) -> tuple[str, str]:
    """Return the part of a layer that the words of a name state, and the tensor in that part."""
    has_ffn = bool({"ffn", *FFN} & own) or bool(re.search(r"\bw_?[123]\b", behind))
    may_be_thrice = len(shape) != 2 or max(shape) == 3 * min(shape)  # a matrix of three square ones
    is_fused = "qkv" in own and not has_ffn and ("qkv" in behind.lower() or may_be_thrice)
    is_attention = "attention" in own or is_fused  # its name states the results, not the part
    part = "cross" if "cross" in own else "attention" if is_attention else "ffn" if has_ffn else ""
    if "norm" not in own:
        return part, _what(part, own, behind)
    if "input" in behind:
        part = "attention"
    elif "ffn" in own or "final" in behind:
        part = "ffn"
    elif "post" in behind:
        part = ""
    normed = _first(QKV, own)
    return part, f"{normed}_norm" if normed else "norm"


def _what(part: str, words: frozenset[str], behind: str) -> str:
    """Return the tensor of a part that the words state, such as "query"; "" if they state none."""
    if part == "ffn":
        if {"gate", "inner"} <= words:
            return "gate_up"
        numbered = re.search(NUMBERED_LINEAR, behind)
        by_number = ("inner", "outer")[int(numbered[1]) - 1] if numbered else ""
        return _first(FFN, words) or by_number or ("outer" if "output" in words else "")
    qkv = [each for each in QKV if each in words]
    if part and ("qkv" in words or len(qkv) == 3):
        return "qkv"
    if part and ("kv" in words or qkv == ["key", "value"]):
        return "kv"
    if part and len(qkv) == 1:
        return qkv[0]
    return "output" if "output" in words and not qkv else ""


def _words(text: str, has_parts: bool = True) -> frozenset[str]:
    """Return the meanings of the words of a name; without `has_parts`, phrases for cross-attention are ignored."""
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()
    found = set()
    for program, plain in IDIOMS:
        text = re.sub(program, plain, text)
    for pattern, meaning in PHRASES if has_parts else PHRASES[1:]:
        if re.search(pattern, text):
            found.add(meaning)
            text = re.sub(pattern, " ", text)
    for word in re.findall(r"[a-z]+", text):
        found |= MEANINGS.get(word, set())
    return frozenset(found)


def pattern_of(name: str) -> str:
    """Return a regular expression that matches a name; `{}` in it is a group, the number of the layer."""
    return "^" + re.escape(name).replace(r"\{\}", r"(\d+)").replace(r"\-", "-") + "$"
