"""The example in Python, which needs only NumPy and onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

from txport.bundles.manifest import Manifest
from txport.bundles.readme.settings import Settings, ability_of, pooling_of
from txport.models.facts import Function

WIDTH = 100

PORTABLE_SOURCE = '''
def generate(source, most=MOST):
    """The ids of a source, special ones included -> those of its target, up to an end token."""
    ids = np.array([source], np.int64)
    mask = np.ones_like(ids)
    (hidden,) = encoder.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})
    given = {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}
'''
PORTABLE_FEATURES = '''
def generate(features, most=MOST):
    """Log-mel features (BINS, FRAMES) -> the ids of what is said, up to an end token."""
    (hidden,) = encoder.run(["last_hidden_state"], {"input_features": np.array([features], np.FLOAT)})
    given = {"encoder_hidden_states": hidden}
'''
PORTABLE_LOOP = """
    for port in decoder.get_inputs():
        if port.name.startswith("past_key_values."):  # empty at first: (1, heads, 0, head size)
            given[port.name] = np.zeros((1, port.shape[1], 0, port.shape[3]), np.FLOAT)
    tokens, target = list(START), []
    while len(target) < most:
        given["input_ids"] = np.array([tokens], np.int64)
        found = dict(zip(outputs, decoder.run(outputs, given)))
        tokens = [CHOOSE(found["logits"][0, -1])]
        target += tokens
        if tokens[0] in ENDS:
            break
        for name in outputs[1:]:
            given[name.replace("present", "past_key_values", 1)] = found[name]
    return target
"""
PORTABLE_CAUSAL = '''
def generate(prompt, most=MOST):
    """The ids of a prompt -> those that continue it, up to an end token."""
    most = min(most, LONGEST - len(prompt))
    given = {}
    for port in decoder.get_inputs():
        if port.name.startswith("past_key_values."):  # empty at first: (1, heads, 0, head size)
            given[port.name] = np.zeros((1, port.shape[1], 0, port.shape[3]), np.FLOAT)
    tokens, target, past = list(prompt), [], 0
    while len(target) < most:
        length = past + len(tokens)
        given["input_ids"] = np.array([tokens], np.int64)
        given["position_ids"] = np.arange(past, length)[None]
        given["attention_mask"] = np.ones((1, length), np.int64)
        found = dict(zip(outputs, decoder.run(outputs, given)))
        tokens, past = [CHOOSE(found["logits"][0, -1])], length
        target += tokens
        if tokens[0] in ENDS:
            break
        for name in outputs[1:]:
            given[name.replace("present", "past_key_values", 1)] = found[name]
    return target
'''
CPU_SOURCE = '''
def generate(source, most=MOST):
    """The ids of a source, special ones included -> those of its target, up to an end token."""
    given = {"input_ids": np.array([source], np.int64)}
    given["source_lengths"] = np.array([len(source)], np.int32)
'''
CPU_FEATURES = '''
def generate(features, most=MOST):
    """Log-mel features (BINS, FRAMES) -> the ids of what is said, up to an end token."""
    given = {"input_features": np.array([features], np.float32)}
    given["source_lengths"] = np.array([PLACES], np.int32)
'''
CPU_LOOP = """
    capacity = len(START) + most
    caches = {}  # written in place: the same memory is what a step reads and what it gives
    for port in step.get_inputs():
        if port.name.startswith("past."):
            empty = np.zeros((1, port.shape[1], capacity, port.shape[3]), np.float32)
            caches[port.name] = onnxruntime.OrtValue.ortvalue_from_numpy(empty)
    binding = bind(step, caches, first="logits")
    for name, array in zip(cross, encoder.run(cross, given)):
        binding.bind_cpu_input(name, array)
    binding.bind_cpu_input("source_lengths", given["source_lengths"])
    binding.bind_cpu_input("cache_capacity", np.array([capacity], np.int32))
    binding.bind_cpu_input("k", np.array([0]))
    ALIGN
    tokens, target, past = list(START), [], 0
    while len(target) < most:
        for token in tokens:
            binding.bind_cpu_input("input_ids", np.array([[token]]))
            binding.bind_cpu_input("past_lengths", np.array([past], np.int32))
            step.run_with_iobinding(binding)
            past += 1
        tokens = [CHOOSE(binding.get_outputs()[0].numpy()[0])]
        target += tokens
        if tokens[0] in ENDS:
            break
    return target
"""
CPU_CAUSAL = '''
def generate(prompt, most=MOST):
    """The ids of a prompt -> those that continue it, up to an end token."""
    most = min(most, LONGEST - len(prompt))
    capacity, past = len(prompt) + most, len(prompt) - 1
    caches = {}  # written in place: the same memory is what a run reads and what it gives
    for port in step.get_inputs():
        if port.name.startswith("past."):
            empty = np.zeros((1, port.shape[1], capacity, port.shape[3]), np.float32)
            caches[port.name] = onnxruntime.OrtValue.ortvalue_from_numpy(empty)
    if past:
        filling = bind(prefill, caches)
        filling.bind_cpu_input("input_ids", np.array([prompt[:-1]], np.int64))
        filling.bind_cpu_input("last_places", np.array([past - 1], np.int32))
        filling.bind_cpu_input("prompt_size", np.array([past], np.int32))
        prefill.run_with_iobinding(filling)
    binding = bind(step, caches, first="logits")
    binding.bind_cpu_input("cache_capacity", np.array([capacity], np.int32))
    binding.bind_cpu_input("k", np.array([0]))
    token, target = prompt[-1], []
    while len(target) < most:
        binding.bind_cpu_input("input_ids", np.array([[token]]))
        binding.bind_cpu_input("past_lengths", np.array([past], np.int32))
        step.run_with_iobinding(binding)
        token, past = CHOOSE(binding.get_outputs()[0].numpy()[0]), past + 1
        target.append(token)
        if token in ENDS:
            break
    return target
'''
BIND = '''
def bind(session, caches, first=None):
    """A binding in which each cache is an input and the output of the same memory."""
    binding = session.io_binding()
    if first:
        binding.bind_output(first)
    for name, cache in caches.items():
        binding.bind_ortvalue_input(name, cache)
        binding.bind_ortvalue_output(name.replace("past", "present", 1), cache)
    return binding
'''
ENCODE = {
    "portable": '"attention_mask": np.ones_like(tokens)',
    "cpu": '"source_lengths": np.array([len(ids)], np.int32)',
}


def generating(settings: Settings) -> str:
    """Return the example for a generating model."""
    manifest = settings.manifest
    facts = settings.facts
    is_portable = manifest.target == "portable"
    is_causal = facts.task == "causal"
    parts = [
        "import numpy as np\nimport onnxruntime\n",
        "\n".join([*_constants(settings), *_sessions(settings)]) + "\n",
        *([] if is_portable else [BIND]),
        *([_choose(settings)] if settings.rules else []),
    ]
    if is_causal:
        parts.append(PORTABLE_CAUSAL if is_portable else CPU_CAUSAL)
    elif is_portable:
        parts.append((PORTABLE_FEATURES if settings.reads_features else PORTABLE_SOURCE).rstrip() + PORTABLE_LOOP)
    else:
        parts.append((CPU_FEATURES if settings.reads_features else CPU_SOURCE).rstrip() + CPU_LOOP)
    align = 'binding.bind_cpu_input("align", np.array([False]))\n' if facts.attention else ""
    text = "\n".join(part.lstrip("\n") if number < 2 else part for number, part in enumerate(parts))
    text = text.replace("    ALIGN\n", f"    {align}" if align else "").replace("FLOAT", manifest.dtype)
    return _chosen(text, settings)


def _chosen(text: str, settings: Settings) -> str:
    """Return the text with `CHOOSE` replaced by the choice of a token."""
    for scores in ('found["logits"][0, -1]', "binding.get_outputs()[0].numpy()[0]"):
        how = f"choose({scores}, len(target))" if settings.rules else f"int({scores}.argmax())"
        text = text.replace(f"CHOOSE({scores})", how)
    return text.strip() + "\n"


def _constants(settings: Settings) -> Iterator[str]:
    facts = settings.facts
    if settings.start:
        yield f"START = {list(settings.start)}  # what a target begins with"
    else:
        yield f"LONGEST = {facts.writes.longest}  # tokens of a prompt and of what continues it"
    yield from constant("ENDS", facts.writes.ends, "tokens that end a target")
    yield f"MOST = {settings.most}  # tokens of a target at most"
    for name, value in settings.rules.items():
        yield from constant(name.upper(), value, "")
    if settings.reads_features and settings.manifest.target == "cpu":
        yield f"PLACES = {facts.reads.longest}  # that the encoder makes of the frames"


def constant(name: str, value: object, comment: str) -> Iterator[str]:
    """Yield the lines of an assignment; a long list has several lines."""
    values = [*value] if isinstance(value, list | tuple) else value
    line = f"{name} = {values}" + (f"  # {comment}" if comment else "")
    if len(line) <= WIDTH or not isinstance(values, list):
        yield line
        return
    yield f"{name} = [" + (f"  # {comment}" if comment else "")
    row = "   "
    for each in values:
        if len(row) + len(str(each)) + 2 > WIDTH:
            yield row
            row = "   "
        row += f" {each},"
    yield row
    yield "]"


def _sessions(settings: Settings) -> Iterator[str]:
    for role, graph in settings.manifest.driven.items():
        if role != "select":
            yield f'{role} = onnxruntime.InferenceSession("{graph.file}")'
    if settings.manifest.target == "portable":
        present = '(port.name for port in decoder.get_outputs() if port.name.startswith("present."))'
        yield f'outputs = ["logits", *{present}]'
    elif settings.facts.task == "seq2seq":
        yield "cross = [port.name for port in encoder.get_outputs()]"


def _choose(settings: Settings) -> str:
    """Return a function that applies the checkpoint's rules for the next token, in order."""
    lines = {
        "forced_bos_token_id": "if count == 0:\n    return FORCED_BOS_TOKEN_ID",
        "forced_eos_token_id": "if count == MOST - 1:\n    return FORCED_EOS_TOKEN_ID",
        "suppress_tokens": "logits[SUPPRESS_TOKENS] = -np.inf",
        "begin_suppress_tokens": f"if count == {int('forced_bos_token_id' in settings.rules)}:\n"
        "    logits[BEGIN_SUPPRESS_TOKENS] = -np.inf",
        "min_new_tokens": "if count < MIN_NEW_TOKENS:\n    logits[ENDS] = -np.inf",
    }
    what = "The likeliest token that the checkpoint allows after `count` new ones."
    head = f'\ndef choose(logits, count):\n    """{what}"""\n'
    rules = [line for name, line in lines.items() if name in settings.rules]
    body = [rule for rule in rules if "return" in rule]
    body += ["logits = logits.copy()", *(rule for rule in rules if "return" not in rule), "return int(logits.argmax())"]
    return head + indent("\n".join(body), "    ") + "\n"


MAKES = {
    "embed": '"""The ids of a text, special ones included -> its vector."""',
    "classify": '"""The ids of a text, special ones included -> the number of its likeliest label."""',
    "tag": '"""The ids of a text, special ones included -> the number of each token\'s likeliest label."""',
    "fill": '"""The ids of a text, with MASK where one is missing -> the likeliest id for each MASK."""',
}


CLASSIFIES: dict[Function | None, str] = {  # if labels are independent
    "sigmoid": "return (1 / (1 + np.exp(-found[0].astype(np.float64)))).tolist()",
    "none": "return found[0].astype(np.float64).tolist()",
}


def encoding(manifest: Manifest) -> str:
    """Return the example for an encoder-only model."""
    ability = ability_of(manifest)
    labels = manifest.facts.labels
    pooling, normalize = pooling_of(manifest)
    pooled = {"first": "vectors[0]", "mean": "vectors.mean(axis=0)"}[pooling]
    is_one = len(labels) == 1
    function = manifest.facts.function_to_apply
    made = {
        "embed": f"vectors = found[0].astype(np.float32)\nvector = {pooled}\n"
        + ("return vector / np.linalg.norm(vector)" if normalize else "return vector"),
        "classify": CLASSIFIES.get(function, "return int(found[0].argmax())"),
        "tag": "return 1 / (1 + np.exp(-found[0, :, 0]))" if is_one else "return found[0].argmax(axis=1).tolist()",
        "fill": "return [int(found[0, place].argmax()) for place, id_ in enumerate(ids) if id_ == MASK]",
    }[ability]
    what = MAKES[ability]
    if function in CLASSIFIES:
        what = what.replace("the number of its likeliest label", "the score of each label")
    if is_one:
        what = what.replace("the number of each token's likeliest label", "the probability of each token's label")
    output = "last_hidden_state" if ability == "embed" else "logits"
    file = next(iter(manifest.graphs.values())).file
    lines = [
        "import numpy as np",
        "import onnxruntime",
        "",
        *([f"MASK = {manifest.facts.vocabulary.mask}"] if ability == "fill" else []),
        f'model = onnxruntime.InferenceSession("{file}")',
        "",
        "",
        f"def {ability}(ids):",
        f"    {what}",
        "    tokens = np.array([ids], np.int64)",
        f'    given = {{"input_ids": tokens, {ENCODE[manifest.target]}}}',
        f'    (found,) = model.run(["{output}"], given)',
        indent(made, "    "),
    ]
    return "\n".join(lines) + "\n"
