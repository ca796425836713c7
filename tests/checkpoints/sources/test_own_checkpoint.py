"""A checkpoint of the user's own, by `txport.toml`: right whatever the layout, and every mistake is one line."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.recorded import FAMILIES
from tests.tiny import tiny_config, tiny_model
from txport.checkpoints.checkpoint import expected_tensors, load_checkpoint
from txport.checkpoints.folder import digest
from txport.checkpoints.sources.rules import OPERATIONS, parse_rule, written
from txport.errors import CheckpointError, ConfigError
from txport.models.architectures.transformer import Transformer
from txport.models.names import CONFIG, RULES, WEIGHTS
from txport.models.rules import (
    Concat,
    Constant,
    Permute,
    Rename,
    Rule,
    Shift,
    Split,
    Squeeze,
    Take,
    Tie,
    Transpose,
    Unstack,
)
from txport.system.documents import parse_toml

HEADS = 2
Layout = dict[str, Tensor]


def tensors_of(model: Transformer) -> Layout:
    return {name: tensor.detach().clone() for name, tensor in expected_tensors(model).items()}


def describe(model: Transformer, rules: list[Rule], more: str = "") -> str:
    """The text of a `txport.toml`."""
    config = "\n".join(
        f"{key} = {json.dumps(each)}" for key, each in model.config.to_dict().items() if each is not None
    )
    tables = "\n".join(f"\n[[rule]]\n{written(rule)}" for rule in rules)
    return f'architecture = "transformer"\n{more}\n[config]\n{config}\n{tables}\n'


def save(folder: Path, weights: Layout, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
    (folder / RULES).write_text(text, encoding="utf-8")
    return folder


def logits_of(model: Any) -> Tensor:
    ids = torch.tensor([[5, 9, 7, 12], [4, 8, 6, 0]])
    with torch.no_grad():
        found: Tensor = model(ids, torch.tensor([4, 3]), ids[:, :3])
    return found


# ------------------------------------------------------------------------------------- layouts, and the rules for them
# Each changes a checkpoint in place, and returns the rules that undo it.


def renamed(weights: Layout, rng: random.Random) -> list[Rule]:
    old, new = rng.choice([("encoder.", "enc-"), ("attention.", "attn_"), ("weight", "gamma"), ("feed_forward", "ffn")])
    for name in list(weights):
        weights[name.replace(old, new)] = weights.pop(name)
    return [Rename(new.replace(".", r"\."), old)]


def transposed(weights: Layout, rng: random.Random) -> list[Rule]:
    part = rng.choice(["query", "inner", "cross_attention", "weight"])
    for name, tensor in weights.items():
        if part in name and tensor.dim() == 2:
            weights[name] = tensor.t()
    return [Transpose(part)]


def fused(weights: Layout, rng: random.Random) -> list[Rule]:
    parts = ["query", "key", "value"]
    groups = rng.choice([1, HEADS])
    axis = rng.choice([0, -1])
    rng.shuffle(parts)
    for name in [name for name in weights if f".{parts[0]}." in name]:
        several = [weights.pop(name.replace(parts[0], part)) for part in parts]
        if axis == -1:
            several = [each.t() if each.dim() == 2 else each for each in several]
        rows = [each.movedim(axis, 0).unflatten(0, (groups, -1)) for each in several]
        weights[name.replace(parts[0], "mix")] = torch.cat(rows, 1).flatten(0, 1).movedim(0, axis)
    rules: list[Rule] = [Split("mix", tuple(parts), axis, groups)]
    return [*rules, Transpose("attention.(query|key|value)")] if axis == -1 else rules


def stacked(weights: Layout, rng: random.Random) -> list[Rule]:
    side = rng.choice(["encoder", "decoder"])
    first = [name for name in weights if name.startswith(f"{side}.0.")]
    for name in first:
        layers = [weights.pop(name.replace(".0.", f".{at}.", 1)) for at in (0, 1)]
        weights[name.replace(".0.", ".all.", 1)] = torch.stack(layers)
    return [Unstack(rf"^{side}\.all\.", f"{side}.{{}}.")] if first else []


def in_parts(weights: Layout, rng: random.Random) -> list[Rule]:
    axis = rng.choice([0, -1])
    for name in [name for name in weights if name.endswith("outer.weight")]:
        tensor = weights.pop(name)
        first, second = tensor.split([5, tensor.shape[axis] - 5], axis)
        weights[name + ".a"] = first
        weights[name + ".b"] = second
    return [Concat((r"\.a$", r"\.b$"), "", axis)]


def pairs_turned(weights: Layout, rng: random.Random) -> list[Rule]:
    for name, tensor in weights.items():
        if "cross_attention.key" in name:
            weights[name] = tensor.unflatten(0, (HEADS, 2, 4)).transpose(1, 2).flatten(0, 2)
    return [Permute(r"cross_attention\.key", (HEADS, -1, 2), (0, 2, 1))]


def shifted(weights: Layout, rng: random.Random) -> list[Rule]:
    for name, tensor in weights.items():
        if "norm.weight" in name:
            weights[name] = tensor - 1
    return [Shift(r"norm\.weight", 1.0)]


def with_axes(weights: Layout, rng: random.Random) -> list[Rule]:
    for name, tensor in weights.items():
        if "bias" in name:
            weights[name] = tensor[None, :, None]
    return [Squeeze("bias")]


def in_a_table(weights: Layout, rng: random.Random) -> list[Rule]:
    for name, tensor in weights.items():
        if "value.bias" in name:
            weights[name] = torch.stack([tensor + 1, tensor])
    return [Take(r"value\.bias", 1)] if any("value.bias" in name for name in weights) else []


def untold(weights: Layout, rng: random.Random) -> list[Rule]:
    return [Constant(r"no\.such|decoder_norm\.bias", 0.5)] if weights.pop("decoder_norm.bias", None) is not None else []


LAYOUTS: list[Callable[[Layout, random.Random], list[Rule]]] = [
    transposed, pairs_turned, shifted, untold, in_parts, fused, in_a_table, renamed, stacked, with_axes,
]  # fmt: skip


@settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], derandomize=True
)
@given(
    kinds=st.lists(st.sampled_from(LAYOUTS), max_size=5, unique=True),
    seed=st.integers(0, 999),
    is_pickled=st.booleans(),
)
def test_any_layout_loads_by_its_rules_to_the_same_logits(
    kinds: list[Callable[[Layout, random.Random], list[Rule]]],
    seed: int,
    is_pickled: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = tiny_model(tiny_config(), seed)
    rng = random.Random(seed)
    with torch.no_grad():
        model.decoder_norm.bias.fill_(0.5)
    weights = tensors_of(model)
    rules = []
    if with_axes in kinds and stacked in kinds:
        kinds.remove(with_axes)
    for kind in sorted(kinds, key=LAYOUTS.index):
        rules = [*kind(weights, rng), *rules]
    text = describe(model, rules, "weights = 'm.pt'\nat = 'net.state'\n" if is_pickled else "")
    folder = save(tmp_path_factory.mktemp("own"), weights, text)
    if is_pickled:
        (folder / WEIGHTS).unlink()
        torch.save({"net": {"state": weights}, "step": 3}, folder / "m.pt")
    loaded = load_checkpoint(str(folder))
    assert loaded.config == model.config
    assert torch.equal(logits_of(loaded.model), logits_of(model))


def test_a_rule_is_written_as_it_is_read() -> None:
    rules: list[Rule] = [
        Rename(r"^a\.'(\d+)", r"b.\1"), Split("x", ("q", "k"), -1, 4), Constant("y"), Constant("y", -1.5), Take("z"),
        Tie("a", "b"), Permute("p", (2, -1), (1, 0), -1), Concat(("a", "b"), "c"), Rename("\t\"\\\\", ""),
    ]  # fmt: skip
    for rule in rules:
        assert parse_rule(parse_toml(written(rule), Path("x"))) == rule
    assert {type(rule).__name__.lower() for rule in rules} <= set(OPERATIONS)


# ----------------------------------------------------------------------------------------------------------- mistakes


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Layout, Transformer]:
    model = tiny_model(tiny_config())
    weights = {f"net.{name}": tensor for name, tensor in tensors_of(model).items()}
    return save(tmp_path / "own", weights, describe(model, [Rename(r"^net\.", "")])), weights, model


def test_everything_that_makes_it_is_in_its_digest(own: tuple[Path, Layout, Transformer]) -> None:
    folder, _, model = own
    seen = {digest(str(folder))}
    (folder / RULES).write_text(describe(model, [Rename(r"^net\.", ""), Rename("^net", "")]))
    seen.add(digest(str(folder)))
    (folder / WEIGHTS).rename(folder / "other.safetensors")
    (folder / RULES).write_text(describe(model, [Rename(r"^net\.", "")], "weights = ['other.safetensors']\n"))
    loaded = load_checkpoint(str(folder))
    assert torch.equal(logits_of(loaded.model), logits_of(model))
    seen.add(loaded.sha256)
    save_file({}, folder / "other.safetensors")
    seen.add(digest(str(folder)))
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("architecture = ", "architektur = ", r"line 1: unknown key 'architektur'; there are architecture, base"),
        ("architecture = ", "# a\u2028b\narchitektur = ", r"line 2: unknown key 'architektur'"),
        ('"transformer"', '"transfomer"', r"line 1: unknown architecture 'transfomer'; there are "),
        ('architecture = "transformer"', "", r": give one of architecture and base"),
        ('"transformer"', '"t5"\nbase = "hugging-face:t5"', r"line 2: give one of architecture and base"),
        ('architecture = "transformer"', 'base = "hf:t5"', r"line 1: base must be hugging-face: and a model_type"),
        ('architecture = "transformer"', 'base = "hugging-face:x"', r"line 1: unknown model_type 'x'"),
        ("max_length = 24", "max_length = 0", r"line 12: max_length must be at least 1, got 0"),
        ("heads = 2", "haeds = 2", r"line 7: unknown key 'haeds' \(did you mean 'heads'\?\)"),
        ("heads = 2", "heads = 1979-05-27", r"line 7: heads must be int"),
        ("heads = 2", 'heads = "QUESTION: 2 or 4?"', r": answer its questions first: line 7: 2 or 4\?$"),
        ("[config]", "config = 3\n[[rul]]", r"line 2: unknown key|unknown key 'rul'"),
        ("pattern = '^net\\.'", "pattern = '^net\\.('", r"line 33: rename .* is no regular expression"),
        ("to = ''", "to = '\\1'", r"line 33: rename .* is no regular expression: invalid group reference"),
        ("to = ''", "two = ''", r"line 33: rename has no 'two'; it has pattern, to"),
        ("to = ''", "to = 3", r"line 33: rename.to must be str, got 3"),
        (", to = ''", "", r"line 33: rename needs to"),
        ("rename =", "renam =", r"line 33: unknown rule 'renam'; there are rename, drop"),
        ("rename =", "drop = 'a'\nrename =", r"line 33: a rule must be one of rename, drop"),
        ("[[rule]]\n", "[[rule]]\ntake = { pattern = 'a', row = -1 }\n[[rule]]\n", r"line 33: take.row must be at"),
        ("[[rule]]\n", "[[rule]]\nshift = { pattern = 'a', by = nan }\n[[rule]]\n", r"line 33: shift.by must be float"),
        ("[[rule]]\n", "[[rule]]\nsplit = { pattern = 'a', to = ['b'] }\n[[rule]]\n", r"line 33: split must have two"),
        ("[[rule]]\n", "[[rule]]\npermute = { pattern = 'a', view = [2, -1], order = [0, 2] }\n[[rule]]\n",
         r"line 33: permute.order must be the numbers of the 2 axes"),
        ("[[rule]]\n", "[[rule]]\npermute = { pattern = 'a', view = [-1, -1], order = [1, 0] }\n[[rule]]\n",
         r"line 33: permute.view must be sizes"),
        ("[[rule]]\n", "[[rule]]\nreshape = { pattern = 'a', shape = [-1, -1] }\n[[rule]]\n",
         r"line 33: reshape.shape must be sizes"),
        ("[[rule]]\n", "[[rule]]\npad = { pattern = 'a', rows = 0 }\n[[rule]]\n", r"line 33: pad.rows must be at"),
        ("[config]", "[config", r"txport\.toml is not TOML: .*line 3"),
        ("[config]", "at = 3\n[config]", r"line 3: at must be a text"),
        ("[config]", "weights = '../w.safetensors'\n[config]", r"must name weights as files beside it, got '\.\./w"),
        ("[config]", "weights = 'w.safetensors'\n[config]", r"w\.safetensors is missing, which txport\.toml names"),
        ("[config]", f"a = {'[' * 5000}{']' * 5000}\n[config]", r"is nested too deep|is not TOML"),
        ("[config]", f"a = {'9' * 5000}\n[config]", r"is not TOML|unknown key"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(
    old: str, new: str, message: str, own: tuple[Path, Layout, Transformer]
) -> None:
    folder = own[0]
    text = (folder / RULES).read_text()
    assert old in text
    (folder / RULES).write_text(text.replace(old, new, 1))
    with pytest.raises((ConfigError, CheckpointError), match=message) as caught:
        load_checkpoint(str(folder))
    assert RULES in str(caught.value)
    assert "\n" not in str(caught.value)


SNIPPETS = [
    b"",
    b"]",
    b"[[rule]]",
    b"\n",
    b"=",
    b"'",
    b"{",
    b"[[",
    b"(",
    b"nan",
    b"-1",
    b"\xff",
    b"\\1",
    b"#",
    b"QUESTION",
]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_whatever_stands_in_the_file_ends_in_one_line(
    data: st.DataObject, own: tuple[Path, Layout, Transformer]
) -> None:
    folder, _, model = own
    text = bytearray(describe(model, [Rename(r"^net\.", ""), Split("qkv", ("q", "k"), 0, 2)]).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 12))
        text[at : at + length] = data.draw(st.sampled_from(SNIPPETS))
    (folder / RULES).write_bytes(text)
    try:
        load_checkpoint(str(folder))
    except (ConfigError, CheckpointError) as error:
        told = str(error)
    else:
        told = ""
    assert "\n" not in told


# -------------------------------------------------------------------------------------------------------------- bases


def test_a_base_is_a_family_whose_rules_come_after_the_file_s(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "llama", tmp_path / "llama"))
    expected = load_checkpoint(str(folder)).model.state_dict()
    values = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**values, "model_type": "mine", "architectures": []}))
    weights = {f"mine.{name}": tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    with pytest.raises(ConfigError, match="unknown model_type 'mine'"):
        load_checkpoint(str(folder))
    save(folder, weights, "base = 'hugging-face:llama'\n[[rule]]\nrename = { pattern = '^mine.', to = '' }\n")
    loaded = load_checkpoint(str(folder)).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
