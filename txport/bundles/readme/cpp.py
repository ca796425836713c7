"""The example in C++, with ONNX Runtime's `onnxruntime_cxx_api.h`."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

from txport.bundles.manifest import Manifest
from txport.bundles.readme.cpp_pieces import (
    ARGMAX,
    CPU_CACHES,
    CPU_CAUSAL,
    CPU_ENCODE,
    CPU_LOOP,
    CPU_PREFILL,
    CPU_STEP,
    FEATURES,
    FLOATS,
    HALF,
    INCLUDES,
    PORTABLE_CAUSAL,
    PORTABLE_FEATURES,
    PORTABLE_LOOP,
    PORTABLE_SOURCE,
    RUN,
    RUN_INTO,
    TENSORS,
    TO_HALF,
)
from txport.bundles.readme.python import constant
from txport.bundles.readme.settings import Settings, ability_of, pooling_of
from txport.models.facts import Function


def generating(settings: Settings) -> str:
    """Return the example for a generating model: functions, without a `main`."""
    manifest = settings.manifest
    is_causal = settings.facts.task == "causal"
    is_portable = manifest.target == "portable"
    is_half = manifest.dtype == "float16"
    parts = [INCLUDES, "\n" + "\n".join([*_constants(settings), *_sessions(manifest)]) + "\n", TENSORS]
    if is_portable:
        parts += [RUN, HALF if is_half else "", FLOATS[manifest.dtype]]
    else:
        parts += [RUN_INTO] if is_causal else [RUN, RUN_INTO]
    parts += [TO_HALF] if is_half and settings.reads_features else []
    parts += [ARGMAX, _choose(settings), _names(settings), _dims(settings)]
    if is_portable:
        body = PORTABLE_FEATURES if settings.reads_features else PORTABLE_SOURCE
        parts += [PORTABLE_CAUSAL] if is_causal else [body, PORTABLE_LOOP]
    else:
        parts += [_cpu_encode(settings), CPU_STEP] if not is_causal else [CPU_CAUSAL, CPU_STEP]
        parts += [CPU_CACHES, CPU_PREFILL] if is_causal else [_cpu_source(settings), CPU_CACHES, CPU_LOOP]
    values = {
        "HALVES": FEATURES[manifest.dtype],
        "ELEMENT": "Ort::Float16_t" if is_half else "float",
        "FIRST": "2" if settings.reads_features else "3",
    }
    text = "".join(parts)
    for name, value in values.items():
        text = text.replace(name, value)
    return text.replace("CHOOSE(logits)", _chosen("logits", settings)).replace(
        "CHOOSE(floats(found[0], (tokens.size() - 1) * VOCABULARY, VOCABULARY))",
        _chosen("floats(found[0], (tokens.size() - 1) * VOCABULARY, VOCABULARY)", settings),
    )


def _chosen(scores: str, settings: Settings) -> str:
    return f"choose({scores}, target.size())" if settings.rules else f"argmax({scores})"


def _cpu_encode(settings: Settings) -> str:
    tokens = {
        "SOURCE": "Ids source",
        "LENGTH": "static_cast<int32_t>(source.size())",
        "READ": "tensor(source, {1, lengths[0]})",
        "PORT": "input_ids",
    }
    features = {
        "SOURCE": "std::vector<float> features",
        "LENGTH": "PLACES",
        "READ": "tensor(features, {1, BINS, FRAMES})",
        "PORT": "input_features",
    }
    text = CPU_ENCODE
    for name, value in (features if settings.reads_features else tokens).items():
        text = text.replace(name, value)
    return text


def _cpu_source(settings: Settings) -> str:
    """Return the lines for the other inputs of a step of a model with a source."""
    lines = ["given.push_back(tensor(lengths, {1}));"]
    if settings.facts.attention:
        lines = [
            *lines,
            "bool align = false;  // whether to give the attention over the source",
            'inputs.push_back("align");',
            "const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);",
            "const Ids one{1};",
            "given.push_back(Ort::Value::CreateTensor<bool>(memory, &align, 1, one.data(), 1));",
        ]
    lines += [
        "for (size_t each = 0; each < crossed.size(); ++each) {",
        "  inputs.push_back(crossed[each]);",
        "  given.push_back(std::move(encoded[each]));",
        "}",
    ]
    return indent("\n".join(lines), "  ") + "\n"


def _constants(settings: Settings) -> Iterator[str]:
    facts = settings.facts
    source = settings.facts.source
    if settings.start:
        yield from _ids("START", settings.start, "what a target begins with")
    else:
        yield f"const int64_t LONGEST = {facts.writes.longest};  // tokens of a prompt and of what continues it"
    yield from _ids("ENDS", facts.writes.ends, "tokens that end a target")
    yield f"const int64_t MOST = {settings.most};  // tokens of a target at most"
    yield f"const int64_t VOCABULARY = {facts.writes.size};"
    for name, value in settings.rules.items():
        rule = name.upper()
        yield from (_ids(rule, value, "") if isinstance(value, list | tuple) else [f"const int64_t {rule} = {value};"])
    if settings.reads_features:
        assert source is not None
        numbers = {"BINS": source.size, "FRAMES": getattr(source, "frames", 0)}
        yield "const int64_t " + ", ".join(f"{name} = {value}" for name, value in numbers.items()) + ";"
        if settings.manifest.target == "cpu":
            yield f"const int32_t PLACES = {source.longest};  // that the encoder makes of the frames"


def _ids(name: str, values: object, comment: str) -> Iterator[str]:
    """Yield the lines of a constant: as in Python, in C++ syntax."""
    lines = [line.replace("[", "{").replace("]", "}") for line in constant(f"const Ids {name}", values, "")]
    lines[-1] += ";"
    lines[0] += f"  // {comment}" if comment else ""
    return iter(lines)


def _sessions(manifest: Manifest) -> Iterator[str]:
    yield "Ort::Env env;"
    for role, graph in manifest.driven.items():
        if role != "select":
            yield f'Ort::Session {role}{{env, ORT_TSTR("{graph.file}"), Ort::SessionOptions{{}}}};'


def _names(settings: Settings) -> str:
    """Return a function with the suffixes of the caches' names, after `past` and `present`."""
    kinds = ["decoder.key", "decoder.value", "encoder.key", "encoder.value"]
    if settings.manifest.target == "cpu" or settings.facts.task == "causal":
        kinds = ["key", "value"]
    every = ", ".join(f'"{kind}"' for kind in kinds)
    return f"""
Names cache_names() {{
  Names found;
  for (int layer = 0; layer < {settings.layers}; ++layer)
    for (const char* kind : {{{every}}})
      found.push_back("." + std::to_string(layer) + "." + kind);
  return found;
}}
"""


def _dims(settings: Settings) -> str:
    head = "\nIds cache_dims(const std::string& name, int64_t length) {\n"
    if settings.cache:
        heads, size = settings.cache
        return f"{head.replace('& name', '&')}  return {{1, {heads}, length, {size}}};\n}}\n"
    lines = [
        f'  if (name == ".{name.partition(".")[2]}") return {{1, {heads}, length, {size}}};'
        for name, (heads, size) in settings.caches.items()
    ]
    return head + "\n".join(lines) + "\n  return {};\n}\n"


def _choose(settings: Settings) -> str:
    """Return a function that applies the checkpoint's rules for the next token, in order; "" if there are none."""
    rules = settings.rules
    if not rules:
        return ""
    first = int("forced_bos_token_id" in rules)
    lines = {
        "forced_bos_token_id": "if (count == 0) return FORCED_BOS_TOKEN_ID;",
        "forced_eos_token_id": "if (count == MOST - 1) return FORCED_EOS_TOKEN_ID;",
        "suppress_tokens": "for (const auto id : SUPPRESS_TOKENS) logits[id] = -INFINITY;",
        "begin_suppress_tokens": f"if (count == {first})\n  for (const auto id : BEGIN_SUPPRESS_TOKENS)"
        " logits[id] = -INFINITY;",
        "min_new_tokens": "if (count < MIN_NEW_TOKENS)\n  for (const auto id : ENDS) logits[id] = -INFINITY;",
    }
    body = [*(line for name, line in lines.items() if name in rules), "return argmax(logits);"]
    inner = indent("\n".join(body), "  ")
    what = "// the likeliest token that the checkpoint allows after `count` new ones"
    return f"\nint64_t choose(std::vector<float> logits, int64_t count) {{\n  {what}\n{inner}\n}}\n"


def encoding(manifest: Manifest) -> str:
    """Return the example for an encoder-only model: functions, without a `main`."""
    ability = ability_of(manifest)
    facts = manifest.facts
    is_half = manifest.dtype == "float16"
    output = "last_hidden_state" if ability == "embed" else "logits"
    width = facts.width if ability == "embed" else len(facts.labels) or facts.writes.size
    result, lines = _made(manifest)
    second = "attention_mask" if manifest.target == "portable" else "source_lengths"
    body = [
        f"{result} {ability}(Ids ids) {{",
        "  const auto count = static_cast<int64_t>(ids.size());",
        "  Ids mask(ids.size(), 1);"
        if second == "attention_mask"
        else "  std::vector<int32_t> lengths{static_cast<int32_t>(count)};",
        "  Values read;",
        "  read.push_back(tensor(ids, {1, count}));",
        f"  read.push_back({'tensor(mask, {1, count})' if second == 'attention_mask' else 'tensor(lengths, {1})'});",
        f'  const auto found = run(model, {{"input_ids", "{second}"}}, read, {{"{output}"}});',
        f"  const auto row = [&](int64_t place) {{ return floats(found[0], place * {width}, {width}); }};",
        *(f"  {line}" for line in lines),
        "}",
    ]
    mask = f"const int64_t MASK = {facts.vocabulary.mask};\n" if ability == "fill" else ""
    sessions = "\n".join(_sessions(manifest))
    parts = [INCLUDES, f"\n{mask}{sessions}\n", TENSORS, RUN, HALF if is_half else "", FLOATS[manifest.dtype]]
    parts += [ARGMAX] if any("argmax" in line for line in lines) else []
    return "".join(parts) + "\n" + "\n".join(body) + "\n"


CLASSIFIES: dict[Function | None, list[str]] = {  # if labels are independent
    "sigmoid": [
        "auto scores = row(0);",
        "for (auto& score : scores) score = 1 / (1 + std::exp(-score));",
        "return scores;",
    ],
    "none": ["return row(0);"],
}


def _made(manifest: Manifest) -> tuple[str, list[str]]:
    """Return the result type of the function, and its lines after the run."""
    ability = ability_of(manifest)
    pooling, normalize = pooling_of(manifest)
    if ability == "embed":
        mean = [
            "auto vector = row(0);",
            "for (int64_t place = 1; place < count; ++place)",
            "  for (size_t at = 0; at < vector.size(); ++at) vector[at] += row(place)[at];",
            "for (auto& value : vector) value /= count;",
        ]
        unit = [
            "double squares = 0;",
            "for (const auto value : vector) squares += value * value;",
            "for (auto& value : vector) value /= std::sqrt(squares);",
        ]
        pooled = ["auto vector = row(0);"] if pooling == "first" else mean
        return "std::vector<float>", [*pooled, *(unit if normalize else []), "return vector;"]
    function = manifest.facts.function_to_apply
    is_one = len(manifest.facts.labels) == 1
    if ability == "classify" and function in CLASSIFIES:
        return "std::vector<float>", CLASSIFIES[function]
    if ability == "classify":
        return "int64_t", ["return argmax(row(0));"]
    each = "1 / (1 + std::exp(-row(place)[0]))" if is_one else "argmax(row(place))"
    condition = "if (ids[place] == MASK) " if ability == "fill" else ""
    kind = "std::vector<float>" if is_one else "Ids"
    return kind, [
        f"{kind} made;",
        "for (int64_t place = 0; place < count; ++place)",
        f"  {condition}made.push_back({each});",
        "return made;",
    ]
