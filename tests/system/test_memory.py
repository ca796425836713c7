"""What does not fit into memory is refused before anybody tries."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import tiny_config, tiny_model
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.errors import ConfigError, OutOfMemoryError, TooLargeError
from txport.models.architectures.transformer import TransformerConfig
from txport.system import memory

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))
from txport.system.memory import available
print(available())
"""


@pytest.mark.parametrize(("size", "text"), [(0, "0 bytes"), (999, "999 bytes"), (4096, "4.1 kB"), (3 << 60, "3.46 EB")])
def test_sizes_are_readable(size: int, text: str) -> None:
    assert memory.readable(size) == text


def test_a_limit_of_the_process_counts() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], check=True, capture_output=True, text=True)
    assert 0 < int(done.stdout) < 1 << 33
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "max").write_text("3000000\n")
    (tmp_path / "current").write_text("1000000\n")
    names = ("active_file", "inactive_file")
    files = tuple(str(tmp_path / name) for name in ("max", "current", "stat"))
    monkeypatch.setattr(memory, "CGROUPS", ((*files, names),))
    assert memory.available() == 2_000_000
    (tmp_path / "stat").write_text("anon 5\nactive_file 100000\ninactive_file 200000\n")
    assert memory.available() == 2_300_000  # the cache of files gives way
    (tmp_path / "max").write_text("max\n")
    found = memory.available()
    assert found is None or found > 2_000_000


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"d_model": 2**40, "heads": 8}, "d_model must be at most 16777216, got 1099511627776"),
        ({"max_length": 10**12}, "max_length must be at most 1048576, got 1000000000000"),
        ({"encoder_layers": 10**9}, "encoder_layers must be at most 1024"),
        ({"target_vocab_size": 2**50, "source_vocab_size": 2**50}, "source_vocab_size must be at most 16777216"),
        ({"feed_forward": 10**4000}, "feed_forward must be at most 16777216"),
    ],
)
def test_sizes_that_no_model_has_are_no_config(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        tiny_config(**sizes)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "sizes",
    [{"source_vocab_size": 1 << 24, "target_vocab_size": 1 << 24, "d_model": 1 << 18}, {"feed_forward": 1 << 24}],
)
def test_a_model_that_no_machine_holds_is_refused(sizes: dict[str, int], tmp_path: Path) -> None:
    """Without making it, or a table of its positions."""
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config()))
    large = tiny_config(**{"d_model": 1 << 18, "heads": 2, **sizes})
    (tmp_path / "toy/config.json").write_text(json.dumps(large.to_dict()))
    with pytest.raises(TooLargeError, match=r"needs .* TB in fp32, the most that is taken is 8\.8 TB; check its width"):
        load_checkpoint(str(tmp_path / "toy"))


def test_a_model_that_this_machine_can_not_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config()))
    large = TransformerConfig(source_vocab_size=10**6, target_vocab_size=10**6, d_model=4096, heads=64)
    (tmp_path / "toy/config.json").write_text(json.dumps(large.to_dict()))
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    with pytest.raises(OutOfMemoryError, match=r"needs .* GB of memory, and 1 GB are free here; free some, or take"):
        load_checkpoint(str(tmp_path / "toy"))
