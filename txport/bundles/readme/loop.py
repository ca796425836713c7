"""The program in a README, which runs the bundle with NumPy and onnxruntime alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from string import Template
from textwrap import fill, indent

from txport.bundles.manifest import Manifest
from txport.bundles.readme import settings
from txport.bundles.readme.settings import pooling_of, reads_features

WIDTH = 100
CHOOSE = '''

def choose(logits, count):
    """The likeliest token that the checkpoint's rules allow after `count` new ones."""
    if count == 0 and "forced_bos_token_id" in RULES:
        return RULES["forced_bos_token_id"]
    if count == MOST - 1 and "forced_eos_token_id" in RULES:
        return RULES["forced_eos_token_id"]
    logits = logits.copy()
    logits[RULES.get("suppress_tokens", [])] = -np.inf
    if count == int("forced_bos_token_id" in RULES):
        logits[RULES.get("begin_suppress_tokens", [])] = -np.inf
    if count < RULES.get("min_new_tokens", 0):
        logits[ENDS] = -np.inf
    return int(logits.argmax())
'''
LIKELIEST = '''

def choose(logits, count):
    """The likeliest token."""
    return int(logits.argmax())
'''
PORTABLE = '''

def generate(source, most=MOST):
    """$doc"""
$given
    for port in decoder.get_inputs():
        if port.name.startswith("past_key_values."):  # empty at first: (1, heads, 0, head size)
            given[port.name] = np.zeros((1, port.shape[1], 0, port.shape[3]), np.$dtype)
    tokens, target, past = $start, [], 0
    while len(target) < most:
        length = past + len(tokens)
        given["input_ids"] = np.array([tokens])
$places        found = dict(zip(outputs, decoder.run(outputs, given)))
        tokens, past = [choose(found["logits"][0, -1], len(target))], length
        target += tokens
        if tokens[0] in ENDS:
            break
        for name in outputs[1:]:
            given[name.replace("present", "past_key_values", 1)] = found[name]
    return target
'''
PLACES = """\
        given["position_ids"] = np.arange(past, length)[None]
        given["attention_mask"] = np.ones((1, length), np.int64)
"""
CPU = '''

def bind(session, caches):
    """A binding in which each cache is an input, and the output of the same memory."""
    binding = session.io_binding()
    if session is step:
        binding.bind_output("logits")
    for name, cache in caches.items():
        binding.bind_ortvalue_input(name, cache)
        binding.bind_ortvalue_output(name.replace("past", "present", 1), cache)
    return binding


def generate(source, most=MOST):
    """$doc"""
$given
    capacity, caches = len($start) + most, {}
    for port in step.get_inputs():
        if port.name.startswith("past."):
            empty = np.zeros((1, port.shape[1], capacity, port.shape[3]), np.float32)
            caches[port.name] = onnxruntime.OrtValue.ortvalue_from_numpy(empty)
    binding = bind(step, caches)
    given |= {"cache_capacity": np.array([capacity], np.int32), "k": np.array([0])}
    for name, value in given.items():
        binding.bind_cpu_input(name, value)
    tokens, target, past = $start, [], 0
$prefill    while len(target) < most:
        for token in tokens:
            binding.bind_cpu_input("input_ids", np.array([[token]]))
            binding.bind_cpu_input("past_lengths", np.array([past], np.int32))
            step.run_with_iobinding(binding)
            past += 1
        tokens = [choose(binding.get_outputs()[0].numpy()[0], len(target))]
        target += tokens
        if tokens[0] in ENDS:
            break
    return target
'''
PREFILL = """\
    if len(tokens) > 1:  # all of the prompt but its last token
        past = len(tokens) - 1
        filling = bind(prefill, caches)
        filling.bind_cpu_input("input_ids", np.array([tokens[:-1]]))
        filling.bind_cpu_input("last_places", np.array([past - 1], np.int32))
        filling.bind_cpu_input("prompt_size", np.array([past], np.int32))
        prefill.run_with_iobinding(filling)
        tokens = tokens[-1:]
"""
ENCODED = {  # target, what is read -> how the loop begins
    ("portable", "tokens"): """\
    ids = np.array([source])
    mask = np.ones_like(ids)
    (hidden,) = encoder.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})
    given = {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}""",
    ("portable", "features"): """\
    features = np.array([source], np.$dtype)
    (hidden,) = encoder.run(["last_hidden_state"], {"input_features": features})
    given = {"encoder_hidden_states": hidden}""",
    ("cpu", "tokens"): """\
    given = {"source_lengths": np.array([len(source)], np.int32)}
    given |= zip(cross, encoder.run(cross, {"input_ids": np.array([source]), **given}))""",
    ("cpu", "features"): """\
    features = np.array([source], np.float32)
    given = {"source_lengths": np.array([$longest], np.int32)}  # places that the encoder makes of the frames
    given |= zip(cross, encoder.run(cross, {"input_features": features, **given}))""",
}
DOCS = {
    "tokens": "The ids of a source, special ones included -> those of its target, up to an end token.",
    "features": "Log-mel features (bins, frames) -> the ids of what is said, up to an end token.",
    "prompt": "The ids of a prompt -> those that continue it, up to an end token.",
}
ENCODER = '''

def $ability(ids$types):
    """$doc"""
    given = {"input_ids": np.array([ids]), $second}$typed
    (found,) = model.run(["$output"], given)
    $result
'''
SECOND = {
    "portable": '"attention_mask": np.ones((1, len(ids)), np.int64)',
    "cpu": '"source_lengths": np.array([len(ids)], np.int32)',
}
TYPES = """
    given["token_type_ids"] = np.array([[0] * len(ids) if types is None else types])  # 1 in a second text"""


def loop(manifest: Manifest) -> str:
    """Return the program, which defines `generate`, or a function with the name of what an encoder does."""
    head = ["import numpy as np", "import onnxruntime", "", *_constants(manifest), *_sessions(manifest)]
    text = _generator(manifest) if manifest.facts.generates else _encoder(manifest)
    return "\n".join(head) + "\n" + text


def _generator(manifest: Manifest) -> str:
    facts = manifest.facts
    is_prompted = facts.is_causal
    reads = "prompt" if is_prompted else "features" if reads_features(manifest) else "tokens"
    limit = f"    most = min(most, {facts.writes.longest} - len(source))\n    given = {{}}"
    given = limit if is_prompted else ENCODED[manifest.target, reads]
    if facts.attention and not manifest.made_for.is_standard:
        given += '\n    given["align"] = np.array([False])'
    text = (PORTABLE if manifest.made_for.is_standard else CPU).replace("$given", given)
    return (CHOOSE if settings.rules(manifest) else LIKELIEST) + Template(text).substitute(
        doc=DOCS[reads],
        dtype=manifest.dtype,
        start="source" if is_prompted else "START",
        longest="" if is_prompted else facts.reads.longest,
        places=PLACES if is_prompted else "",
        prefill=PREFILL if is_prompted else "",
    )


def _encoder(manifest: Manifest) -> str:
    facts = manifest.facts
    ability = str(facts.ability)
    pooling, normalize = pooling_of(manifest)
    vector = "found[0, 0].astype(np.float32)" if pooling == "first" else "found[0].astype(np.float32).mean(axis=0)"
    vectors = f"vector = {vector}\n    return vector" + (" / np.linalg.norm(vector)" if normalize else "")
    label = "the number of its likeliest label", "return int(found[0].argmax())"
    kinds = {
        "embed": ("its vector", vectors),
        "classify": {
            "sigmoid": ("the score of each label", "return (1 / (1 + np.exp(-found[0].astype(np.float64)))).tolist()"),
            "none": ("the value of each label", "return found[0].astype(np.float64).tolist()"),
        }.get(facts.function_to_apply or "", label),
        "tag": ("the probability of the label of each token", "return 1 / (1 + np.exp(-found[0, :, 0]))")
        if len(facts.labels) == 1
        else ("the number of each token's likeliest label", "return found[0].argmax(axis=1).tolist()"),
        "fill": ("the likeliest id for each MASK", "return found[0].argmax(axis=1)[np.array(ids) == MASK].tolist()"),
    }
    makes, result = kinds[ability]
    has_types = facts.has_token_types and manifest.made_for.is_standard
    return Template(ENCODER).substitute(
        ability=ability,
        doc=f"The ids of a text, special ones included -> {makes}.",
        types=", types=None" if has_types else "",
        second=SECOND[manifest.target],
        typed=TYPES if has_types else "",
        output="last_hidden_state" if ability == "embed" else "logits",
        result=result,
    )


def _constants(manifest: Manifest) -> Iterator[str]:
    facts = manifest.facts
    if not facts.generates:
        yield from [f"MASK = {facts.vocabulary.mask}"] if facts.ability == "fill" else []
        return
    if facts.is_encoder_decoder:
        yield _constant("START", list(settings.start(manifest)))
    yield _constant("ENDS", list(facts.writes.ends))
    yield _constant("MOST", settings.most(manifest))
    if found := settings.rules(manifest):
        yield _constant("RULES", found)


def _constant(name: str, value: object) -> str:
    """Return an assignment; a long one has several lines."""
    text = f"{name} = {json.dumps(value)}"
    return text if len(text) <= WIDTH else f"{name} = (\n{indent(fill(json.dumps(value), WIDTH - 4), '    ')}\n)"


def _sessions(manifest: Manifest) -> Iterator[str]:
    for role, graph in manifest.driven.items():
        if role != "select":
            yield f'{role} = onnxruntime.InferenceSession("{graph.file}")'
    if not manifest.facts.generates:
        return
    if manifest.made_for.is_standard:
        present = '(port.name for port in decoder.get_outputs() if port.name.startswith("present."))'
        yield f'outputs = ["logits", *{present}]'
    elif manifest.facts.is_encoder_decoder:
        yield "cross = [port.name for port in encoder.get_outputs()]"
