"""The comparison finds a token, an output or an end that is not the recorded one, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import txport
from tests.agreement.__main__ import table
from tests.agreement.asked import FILL, INPUTS, SEARCHES
from tests.agreement.cells import Cell, Version, without_ties
from tests.agreement.compared import OURS, Difference, Said, answer, compare
from tests.pages import split_page, write_table
from tests.recorded import whole
from tests.seeded import bundle_of
from txport.checkpoints.checkpoint import load_checkpoint

INPUT = [[7, 8, 9, FILL], [10, 11, 12, 13]]


def filled(rows: list[list[int]]) -> Any:
    longest = max(map(len, rows))
    return np.array([[*row, *[FILL] * (longest - len(row))] for row in rows])


def recorded(name: str, place: Path) -> tuple[Path, Said]:
    """A folder, and what PyTorch says of it, as `tests.agreement.original` records it."""
    folder = whole(name, place / name)
    bundle = bundle_of(load_checkpoint(str(folder)), place / "bundle", "portable")
    model = txport.load(bundle.path, runtime="torch", checkpoint=folder)
    sources = [[token for token in row if token != FILL] for row in INPUT]
    said: Said = {"inputs": np.array(INPUT)}
    if model.facts.ability:
        outputs = [model.runtime.infer(np.array([ids]), np.array([len(ids)])) for ids in sources]
        said |= {f"outputs.{number}": np.squeeze(next(iter(each.values()))) for number, each in enumerate(outputs)}
        return folder, said
    for search, asked in SEARCHES.items():
        found = model.search(sources, **{OURS.get(key, key): value for key, value in asked.items()})
        said |= {search: filled([[*each[0].tokens] for each in found])}
    return folder, said


def differences(folder: Path, said: Said) -> list[Difference]:
    np.savez(f"{folder}.npz", **said)
    return compare(folder, "portable")


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_a_token_that_differs_is_found(name: str, tmp_path: Path) -> None:
    folder, said = recorded(name, tmp_path)
    assert differences(folder, said) == []
    beams = said["beams"].copy()
    beams[1, 2] += 1
    (found,) = differences(folder, {**said, "beams": beams})
    assert (found.search, found.number) == ("beams", 1)
    assert found.text == f"{[*found.ours]} for {[each for each in beams[1].tolist() if each != FILL]}"


def test_an_output_that_differs_is_found(tmp_path: Path) -> None:
    folder, said = recorded("bert", tmp_path)
    assert differences(folder, said) == []
    outputs = said["outputs.1"].copy()
    outputs[0, 3] += 3e-5 * np.abs(outputs).max()
    (found,) = differences(folder, {**said, "outputs.1": outputs})
    assert (found.search, found.number, found.text) == ("outputs", 1, "3e-05 of the largest off")


def test_an_answer_ends_with_its_first_end_token() -> None:
    assert answer([5, 2, 0, 0], {2}) == (5, 2)
    assert answer([5, 6, FILL], {2}) == (5, 6)


class Asked(Version):
    def ask(self, *arguments: str, given: Any = None) -> str:
        assert arguments == ("--near",)
        return json.dumps([[[4, 5, 6]] if number == 1 else [] for _, _, number in given])


def test_only_what_the_original_nearly_says_is_a_near_tie() -> None:
    version = Asked("4.57.6", {"small": "gpt2"}, "python", Path())
    near, other = (Difference("beams", number, (4, 5), "other tokens") for number in (1, 2))
    (cell,) = without_ties(version, [Cell(version, "small", "cpu", (near, other))])
    assert (cell.ties, cell.differences) == ((near,), (other,))
    assert list(table([cell]))[-1] == f"| `gpt2` | 1 | {INPUTS - 1} of {INPUTS} (1 near-tie) |"


def test_a_table_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- t -->\nold\n<!-- /t -->\nafter\n", encoding="utf-8")
    for lines in (["new", "lines"], ["newer"]):
        write_table(page, "t", lines)
    assert page.read_text(encoding="utf-8") == "before\n<!-- t -->\nnewer\n<!-- /t -->\nafter\n"
    assert split_page(page, "t") == ("before\n<!-- t -->\n", "<!-- /t -->\nafter\n")
