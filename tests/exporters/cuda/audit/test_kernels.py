"""The table of kernels says what the installed wheel's provider says of itself."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import onnxruntime
import pytest

from tests.fake_cuda.fixture import FakeCuda
from txport.exporters.cuda.audit.kernels import FUNCTIONS, KERNELS, OPSETS
from txport.exporters.cuda.audit.values import OF_SCHEMA

MEASURED = "1.31.1"  # the version of ONNX Runtime of which the table speaks
ENDLESS = 2**31 - 1
Combination = frozenset[tuple[str, str]]


class Registered:
    """What the provider registers, by operator and version; types that the table has no name for are left out."""

    def __init__(
        self, kernels: list[tuple[str, int, int, dict[str, list[str]]]], versions: dict[str, list[int]]
    ) -> None:
        self._versions = versions
        self._kernels: dict[str, list[tuple[int, int, set[Combination]]]] = defaultdict(list)
        for operator, first, last, types in kernels:
            found = combinations({variable: names(each) for variable, each in types.items()})
            self._kernels[operator].append((first, last, found))

    def types(self, operator: str, opset: int) -> set[Combination]:
        """Of an operator as an opset has it: an endless range is of its first version alone."""
        limit = 1 if operator.startswith("com.microsoft.") else opset
        version = max(each for each in self._versions[operator] if each <= limit)
        ranges = self._kernels.get(operator, [])
        fits = [types for first, last, types in ranges if first == version or first < version <= last < ENDLESS]
        return set().union(*fits)


@pytest.fixture(scope="module")
def registered(fake_cuda: FakeCuda) -> Registered:
    [answer] = fake_cuda.ask({"do": "kernels"}, libraries=fake_cuda.libraries.everything)
    return Registered(**answer)


def names(types: list[str]) -> set[str]:
    return {OF_SCHEMA[each] for each in types if each in OF_SCHEMA and not OF_SCHEMA[each].startswith("float8")}


def combinations(types: dict[str, set[str]] | dict[str, frozenset[str]]) -> set[Combination]:
    every = product(*([(variable, each) for each in known] for variable, known in types.items()))
    return {frozenset(each) for each in every}


def without(found: set[Combination], variables: set[str]) -> set[Combination]:
    return {frozenset(pair for pair in each if pair[0] in variables) for each in found}


@pytest.mark.parametrize("opset", OPSETS)
def test_the_table_is_what_the_provider_registers(registered: Registered, opset: int) -> None:
    wrong = {}
    for operator, rows in KERNELS.items():
        said = set().union(*(combinations(dict(row)) for row in rows))
        found = without(registered.types(operator, opset), {variable for row in rows for variable in row})
        found = {each for each in found if not any(kind.startswith("float4") for _, kind in each)}
        if said - found or (onnxruntime.__version__ == MEASURED and found != said):
            wrong[operator] = sorted(map(sorted, said ^ found))[:8]
    assert wrong == {}


def test_functions_have_no_kernel_of_their_own(registered: Registered) -> None:
    assert all(not registered.types(operator, opset) for operator in FUNCTIONS for opset in OPSETS)
