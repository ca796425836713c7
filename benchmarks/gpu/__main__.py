"""Proof and speed of cuda bundles on an NVIDIA GPU, beside PyTorch and CTranslate2 on the same GPU; one JSON file.

    python -m benchmarks.gpu [--results FOLDER] [--dry-run]

Works from the packages that are installed, without network, within --seconds. Exits 3 where there is no GPU that both
ONNX Runtime and PyTorch can use, 1 if a bundle does not compute what PyTorch computes. --dry-run goes through every
line on the CPU, with models so small that its figures mean nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

import txport
from benchmarks.gpu import figures, report
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.lines import G2P, LINES, PRECISIONS, Line, quick
from benchmarks.gpu.profile import profile_step
from benchmarks.gpu.sides import Place, Sides, sources_of
from benchmarks.peers.lines import AbsentError, read_test_split
from recipes.g2p_en import g2p
from txport import runtimes
from txport.api import model as api
from txport.api.release import load_checkpoint
from txport.bundles.bundle import Bundle
from txport.cli.guard import run_guarded
from txport.proof.proven import write
from txport.proof.reports import render
from txport.proof.verify.check import verify
from txport.system import machine

RESULTS = Path(__file__).parents[1] / "results"
SECONDS, QUICK_ROUNDS = 440.0, 2  # less than 8 minutes, including start and end
COPIED = {"cuda": 1 << 30, "cpu": 1 << 22}  # bytes, to measure a device's bandwidth
COPIES = 10
WORDS, QUICK_WORDS, AT_ONCE = 2_000, 12, 512
EXPORT, PROOF, PROFILE, ERRORS, SPEED = "export", "parity", "profile", "word error rate", "speed"
UNMADE = "its bundle was not made"
PRESUMED = {EXPORT: 20.0, PROOF: 30.0, PROFILE: 10.0, ERRORS: 60.0, SPEED: 75.0}  # seconds of the first task per kind


def progress(message: str) -> None:
    """Print progress with the time to stderr, so that a log shows how long each step takes."""
    click.echo(f"{datetime.datetime.now(tz=datetime.UTC):%H:%M:%S} {message}", err=True)


class Run:
    """One run of the benchmark: bundles, results of each bundle, and the time budget."""

    def __init__(self, place: Place, budget: Budget, lines: Sequence[Line], words: Mapping[str, Any] | None) -> None:
        self.place = place
        self.budget = budget
        self.lines = lines
        self.words = words
        checkpoints = dict.fromkeys(line.checkpoint for line in lines)
        self.proofs = [(checkpoint, precision) for precision in PRECISIONS for checkpoint in checkpoints]
        self.bundles: dict[str, Bundle | None] = {}  # None: the export failed; there is no second try
        self.unmade: dict[str, str] = {}  # measurements that lack a bundle
        self.about: dict[str, dict[str, Any]] = {}
        self.is_dry = place.runtime != "ort"

    def do(self, name: str, kind: str, work: Any) -> Any:
        """Run `work` within the time budget; return its result, or None if it failed or did not run."""
        return self.budget.run(name, kind, PRESUMED[kind] if not self.is_dry else 0.0, work)

    def export(self, checkpoint: str, precision: str) -> Bundle | None:
        """Return a bundle, exported at the first call, or None; g2p-en is a full export, with golden outputs."""
        name = f"{checkpoint.replace(':', '-')}-{precision}"
        if name not in self.bundles:
            work = partial(self._export, checkpoint, precision, self.place.work / name)
            made = self.bundles[name] = self.do(f"export {name}", EXPORT, work)
            if made is not None:
                self.about[name] = {"bundle": name}
        return self.bundles[name]

    def _export(self, checkpoint: str, precision: str, out: Path) -> Bundle:
        if checkpoint == G2P:
            return api.export(checkpoint, out, target="cuda", precision=precision)
        out.mkdir()
        return write(load_checkpoint(checkpoint), out, target="cuda", precision=precision)

    def prove(self, checkpoint: str, precision: str) -> None:
        """Record parity, verification if there are golden outputs, and the profile of a step."""
        bundle = self.export(checkpoint, precision)
        if bundle is None:
            self.unmade[f"parity of {checkpoint} {precision}"] = UNMADE
            return
        about = self.about[bundle.path.name]
        about["parity"] = self.do(f"parity of {bundle.path.name}", PROOF, partial(self._parity, bundle, checkpoint))
        if checkpoint == G2P:
            about["verify"] = self.do(f"verify {bundle.path.name}", PROFILE, partial(self._verify, bundle))
        line = max(self.lines, key=lambda each: each.rows)
        if not self.is_dry or precision == "fp32":  # the CPU has no kernels for other precisions
            work = partial(profile_step, bundle, line, self.place.device, self.place.work)
            about["step"] = self.do(f"profile {bundle.path.name}", PROFILE, work)

    def _parity(self, bundle: Bundle, checkpoint: str) -> dict[str, Any]:
        found = api.parity(bundle, checkpoint, {self.place.runtime: self.place.device})
        return {**found.summary(), **found.figures(), "worst": found.describe_worst(), "table": render.rows(found)}

    def _verify(self, bundle: Bundle) -> str:
        found = verify(bundle.path, runtime=self.place.runtime, provider=self.place.device)
        return "pass" if found.passed else f"fail: {found.wrong}"

    def errors(self, sides: Sides) -> dict[str, float] | None:
        """Return word error rates in percent of g2p-en in fp16 and of PyTorch in fp32 on the same device, or None."""
        if self.words is None:
            sides.absent["word error rate of g2p-en fp16"] = "the dictionary is not here; --words names its folder"
            return None
        bundle = self.export(G2P, "fp16")
        if bundle is None:
            self.unmade["word error rate of g2p-en fp16"] = UNMADE
            return None
        found: dict[str, float] | None = self.do(
            "word error rate of g2p-en fp16", ERRORS, partial(self._errors, bundle)
        )
        return found

    def _errors(self, bundle: Bundle) -> dict[str, float]:
        assert self.words is not None
        ours = txport.load(bundle.path, runtime=self.place.runtime, provider=self.place.device)
        theirs = txport.load(bundle.path, runtime="torch", provider=self.place.device)
        rates = {}
        for name, model in (("txport fp16", ours), ("PyTorch fp32", theirs)):
            results = model.generate(list(self.words), batch_size=AT_ONCE)
            outputs = {each.input: each.output.split() for each in results}
            rates[name] = g2p.score(dict(self.words), outputs).wer
        return rates

    def measure_all(
        self, sides: Sides, lines: Iterable[Line], speed: float, records: dict[str, dict[str, Any]]
    ) -> None:
        """Add the records of lines to `records`; `speed` is the bandwidth in bytes per second."""
        for line in lines:
            if found := self.measure(sides, line, speed):
                records[line.name] = found

    def measure(self, sides: Sides, line: Line, speed: float) -> dict[str, Any] | None:
        """Return the record of a line; None if it could not be measured."""
        bundle = self.export(line.checkpoint, line.precision)
        if bundle is None:
            self.unmade[line.name] = UNMADE
            return None
        sources = sources_of(line, bundle, self.words)
        found = self.do(line.name, SPEED, partial(sides.compare, line, bundle, sources))
        if found is None:
            return None
        size = figures.step_bytes(bundle, line)
        record = figures.line_record(line, found["seconds"], found["tokens"], size, speed)
        return {**record, **{name: found[name] for name in ("seconds", "seconds to be ready", "versions")}}


def bandwidth(device: str) -> float:
    """Return the bytes per second that a copy within the device's memory reads and writes."""
    source = torch.ones(COPIED[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    taken = []
    for _ in range(COPIES):
        wait()
        started = time.perf_counter()
        target.copy_(source)
        wait()
        taken.append(time.perf_counter() - started)
    return 2 * source.numel() / min(taken)


def describe(device: str) -> dict[str, Any]:
    """Return a description of the machine, its GPU and the driver."""
    found = {**machine.describe(), "python": platform.python_version(), "torch's CUDA": torch.version.cuda}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "capability": f"{properties.major}.{properties.minor}",
            "memory": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
        }
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            asked = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,clocks.max.mem", "--format=csv,noheader"]
            outputs = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20)
            found["driver, clocks"] = outputs.stdout.strip().splitlines()[0]
    return found


def dictionary(folder: Path | None, most: int) -> dict[str, Any] | None:
    """Return up to `most` words of the test split and their pronunciations; None if the dictionary is missing."""
    with contextlib.suppress(AbsentError):
        return dict(list(read_test_split(folder).items())[:most])
    return None


def all_of(run: Run) -> dict[str, Any]:
    """Run everything and return the result: a proof, the lines with requirements, then other proofs and lines."""
    here = describe(run.place.device)
    speed = bandwidth(run.place.device)
    rates = None
    records: dict[str, dict[str, Any]] = {}
    with Sides(run.place) as sides:
        for number, proof in enumerate(run.proofs):
            run.prove(*proof)
            if number == 0:
                run.measure_all(sides, [line for line in run.lines if line.is_required], speed, records)
            if proof == (G2P, "fp16"):
                rates = run.errors(sides)
        run.measure_all(sides, [line for line in run.lines if not line.is_required], speed, records)
        absent = sides.absent
    differences = {
        name: float(about["parity"]["worst_logit_difference"])
        for name, about in run.about.items()
        if about.get("parity")
    }
    worse = rates["txport fp16"] - rates["PyTorch fp32"] if rates else None
    return {
        "dry run": run.is_dry,
        "date": f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}",
        "machine": here,
        "versions": runtimes.versions_of(["ort", "torch"]),
        "bytes a second": speed,
        "bundles": list(run.about.values()),
        "word error rates": rates,
        "lines": list(records.values()),
        "requirements": figures.judgements(run.lines, records, differences, worse),
        "left out": run.budget.left_out,
        "failed": run.budget.failed,
        "absent": {**absent, **run.unmade},
    }


def peers_of(given: Path | None) -> Path | None:
    """Return a Python with CTranslate2: the given one, this one, or that of `make bench-peers`; None if missing."""
    if given is not None or importlib.util.find_spec("ctranslate2"):
        return given or Path(sys.executable)
    usual = Path(".venv-peers/bin/python")
    return usual if usual.exists() else None


@click.command(help=__doc__)
@click.option("--results", type=click.Path(file_okay=False, path_type=Path), help="Folder of the JSON file.")
@click.option("--seconds", type=click.FloatRange(1), default=SECONDS, show_default=True, help="Time for all of it.")
@click.option("--peers-python", type=click.Path(exists=True, path_type=Path), help="A Python with CTranslate2.")
@click.option("--words", type=click.Path(file_okay=False, path_type=Path), help="Folder of the g2p dictionary.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Every line on the CPU, with tiny models.")
def gpu(results: Path | None, seconds: float, peers_python: Path | None, words: Path | None, is_dry: bool) -> None:
    """Prove, measure, write, judge."""
    if not is_dry:
        for name in ("ort", "torch"):
            runtimes.require(name, "cuda")
    lines = [quick(line) if is_dry else line for line in LINES]
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        place = Place(work=here, peers_python=peers_of(peers_python))
        if is_dry:
            more = {"runtime": "cuda-stand-in", "device": "cpu", "compiler": "eager", "rounds": QUICK_ROUNDS}
            place = Place(work=here, peers_python=peers_python, **more)  # type: ignore[arg-type]
        run = Run(place, Budget(seconds, progress), lines, dictionary(words, QUICK_WORDS if is_dry else WORDS))
        result = all_of(run)
    device = re.sub(r"[^a-z0-9]+", "-", str(result["machine"]["gpu"]).lower()).strip("-")
    path = (results or RESULTS) / f"gpu-{device}.json"
    if results or not is_dry:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    click.echo(report.whole(result))
    click.echo("--dry-run measures toys: no figure means anything." if is_dry else path)
    if any(
        "fail" in str(about.get("parity", {}) and about["parity"]["verdict"]).lower() for about in run.about.values()
    ):
        sys.exit(1)


if __name__ == "__main__":
    run_guarded(gpu)
