"""Facts about a model exported by other tools, from the configs in its folder and the dims of its graphs' ports.

What neither says is an error that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from txport.bundles.foreign.contracts import EMBEDDINGS, cache_dims, state_of
from txport.bundles.foreign.values import Values
from txport.checkpoints.pooling import longest_sentence, steps_of
from txport.errors import BundleError, UnsupportedError, quoted
from txport.models.audio import Features, Speech, features, speech
from txport.models.config import LONGEST
from txport.models.facts import (
    LENGTH,
    MOST_LABELS,
    MOST_NUMBERS,
    SENTENCE,
    Facts,
    Output,
    Owner,
    StateTensor,
    Tokens,
    function_of,
    numbers_of,
)
from txport.models.json_values import whole_number
from txport.models.sentence import has_weights, outputs_of
from txport.targets.ports import (
    ENCODER,
    INPUT_FEATURES,
    LAST_HIDDEN_STATE,
    LOGITS,
    MODEL,
    TOKEN_TYPE_IDS,
    Dim,
    Graph,
    Port,
)
from txport.text.settings import Settings

PLACES = ("max_position_embeddings", "n_positions", "max_target_positions", "n_ctx", "max_sequence_length")
WIDTHS = ("d_model", "n_embd", "dim", "hidden_size")
VOCABULARIES = ("decoder_vocab_size", "vocab_size")
HEADS = ("num_key_value_heads", "decoder_attention_heads", "num_heads", "n_head", "num_attention_heads")
CAUSAL = ("ForCausalLM", "LMHeadModel", "DoubleHeadsModel")  # suffixes of class names
MASKED = ("ForMaskedLM", "ForPreTraining", "WithLMHeadModel")
POOLED = "pooler_output"
SPECIAL = {  # of an encoder's texts -> names in configs, its name in a family's config, and that in a tokenizer's
    "before": (("cls_token_id", "bos_token_id"), "cls_id", "cls_token"),
    "after": (("sep_token_id", "eos_token_id"), "sep_id", "sep_token"),
    "mask": (("mask_token_id",), "mask_id", "mask_token"),
}
FRAMES_A_PLACE = 2  # frames per encoder position of Whisper
SPEECH = {  # a field of `Speech` -> a field of the family's config
    "transcribe": "transcribe_id",
    "translate": "translate_id",
    "no_timestamps": "no_timestamps_id",
    "previous": "previous_id",
    "language": "language",
    "task": "task",
    "latest_first": "max_initial_timestamp",
    "languages": "languages",
    "language_ids": "language_ids",
    "initial": "initial_ids",
}
Files = Mapping[str, Graph]  # role -> the graph as its file declares it


def facts_of(values: Values, files: Files) -> Facts:
    """Return the facts; raise `BundleError` if some are missing, `UnsupportedError` for other kinds of models."""
    if MODEL in files:
        return _encoder(values, files[MODEL])
    size = _size(values, "vocabulary size", _last(files, LOGITS), *VOCABULARIES)
    width = _width(values, files)
    if ENCODER not in files:
        return Facts(task="causal", width=width, target=_tokens(values, size), state=_state(values, files))
    is_heard = any(port.name == INPUT_FEATURES for port in files[ENCODER].inputs)
    if is_heard != (values.type == "whisper"):
        reads = "features" if is_heard else "tokens"
        raise UnsupportedError(f"{values.folder} is a {values.type} that reads {reads}, which is not supported")
    start = values.token("decoder_start_token_id", size)
    start = values.token("bos_token_id", size) if start is None else start
    if start is None:
        raise BundleError(f"{values.folder} defines no start token of targets; set decoder_start_token_id")
    target = _tokens(values, size, start=start)
    if not target.ends:
        raise BundleError(f"{values.folder} defines no end token of targets; set eos_token_id")
    audio = _audio(values, size) if is_heard else None
    source, tokens = audio or (_tokens(values, values.size("vocab_size") or size), None)
    state = _state(values, files)
    return Facts(task="seq2seq", width=width, source=source, target=target, state=state, speech=tokens)


def is_of(values: Values, ends: Iterable[str]) -> bool:
    """Whether the saved model has a class with one of these suffixes."""
    return any(name.endswith(tuple(ends)) for name in values.classes)


def _size(values: Values, what: str, declared: Dim | None, *names: str) -> int:
    """Return the size that the config has under one of these names, or else a fixed dim of a port."""
    found = values.size(*names) or declared
    if not isinstance(found, int):
        raise BundleError(f"{values.folder}: neither its config nor its graphs define the {what}; set {names[-1]}")
    return found


def _width(values: Values, files: Files) -> int:
    """Return the width; the graphs' own, since some configs have another one."""
    fixed = next((dim for name in (LAST_HIDDEN_STATE, EMBEDDINGS) if isinstance(dim := _last(files, name), int)), 0)
    return fixed or _size(values, "hidden size", None, *WIDTHS)


def _last(files: Files, name: str) -> Dim | None:
    """Return the last dim of an output; None if no graph has it."""
    ports = (port for file in files.values() for port in file.outputs if port.name == name and port.dims)
    return next((port.dims[-1] for port in ports), None)


def _state(values: Values, files: Files) -> tuple[StateTensor, ...]:
    """Return the caches of the graphs that read them; () if none does."""
    dims = next((dims for file in files.values() if (dims := cache_dims(file))), None)
    if dims is None:
        return ()
    width, every = values.size(*WIDTHS), values.size(*HEADS[1:])
    shared = width // every if width and every else None
    heads = dims[0] if isinstance(dims[0], int) else _size(values, "number of heads", None, *HEADS)
    head = dims[1] if isinstance(dims[1], int) else _size(values, "head size", shared, "d_kv", "head_dim")
    owners: tuple[Owner, ...] = ("row", "source") if ENCODER in files else ("row",)
    state = state_of(owners, list(files.values()), heads, head)
    if sum(numbers_of(each, 1) for each in state) > MOST_NUMBERS:
        raise BundleError(f"the caches have too many values per token; the maximum is {MOST_NUMBERS}")
    return state


def _encoder(values: Values, file: Graph) -> Facts:
    """Return the facts of an encoder-only model; its outputs determine what it can do.

    If texts have labels and tokens have types, pairs of texts do too.
    """
    files = {MODEL: file}
    there = {port.name: port for port in file.outputs}
    fills = LOGITS in there and is_of(values, MASKED)
    size = _size(values, "vocabulary size", _last(files, LOGITS) if fills else None, *VOCABULARIES)
    source = _text(values, size)
    width = _width(values, files)
    if fills:
        if source.mask is None:
            fault = "has a masked language model, but no mask token; set mask_token_id in its config.json"
            raise BundleError(f"{values.folder} {fault}")
        return Facts(task="encode", width=width, source=source, outputs=(Output(LOGITS, (LENGTH, size)),))
    if LOGITS in there:
        return _labelled(values, there[LOGITS], width, source, any(port.name == TOKEN_TYPE_IDS for port in file.inputs))
    if not there.keys() & {LAST_HIDDEN_STATE, EMBEDDINGS}:
        gives = ", ".join(there) or "none"
        raise UnsupportedError(f"{values.folder} has the outputs {gives}; supported: {LAST_HIDDEN_STATE}, {LOGITS}")
    pooled = (Output(POOLED, (width,)),) if POOLED in there else ()
    outputs = (Output(LAST_HIDDEN_STATE, (LENGTH, width)), *pooled, *_sentence(values.folder, there, width))
    return Facts(task="encode", width=width, source=source, outputs=outputs)


def _sentence(folder: Path, there: Mapping[str, Port], width: int) -> tuple[Output, ...]:
    """Return the output of the modules after the pooling if these have weights, which only the graph can have."""
    steps = steps_of(folder)
    return outputs_of(width, steps) if has_weights(steps) and SENTENCE in there else ()


def _labelled(values: Values, port: Port, width: int, source: Tokens, has_types: bool) -> Facts:
    labels = _labels(values)
    is_of_texts = len(port.dims) != 3
    return Facts(
        task="encode",
        width=width,
        source=source,
        outputs=(Output(LOGITS, (len(labels),) if is_of_texts else (LENGTH, len(labels))),),
        labels=labels,
        function_to_apply=function_of(_problem_type(values) if is_of_texts else None, labels),
        has_token_types=has_types and is_of_texts,
    )


def _problem_type(values: Values) -> object:
    """Return the problem type; that of a known model says what the scores of a cross-encoder are, too."""
    return values.known.get("problem_type") or values.get("problem_type")


def _labels(values: Values) -> tuple[str, ...]:
    named = values.config.get("id2label")
    if named is None:
        count = values.size("num_labels") or 2  # the default of transformers
        return tuple(f"LABEL_{number}" for number in range(min(count, MOST_LABELS)))
    try:
        ordered = sorted((int(number), str(name)) for number, name in named.items())
    except (AttributeError, TypeError, ValueError) as error:
        raise BundleError(f"{values.folder}: id2label must name labels by numbers, got {quoted(named)}") from error
    if [number for number, _ in ordered] != list(range(len(ordered))):
        raise BundleError(f"{values.folder}: id2label must number labels from 0 on, got {quoted(named)}")
    return tuple(name for _, name in ordered)


def _tokens(values: Values, size: int, *, start: int | None = None) -> Tokens:
    ends = values.tokens("eos_token_id", size)
    pad = values.token("pad_token_id", size)
    pad = next(iter(ends), 0) if pad is None else pad  # any id will do: padding is masked, or rows run apart
    return Tokens(size=size, longest=_longest(values), pad=pad, start=start, ends=ends)


def _text(values: Values, size: int) -> Tokens:
    """Return an encoder's input vocabulary, with the special tokens around a text and the mask where they are known."""
    settings = Settings(values.folder)
    found: dict[str, int | None] = {}
    for part, (names, ours, of_tokenizer) in SPECIAL.items():
        told = [*(values.token(name, size) for name in names), values.known.get(ours)]
        told.append((values.special or {}).get(settings.token(of_tokenizer) or ""))
        found[part] = next((each for each in told if type(each) is int and 0 <= each < size), None)
    around: dict[str, Any] = {part: () if found[part] is None else (found[part],) for part in ("before", "after")}
    longest = min(longest_sentence(values.folder) or LONGEST, _longest(values))
    pad = values.token("pad_token_id", size) or 0
    return Tokens(size=size, longest=longest, pad=pad, mask=found["mask"], **around)


def _longest(values: Values) -> int:
    """Return the maximum length; for a known type the architecture's own, which excludes reserved positions."""
    known = values.known.get("max_length")
    found = known if type(known) is int else values.size(*PLACES)
    if found is None:
        raise BundleError(f"{values.folder} defines no maximum number of tokens; set {PLACES[0]} in its config.json")
    return max(2, min(found, LONGEST))


def _audio(values: Values, size: int) -> tuple[Features, Speech]:
    """Return the features and the special tokens of a Whisper model, by its family."""
    known, why = values.expressed
    told = {ours: known.get(name) for ours, name in SPEECH.items()}
    lists = {name: list(told[name] or ()) for name in ("languages", "language_ids", "initial")}
    settings = {name: known.get(name) for name in ("sampling_rate", "hop_length", "n_fft")}
    try:
        frames = FRAMES_A_PLACE * whole_number("max_source_positions", known.get("places"), 1)
        sizes = {"size": known.get("mel_bins"), "frames": frames, "longest": known.get("places")}
        return features({**sizes, **settings}), speech({**told, **lists}, size)
    except (KeyError, TypeError, ValueError) as error:
        what = "does not define the audio features and the speech tokens of its model"
        raise BundleError(f"{values.folder} {what}: {why or error}") from error
