"""The lines of the table, the most important first: measurements and requirements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

BASE, TINY, G2P = "preset:base", "preset:tiny", "g2p-en"
EAGER, COMPILED, CT2 = "PyTorch eager", "torch.compile with CUDA graphs", "CTranslate2"
PRECISIONS = ("fp16", "fp32", "bf16", "int8", "int4")  # those with requirements first
SOURCE, TOKENS = 32, 64
FEW = 3  # maximum batch of a dry run
WITHIN_LOGITS, WITHIN_WER = 1e-4, 0.1  # maximum differences: of fp32 logits, and of fp16's word error rate in points


@dataclass(frozen=True, kw_only=True)
class Line:
    """One bundle, one kind of search, and its peers.

    `peers` maps each peer to the factor by which txport must be faster (None: no requirement). `at_most` is the maximum
    number of milliseconds per token.
    """

    checkpoint: str
    precision: str
    batch: int
    beams: int = 1
    peers: Mapping[str, float | None] = field(default_factory=lambda: MappingProxyType({}))
    at_most: float | None = None
    source: int = SOURCE
    tokens: int = TOKENS

    @property
    def name(self) -> str:
        """The checkpoint, precision, search and batch in words."""
        how = "greedy" if self.beams == 1 else f"beam {self.beams}"
        return f"{self.checkpoint.removeprefix('preset:')} {self.precision}, {how}, batch {self.batch}"

    @property
    def is_required(self) -> bool:
        """Whether the line has a requirement."""
        return self.at_most is not None or any(self.peers.values())

    @property
    def rows(self) -> int:
        """The number of rows of a step."""
        return self.batch * self.beams


def _line(checkpoint: str, precision: str, batch: int, beams: int = 1, **peers: float | None) -> Line:
    names = {"eager": EAGER, "compiled": COMPILED, "ct2": CT2}
    return Line(
        checkpoint=checkpoint,
        precision=precision,
        batch=batch,
        beams=beams,
        peers=MappingProxyType({names[name]: each for name, each in peers.items()}),
    )


LINES = (
    replace(_line(BASE, "fp16", 1, eager=8.0, compiled=1.5, ct2=3.0), at_most=0.25),
    _line(BASE, "fp16", 128, eager=3.0, ct2=1.5, compiled=None),
    _line(BASE, "fp16", 1, 4, eager=3.0, ct2=1.5),
    _line(G2P, "fp16", 1, eager=None, ct2=None),
    _line(G2P, "fp16", 128, eager=None, ct2=None),
    _line(BASE, "fp16", 8, 4, eager=None, ct2=None),
    _line(BASE, "bf16", 1, eager=None, compiled=None),
    _line(BASE, "fp32", 1, eager=None),
    _line(BASE, "bf16", 128, eager=None),
    _line(BASE, "fp32", 128, eager=None),
    # int8 and int4: batches below and above the number of rows up to which matrix products unpack weights themselves
    _line(BASE, "int4", 1),
    _line(BASE, "int8", 1, ct2=None),
    _line(BASE, "int4", 4, 4),
    _line(BASE, "int8", 1, 4, ct2=None),
    _line(BASE, "int4", 128),
    _line(BASE, "int8", 128, ct2=None),
)


def quick(line: Line) -> Line:
    """Return the line with a small model, batch and length, for a dry run."""
    checkpoint = line.checkpoint if line.checkpoint == G2P else TINY
    return replace(line, checkpoint=checkpoint, batch=min(line.batch, FEW), source=5, tokens=6)
