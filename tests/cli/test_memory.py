"""Where memory is at its end, or input has none: one line and an exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import ENVIRONMENT, SCRIPT, assert_one_line, run
from tests.tiny import tiny_config, tiny_model, unproven
from txport import runtimes
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import save_checkpoint
from txport.cli import textio
from txport.proof.parity.check import no_crash
from txport.runtimes.ort.onnx_runtime import ort
from txport.system.machine import is_out_of_memory

resource = pytest.importorskip("resource")
LIMIT = "import resource, sys, {first}\nresource.setrlimit(resource.RLIMIT_AS, (({more} << 20) + {held}, -1))\n"
HELD = "int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()"


def limited(more: int, first: str = "txport.api.model, onnxruntime, tokenizers") -> str:
    """So many MB beyond what the imports hold."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("what a process holds is read where the system shows it")
    code = LIMIT.format(first=first, more=more, held=HELD)
    return "import os; os.environ['ORT_DISABLE_TELEMETRY'] = '1'\n" + code


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose embedding takes 32 MB: how little memory is left for small things, no library bears."""
    folder = tmp_path_factory.mktemp("wide") / "toy"
    save_checkpoint(folder, tiny_model(tiny_config(source_vocab_size=500_000, tied="target")))
    return folder


# Its file does not fit, or what ONNX Runtime makes of it.
@pytest.mark.parametrize(("target", "more"), [("portable", 20), ("portable", 45), ("cpu", 20)])
def test_a_model_that_does_not_fit(target: str, more: int, wide: Path, tmp_path: Path) -> None:
    bundle = unproven(wide, tmp_path / "out", target=target)
    done = run("run", bundle.path, "--ids", "5 6 7", "--threads", 1, before=limited(more))
    assert_one_line(done, "not enough memory here", 1)


def test_a_batch_that_does_not_fit(bundle: Bundle, tmp_path: Path) -> None:
    """Memory is at its end during the search, when the session runs."""
    lines = tmp_path / "lines"
    lines.write_text("badbadbadbadbadbadbad\n" * 15_000)
    options = ["--batch-size", 15_000, "--beams", 12, "--threads", 1, "--max-new-tokens", 20]
    done = run("run", bundle.path, "--input", lines, *options, before=limited(100))
    assert_one_line(done, "not enough memory here", 1)
    assert "smaller batches" in done.stderr


def test_an_export_that_does_not_fit(wide: Path, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    out = tmp_path / "tree" / "out"
    done = run("export", wide, out, before=limited(60, "torch, txport.proof.fallback, tokenizers"))
    assert_one_line(done, "memory", 1)
    assert list((tmp_path / "tree").iterdir()) == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("std::bad_alloc"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate"), True),
        (RuntimeError("Failed to allocate memory for requested buffer of size 99"), True),
        (RuntimeError("pthread_create failed, error code: 11"), False),
        (RuntimeError("can't start new thread"), True),
        (SystemError("error return without exception set"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError(2, "out of memory.txt"), False),
        (ValueError("shapes differ"), False),
        (KeyboardInterrupt("out of memory"), False),
    ],
)
def test_a_lack_of_memory_is_known_by_what_libraries_say(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def test_it_is_no_verdict_on_a_graph(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="bad_alloc"), no_crash("the graph"):
        raise RuntimeError("std::bad_alloc")

    def no_room(*_: object, **__: object) -> None:
        raise RuntimeError("bad allocation")

    monkeypatch.setattr(ort, "InferenceSession", no_room)
    with pytest.raises(MemoryError, match=r"can't load .*: bad allocation"):
        runtimes.load("ort", bundle)


def test_an_input_without_lines_is_refused_at_once(bundle: Bundle) -> None:
    endless = subprocess.Popen(["yes | tr -d '\\n'"], shell=True, stdout=subprocess.PIPE)  # noqa: S602
    done = subprocess.run(
        [SCRIPT, "run", bundle.path], stdin=endless.stdout, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert endless.stdout is not None
    endless.stdout.close()
    endless.wait(timeout=60)
    assert_one_line(done, "standard input, line 1: longer than 4000000 bytes, expected one text a line", 2)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="an endless file")
def test_so_is_an_endless_file(bundle: Bundle) -> None:
    assert_one_line(run("run", bundle.path, "--input", "/dev/zero"), "/dev/zero, line 1: longer than 4000000 bytes", 2)


def test_the_longest_line_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a" * (textio.LONGEST_LINE - 1) + b"\nb\n")
    texts, count = textio.open_texts((), [file])
    assert ([len(text) for text in texts], count) == ([textio.LONGEST_LINE - 1, 1], 2)
    assert sys.maxsize > textio.LONGEST_LINE
