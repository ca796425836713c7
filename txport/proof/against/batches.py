"""Seeded inputs, short and long, and the outputs of the imported model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from txport.models.audio import Features
from txport.models.facts import LOGITS, Facts, Tokens
from txport.models.model import Model
from txport.models.ops import padding_mask
from txport.proof.parity.cases import Draw
from txport.runtimes.inputs import Source, batch
from txport.system import memory

ROWS = 3
LENGTHS = ((5, 7), (11, 4), (2, 6))  # of sources and targets; none equals ROWS, and the two of a batch differ
FIRST_IDS, LAST_IDS = 8, 4  # of a vocabulary: most special tokens are among them
RAGGED = (9, 4, 7)
WHOLE = (41, 12)  # of the one batch of a large model
MOST = max(map(max, LENGTHS))  # tokens of a short row
SHORT = ROWS * MOST  # maximum number of tokens of a batch without the long row
BESIDE = 5
LONG, BEYOND = 300, 9  # tokens of the long row, and tokens after the last position whose behaviour depends on length
SHARE = 0.5  # of free memory for the long row


@dataclass(frozen=True)
class Reach:
    """The length of the long row: beyond `tokens`, and farther with at most `work` multiply-adds (1e13: minutes)."""

    tokens: int = LONG
    work: float = 1e13


FAR = Reach()


@dataclass(frozen=True)
class Batch:
    """Sources (B, S), or features (B, M, F), with a mask (B, S) that is False on padding; targets (B, T) of seq2seq."""

    source: Tensor
    mask: Tensor
    lengths: Tensor
    target: Tensor | None

    @property
    def tokens(self) -> int:
        """The number of tokens of the longest row; for audio, of the target."""
        is_heard = self.source.is_floating_point()
        return self.target.shape[1] if is_heard and self.target is not None else self.source.shape[1]

    @property
    def more(self) -> float:
        """Factor for the allowed rounding error of long rows: errors of float32 angles grow with the position."""
        return max(1.0, self.tokens / LONG)

    @property
    def is_padded(self) -> bool:
        """True if rows differ in length."""
        return not bool(self.mask.all())

    def real(self, like: Tensor) -> Tensor | None:
        """Return a mask of the values of a tensor (B, S, ...) that belong to real tokens; None if all do."""
        if not self.is_padded or like.shape[:2] != self.mask.shape:
            return None
        return self.mask.reshape(*self.mask.shape, *[1] * (like.dim() - 2)).expand(like.shape)

    def to(self, dtype: torch.dtype) -> Batch:
        """Return a copy, with features in another dtype."""
        source = self.source.to(dtype) if self.source.is_floating_point() else self.source
        target = None if self.target is None else self.target.clone()
        return Batch(source.clone(), self.mask.clone(), self.lengths, target)


def draw_batches(facts: Facts, *, padded: bool) -> Iterator[Batch]:
    """Yield one batch per length, all its rows equally long, and one with ids that may be special in the original.

    With `padded`, the original is given masks: yield also a batch with rows of different lengths.
    """
    draw = Draw(facts, np.random.default_rng(0))
    for source, target in LENGTHS:
        yield _batch(facts, draw, [source] * ROWS, target)
    yield from draw_special(facts, padded=padded)


def draw_special(facts: Facts, *, padded: bool) -> Iterator[Batch]:
    """Yield the last batches of `draw_batches`: with special ids and, if `padded`, with rows of different lengths."""
    given = _batch(facts, Draw(facts, np.random.default_rng(0)), [LENGTHS[0][1]] * ROWS, LENGTHS[0][1])
    yield _with_special(facts, given, is_masked=padded)
    if padded:
        yield from draw_padded(facts)


def draw_whole(facts: Facts, *, padded: bool) -> Batch:
    """Return one batch that shows what those of `draw_batches` do: a large model converts all weights for each batch.

    Its rows differ in length if the original is given masks (`padded`), and it has the ids that may be special.
    """
    rows = WHOLE if padded and facts.masks_source else WHOLE[:1]
    given = _batch(facts, Draw(facts, np.random.default_rng(0)), list(rows), WHOLE[0])
    return _with_special(facts, given, is_masked=padded)


def draw_padded(facts: Facts) -> Iterator[Batch]:
    """Yield a batch with rows of different lengths, if a source can be padded."""
    if facts.masks_source:
        yield _batch(facts, Draw(facts, np.random.default_rng(0)), list(RAGGED), BESIDE)


def _with_special(facts: Facts, given: Batch, *, is_masked: bool) -> Batch:
    """Return a batch that has the first and last ids of the vocabularies within its rows, except padding.

    An original that is given no masks may mask one of them, as its own padding. If it is given masks (`is_masked`), no
    special token is used.
    """

    def filled(ids: Tensor, tokens: Tokens, lengths: Sequence[int] = ()) -> Tensor:
        left_out = set(tokens.special if is_masked else (tokens.pad,))
        listed = dict.fromkeys((*range(FIRST_IDS), *range(tokens.size - LAST_IDS, tokens.size)))
        chosen = iter([each for each in listed if 0 <= each < tokens.size and each not in left_out])
        found = ids.clone()
        for row, length in enumerate(lengths or [ids.shape[1]] * len(ids)):
            some = list(islice(chosen, max(0, length - 2)))
            found[row, 1 : 1 + len(some)] = torch.tensor(some, dtype=ids.dtype)
        return found

    lengths = given.lengths.tolist()
    source = given.source if isinstance(facts.reads, Features) else filled(given.source, facts.reads, lengths)
    target = None if given.target is None else filled(given.target, facts.writes)
    return replace(given, source=source, target=target)


def changes_at(model: Model) -> dict[str, int]:
    """Return the lengths in tokens after which the computation changes, if a text can be so long: what -> length."""
    found = {f"the window of {each}": each for each in model.facts.windows}
    for key, what in (("farthest", "distances of"), ("rotary_original_length", "positions of")):
        if size := getattr(model.config, key, 0):
            found[f"{what} {size}"] = size
    return {what: size for what, size in found.items() if size < _longest(model.facts)}


def long_length(model: Model, reach: Reach) -> int:
    """Return the length of a long row: beyond that of `reach` and all of `changes_at`, if memory and work allow."""
    facts = model.facts
    wanted = max([reach.tokens, *changes_at(model).values()]) + BEYOND
    numbers = sum(each.numel() for each in model.parameters())
    heads = getattr(model.config, "heads", 1)
    free = memory.available()
    while wanted > reach.tokens:
        bytes_ = 8.0 * wanted * (6 * numbers / facts.width + 6 * heads * wanted)
        if 4.0 * wanted * numbers <= reach.work and (free is None or bytes_ <= SHARE * free):
            break
        wanted = max(reach.tokens, wanted // 2)
    return min(wanted, _longest(facts))


def least_long(model: Model) -> int:
    """Return the minimum length of a long row, whatever memory is free."""
    return min(LONG + BEYOND, _longest(model.facts))


def _longest(facts: Facts) -> int:
    return facts.writes.longest if isinstance(facts.reads, Features) else facts.reads.longest


def draw_long(facts: Facts, length: int) -> Batch:
    """Return a batch of one row, with `length` tokens of source and target."""
    return _batch(facts, Draw(facts, np.random.default_rng(1)), [length], length)


def _batch(facts: Facts, draw: Draw, lengths: list[int], target: int) -> Batch:
    longest = facts.reads.longest if isinstance(facts.reads, Features) else max(facts.reads.longest, 1)
    sources: list[Source] = draw.sources(*(min(each, longest) for each in lengths))
    given, sizes = map(torch.from_numpy, batch(sources, facts))
    is_heard = isinstance(facts.reads, Features)
    mask = torch.ones(len(given), 1).bool() if is_heard else padding_mask(sizes, given.shape[1])
    return Batch(given, mask, sizes, _targets(facts, draw, len(given), target))


def _targets(facts: Facts, draw: Draw, rows: int, length: int) -> Tensor | None:
    """Return the decoder inputs (B, T): the start token, then random tokens; None unless the task is seq2seq."""
    if not facts.is_encoder_decoder:
        return None
    start = facts.writes.start
    assert start is not None
    drawn = draw.targets(*[max(1, min(length, facts.writes.longest) - 1)] * rows)
    return torch.tensor([[start, *each][: facts.writes.longest] for each in drawn])


@torch.inference_mode()
def outputs_of(model: Model, given: Batch) -> dict[str, Tensor]:
    """Return the outputs of the imported model by name: logits, or the outputs of an encoder-only model."""
    facts = model.facts
    if facts.is_encoder_decoder:
        assert given.target is not None
        memory = model.encode_masked(given.source, given.mask if facts.masks_source else None)
        return {LOGITS: model.decode(given.target, memory, model.empty_state(len(given.target))).logits}
    if not facts.generates:
        names = [each.name for each in facts.outputs]
        return dict(zip(names, model.infer(given.source, given.mask), strict=True))
    places = torch.arange(given.source.shape[1])[None].expand(given.source.shape)
    return {LOGITS: model.extend(given.source, given.mask, places, model.empty_state(len(places))).logits}
