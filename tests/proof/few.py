"""Fewer cases, for tests in which a fault has to be found: what two of the cases show is shown by all of them."""

from __future__ import annotations

import pytest

from txport.proof.parity import cases, check


def draw_few(patch: pytest.MonkeyPatch) -> None:
    """Let proofs draw two cases alone: a row of one token, and rows that are padded."""
    draw = cases.draw_cases
    patch.setattr(check, "draw_cases", lambda *given: draw(*given)[1:3])
