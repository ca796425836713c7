"""The loop around the graphs of a cuda bundle: the data on the device, and the inputs of each run."""

from __future__ import annotations

from collections.abc import Iterator

from txport.bundles.manifest import Manifest
from txport.bundles.ports import GROW_ROWS, SELECT_ROWS
from txport.bundles.readme.settings import Settings

HOW = (
    "With txport, `txport run FOLDER --provider cuda` runs the bundle on a GPU (the extra `txport[cuda]`), and `txport "
    "verify FOLDER --runtime cuda-stand-in` checks on any machine that it is whole and computes what PyTorch computed. "
    "Without, the loop below keeps caches in the device's memory by `io_binding` and `OrtValue`; NumPy never sees them."
)


def encoded(settings: Settings) -> Iterator[str]:
    """Yield how to run the encoder and the steps."""
    graphs = settings.manifest.graphs
    reads = settings.facts.reads
    given = "`input_features`" if settings.reads_features else "`input_ids`"
    lengths = (
        f"`source_lengths` {reads.longest}, the places that it makes"
        if settings.reads_features
        else "`source_lengths`, how many"
    )
    yield (
        f"Run `{graphs['encoder'].file}` once on {given} and {lengths} -> `cross.L.*`, the keys and values of the "
        "source for each decoder layer, which stay on the device: every step reads them."
    )
    yield _caches()
    start = ", ".join(map(str, settings.start))
    begun = f"The first tokens are {start}{', one after the other' if len(settings.start) > 1 else ''}"
    yield _step(settings, f"0 at first. {begun}.")


def prompted(settings: Settings) -> Iterator[str]:
    """Yield how to run the prompt and the steps after it."""
    yield _caches()
    yield (
        f"Run `{settings.manifest.graphs['prefill'].file}` on all but the last token of the prompt: `input_ids` (1, "
        "T - 1), `past_lengths` 0. A prompt of one token needs none; one in parts is told in `past_lengths` how many "
        "tokens came before."
    )
    yield _step(settings, "T - 1 for the prompt's last token, which is the first one here.")


def notes(manifest: Manifest) -> Iterator[str]:
    """Yield notes on steps on the device."""
    graphs = manifest.graphs
    yield (
        "**Without the host**: bind `next_ids` to the memory of `input_ids`, `present_lengths` to that of "
        "`past_lengths`, and greedy search goes on by itself: no input changes its place, so a CUDA graph replays it."
    )
    yield (
        f"**Beams**: `input_ids` may be (batch_size, beams); the beams of one source share its keys and values. "
        f"`{graphs[SELECT_ROWS].file}` picks rows of the caches by their numbers, `{graphs[GROW_ROWS].file}` gives "
        "them more places, and `onnx/admit_rows.onnx` puts those of others in their place; what sources have is moved "
        "by graphs of the same kind."
        if manifest.facts.task == "seq2seq"
        else f"**Beams**: `{graphs[SELECT_ROWS].file}` picks rows of the caches by their numbers, "
        f"`{graphs[GROW_ROWS].file}` gives them more places, and `onnx/admit_rows.onnx` puts those of others in their "
        "place."
    )


def _caches() -> str:
    return (
        "Make a cache of zeros on the device for each `past.L.*`, with room for all tokens to come, the best a "
        "multiple of 4. Bind its memory to the input `past.L.*` and to the output `present.L.*` at once: the graphs "
        "write in place. Where these are two, each step copies all of it."
    )


def _step(settings: Settings, begins: str) -> str:
    return (
        f"A step runs `{settings.graph.file}` on one token for each row, `input_ids` (1, 1), and `past_lengths` (1,), "
        f"how many tokens the caches hold already: {begins} `k` is how many of the best tokens are wanted, 1 or more, "
        "and lies on the host. `next_ids` are the best token of each row, `ids` and `log_probs` the k best, and "
        "`logits` has a score for each token that may come next."
    )
