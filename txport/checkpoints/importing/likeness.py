"""Analysis of tensor names: the tensors that repeat in each layer, and the part of a Transformer of each tensor."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
LAST = re.compile(
    r"((decoder|dec)[._/])?(fc_out|out|dense|linear|output|out_proj|proj|fc)[._/](weight|bias|kernel|w|b)"
)
PHRASES = ((CROSS, "cross"), (r"layer_?norm|rms_?norm", "norm"), (r"feed_?forward|dense_?relu_?dense", "ffn"))
IDIOMS = ((r"in_proj", "inproj"), (r"(?<![a-z])c_attn", "attn_qkv"), (r"(?<![a-z])c_fc", "fc_up"))
NUMBERED = r"(?:fc|linear|lin|dense|w)[._]?([12])\b"  # the linear layers of a feed-forward
WORDS = {
    "encoder": "encoder enc source src",
    "decoder": "decoder dec target tgt trg",
    "cross": "cross encdec",
    "attention": "attn attention att mha self sa",
    "ffn": "ffn mlp ff fc linear lin intermediate",
    "norm": "norm ln norms",
    "query": "q query wq queries",
    "key": "k key wk keys",
    "value": "v value wv values val",
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
MEANINGS: dict[str, frozenset[str]] = {}
for _meaning, _several in WORDS.items():
    for _word in _several.split():
        MEANINGS[_word] = MEANINGS.get(_word, frozenset()) | {_meaning}
PARTS = ("query", "key", "value")


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


def templates(shapes: Mapping[str, Shape]) -> list[Template]:
    """Return the tensors of a file; a tensor that repeats in each layer is one template."""
    stacks = _stacks(shapes)
    found: dict[tuple[str, Shape], list[int]] = {}
    plain: list[str] = []
    for name, shape in shapes.items():
        if stack := _stack_of(name, stacks):
            number = int(NUMBER.match(name, len(stack[0]))[0])  # type: ignore[index]  # stacks have numbers
            rest = name[len(stack[0]) + len(str(number)) :]
            found.setdefault((f"{stack[0]}{{}}{rest}", shape), []).append(number)
        else:
            plain.append(name)
    layered = [
        Template(name, shape, tuple(sorted(numbers)), role_of(name, shape)) for (name, shape), numbers in found.items()
    ]
    whole = [] if layered else list(_whole_stacks({name: shapes[name] for name in plain}))
    taken = {each.name for each in whole}
    return [*layered, *whole, *(Template(n, shapes[n], (), role_of(n)) for n in plain if n not in taken)]


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
    side = next((each for each in ("decoder", "encoder") if each in above), "")
    last = [each for each in ("bias", "weight") if each in _words(re.split(r"[./_]", name)[-1])]
    kind = (last or ["weight"])[0]
    number = (numbers or [0])[-1]
    if not is_layered:
        named = (each for each in ("positions", "embedding", "projection") if each in own)
        part = next(named, "projection" if LAST.fullmatch(name) else "")
        return Role(side, part, "norm" if "norm" in own else "", kind, number)
    has_ffn = "ffn" in own or bool({"inner", "outer", "gate"} & own) or bool(re.search(r"\bw_?[123]\b", behind))
    is_fused = "qkv" in own and not has_ffn and ("qkv" in behind.lower() or _is_thrice(shape))
    is_attention = "attention" in own or is_fused  # its name states the results, not the part
    part = "cross" if "cross" in own else "attention" if is_attention else "ffn" if has_ffn else ""
    words_of_parts = [each for each in PARTS if each in own]
    if "norm" in own:
        what = f"{words_of_parts[0]}_norm" if words_of_parts else "norm"
        is_last = re.search(r"final|post", behind) is not None
        part = "ffn" if "ffn" in own or re.search("final", behind) else "" if is_last else part
        return Role(side, "attention" if re.search("input", behind) else part, what, kind, number)
    return Role(side, part, _what(part, own, words_of_parts, behind), kind, number)


def _is_thrice(shape: Shape) -> bool:
    """Return True if a matrix may be three square ones, and for all other shapes."""
    return len(shape) != 2 or max(shape) == 3 * min(shape)


def _what(part: str, words: frozenset[str], words_of_parts: Sequence[str], behind: str) -> str:
    """Return the tensor of a part that the words state, such as "query"; "" if they state none."""
    if part in ("attention", "cross"):
        if "qkv" in words or len(words_of_parts) == 3:
            return "qkv"
        if "kv" in words or list(words_of_parts) == ["key", "value"]:
            return "kv"
        return (
            words_of_parts[0]
            if len(words_of_parts) == 1
            else "output"
            if "output" in words and not words_of_parts
            else ""
        )
    if part != "ffn":
        return "output" if "output" in words and not words_of_parts else ""
    if {"gate", "inner"} <= words:
        return "gate_up"
    named = next((each for each in ("gate", "inner", "outer") if each in words), "")
    numbered = re.search(NUMBERED, behind)
    return named or (("inner", "outer")[int(numbered[1]) - 1] if numbered else "outer" if "output" in words else "")


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
        found |= MEANINGS.get(word, frozenset())
    return frozenset(found)
