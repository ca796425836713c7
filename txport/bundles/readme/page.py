"""The README of a bundle, made only from its manifest and the names of its files, so that it is reproducible."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from txport.bundles.loss import describe_loss
from txport.bundles.manifest import Manifest, is_quantised
from txport.bundles.original import describe_original
from txport.bundles.readme import at_once, cpp, device, javascript, python, tables
from txport.bundles.readme.settings import Settings
from txport.bundles.readme.steps import around, notes, steps
from txport.models.audio.facts import Features
from txport.models.facts import Facts
from txport.models.names import TARGET_TOKENIZER, TEXT, TOKENIZER
from txport.system.markdown import code, plain

LEAST_RUNTIME = "1.24.1"  # the oldest version of ONNX Runtime that txport supports
LEAST_ON_DEVICE = "1.31.1"  # with CUDA
MOST_LABELS = 50  # in a list
TASKS = {
    "seq2seq": "It reads {reads} and writes a sequence of tokens, one at a time.",
    "causal": "It continues a sequence of tokens, one at a time.",
    "embed": "It reads a text and gives a vector for each token, of which one vector of the text is made.",
    "classify": "It reads a text and gives a score for each label.",
    "tag": "It reads a text and gives, for each token, a score for each label.",
    "fill": "It reads a text and gives, for each token, a score for each token of the vocabulary.",
}


def readme(manifest: Manifest, files: Collection[str]) -> str:
    """Return the page, as Markdown; `files` are the names of the other files."""
    return "\n\n".join(part.strip("\n") for part in _parts(manifest, files)) + "\n"


def _parts(manifest: Manifest, files: Collection[str]) -> Iterator[str]:
    facts = manifest.facts
    yield f"# {plain(manifest.checkpoint['name'])}, {manifest.target} {manifest.precision}"
    reads = "log-mel features of speech" if isinstance(facts.source, Features) else "a sequence of tokens"
    what = TASKS[facts.ability or facts.task].format(reads=reads)
    yield f"A {plain(manifest.architecture)} model in ONNX, exported by txport. {what}"
    yield tables.about(manifest)
    if original := describe_original(manifest.original):
        yield plain(f"Comparison with the original at export: {original}.")
    if cost := describe_loss(manifest.loss, manifest.precision):
        yield plain(f"{cost[0].upper()}{cost[1:]}.")
    if manifest.weightless:
        yield "**The graphs have no weights, so nothing can run them.** They show what an export would be."
    is_whole = not manifest.weightless
    examples = dict(_examples(manifest)) if is_whole and manifest.target != "cuda" else {}
    if is_whole:
        yield "## How to run it"
        yield device.HOW if manifest.target == "cuda" else _how(manifest)
        yield from list(examples.values())[:1]
        if manifest.single:
            yield from at_once.section(manifest)
    yield "## The loop"
    yield "\n".join(f"{number}. {step}" for number, step in enumerate(steps(manifest), 1))
    yield "\n".join(f"- {note}" for note in notes(manifest))
    yield "## Ids and limits"
    yield "\n".join(f"- {line}" for line in _limits(manifest))
    if (manifest.generation or manifest.not_followed) and facts.task != "encode":
        yield "## The checkpoint's settings for search"
        yield from _generation(Settings(manifest))
    if facts.labels:
        yield "## Labels"
        yield _labels(facts)
    yield "## Text"
    yield from _text(manifest, files)
    yield "## The graphs"
    yield from _graphs(manifest)
    if examples:
        yield "## In other languages"
        yield from (f"### {head}\n\n{text}" for head, text in list(examples.items())[1:])
    yield "## Files"
    yield tables.files(manifest, files)


def _graphs(manifest: Manifest) -> Iterator[str]:
    for role, graph in manifest.graphs.items():
        yield f"### {graph.file}: {tables.KINDS[role]}"
        yield tables.ports(graph, manifest.facts)
    yield "Symbolic dims:"
    yield tables.dims(manifest)
    yield (
        "Each graph says the same ids and limits in its metadata, under keys that begin with `txport.`, so that a "
        "program "
        "need not read another file."
    )


def _limits(manifest: Manifest) -> Iterator[str]:
    facts = manifest.facts
    source = facts.source
    target = facts.target
    if source is not None and not isinstance(source, Features):
        special = around(source.before, source.after)
        special = f"; {special}" if source.before or source.after else ""
        yield f"source: ids 0 to {source.size - 1}, at most {source.longest} tokens; padding {source.pad}{special}"
    if source is not None and isinstance(source, Features):
        seconds = f"{source.seconds:g} seconds at {source.sampling_rate} Hz"
        yield f"source: ({source.size}, {source.frames}) numbers, {seconds}"
    if target is not None:
        ends = ", ".join(map(str, target.ends)) or "none"
        start = "" if facts.task == "causal" else f"; it starts with {', '.join(map(str, Settings(manifest).start))}"
        most = f"at most {target.longest} tokens"
        yield f"target: ids 0 to {target.size - 1}, {most}; padding {target.pad}; end tokens {ends}{start}"
    if facts.windows:
        yield f"some layers see the last {' or '.join(map(str, facts.windows))} tokens"
    if manifest.target != "portable":
        least = {"cpu": LEAST_RUNTIME, "cuda": LEAST_ON_DEVICE}[manifest.target]
        yield f"operators: ONNX opset {manifest.opset} and `com.microsoft`; ONNX Runtime {least} or newer"
    else:
        flow = "no control flow but the loop of `generate.onnx`" if manifest.single else "no control flow"
        yield f"operators: ONNX opset {manifest.opset} alone, {flow}; any runtime that has them"
    kinds = {"float32": "32-bit", "float16": "16-bit", "bfloat16": "bfloat16"}
    held = f"{kinds[manifest.dtype]} floating point numbers"
    if manifest.target == "cuda":
        yield f"caches are {held}, features and logits 32-bit"
    else:
        yield f"features, caches and logits are {held}"
    if is_quantised(manifest.target, manifest.precision) and manifest.target == "cuda":
        bits = {"int8": 8, "int4": 4}[manifest.precision]
        yield f"weights of products are in {bits}-bit blocks with 16-bit scales; what is computed with them is 16-bit"
    elif is_quantised(manifest.target, manifest.precision):
        yield (
            "on x86 processors without VNNI, set the session's config entry `session.x64quantprecision` to `1`: "
            "otherwise "
            "sums of 8-bit products may overflow"
        )
    if manifest.rows:
        yield f"its kernels are the fastest for {manifest.rows} rows, and results may depend on the batch"


def _generation(settings: Settings) -> Iterator[str]:
    rows = [(code(name), code(_value(value))) for name, value in settings.manifest.generation.items()]
    if rows:
        yield tables.table(["setting", "value"], rows)
    if dropped := settings.manifest.not_followed:
        names = ", ".join(f"{code(name)} {code(_value(value))}" for name, value in dropped.items())
        yield f"txport does not follow {names} of the checkpoint: outputs may differ from transformers' for it."
    if settings.left_out:
        names = ", ".join(code(name) for name in settings.left_out)
        yield f"`txport run` obeys all of them. The examples of the loop are greedy search without {names}."


def _value(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def _labels(facts: Facts) -> str:
    shown = "\n".join(f"{number}. {plain(label)}" for number, label in enumerate(facts.labels[:MOST_LABELS]))
    rest = len(facts.labels) - MOST_LABELS
    return shown + (f"\n\nand {rest} more, in the metadata." if rest > 0 else "")


def _text(manifest: Manifest, files: Collection[str]) -> Iterator[str]:
    if TOKENIZER not in files:
        yield "There is no tokenizer here: the model reads and writes ids."
        return
    heard = isinstance(manifest.facts.source, Features)
    both = TARGET_TOKENIZER in files
    reading = "" if heard else f"`{TOKENIZER}` makes ids of a {'source' if both else 'text'}"
    writing = f"`{TARGET_TOKENIZER if both else TOKENIZER}` makes text of ids" if manifest.facts.target else ""
    same = "" if both or heard or not writing else f"`{TOKENIZER}` makes ids of a text and a text of ids"
    yield (
        f"{same or ', and '.join(filter(None, (reading, writing)))}. The `tokenizers` library reads such files in "
        f"Python, Rust and "
        "JavaScript (`@huggingface/tokenizers`); there are ports to other languages. The one in JavaScript reads "
        "special tokens in a text as what they name, and gives other ids to a few rare characters, which "
        "docs/tokenizers.md of txport lists: with T5's and XLM-R's own files, decomposed kana and Hangul, half-width "
        "katakana and joined emoji."
    )
    if not heard:
        lines = ["from tokenizers import Tokenizer", "", f'ids = Tokenizer.from_file("{TOKENIZER}").encode("TEXT").ids']
        yield "\n".join(["```python", *lines, "```"])
    if TEXT in files:
        yield (
            f"`{TEXT}` says more: which tokens of languages stand around a source and how the target's language is "
            f"told "
            "(`languages`), and the template of a chat (`chat`)."
        )


def _how(manifest: Manifest) -> str:
    what = "what it makes of one text" if manifest.facts.task == "encode" else "greedy search for one source"
    what = "greedy search for one prompt" if manifest.facts.task == "causal" else what
    return (
        "With txport, `txport run FOLDER` runs the bundle, and `txport verify FOLDER` checks that it is whole and "
        "computes "
        f"what PyTorch computed. Without, this is {what}, in Python with NumPy and onnxruntime, from this folder. ONNX "
        "Runtime sends usage data to its maker unless the environment variable `ORT_DISABLE_TELEMETRY` is 1 before "
        "it is "
        "loaded."
    )


def _examples(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the heading of each example, and the text below it."""
    web = (
        "In a browser, `onnxruntime-web` takes the place of `onnxruntime-node`."
        if manifest.target == "portable"
        else ""
    )
    heads = {
        "python": ("Python, with NumPy and onnxruntime", python, ""),
        "js": ("JavaScript, with onnxruntime-node", javascript, f"An ES module. {web}".strip() + "\n\n"),
        "cpp": ("C++ 17, with ONNX Runtime's C++ API", cpp, ""),
    }
    for name, (head, language, note) in heads.items():
        is_encoder = manifest.facts.task == "encode"
        example = language.encoding(manifest) if is_encoder else language.generating(Settings(manifest))
        yield head, f"{note}```{name}\n{example}```"
