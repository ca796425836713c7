"""The example in JavaScript, for onnxruntime-node; for the portable target, also for onnxruntime-web."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

from txport.bundles.manifest import Manifest
from txport.bundles.readme.python import constant
from txport.bundles.readme.settings import Settings, ability_of, pooling_of
from txport.models.facts import Function

TENSORS = """\
const int64 = (values, dims) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), dims);
const int32 = (value) => new ort.Tensor("int32", Int32Array.of(value), [1]);
"""
ARGMAX = "const argmax = (scores) => scores.reduce((best, score, id) => (score > scores[best] ? id : best), 0);\n"
HALF = """\
const half = (bits) => {  // a 16-bit float, where JavaScript has no type for it
  const power = (bits >> 10) & 31, rest = (bits & 1023) / 1024, sign = bits >> 15 ? -1 : 1;
  return sign * (power ? 2 ** (power - 15) * (1 + rest) : 2 ** -14 * rest);
};
const floats = (data) => (data instanceof Uint16Array ? Array.from(data, half) : Array.from(data));
"""
TO_HALF = """\
const toHalf = (value) => {  // rounded to the nearest 16-bit float, of numbers below 65504
  const size = Math.abs(value), power = size ? Math.max(Math.floor(Math.log2(size)) + 1, -13) : -13;
  return (Math.round(size * 2 ** (11 - power)) + ((power + 13) << 10)) | (value < 0 ? 0x8000 : 0);
};
"""
PORTABLE_SOURCE = """
export async function generate(source, most = MOST) {
  const dims = [1, source.length];
  const mask = int64(source.map(() => 1), dims);
  const encoded = await encoder.run({ input_ids: int64(source, dims), attention_mask: mask });
  const given = { encoder_hidden_states: encoded.last_hidden_state, encoder_attention_mask: mask };
"""
PORTABLE_FEATURES = """
export async function generate(features, most = MOST) {  // BINS x FRAMES numbers, one row after the other
  const input_features = new ort.Tensor("FLOAT", ARRAY.from(featuresHALVED), [1, BINS, FRAMES]);
  const encoded = await encoder.run({ input_features });
  const given = { encoder_hidden_states: encoded.last_hidden_state };
"""
EMPTY = """\
  for (const name of past) given[name] = new ort.Tensor("FLOAT", new ARRAY(0), cacheDims(name, 0));
"""
PORTABLE_LOOP = """\
  let tokens = START;
  const target = [];
  while (target.length < most) {
    given.input_ids = int64(tokens, [1, tokens.length]);
    const found = await decoder.run(given, outputs);
    tokens = [CHOOSE(found.logits)];
    target.push(tokens[0]);
    if (ENDS.includes(tokens[0])) break;
    for (const name of past) given[name] = found[name.replace("past_key_values", "present")];
  }
  return target;
}
"""
PORTABLE_CAUSAL = """
export async function generate(prompt, most = MOST) {
  const given = {};
"""
PORTABLE_CAUSAL_LOOP = """\
  let tokens = prompt;
  const target = [];
  for (let before = 0; target.length < Math.min(most, LONGEST - prompt.length); ) {
    const length = before + tokens.length;
    given.input_ids = int64(tokens, [1, tokens.length]);
    given.position_ids = int64(tokens.map((_, place) => before + place), [1, tokens.length]);
    given.attention_mask = int64(new Array(length).fill(1), [1, length]);
    const found = await decoder.run(given, outputs);
    tokens = [CHOOSE(found.logits)];
    before = length;
    target.push(tokens[0]);
    if (ENDS.includes(tokens[0])) break;
    for (const name of past) given[name] = found[name.replace("past_key_values", "present")];
  }
  return target;
}
"""
CACHES = """
function makeCaches(capacity) {  // written in place: the same memory is what a run reads and what it gives
  const caches = { past: {}, present: {} };
  for (const name of past) {
    const dims = cacheDims(name, capacity);
    const cache = new ort.Tensor("float32", new Float32Array(dims.reduce((a, b) => a * b)), dims);
    caches.past[name] = caches.present[name.replace("past", "present")] = cache;
  }
  return caches;
}
"""
CPU_SOURCE = """
export async function generate(source, most = MOST) {
  const source_lengths = int32(source.length);
  const cross = await encoder.run({ input_ids: int64(source, [1, source.length]), source_lengths });
"""
CPU_FEATURES = """
export async function generate(features, most = MOST) {  // BINS x FRAMES numbers, one row after the other
  const source_lengths = int32(PLACES);
  const input_features = new ort.Tensor("float32", Float32Array.from(features), [1, BINS, FRAMES]);
  const cross = await encoder.run({ input_features, source_lengths });
"""
CPU_LOOP = """\
  const capacity = START.length + most, caches = makeCaches(capacity), target = [];
  const given = { ...cross, ...caches.past, source_lengths };
  given.cache_capacity = int32(capacity);
  given.k = int64([0], [1]);
ALIGN  let tokens = START, before = 0, logits;
  while (target.length < most) {
    for (const token of tokens) {
      given.input_ids = int64([token], [1, 1]);
      given.past_lengths = int32(before++);
      ({ logits } = await step.run(given, { logits: null, ...caches.present }));
    }
    tokens = [CHOOSE(logits)];
    target.push(tokens[0]);
    if (ENDS.includes(tokens[0])) break;
  }
  return target;
}
"""
CPU_CAUSAL = """
export async function generate(prompt, most = MOST) {
  const capacity = Math.min(prompt.length + most, LONGEST), caches = makeCaches(capacity), target = [];
  let before = prompt.length - 1, token = prompt[before];
  if (before > 0) {
    const input_ids = int64(prompt.slice(0, before), [1, before]);
    const places = { last_places: int32(before - 1), prompt_size: int32(before) };
    await prefill.run({ input_ids, ...places, ...caches.past }, caches.present);
  }
  const given = { ...caches.past, cache_capacity: int32(capacity), k: int64([0], [1]) };
  while (target.length < capacity - prompt.length) {
    given.input_ids = int64([token], [1, 1]);
    given.past_lengths = int32(before++);
    const { logits } = await step.run(given, { logits: null, ...caches.present });
    token = CHOOSE(logits);
    target.push(token);
    if (ENDS.includes(token)) break;
  }
  return target;
}
"""


def generating(settings: Settings) -> str:
    """Return the example for a generating model, an ES module."""
    is_portable = settings.manifest.target == "portable"
    is_causal = settings.facts.task == "causal"
    if is_portable:
        source = PORTABLE_FEATURES if settings.reads_features else PORTABLE_SOURCE
        body = PORTABLE_CAUSAL + EMPTY + PORTABLE_CAUSAL_LOOP if is_causal else source + EMPTY + PORTABLE_LOOP
    else:
        source = CPU_FEATURES if settings.reads_features else CPU_SOURCE
        body = CACHES + (CPU_CAUSAL if is_causal else source + CPU_LOOP)
    is_half = settings.manifest.dtype == "float16"
    head = [
        'import * as ort from "onnxruntime-node";',
        "",
        *_constants(settings),
        *_sessions(settings),
        *_dims(settings),
    ]
    parts = ["\n".join(head) + "\n", TENSORS if not is_portable else TENSORS.partition("\n")[0] + "\n"]
    parts += [HALF] if is_half else []
    parts += [TO_HALF] if is_half and settings.reads_features else []
    parts += [ARGMAX, _choose(settings), body]
    align = '  given.align = new ort.Tensor("bool", Uint8Array.of(0), [1]);\n' if settings.facts.attention else ""
    text = "".join(parts).replace("ALIGN", align)
    text = text.replace("FLOAT", settings.manifest.dtype).replace("ARRAY", "Uint16Array" if is_half else "Float32Array")
    text = text.replace("featuresHALVED", "features, toHalf" if is_half else "features")
    return _chosen(text, settings, is_half)


def _chosen(text: str, settings: Settings, is_half: bool) -> str:
    for tensor in ("found.logits", "logits"):
        scores = f"{tensor}.data.slice(-{settings.facts.writes.size})"
        scores = f"floats({scores})" if is_half else scores
        how = f"choose({scores}, target.length)" if settings.rules else f"argmax({scores})"
        text = text.replace(f"CHOOSE({tensor})", how)
    return text


def _constants(settings: Settings) -> Iterator[str]:
    facts = settings.facts
    source = settings.facts.source
    if settings.start:
        yield from _constant("START", settings.start, "what a target begins with")
    else:
        yield from _constant("LONGEST", facts.writes.longest, "tokens of a prompt and of what continues it")
    yield from _constant("ENDS", facts.writes.ends, "tokens that end a target")
    yield from _constant("MOST", settings.most, "tokens of a target at most")
    for name, value in settings.rules.items():
        yield from _constant(name.upper(), value, "")
    if settings.reads_features:
        assert source is not None
        numbers = {"BINS": source.size, "FRAMES": getattr(source, "frames", 0)}
        numbers |= {"PLACES": source.longest} if settings.manifest.target == "cpu" else {}
        yield "const " + ", ".join(f"{name} = {value}" for name, value in numbers.items()) + ";"


def _constant(name: str, value: object, comment: str) -> Iterator[str]:
    """Yield the lines of a constant: as in Python, in JavaScript syntax."""
    lines = list(constant(f"const {name}", value, ""))
    lines[-1] += ";"
    lines[0] += f"  // {comment}" if comment else ""
    return iter(lines)


def _sessions(settings: Settings) -> Iterator[str]:
    for role, graph in settings.manifest.driven.items():
        if role != "select":
            yield f'const {role} = await ort.InferenceSession.create("{graph.file}");'
    running = settings.graph.role
    beginning = "past_key_values." if running == "decoder" else "past."
    yield f'const past = {running}.inputNames.filter((name) => name.startsWith("{beginning}"));'
    if running == "decoder":
        present = 'decoder.outputNames.filter((name) => name.startsWith("present."))'
        yield f'const outputs = ["logits", ...{present}];'


def _dims(settings: Settings) -> Iterator[str]:
    """Yield the lines of a function that returns the dims of a cache of a given length."""
    if settings.cache:
        heads, size = settings.cache
        yield f"const cacheDims = (name, length) => [1, {heads}, length, {size}];"
        return
    yield "const heads = {"
    yield from (f'  "{name}": [{heads}, {size}],' for name, (heads, size) in settings.caches.items())
    yield "};"
    yield "const cacheDims = (name, length) => [1, heads[name][0], length, heads[name][1]];"


def _choose(settings: Settings) -> str:
    """Return a function that applies the checkpoint's rules for the next token, in order; "" if there are none."""
    rules = settings.rules
    if not rules:
        return ""
    first = int("forced_bos_token_id" in rules)
    lines = {
        "forced_bos_token_id": "if (count === 0) return FORCED_BOS_TOKEN_ID;",
        "forced_eos_token_id": "if (count === MOST - 1) return FORCED_EOS_TOKEN_ID;",
        "suppress_tokens": "for (const id of SUPPRESS_TOKENS) logits[id] = -Infinity;",
        "begin_suppress_tokens": f"if (count === {first}) for (const id of BEGIN_SUPPRESS_TOKENS)"
        " logits[id] = -Infinity;",
        "min_new_tokens": "if (count < MIN_NEW_TOKENS) for (const id of ENDS) logits[id] = -Infinity;",
    }
    body = [*(line for name, line in lines.items() if name in rules), "return argmax(logits);"]
    what = "// the likeliest token that the checkpoint allows after `count` new ones"
    inner = indent("\n".join(body), "  ")
    return f"\nfunction choose(logits, count) {{  {what}\n{inner}\n}}\n"


def encoding(manifest: Manifest) -> str:
    """Return the example for an encoder-only model, an ES module."""
    ability = ability_of(manifest)
    labels = manifest.facts.labels
    facts = manifest.facts
    made = list(_made(manifest))
    is_half = manifest.dtype == "float16"
    output = "last_hidden_state" if ability == "embed" else "logits"
    width = facts.width if ability == "embed" else len(labels) or facts.writes.size
    file = next(iter(manifest.graphs.values())).file
    second = {
        "portable": "attention_mask = int64(ids.map(() => 1), dims)",
        "cpu": "source_lengths = int32(ids.length)",
    }[manifest.target]
    data = f"found.{output}.data"
    data = f"floats({data})" if is_half else f"Array.from({data})"
    lines = [
        'import * as ort from "onnxruntime-node";',
        "",
        *([f"const MASK = {facts.vocabulary.mask};"] if ability == "fill" else []),
        f'const model = await ort.InferenceSession.create("{file}");',
        *TENSORS.splitlines()[: 1 if manifest.target == "portable" else 2],
        *(HALF.splitlines() if is_half else []),
        *([ARGMAX.rstrip()] if any("argmax" in line for line in made) else []),
        "",
        f"export async function {ability}(ids) {{",
        f"  const dims = [1, ids.length], {second};",
        f"  const found = await model.run({{ input_ids: int64(ids, dims), {second.partition(' ')[0]} }});",
        f"  const values = {data};",
        f"  const row = (place) => values.slice(place * {width}, (place + 1) * {width});",
        *(f"  {line}" for line in made),
        "}",
    ]
    return "\n".join(lines) + "\n"


CLASSIFIES: dict[Function | None, str] = {  # if labels are independent
    "sigmoid": "return row(0).map((value) => 1 / (1 + Math.exp(-value)));",
    "none": "return row(0);",
}


def _made(manifest: Manifest) -> Iterator[str]:
    """Yield the lines that convert the rows of the output to the result."""
    ability = ability_of(manifest)
    pooling, normalize = pooling_of(manifest)
    if ability == "embed":
        if pooling == "first":
            yield "const vector = row(0);"
        else:
            mean = "ids.reduce((sum, _, place) => sum + row(place)[at], 0) / ids.length"
            yield f"const vector = row(0).map((_, at) => {mean});"
        yield "const length = Math.hypot(...vector);" if normalize else "return vector;"
        if normalize:
            yield "return vector.map((value) => value / length);"
    elif ability == "classify":
        yield CLASSIFIES.get(manifest.facts.function_to_apply, "return argmax(row(0));")
    elif ability == "tag":
        each = "1 / (1 + Math.exp(-values[place]))" if len(manifest.facts.labels) == 1 else "argmax(row(place))"
        yield f"return ids.map((_, place) => {each});"
    else:
        yield "return ids.flatMap((id, place) => (id === MASK ? [argmax(row(place))] : []));"
