"""Text for people can't steer their terminal, and says the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txport.system.terminal import one_line, printable, printable_json

STEERING = {"\x1b[31m": r"\x1b[31m", "a\rb": r"a\rb", "\x9b": r"\x9b", "\u202e": r"\u202e", "\udcff": r"\udcff"}


@pytest.mark.parametrize(("text", "shown"), STEERING.items())
def test_what_steers_a_terminal_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(categories=["L", "M", "N", "P", "S", "Zs", "Cf", "Cc", "Cs", "Zl", "Zp"])))
def test_nothing_else_is_changed_and_nothing_steering_is_left(text: str) -> None:
    left = printable(text)
    assert not {unicodedata.category(each) for each in left} & {"Cc", "Cs", "Zl", "Zp"}
    assert not {unicodedata.bidirectional(each) for each in left} & {"RLO", "LRO", "RLE", "LRE", "RLI", "LRI", "FSI"}
    assert printable(left) == left


@pytest.mark.parametrize("text", ["été", "日本語", "👩‍🚀", "שלום", "a\\x1b"])
def test_letters_of_any_alphabet_stay(text: str) -> None:
    assert printable(text) == one_line(text) == printable_json(text) == text


def test_kept_characters_stay_and_a_line_is_one() -> None:
    assert printable("a\tb\n\x07", keep="\t\n") == "a\tb\n\\x07"
    assert one_line(" a\n b\x1b\r\n") == r"a b\x1b"


@given(st.text())
def test_json_says_the_same(text: str) -> None:
    written = printable_json(json.dumps([text], ensure_ascii=False))
    assert json.loads(written) == [text]
    assert printable(written) == written


HELD = """
import os, sys
from txport.system.terminal import native_stderr_held, owns_stderr
owns_stderr.set({owns})
try:
    with native_stderr_held():
        os.write(2, b"native " + b"x" * {more})
        {fails} and 1 / 0
except ZeroDivisionError:
    pass
os.write(2, b"after")
"""


@pytest.mark.parametrize(
    ("owns", "fails", "written"), [(True, True, False), (True, False, True), (False, True, True), (False, False, True)]
)
def test_native_code_is_held_back_only_where_an_error_tells(owns: bool, fails: bool, written: bool) -> None:
    for more in (0, 200_000):  # more than a pipe holds
        code = HELD.format(owns=owns, fails=fails, more=more)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert done.stderr.startswith("native ") == written
        assert done.stderr.endswith("after")


def test_without_stderr_nothing_is_held() -> None:
    code = "import os; os.close(2)\n" + HELD.format(owns=True, fails=False, more=0).replace("os.write", "print or len")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_descriptors_are_given_back() -> None:
    code = HELD.format(owns=True, fails=False, more=0) + "\nprint(len(os.listdir('/proc/self/fd')))"
    if not os.path.isdir("/proc/self/fd"):  # noqa: PTH112
        pytest.skip("descriptors are counted where the system shows them")
    once = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    plain = subprocess.run(
        [sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"], capture_output=True, text=True
    ).stdout
    assert once == plain
