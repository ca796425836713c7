"""The one table of what each endpoint takes: fields of a body, their bounds, and the options that they set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

from txport.errors import quoted
from txport.models.facts import Pooled
from txport.models.options import needing
from txport.serving.service.errors import InvalidRequestError
from txport.serving.service.schema import (
    ID,
    MAX_ITEMS,
    MAX_ROWS,
    NUMBER,
    SWITCH,
    WHOLE,
    Body,
    Field,
    either,
    fits,
    listed,
    number,
    options_of,
    search_fields,
    text,
    whole,
    words,
)
from txport.text.base import Unknown

MAX_WAIT = 86_400  # seconds of a deadline
MAX_DIGITS = 18  # of a token id
MAX_WINDOW = 1024  # tokens: the products of its spans take 8 MB
TEXTS = either(text(), listed(text(), 1))
OBJECT: Mapping[str, object] = {"type": "object"}
BIASES = {**OBJECT, "maxProperties": MAX_ITEMS}

MODEL = Field("model", text(1), "Name of the model, one of `/v1/models`.", is_required=True)
USER = Field("user", text(), "Accepted for clients that send it; it has no effect.")
UNKNOWN = Field(
    "unknown",
    words(*get_args(Unknown)),
    "Text outside the vocabulary: take the unknown token, fail, or leave it out.",
)
SPECIAL = Field("special", SWITCH, "Read the spelling of a special token in a text as the token.")
TRUNCATE = Field("truncate", SWITCH, "Cut texts that are too long at their ends.")
QUEUED = (
    Field(
        "priority",
        whole(-(2**20), 2**20),
        "Order in the queue: higher ones first; waiting one second counts as much as 1.",
    ),
    Field("deadline", number(0, MAX_WAIT), "Seconds after which the request fails, waiting or running."),
)
STREAM = (
    Field("stream", SWITCH, "Send the output while it grows, as server-sent events."),
    Field("stream_options", OBJECT, 'With `stream`: {"include_usage": true} adds an event with the usage.'),
)

# OpenAI's names of options of a search, and values of its fields that are those of no model here.
NAMED = (
    Field("max_tokens", whole(1), "Maximum number of new tokens.", sets="max_new_tokens"),
    Field("n", whole(1, MAX_ROWS), "Number of outputs: samples, or with `beams` the best ones.", sets="nbest"),
    Field("temperature", number(0, 1e9), "0: the most probable tokens; above 0: sample with this temperature."),
    Field("logit_bias", BIASES, "Token ids, and what is added to the score of each.", sets="sequence_bias"),
)
REFUSED = (
    Field("presence_penalty", NUMBER, "Only 0; `repetition_penalty` is supported.", only=(0,)),
    Field("frequency_penalty", NUMBER, "Only 0; `repetition_penalty` is supported.", only=(0,)),
)
OWN = search_fields("temperature", "alignment")  # all other options under their own names

COMPLETIONS = Body(
    (
        MODEL,
        Field(
            "prompt",
            either(text(), listed(text(), 1), listed(ID, 1), listed(listed(ID, 1), 1)),
            "A prompt or several, as text or as token ids.",
            is_required=True,
        ),
        *NAMED,
        Field("logprobs", whole(0, 0), "0: tell the log-probability of each token of the output."),
        *STREAM,
        *REFUSED,
        Field("best_of", WHOLE, "Only 1; `beams` and `n` are supported.", only=(1,)),
        Field("echo", SWITCH, "Only false.", only=(False,)),
        Field("suffix", text(), "Only null.", only=("",)),
        USER,
        *QUEUED,
        UNKNOWN,
        SPECIAL,
        *OWN,
    )
)
CHAT = Body(
    (
        MODEL,
        Field("messages", listed(OBJECT, 1), "Objects with `role` and `content`.", is_required=True),
        Field("max_completion_tokens", whole(1), "Maximum number of new tokens.", sets="max_new_tokens"),
        *NAMED,
        Field("logprobs", SWITCH, "Tell the log-probability of each token of the output."),
        Field("top_logprobs", WHOLE, "Only 0.", only=(0,)),
        *STREAM,
        Field("chat_template_kwargs", OBJECT, "Variables of the chat template, such as `enable_thinking`."),
        Field("continue_final_message", SWITCH, "Continue the last message instead of answering it."),
        *REFUSED,
        Field("response_format", OBJECT, "Only text.", only=({"type": "text"},)),
        Field("tools", listed(OBJECT), "Only an empty list: calls of tools are not read from an output.", only=([],)),
        Field("tool_choice", text(), "Only none.", only=("none",)),
        Field("store", SWITCH, "Only false: nothing is stored.", only=(False,)),
        USER,
        *QUEUED,
        *OWN,
    )
)
TRANSLATE = Body(
    (
        MODEL,
        Field("text", TEXTS, "A text or several.", is_required=True),
        Field("source_language", text(1), "Language of the text, by the tokenizer's name (`eng_Latn`)."),
        Field("target_language", text(1), "Language of the output."),
        Field("prefix", text(), "Start of the output: tokens of the vocabulary, separated by spaces."),
        *QUEUED,
        UNKNOWN,
        SPECIAL,
        *search_fields(),
    )
)
EMBEDDINGS = Body(
    (
        MODEL,
        Field("input", TEXTS, "A text or several.", is_required=True),
        Field("encoding_format", words("float", "base64"), "Lists of numbers, or little-endian fp32 in base64."),
        Field("dimensions", whole(1), "Only the first so many numbers of each vector."),
        Field("pooling", words(*get_args(Pooled)), "Pooling of the tokens' vectors."),
        Field("normalize", SWITCH, "Scale each vector to length 1."),
        Field("prompt", text(), "Name of a prompt of the bundle, such as `query`; it is put before each text."),
        TRUNCATE,
        UNKNOWN,
        SPECIAL,
        USER,
    )
)
RERANK = Body(
    (
        MODEL,
        Field("query", text(), "The query.", is_required=True),
        Field("documents", listed(either(text(), OBJECT), 1), "Texts, or objects with `text`.", is_required=True),
        Field("top_n", whole(1), "Only the best so many; default: all."),
        Field("return_documents", SWITCH, "Return the texts too."),
        Field("truncate", SWITCH, "Cut texts that are too long; default: true."),
        UNKNOWN,
        SPECIAL,
        USER,
    )
)
TEI_RERANK = Body(  # the shape of Text Embeddings Inference
    (
        Field("model", text(1), "Name of the model; not needed if one reranker is served."),
        Field("query", text(), "The query.", is_required=True),
        Field("texts", listed(text(), 1), "The texts.", is_required=True),
        Field("return_text", SWITCH, "Return the texts too."),
        Field("raw_scores", SWITCH, "Only false.", only=(False,)),
        Field("truncate", SWITCH, "Cut texts that are too long; default: true."),
        Field("truncation_direction", words("Right"), "Only Right."),
    )
)
ANSWER = Body(
    (
        MODEL,
        Field("question", text(1), "The question.", is_required=True),
        Field("context", text(1), "The text that has the answers.", is_required=True),
        Field("nbest", whole(1, MAX_ROWS), "Number of answers; default: 1."),
        Field("longest", whole(1, MAX_WINDOW), "Maximum number of tokens of an answer; default: 15."),
        Field("stride", whole(0, MAX_WINDOW), "Tokens of the context that two windows share; default: 128."),
        Field("window", whole(1, MAX_WINDOW), "Maximum number of tokens of a window; default: 384."),
        Field("impossible", SWITCH, "One of the answers may be none, as in SQuAD 2."),
        UNKNOWN,
        SPECIAL,
        USER,
    )
)
FORMATS = words("json", "text", "verbose_json")
TRANSCRIPTION = Body(
    (
        MODEL,
        Field("file", {"type": "string", "format": "binary"}, "The audio: WAV, FLAC, OGG, MP3.", is_required=True),
        Field("language", text(1), "Language of the audio: a code, or a name; default: detected."),
        Field("response_format", FORMATS, "json, text, or verbose_json with the segments."),
        Field("temperature", number(0, 0), "Only 0; `fallback` samples where the output is improbable."),
        Field("timestamp_granularities[]", listed(words("segment")), "Times of segments; needs verbose_json."),
        Field("fallback", SWITCH, "Sample a window again if its text is repetitive or improbable."),
        Field("no_speech_threshold", number(0, 1), "Pass over windows that are probably silence."),
        Field("beams", whole(1, MAX_ROWS), "Width of beam search."),
    )
)
TENSOR_FIELDS = Body(
    (
        Field("id", text(), "Returned with the outputs."),
        Field("parameters", OBJECT, "`binary_data_output` (true: outputs in binary)."),
        Field("inputs", listed(OBJECT, 1), "Tensors: `name`, `shape`, `datatype`, `data`.", is_required=True),
        Field("outputs", listed(OBJECT), "Outputs to return, by `name`; default: all."),
    )
)
RELOAD = Body((Field("model", text(1), "Name of the model; default: all."),))


def search_options(values: Mapping[str, object], body: Body) -> dict[str, object]:
    """Return the options of a search that a body of OpenAI's names sets.

    Temperature 0 is greedy search, in which other options of sampling have no effect. An option of sampling, or `n`
    above 1 without `beams`, samples.
    """
    found = options_of(values, body.fields)
    sampling = {*needing("do_sample")}
    temperature = values.get("temperature")
    if temperature == 0:
        found = {name: value for name, value in found.items() if name not in sampling}
        found["do_sample"] = False
    elif temperature is not None:
        found["temperature"] = temperature
    samples = bool(sampling & found.keys()) or (found.get("nbest", 1) != 1 and found.get("beams", 1) == 1)
    if samples and temperature != 0:
        found.setdefault("do_sample", True)
    if isinstance(bias := found.get("sequence_bias"), Mapping):
        found["sequence_bias"] = [([_token(name)], value) for name, value in bias.items() if fits(value, NUMBER)]
        if len(bias) != len(cast("list[object]", found["sequence_bias"])):
            raise InvalidRequestError("logit_bias must give numbers to token ids", param="logit_bias")
    return found


def _token(name: str) -> int:
    if not name.isascii() or not name.isdecimal() or len(name) > MAX_DIGITS:
        raise InvalidRequestError(f"logit_bias must have token ids as names, got {quoted(name)}", param="logit_bias")
    return int(name)
