from __future__ import annotations

from tests.checkpoints.importing.conftest import run as run
