from __future__ import annotations

import pytest

from tests.proof.few import draw_few


@pytest.fixture
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_few(monkeypatch)
