"""Rules as plans: from names and shapes alone, and right for each kind of rule alone and in a row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from txport.checkpoints.weights.plan import Plan, plan
from txport.models.rules import (
    Concat,
    Constant,
    Drop,
    Multiply,
    Pad,
    Permute,
    Rename,
    Reshape,
    Rule,
    Settle,
    Shift,
    Spare,
    Split,
    Squeeze,
    Take,
    Tie,
    Transpose,
    Unstack,
)


class Holder(nn.Module):
    """A module with parameters of these names and shapes; `tied` is a second name of the first one."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], tied: str = "") -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
        if tied:
            self.register_parameter(tied, next(self.parameters()))


def numbered(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def planned(rules: Sequence[Rule], weights: Mapping[str, Tensor], model: nn.Module) -> Plan:
    return plan(rules, {name: tuple(tensor.shape) for name, tensor in weights.items()}, model)


def made(rules: Sequence[Rule], weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> list[Tensor]:
    found = planned(rules, weights, Holder(shapes))
    assert found.problems() == []
    assert found.used == frozenset(range(len(rules)))
    assert {len(pieces) for pieces in found.made.values()} == {1}
    return [found.tensor(name, weights) for name in shapes]


def test_each_rule_makes_of_a_tensor_what_it_says() -> None:
    whole = numbered(12, 2)
    stack = numbered(3, 2, 4)
    cube = numbered(1, 4, 1)
    q = {"q": (4, 2)}
    k = {"k": (4, 2)}
    v = {"v": (4, 2)}
    to = ("q", "k", "v")
    cases: list[tuple[list[Rule], dict[str, Tensor], dict[str, tuple[int, ...]], list[Tensor]]] = [
        ([Rename("a", "q")], {"a": whole}, {"q": (12, 2)}, [whole]),
        ([Transpose("a"), Rename("a", "q")], {"a": whole}, {"q": (2, 12)}, [whole.t()]),
        ([Split("qkv", to)], {"qkv": whole}, q | k | v, [whole[:4], whole[4:8], whole[8:]]),
        ([Split("qkv", to, axis=-1)], {"qkv": whole.t()}, {"q": (2, 2), "k": (2, 4), "v": (2, 6)},
         [whole[:2].t(), whole[2:6].t(), whole[6:].t()]),
        ([Split("qkv", to), Transpose("^[qkv]$")], {"qkv": whole}, {"q": (2, 2), "k": (2, 4), "v": (2, 6)},
         [whole[:2].t(), whole[2:6].t(), whole[6:].t()]),
        ([Split("qkv", to, groups=2)], {"qkv": whole}, q | k | v,
         list(whole.view(2, 3, 2, 2).transpose(0, 1).reshape(3, 4, 2))),
        ([Split("qkv", to, groups=2)], {"qkv": whole}, {"q": (8, 2), "k": (2, 2), "v": (2, 2)},
         [whole[[0, 1, 2, 3, 6, 7, 8, 9]], whole[[4, 10]], whole[[5, 11]]]),
        ([Unstack(r"s", "t{}")], {"s": stack}, {"t0": (2, 4), "t1": (2, 4), "t2": (2, 4)}, list(stack)),
        ([Concat(("k$", "q$"), "x")], {"q": stack[0], "k": stack[1]}, {"x": (4, 4)}, [torch.cat([stack[1], stack[0]])]),
        ([Concat(("k$", "q$"), "x", -1), Transpose("x")], {"q": stack[0], "k": stack[1]}, {"x": (8, 2)},
         [torch.cat([stack[1], stack[0]], 1).t()]),
        ([Permute("x", (2, -1, 2), (0, 2, 1)), Rename("x", "y")], {"x": whole}, {"y": (12, 2)},
         [whole[[0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]]]),
        ([Squeeze("x"), Rename("x", "y")], {"x": cube}, {"y": (4,)}, [cube.view(4)]),
        ([Shift("x", 1.0), Rename("x", "y")], {"x": cube}, {"y": (1, 4, 1)}, [cube + 1]),
        ([Multiply("x", 0.5), Rename("x", "y")], {"x": cube}, {"y": (1, 4, 1)}, [cube * 0.5]),
        ([Reshape("x", (4, -1)), Rename("x", "y")], {"x": whole}, {"y": (4, 6)}, [whole.reshape(4, 6)]),
        ([Pad("x", 14, 7.0), Rename("x", "y")], {"x": whole}, {"y": (14, 2)},
         [torch.cat([whole, torch.full((2, 2), 7.0)])]),
        ([Take("x", 2), Rename("x", "y")], {"x": whole}, {"y": (2,)}, [whole[2]]),
        ([Drop("x"), Constant("y|z", 3.0)], {"x": cube}, {"y": (2,)}, [torch.full((2,), 3.0)]),
        ([Tie("y", "x")], {"x": cube}, {"x": (1, 4, 1), "y": (1, 4, 1)}, [cube, cube]),
        ([Rename("^x$", "y"), Rename("^z$", "x"), Settle(), ], {"x": cube, "z": whole},
         {"x": (12, 2), "y": (1, 4, 1)}, [whole, cube]),
    ]  # fmt: skip
    for rules, weights, shapes, expected in cases:
        for got, wanted in zip(made(rules, weights, shapes), expected, strict=True):
            assert torch.equal(got, wanted), rules


def test_no_data_is_read_for_a_plan_and_one_tensor_at_a_time_after_it() -> None:
    read: list[str] = []

    class Watched(dict[str, Tensor]):
        def __getitem__(self, name: str) -> Tensor:
            read.append(name)
            return super().__getitem__(name)

    weights = Watched({"qkv": numbered(6, 2), "n": numbered(3)})
    found = plan([Split("qkv", ("q", "k"))], {"qkv": (6, 2), "n": (3,)}, Holder({"q": (2, 2), "k": (4, 2), "n": (3,)}))
    assert read == []
    assert torch.equal(found.tensor("k", weights), numbered(6, 2)[2:])
    assert read == ["qkv"]


def test_everything_that_does_not_fit_is_said_at_once() -> None:
    shapes = {"q": (2, 2), "k": (2, 2), "n": (3,), "lost": (1,), "x": (4,)}
    weights = {"qk": numbered(5, 2), "n": numbered(4), "odd": numbered(1), "old": numbered(1), "head.w": numbered(1)}
    rules = [Split("qk", ("q", "k")), Drop("old"), Spare("head"), Concat(("qk", "zz"), "x"), Constant("x")]
    found = planned(rules, weights, Holder(shapes))
    assert found.problems() == [
        "missing lost (1,)",
        "unexpected odd (1,)",
        "n has shape (4,), expected (3,)",
        "'qk' of shape (5, 2) must hold 2 + 2 rows",
    ]
    assert (found.dropped, found.spare, found.used) == (("old",), ("head.w",), {0, 1, 2, 4})


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (Reshape("x", (5, -1)), r"'x' of shape \(6, 2\) can't have the shape \(5, -1\)"),
        (Reshape("x", (4, 4)), r"'x' of shape \(6, 2\) can't have the shape \(4, 4\)"),
        (Pad("x", 4), r"'x' of shape \(6, 2\) must have at most 4 rows"),
    ],
)
def test_a_shape_that_a_rule_can_t_make_is_told(rule: Rule, told: str) -> None:
    (problem,) = planned([rule, Rename("x", "y")], {"x": numbered(6, 2)}, Holder({"y": (4, 4)})).problems()
    assert re.search(told, problem)


def test_tied_tensors_stand_under_one_name_and_must_be_equal() -> None:
    model = Holder({"a": (2, 2), "n": (1,)}, tied="b")
    one = numbered(2, 2)
    weights = {"n": numbered(1), "x": one, "b": one.clone()}
    found = planned([Rename("x", "a")], weights, model)
    assert found.problems() == []
    assert torch.equal(found.tensor("a", weights), one)
    with pytest.raises(ValueError, match="'x' and 'b' must be one tensor, but differ"):
        found.tensor("a", {**weights, "b": one + 1})
