"""Facts about a model exported by other tools, from the configs in its folder and the dims of its graphs' ports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from txport.bundles.foreign.contracts import HIDDEN, POOLED, TOKEN_EMBEDDINGS, VOCABULARY
from txport.bundles.foreign.values import Values
from txport.checkpoints.pooling import longest_sentence
from txport.errors import BundleError, UnsupportedError, quoted
from txport.models.audio import Features, Speech, features, speech
from txport.models.config import LONGEST
from txport.models.facts import LENGTH, Facts, Output, StateTensor, Tokens, function_of, usual_function
from txport.models.json_values import whole_number
from txport.targets.ports import LAST_HIDDEN_STATE, LOGITS, TOKEN_TYPE_IDS, Port

PLACES = ("max_position_embeddings", "n_positions", "max_target_positions", "n_ctx", "max_sequence_length")
WIDTHS = ("d_model", "hidden_size", "n_embd", "dim")
VOCABULARIES = ("decoder_vocab_size", "vocab_size")
HEADS = ("num_key_value_heads", "decoder_attention_heads", "num_attention_heads", "num_heads", "n_head")
ALL_HEADS = HEADS[1:]
CAUSAL = ("ForCausalLM", "LMHeadModel", "DoubleHeadsModel")  # suffixes of class names
MASKED = ("ForMaskedLM", "ForPreTraining", "WithLMHeadModel")
UNBOUND = 512  # maximum number of tokens of a model without a stated maximum
WRITTEN = {"before": ("[CLS]", "<s>"), "after": ("[SEP]", "</s>"), "mask": ("[MASK]", "<mask>")}
FRAMES_A_PLACE = 2  # frames per encoder position of Whisper
SPEECH = {  # a field of `Speech` -> a field of the family's config
    "transcribe": "transcribe_id",
    "translate": "translate_id",
    "no_timestamps": "no_timestamps_id",
    "previous": "previous_id",
    "language": "language",
    "task": "task",
    "latest_first": "max_initial_timestamp",
}
SPEECH_LISTS = {"languages": "languages", "language_ids": "language_ids", "initial": "initial_ids"}


def is_of(classes: Sequence[str], ends: Iterable[str]) -> bool:
    """Whether one of these class names has one of these suffixes."""
    return any(name.endswith(tuple(ends)) for name in classes)


def known_sizes(values: Values) -> dict[str, int]:
    """Return the dims that the config states, by their names in contracts."""
    found = {HIDDEN: values.size(*WIDTHS), VOCABULARY: values.size(*VOCABULARIES)}
    return {name: size for name, size in found.items() if size is not None}


def cache_sizes(values: Values) -> tuple[int | None, int | None]:
    """Return the number of heads of the caches and the head size, from the config; None if it does not state them."""
    heads = values.size(*HEADS)
    every = values.size(*ALL_HEADS)
    own = values.size("d_kv", "head_dim")
    width = values.size(*WIDTHS)
    return heads, own or (width // every if width and every else None)


def seq2seq_facts(values: Values, width: int, size: int, state: tuple[StateTensor, ...]) -> Facts:
    """Return the facts of a model from tokens or features to tokens of a vocabulary of `size`.

    Raises `BundleError` if the folder does not define the start token or the end token of targets.
    """
    start = values.token("decoder_start_token_id", size)
    start = values.token("bos_token_id", size) if start is None else start
    if start is None:
        raise BundleError(f"{values.folder} defines no start token of targets; set decoder_start_token_id")
    is_speech = values.type == "whisper"
    source = _features(values) if is_speech else _tokens(values, values.source_vocabulary or size)
    target = _tokens(values, size, start=start)
    if not target.ends:
        raise BundleError(f"{values.folder} defines no end token of targets; set eos_token_id")
    told = _speech(values, size) if is_speech else None
    return Facts(task="seq2seq", width=width, source=source, target=target, state=state, speech=told)


def causal_facts(values: Values, width: int, size: int, state: tuple[StateTensor, ...]) -> Facts:
    """Return the facts of a causal model."""
    return Facts(task="causal", width=width, target=_tokens(values, size), state=state)


def encoder_facts(values: Values, inputs: Sequence[Port], outputs: Sequence[Port], width: int, size: int) -> Facts:
    """Return the facts of an encoder-only model; its outputs determine what it can do.

    If texts have labels and tokens have types, pairs of texts do too.

    Raises `BundleError` for a masked language model without a mask token and for invalid labels, `UnsupportedError`
    for unknown outputs.
    """
    there = {port.name: port for port in outputs}
    if LOGITS in there:
        found = _with_logits(values, there[LOGITS], width, size)
        has_types = found.ability == "classify" and any(port.name == TOKEN_TYPE_IDS for port in inputs)
        return replace(found, has_token_types=has_types)
    if not there.keys() & {LAST_HIDDEN_STATE, TOKEN_EMBEDDINGS}:
        gives = ", ".join(there) or "none"
        raise UnsupportedError(f"{values.folder} has the outputs {gives}; supported: {LAST_HIDDEN_STATE}, {LOGITS}")
    pooled = (Output(POOLED, (width,)),) if POOLED in there else ()
    hidden = Output(LAST_HIDDEN_STATE, (LENGTH, width))
    return Facts(task="encode", width=width, source=_text(values, size), outputs=(hidden, *pooled))


def _with_logits(values: Values, port: Port, width: int, size: int) -> Facts:
    source = _text(values, size)
    classes = values.classes
    fills = is_of(classes, MASKED)
    if fills:
        if source.mask is None:
            fault = "has a masked language model, but no mask token; set mask_token_id in its config.json"
            raise BundleError(f"{values.folder} {fault}")
        return Facts(task="encode", width=width, source=source, outputs=(Output(LOGITS, (LENGTH, size)),))
    labels = _labels(values)
    dims: tuple[int | str, ...] = (LENGTH, len(labels)) if len(port.dims) == 3 else (len(labels),)
    function = function_of(values.get("problem_type"), labels) if len(dims) == 1 else usual_function(labels)
    outputs = (Output(LOGITS, dims),)
    return Facts(task="encode", width=width, source=source, outputs=outputs, labels=labels, function_to_apply=function)


def labels_size(values: Values, size: int) -> int:
    """Return the size of the last dim of the logits: the vocabulary of a masked language model, or the labels."""
    return size if is_of(values.classes, MASKED) else len(_labels(values))


def _labels(values: Values) -> tuple[str, ...]:
    named = values.config.get("id2label")
    count = values.size("num_labels") or 2
    if named is None:
        return tuple(f"LABEL_{number}" for number in range(min(count, 1 << 16)))
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
    pad = next(iter(ends), 0) if pad is None else pad
    return Tokens(size=size, longest=_longest(values), pad=pad, start=start, ends=ends)


def _text(values: Values, size: int) -> Tokens:
    """Return an encoder's input vocabulary, with the special tokens around a text and the mask where they are known."""
    written = values.special or {}
    named: dict[str, tuple[str, ...]] = {
        "before": ("cls_token_id", "bos_token_id"),
        "after": ("sep_token_id", "eos_token_id"),
        "mask": ("mask_token_id",),
    }
    keys = {"before": "cls_id", "after": "sep_id", "mask": "mask_id"}
    found: dict[str, Any] = {}
    for part, names in named.items():
        told = [*(values.token(name, size) for name in names), *(written.get(each) for each in WRITTEN[part])]
        told.append(values.known.get(keys[part]))
        found[part] = next((each for each in told if type(each) is int and 0 <= each < size), None)
    around: dict[str, Any] = {part: () if found[part] is None else (found[part],) for part in ("before", "after")}
    pad = values.token("pad_token_id", size) or 0
    longest = longest_sentence(values.folder) or _longest(values)
    return Tokens(size=size, longest=min(longest, _longest(values)), pad=pad, mask=found["mask"], **around)


def _longest(values: Values) -> int:
    """Return the maximum length; for a known type the architecture's own, which excludes reserved positions."""
    known = values.known.get("max_length")
    found = known if type(known) is int else values.size(*PLACES) or UNBOUND
    return max(2, min(found, LONGEST))


def _features(values: Values) -> Features:
    known, why = values.expressed
    if why:
        raise BundleError(f"{values.folder} does not define the audio features of its model: {why}")
    told = {name: known.get(name) for name in ("sampling_rate", "hop_length", "n_fft")}
    try:
        frames = FRAMES_A_PLACE * whole_number("max_source_positions", known.get("places"), 1)
        return features({"size": known.get("mel_bins"), "frames": frames, "longest": known.get("places"), **told})
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{values.folder} does not define the audio features of its model: {error}") from error


def _speech(values: Values, size: int) -> Speech:
    known = values.known
    told = {ours: known.get(name) for ours, name in SPEECH.items()}
    lists = {ours: list(known.get(name) or ()) for ours, name in SPEECH_LISTS.items()}
    try:
        return speech({**told, **lists}, size)
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{values.folder} does not define the speech tokens of its model: {error}") from error
