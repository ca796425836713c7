"""Default search options of a published checkpoint: `generation_config.json`, by the names of `SearchOptions`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from txport.errors import ConfigError, quoted
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.models.options import GenerationOptions, options

# Every option of GenerationConfig in transformers 4.57 and 5.24 is in exactly one of NAMES, ELSEWHERE, NOT_FOLLOWED and
# UNUSED.
# options that are followed -> their name in `SearchOptions`
NAMES = {
    option.published or name: name
    for name, option in options(GenerationOptions).items()
    if option.published is not None
}
FACTS = "the facts of the model have it"
WHISPER = "the family of Whisper reads it, or only the alignment and the fallback of transformers do"
ELSEWHERE = {  # options that other code reads -> what does
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"), FACTS),
    **dict.fromkeys(
        (
            "alignment_heads",
            "forced_decoder_ids",
            "is_multilingual",
            "lang_to_id",
            "language",
            "max_initial_timestamp_index",
            "no_timestamps_token_id",
            "prev_sot_token_id",
            "return_timestamps",
            "task",
            "task_to_id",
        ),
        WHISPER,
    ),
}
NOT_FOLLOWED = (
    "max_time",
    "guidance_scale",
    "penalty_alpha",
    "dola_layers",
    "constraints",
    "force_words_ids",
    "token_healing",
    "watermarking_config",
)
OFF: Mapping[str, tuple[object, ...]] = {  # options -> values that change nothing, as old versions wrote them
    "num_return_sequences": (1,),
    "temperature": (1.0,),
    "top_p": (1.0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "sequence_bias": ([], {}),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "renormalize_logits": (False,),
    "stop_strings": ([], ""),
    "guidance_scale": (1.0,),
    "penalty_alpha": (0.0,),
    "constraints": ([],),
    "force_words_ids": ([],),
    "token_healing": (False,),
}
ORIGIN = "it says where the file comes from"
RETURNED = "it selects what is returned beside the tokens"
MEMORY = "it concerns memory or speed"
DRAFTS = "it concerns drafts of tokens, which the model itself accepts or rejects"
FINITE = "scores that are no numbers are an error"
UNUSED = {  # options that change no token -> the reason
    **dict.fromkeys(
        ("_commit_hash", "_from_model_config", "_name_or_path", "transformers_version", "trust_remote_code"), ORIGIN
    ),
    **dict.fromkeys(
        ("output_attentions", "output_hidden_states", "output_logits", "output_scores", "return_dict_in_generate"),
        RETURNED,
    ),
    **dict.fromkeys(
        (
            "cache_config",
            "cache_implementation",
            "compile_config",
            "continuous_batching_config",
            "disable_compile",
            "low_memory",
            "max_cache_len",
            "prefill_chunk_size",
            "return_legacy_cache",
            "use_cache",
        ),
        MEMORY,
    ),
    **dict.fromkeys(
        (
            "assistant_confidence_threshold",
            "assistant_early_exit",
            "assistant_ensemble_weight",
            "assistant_lookbehind",
            "is_assistant",
            "max_matching_ngram_size",
            "num_assistant_tokens",
            "num_assistant_tokens_schedule",
            "prompt_lookup_num_tokens",
            "speculation_type",
            "target_lookbehind",
            "use_mtp",
        ),
        DRAFTS,
    ),
    "remove_invalid_values": FINITE,
}
POOLED = ("pooling", "normalize")  # of encoders, as txport writes them
KNOWN = {*NAMES, *ELSEWHERE, *NOT_FOLLOWED, *UNUSED, *POOLED, "transformers.js_config"}
IN_CONFIG = (
    *NAMES,
    *NOT_FOLLOWED,
    "remove_invalid_values",
    "forced_decoder_ids",
    "force_bos_token_to_be_generated",
)  # keys that old versions wrote into config.json
OF_SOURCES = ("encoder_repetition_penalty", "encoder_no_repeat_ngram_size")  # without effect on sources of features
TOP_K = 50  # default of transformers for sampling


class Defaults(NamedTuple):
    """Default options of a checkpoint: those of `SearchOptions` or of `embed`, and those that no search follows."""

    options: Mapping[str, object]
    not_followed: Mapping[str, object]


NO_DEFAULTS = Defaults({}, {})


def version_of(values: Mapping[str, object]) -> int:
    """Return the major version of transformers that wrote a file; 4 if it is not named."""
    found = re.match(r"\d{1,3}", str(values.get("transformers_version")))
    return 4 if found is None else int(found[0])


def require_known_options(values: Mapping[str, object], place: Path) -> None:
    """Raise `ConfigError` for an unknown key of a `generation_config.json`."""
    if strange := [name for name, value in values.items() if name not in KNOWN and value is not None]:
        what = f"the key {quoted(strange[0])}, here {quoted(values[strange[0]])}, is not supported"
        raise ConfigError(f"{place}: {what}: no option of generate that is known has this name")


def search_defaults(values: Mapping[str, object], facts: Facts) -> Defaults:
    """Return the defaults in the values of a `generation_config.json`; values that are null are left out."""
    values = {name: value for name, value in values.items() if value is not None and value not in OFF.get(name, ())}
    not_followed = {name: values[name] for name in NOT_FOLLOWED if name in values}
    followed = _followed(values, facts)
    if followed.get("do_sample") and followed.get("beams", 1) != 1:  # beams are searched, not sampled
        not_followed["do_sample"] = followed.pop("do_sample")
    return Defaults(followed, not_followed)


def _followed(values: Mapping[str, object], facts: Facts) -> dict[str, object]:
    """Return options of search.

    `max_length` counts the start token of a target, for speech models the complete prefix of a target, and for causal
    models the prompt.
    """
    found = {ours: values[name] for name, ours in NAMES.items() if name in values}
    if found.get("do_sample"):
        found.setdefault("top_k", TOP_K)
    if isinstance(facts.source, Features):
        found = {name: value for name, value in found.items() if name not in OF_SOURCES}
    if values.get("force_bos_token_to_be_generated"):  # BART's files of 2020
        found.setdefault("forced_bos_token_id", values.get("bos_token_id", 0))
    longest = found.pop("max_length", None)
    if type(longest) is not int or "max_new_tokens" in found:
        return found
    if facts.speech is not None or facts.is_causal:
        limits = longest <= facts.writes.longest if facts.speech is not None else longest < facts.writes.longest
        return found | ({"max_length": longest} if limits else {})
    return found | {"max_new_tokens": max(1, min(longest - 1, facts.writes.longest))}


def published_names(options: Mapping[str, object]) -> dict[str, object]:
    """Return search options by their names in transformers."""
    theirs = {ours: name for name, ours in NAMES.items()}
    return {theirs.get(name, name): value for name, value in options.items()}
