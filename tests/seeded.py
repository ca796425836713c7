"""Small seeded models of any architecture, their bundles, and the proof of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.runtimes.driven import ENGINES
from txport import runtimes
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.models import architecture
from txport.models.model import Model
from txport.proof.parity.check import check
from txport.proof.proven import write
from txport.proof.reports.report import Report
from txport.targets import TARGETS

# In which every variant is offered: a small model may have no matrix of whole blocks, which cuda has in 8 and 4 bits.
PLANS = [
    (target, precision)
    for target, each in TARGETS.items()
    for precision in each.precisions
    if not (each.on_gpu and each.quantises(precision))
]


def seeded_model(config: Any, seed: int = 0) -> Model:
    """Biases and norms count, else a graph that drops them would compute the same."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = architecture.of(config).build(config).eval()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def drawn(name: str, seed: int) -> Any:
    """A config of any variant of an architecture."""
    return architecture.find(name).draw(np.random.default_rng(seed))


def saved(config: Any, folder: Path, seed: int = 0) -> Checkpoint:
    save_checkpoint(folder, seeded_model(config, seed))
    return load_checkpoint(str(folder))


def bundle_of(checkpoint: Checkpoint, folder: Path, target: str = "cpu", precision: str = "fp32") -> Bundle:
    folder.mkdir()
    return write(checkpoint, folder, target=target, precision=precision)


def proven(config: Any, folder: Path, target: str, precision: str, seed: int = 0) -> Report:
    """What the comparison of an export with PyTorch says; what a search finds follows from its logits."""
    checkpoint = saved(config, folder / "model", seed)
    runtime, provider = runtimes.home(target)
    bundle = bundle_of(checkpoint, folder / "bundle", target, precision)
    return check(bundle, checkpoint, {runtime: provider}, searches=False)


def check_steps(bundle: Bundle, source: Tensor, lengths: Tensor, tokens: Tensor, expected: Tensor) -> None:
    """The graphs give what an original in float64 says (B, T, V) after each of the target's tokens (B, T) in turn."""
    assert expected.dtype == torch.float64
    runtime = runtimes.load(ENGINES[bundle.manifest.target], bundle)
    state = runtime.start(source.numpy(), lengths.numpy(), max_length=tokens.shape[1])
    for place in range(tokens.shape[1]):
        scores, state = runtime.step(tokens[:, place].numpy(), state)
        np.testing.assert_allclose(scores.values, expected[:, place], rtol=0, atol=1e-5)
