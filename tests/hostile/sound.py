"""What attacks begin with: one tiny checkpoint, its bundles, and reports of `parity` and `bench`, all sound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.hostile import bases
from tests.hostile.fork import in_child

KINDS = {"portable": ("portable", "fp32"), "cpu": ("cpu", "fp32"), "int8": ("cpu", "int8")}


@dataclass(frozen=True)
class Sound:
    """Where the sound files lie, which attacks copy; and what `parity` found of the portable bundle."""

    folder: Path
    report: Any = None

    @property
    def checkpoint(self) -> Path:
        """The checkpoint that all bundles were made from."""
        return self.folder / "toy"

    @property
    def parity_report(self) -> Path:
        """What `txport parity --report` wrote of the portable bundle."""
        return self.folder / "parity.json"

    @property
    def bench_report(self) -> Path:
        """What `txport bench --report` wrote of the portable bundle."""
        return self.folder / "bench.json"

    def bundle(self, kind: str) -> Path:
        """A bundle by one of `KINDS`, or of `bases.BUNDLES`."""
        return self.base(kind) if kind in bases.BUNDLES else self.folder / kind

    def base(self, name: str) -> Path:
        """A folder that `bases` made."""
        return self.folder / "bases" / name


def make_sound(folder: Path) -> Sound:
    """Export and measure in child processes: this one must start no thread, since it forks."""
    sound = Sound(folder)
    in_child(lambda: _export(sound))
    in_child(lambda: bases.make_bases(sound.folder / "bases", sound.checkpoint))
    return replace(sound, report=in_child(lambda: _report(sound)))


def _export(sound: Sound) -> None:
    import torch

    import txport
    from recipes.g2p_en.tokenizer import spelling_tokenizer
    from tests.tiny import SAMPLES, VOCABULARY, tiny_config, tiny_model
    from txport.checkpoints.checkpoint import save_checkpoint

    torch.set_num_threads(1)
    save_checkpoint(sound.checkpoint, tiny_model(tiny_config()), spelling_tokenizer(VOCABULARY))
    (sound.checkpoint / "samples.txt").write_text("".join(f"{each}\n" for each in SAMPLES), encoding="utf-8")
    for kind, (target, precision) in KINDS.items():
        txport.export(sound.checkpoint, sound.bundle(kind), target=target, precision=precision)


def _report(sound: Sound) -> Any:
    import torch

    from txport import cli
    from txport.api import model as api
    from txport.bundles.bundle import load_bundle
    from txport.cli.textio import write_json

    torch.set_num_threads(1)
    bundle = sound.bundle("portable")
    report = api.parity(load_bundle(bundle), sound.checkpoint, {"ort": "cpu"})
    write_json(sound.parity_report, report.to_dict())
    how = ["--runtime", "ort", "--rounds", "5", "--batch", "1", "--scenario", "phases"]
    cli.main(["bench", str(bundle), *how, "--report", str(sound.bench_report)])
    return report
