"""The README of a bundle, made only from its manifest and the names of its files, so that it is reproducible."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from txport.bundles.comparisons import describe_calibrated, describe_loss, describe_original
from txport.bundles.manifest import Manifest
from txport.bundles.readme import settings, tables
from txport.bundles.readme.loop import loop
from txport.models.audio import Features
from txport.models.facts import Facts, Tokens
from txport.models.names import TARGET_TOKENIZER, TEXT, TOKENIZER
from txport.system.markdown import code, plain
from txport.targets.ports import GENERATE

MOST_LABELS = 50  # in a list
TASKS = {
    "seq2seq": "It reads {reads} and writes a sequence of tokens, one at a time.",
    "causal": "It continues a sequence of tokens, one at a time.",
    "embed": "It reads a text and gives a vector for each token, of which one vector of the text is made.",
    "classify": "It reads a text and gives a score for each label.",
    "tag": "It reads a text and gives, for each token, a score for each label.",
    "fill": "It reads a text and gives, for each token, a score for each token of the vocabulary.",
}

DTYPES = {"float32": "32-bit", "float16": "16-bit", "bfloat16": "bfloat16"}
QUANTISED_CUDA = "weights of products are in {}-bit blocks with 16-bit scales; what is computed with them is 16-bit"
QUANTISED = (
    "on x86 processors without VNNI, set the session's config entry `session.x64quantprecision` to `1`: otherwise sums "
    "of 8-bit products may overflow"
)
READERS = "docs/tokenizers.md of txport says which libraries read it, and where that in JavaScript differs."


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
    if calibrated := describe_calibrated(manifest.calibrated):
        yield plain(f"Calibration at export: {calibrated}.")
    yield "## How to run it"
    yield from _how(manifest)
    yield tables.MORE
    yield "## Ids and limits"
    yield "\n".join(f"- {line}" for line in _limits(manifest))
    if (manifest.generation or manifest.not_followed) and facts.generates:
        yield "## The checkpoint's settings for search"
        yield from _generation(manifest)
    if facts.labels:
        yield "## Labels"
        yield _labels(facts)
    yield "## Text"
    yield from _text(manifest, files)
    yield "## The graphs"
    yield from _graphs(manifest)


def _how(manifest: Manifest) -> Iterator[str]:
    if manifest.weightless:
        yield "**The graphs have no weights, so nothing can run them.** They show what an export would be."
        return
    checks = "checks that it is whole and computes what PyTorch computed."
    if manifest.made_for.on_gpu:
        verify = "`txport verify FOLDER --runtime cuda-stand-in`"
        yield f"With txport, `txport run FOLDER --provider cuda` runs the bundle, and {verify} {checks}"
        yield (
            "Without, a program keeps caches in the device's memory by `io_binding` and `OrtValue`; txport's "
            "docs/cuda-target.md says in which order it runs the graphs."
        )
        return
    yield f"With txport, `txport run FOLDER` runs the bundle, and `txport verify FOLDER` {checks}"
    what = {"encode": "what it makes of one text", "causal": "greedy search for one prompt"}
    yield (
        f"Without, this is {what.get(manifest.facts.task, 'greedy search for one source')}, in Python with NumPy and "
        "onnxruntime, from this folder. ONNX Runtime sends usage data to its maker unless the environment variable "
        "`ORT_DISABLE_TELEMETRY` is 1 before it is loaded."
    )
    yield f"```python\n{loop(manifest)}```"
    yield "The folder `examples` of txport's repository has programs for portable bundles in JavaScript, C and C++."
    if manifest.single:
        yield (
            f"`{manifest.graphs[GENERATE].file}` is the whole of a search in one run, greedy or with beams, with the "
            "checkpoint's other settings built in: docs/single-graph.md of txport runs it. It reads the weights from "
            "the files of the other graphs beside it."
        )


def _graphs(manifest: Manifest) -> Iterator[str]:
    for role, graph in manifest.graphs.items():
        yield f"### {graph.file}: {tables.KINDS[role]}"
        yield tables.ports(graph, manifest.facts)
    yield "Symbolic dims:"
    yield tables.dims(manifest)
    yield (
        "Each graph says the same ids and limits in its metadata, under keys that begin with `txport.`, so that a "
        "program need not read another file."
    )


def _limits(manifest: Manifest) -> Iterator[str]:
    facts = manifest.facts
    source = facts.source
    target = facts.target
    if isinstance(source, Features):
        size = f"({source.size}, {source.frames}) numbers"
        yield (
            f"source: {size}, log-mel features of {source.seconds:g} seconds at {source.sampling_rate} Hz, as "
            "transformers' `WhisperFeatureExtractor` makes them"
        )
    elif source is not None:
        special = f"; {_around(source)}" if source.before or source.after else ""
        has_second = facts.has_token_types and not manifest.made_for.is_standard
        second = f", an id of a second text + {source.size}" if has_second else ""
        most = f"at most {source.longest} tokens; padding {source.pad}"
        yield f"source: ids 0 to {source.size - 1}{second}, {most}{special}"
    if target is not None:
        start = "" if facts.is_causal else f"; it starts with {_listed(settings.start(manifest))}"
        most = f"at most {target.longest} tokens; padding {target.pad}"
        yield f"target: ids 0 to {target.size - 1}, {most}; end tokens {_listed(target.ends) or 'none'}{start}"
    if facts.windows:
        where = "the last" if facts.is_causal else "themselves and to each side less than"
        yield f"some layers see {where} {' or '.join(map(str, facts.windows))} tokens"
    if manifest.made_for.is_standard:
        flow = "no control flow but the loop of `generate.onnx`" if manifest.single else "no control flow"
        yield f"operators: ONNX opset {manifest.opset} alone, {flow}; any runtime that has them"
    else:
        least = manifest.made_for.least_runtime
        yield f"operators: ONNX opset {manifest.opset} and `com.microsoft`; ONNX Runtime {least} or newer"
    held = f"{DTYPES[manifest.dtype]} floating point numbers"
    on_gpu = manifest.made_for.on_gpu
    yield f"caches are {held}, features and logits 32-bit" if on_gpu else f"features, caches and logits are {held}"
    if manifest.is_quantised:
        yield QUANTISED_CUDA.format(manifest.precision.removeprefix("int")) if on_gpu else QUANTISED
    if manifest.rows:
        yield f"its kernels are the fastest for {manifest.rows} rows, and results may depend on the batch"


def _around(tokens: Tokens) -> str:
    """Return the special ids before and after the ids of a text, as words."""
    return ", then ".join(filter(None, (_listed(tokens.before), "the ids of the text", _listed(tokens.after))))


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))


def _generation(manifest: Manifest) -> Iterator[str]:
    if manifest.generation:
        rows = [(code(name), code(_value(value))) for name, value in manifest.generation.items()]
        yield tables.table(["setting", "value"], rows)
    if dropped := manifest.not_followed:
        names = ", ".join(f"{code(name)} {code(_value(value))}" for name, value in dropped.items())
        yield f"txport does not follow {names} of the checkpoint: outputs may differ from transformers' for it."
    if others := settings.left_out(manifest):
        names = ", ".join(map(code, others))
        yield f"`txport run` obeys all of them. The loop is greedy search without {names}."


def _value(value: object) -> str:
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
    is_heard = isinstance(manifest.facts.source, Features)
    reading = [] if is_heard else [f"`{TOKENIZER}` makes ids of a text"]
    writer = TARGET_TOKENIZER if TARGET_TOKENIZER in files else TOKENIZER
    writing = [f"`{writer}` makes text of ids"] if manifest.facts.target else []
    yield f"{', and '.join([*reading, *writing])}. {READERS}"
    if not is_heard:
        ids = f'ids = Tokenizer.from_file("{TOKENIZER}").encode("TEXT").ids'
        yield f"```python\nfrom tokenizers import Tokenizer\n\n{ids}\n```"
        if manifest.facts.has_token_types:
            yield 'A pair of texts is `encode("TEXT", "OTHER")`: its `type_ids` are 1 for the tokens of the second.'
    if TEXT in files:
        yield f"`{TEXT}` has the tokens of languages (`languages`) and the template of a chat (`chat`)."
