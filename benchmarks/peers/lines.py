"""The lines of the table: measurements, and the factors by which txport must be faster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from benchmarks.peers.engines import Search, Sources
from benchmarks.peers.engines.hf_folder import FOLDER, SMALL
from benchmarks.peers.environments import DECODERS, DYNAMIC, ENCODERS, SPEECH
from recipes.g2p_en.g2p import Dictionary, read_dictionary
from txport.bench import measure as bench
from txport.checkpoints.checkpoint import config_of
from txport.checkpoints.folder import PRESET, find_folder, preset_config, preset_name
from txport.errors import UnavailableError
from txport.models import architecture
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.text.load import load_tokenizer

Unit = Literal["tokens/s", "prompt tokens/s", "words/s", "windows/s", "texts/s", "MB"]
BASE, TINY, G2P = "preset:base", "preset:tiny", "g2p-en"
GPT2, LLAMA, T5 = "preset:gpt2-125m", "preset:llama-125m", "preset:t5-small"
WHISPER = "whisper-tiny"
SMOLLM, LARGER = "smollm2-135m", "llama-402m"
PYTHIA = "pythia-160m"
BERTS = ("minilm-l6", "bert-base")
LATER = ("modernbert-base", "cross-encoder-l6")
SIZES = ((1, 16), (1, 128), (8, 64), (32, 128))  # texts, and tokens of each
FOLDERS = ("marian-base", "t5-small", "gpt2", WHISPER, "nllb-600m")
STREAMED = ("gpt2", "nllb-600m")  # a step reads more than the CPU's caches hold
QUICK = {BASE: TINY, **{f"preset:{kind}-{size}": f"preset:{kind}-tiny" for kind, size in
                        (("gpt2", "125m"), ("llama", "125m"), ("t5", "small"))}}  # fmt: skip
LENGTH = 32  # default length of source, or prompt, and target
PROMPT = 512  # tokens that prefill reads
TARGET = 64  # tokens to generate for a folder
LONGEST_WORD = 48
TEST_WORDS = "g014b2b.test"


class AbsentError(UnavailableError):
    """A line needs data that are missing."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The work of a round: `sources` sources, in batches of `batch`, or all in one call (None: bulk).

    `source` and `tokens`: lengths of sources (or prompts) and targets, unless the model ends targets by itself. With
    `after_first`, the time up to and including the first token does not count. If a step is `streamed`, its kernels
    are the same for one row and for many, and both use the same bundle. If the task `encodes`, its results are vectors.
    """

    checkpoint: str = BASE
    batch: int | None = None
    beams: int = 1
    sources: int
    source: int = LENGTH
    tokens: int = LENGTH
    after_first: bool = False
    streamed: bool = False
    encodes: bool = False

    @property
    def rows(self) -> int:
        """The number of rows of a step; 32 in bulk, if the task is only a prompt, and if the step is streamed."""
        return 32 if self.batch is None or self.tokens == 1 or self.streamed else self.batch * self.beams

    @property
    def forced(self) -> bool:
        """Whether the length of targets is fixed: random weights would end them at random, unlike trained ones."""
        return self.checkpoint != G2P and not self.encodes

    @property
    def converted(self) -> bool:
        """Whether each side converts a folder of transformers with its own converter."""
        return self.checkpoint.startswith(FOLDER) or Path(self.checkpoint).is_dir()


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table: the same task for txport, in the best of `precisions`, and for a peer."""

    name: str
    against: str
    task: Task
    precisions: tuple[str, ...]
    required: float | None
    unit: Unit = "tokens/s"

    @property
    def title(self) -> str:
        """The text that `--only` searches."""
        return f"{self.name}, against {self.against}"


def one_caller(batch: int, beams: int = 1, checkpoint: str = BASE) -> Task:
    """Return a task with one batch at a time; a round has enough batches for a stable time."""
    if checkpoint == G2P:
        return Task(checkpoint=checkpoint, batch=batch, beams=beams, sources=64 * batch)
    sources = {(1, 1): 8, (8, 1): 32, (32, 1): 64, (1, 4): 4, (8, 4): 16}
    size = sources[batch, beams] if checkpoint == BASE else {1: 2, 8: 8, 32: 32}[batch]
    return Task(checkpoint=checkpoint, batch=batch, beams=beams, sources=size)


def prefill(checkpoint: str) -> Task:
    """Return a task with one long prompt and the first token after it."""
    return Task(checkpoint=checkpoint, batch=1, sources=1, source=PROMPT, tokens=1)


def of_folder(name: str, batch: int, tokens: int = TARGET, after_first: bool = False) -> Task:
    """Return a task with one batch at a time, of a folder that both sides convert."""
    task = one_caller(batch, checkpoint=FOLDER + name)
    return replace(task, tokens=tokens, after_first=after_first, streamed=name in STREAMED)


def against_openvino(peer: str) -> list[Line]:
    """Return the lines of OpenVINO on the portable bundle, compared with the cpu target in int8, or else in fp32."""
    precision = "int8" if peer.endswith("int8") else "fp32"
    batches = (1, 8, 32)
    return [
        *(line(f"greedy, batch {batch}, {precision}", peer, one_caller(batch), None, precision) for batch in batches),
        line(f"greedy, bulk, {precision}", peer, BULK, None, precision),
        *(
            line(f"g2p-en, batch {batch}, {precision}", peer, one_caller(batch, checkpoint=G2P), None, precision,
                 unit="words/s")
            for batch in batches
        ),
        line(f"g2p-en, test words, bulk, {precision}", peer, WORDS, None, precision, unit="words/s"),
    ]  # fmt: skip


def line(
    name: str, against: str, task: Task, required: float | None, *precisions: str, unit: Unit = "tokens/s"
) -> Line:
    """Return a line; the arguments are in the order of the table."""
    return Line(name=name, against=against, task=task, required=required, precisions=precisions, unit=unit)


def short(checkpoint: str) -> str:
    """Return a preset's name without its prefix."""
    return checkpoint.removeprefix(PRESET)


def parts_of_speech(batch: int) -> list[tuple[str, Task, Unit]]:
    """Return the two phases for 30 seconds of audio: up to the first token, and after it."""
    return [
        ("encoder and first token", of_folder(WHISPER, batch, tokens=1), "windows/s"),
        ("after the first token", of_folder(WHISPER, batch, after_first=True), "tokens/s"),
    ]


def of_llama(name: str, peer: str, precision: str) -> list[Line]:
    """Return the lines of a Llama-like folder in one precision."""
    size = "int8" if precision == "int8" else "int4"
    tasks = {f"greedy, batch {batch}": of_folder(name, batch) for batch in (1, 8, 32)}
    tasks[f"prompt of {PROMPT}"] = prefill(FOLDER + name)
    required = {"int8": (1.2, 1.15, 1.15, 1.1), "int4": (1.2, 1.0, 1.0, 1.0)}[size]
    return [
        line(f"folder {name}, {what}, {size}", peer, task, factor, size,
             unit="tokens/s" if task.tokens > 1 else "prompt tokens/s")
        for (what, task), factor in zip(tasks.items(), required, strict=True)
    ]  # fmt: skip


def of_bert(name: str, peer: str, precision: str, sizes: Sequence[tuple[int, int]] = SIZES) -> list[Line]:
    """Return the lines of an encoder's folder in one precision: batches by their number of texts and of tokens."""
    return [
        line(f"folder {name}, {batch} x {length}, {precision}", peer,
             Task(checkpoint=FOLDER + name, batch=batch, sources=4 * batch, source=length, encodes=True),
             1.3 if precision == "int8" else 1.0, precision, unit="texts/s")
        for batch, length in sizes
    ]  # fmt: skip


CT2_INT8, CT2_FP32 = "CTranslate2 int8", "CTranslate2 fp32"
OPTIMUM, EAGER, COMPILED = "Optimum", "PyTorch eager", "torch.compile"
OPENVINO = {"OpenVINO fp32": "openvino", "OpenVINO bf16": "openvino-bf16"}
BULK = Task(sources=512)
WORDS = Task(checkpoint=G2P, sources=12_000)
LINES = [
    line("greedy, batch 1, int8", CT2_INT8, one_caller(1), 3.5, "int8"),
    line("greedy, batch 1, int4", CT2_INT8, one_caller(1), 4.5, "int4", "int8"),
    line("greedy, batch 8, int8", CT2_INT8, one_caller(8), 2.0, "int8"),
    line("greedy, batch 32, int8", CT2_INT8, one_caller(32), 2.2, "int8"),
    line("greedy, bulk, int8", CT2_INT8, BULK, 1.5, "int8"),
    line("beam 4, batch 1, int8", CT2_INT8, one_caller(1, beams=4), 2.5, "int8"),
    line("beam 4, batch 8, int8", CT2_INT8, one_caller(8, beams=4), 1.8, "int8"),
    line("greedy, batch 1, fp32", CT2_FP32, one_caller(1), 1.25, "fp32"),
    line("greedy, batch 8, fp32", CT2_FP32, one_caller(8), 2.0, "fp32"),
    line("greedy, batch 32, fp32", CT2_FP32, one_caller(32), 2.0, "fp32"),
    line("greedy, batch 1, int8", OPTIMUM, one_caller(1), 4.0, "int8"),
    line("greedy, batch 8, int8", OPTIMUM, one_caller(8), 4.0, "int8"),
    line("greedy, batch 32, int8", OPTIMUM, one_caller(32), 4.0, "int8"),
    line("g2p-en, test words, bulk", CT2_INT8, WORDS, 2.0, "int8", unit="words/s"),
    line("peak memory, batch 1, int8", CT2_INT8, one_caller(1), 1.0, "int8", unit="MB"),
    *(
        line(f"{short(model)}, greedy, batch {batch}, int8", CT2_INT8, one_caller(batch, checkpoint=model), 1.5, "int8")
        for model in (GPT2, LLAMA, T5)
        for batch in (1, 8, 32)
    ),
    *(
        line(f"{short(model)}, prompt of {PROMPT}, int8", CT2_INT8, prefill(model), 1.0, "int8", unit="prompt tokens/s")
        for model in (GPT2, LLAMA)
    ),
    *(
        line(f"greedy, batch {batch}, fp32", peer, one_caller(batch), None, "fp32")
        for peer in (EAGER, COMPILED)
        for batch in (1, 8, 32)
    ),
    *(
        line(f"folder {name}, greedy, batch {batch}, int8", CT2_INT8, of_folder(name, batch), 1.5, "int8")
        for name in FOLDERS
        for batch in (1, 8)
    ),
    *(
        line(f"folder {WHISPER}, {what}, batch {batch}, int8", CT2_INT8, task, 1.5, "int8", unit=unit)
        for batch in (1, 8)
        for what, task, unit in parts_of_speech(batch)
    ),
    *(line(f"folder {WHISPER}, greedy, batch 1, int8", peer, of_folder(WHISPER, 1), 1.0, "int8") for peer in SPEECH),
    *(each for peer in OPENVINO for each in against_openvino(peer)),
    *(
        each
        for name in (SMOLLM, LARGER)
        for peer, (_, precision) in DECODERS.items()
        for each in of_llama(name, peer, precision)
    ),
    *(each for name in BERTS for peer, (_, precision) in ENCODERS.items() for each in of_bert(name, peer, precision)),
    *(each for name in LATER for each in of_bert(name, DYNAMIC, "int8", ((1, 128), (32, 128)))),
    *(
        line(f"folder {PYTHIA}, greedy, batch {batch}, int8", peer, of_folder(PYTHIA, batch), 1.3, "int8")
        for peer in (OPTIMUM, CT2_INT8)
        for batch in (1, 32)
    ),
]


def with_folder(lines: Sequence[Line], folder: Path) -> list[Line]:
    """Return the lines of the other engines for a folder of the user's, which takes the place of theirs."""
    kind = FOLDER + (SMOLLM if facts_of(Task(checkpoint=str(folder), sources=1)).generates else BERTS[0])
    return [
        replace(each, name=each.name.replace(kind.replace(":", " "), folder.name),
                task=replace(each.task, checkpoint=str(folder)), required=None)
        for each in lines
        if each.task.checkpoint == kind
    ]  # fmt: skip


def quick(line: Line) -> Line:
    """Return the line with a small model, for a quick check without requirements."""
    made = line.task.checkpoint.startswith(FOLDER)
    name = line.task.checkpoint + SMALL if made else QUICK.get(line.task.checkpoint, line.task.checkpoint)
    size = min(line.task.source, LENGTH)
    task = replace(line.task, checkpoint=name, sources=min(line.task.sources, 128), source=size)
    return replace(line, task=task, required=None)


def search_of(task: Task) -> Search:
    """Return the search of a task."""
    if task.encodes:
        return Search(max_new_tokens=0, forced=False)
    longest = task.tokens if task.forced else LONGEST_WORD
    facts = facts_of(task)
    room = facts.writes.longest - (task.source if facts.task == "causal" else 0)
    return Search(beams=task.beams, max_new_tokens=min(longest, room), forced=task.forced)


def facts_of(task: Task) -> Facts:
    """Return the facts about the task's model."""
    preset = preset_name(task.checkpoint)
    config = preset_config(preset) if preset else config_of(find_folder(task.checkpoint))
    with torch.device("meta"):
        return architecture.of(config).build(config).facts


def sources_of(task: Task, words: Path | None) -> Sources:
    """Return token ids or features: random with a fixed seed for random weights, words of the test split for g2p-en."""
    facts = facts_of(task)
    if task.forced or task.encodes:
        drawn = bench.draw_source(facts, bench.Protocol(batch=task.sources, source=task.source))
        return drawn if isinstance(facts.reads, Features) else (drawn % facts.reads.size).tolist()  # one text, no pair
    tokenizer = load_tokenizer(find_folder(task.checkpoint), facts)
    return [tokenizer.encode(word) for word in read_words(words)[: task.sources]]


def read_words(folder: Path | None) -> list[str]:
    """Return the words of the test split; raise `AbsentError` without the dictionary."""
    return list(read_test_split(folder))


def read_test_split(folder: Path | None) -> Dictionary:
    """Return the words of the test split and their pronunciations; raise `AbsentError` without the dictionary."""
    folder = folder or Path(os.environ.get("TXPORT_G2P", Path(__file__).parents[3] / "shared/data/g2p"))
    if not (folder / TEST_WORDS).is_file():
        raise AbsentError(f"there is no {TEST_WORDS} in {folder}; --words names its folder")
    return read_dictionary(folder / TEST_WORDS)
