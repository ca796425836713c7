"""Default search options of a published checkpoint: `generation_config.json`, by the names of `SearchOptions`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txport.errors import ConfigError, quoted
from txport.models.facts import Facts

logger = logging.getLogger(__name__)
NAMES = {  # name in transformers -> name in `SearchOptions`
    "num_beams": "beams",
    "num_beam_groups": "beam_groups",
    "diversity_penalty": "diversity_penalty",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "do_sample": "do_sample",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "max_new_tokens": "max_new_tokens",
    "min_new_tokens": "min_new_tokens",
    "suppress_tokens": "suppress_tokens",
    "begin_suppress_tokens": "begin_suppress_tokens",
    "bad_words_ids": "bad_words_ids",
    "forced_bos_token_id": "forced_bos_token_id",
    "forced_eos_token_id": "forced_eos_token_id",
}
IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
SPEECH = (  # of Whisper, which its family reads or which only transformers' own alignment and fallback read
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
)
OFF: Mapping[str, tuple[Any, ...]] = {  # options that no search of txport has -> values that change nothing
    "min_length": (0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "top_h": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": (),
    "sequence_bias": ({}, []),
    "stop_strings": ([], ""),
    "max_time": (),
    "num_return_sequences": (1,),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "guidance_scale": (1.0,),
    "penalty_alpha": (0.0,),
    "dola_layers": (),
    "constraints": ([],),
    "force_words_ids": ([],),
    "token_healing": (False,),
    "watermarking_config": (),
}
UNUSED = (  # keys of generation_config.json that change no token: what is returned, memory, and drafting
    "_commit_hash",
    "_from_model_config",
    "_name_or_path",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "disable_compile",
    "is_assistant",
    "low_memory",
    "max_cache_len",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "return_dict_in_generate",
    "return_legacy_cache",
    "speculation_type",
    "target_lookbehind",
    "transformers_version",
    "trust_remote_code",
    "use_cache",
    "use_mtp",
)
POOLED = ("pooling", "normalize")  # of encoders, as txport writes them
KNOWN = {*NAMES, *IDS, *SPEECH, *OFF, *UNUSED, *POOLED, "max_length", "transformers.js_config"}
IN_CONFIG = (
    *NAMES,
    *OFF,
    "max_length",
    "forced_decoder_ids",
    "force_bos_token_to_be_generated",
)  # keys that old versions wrote into config.json
SAMPLING = ("temperature", "top_k", "top_p", "min_p")  # ignored by greedy and beam search
TOP_K = 50  # default of transformers for sampling


def version_of(values: Mapping[str, Any]) -> int:
    """Return the major version of transformers that wrote a file; 4 if it is not named."""
    found = re.match(r"\d{1,3}", str(values.get("transformers_version")))
    return 4 if found is None else int(found[0])


def require_known_options(values: Mapping[str, Any], place: Path) -> None:
    """Raise `ConfigError` for an unknown key of a `generation_config.json`."""
    if strange := [name for name, value in values.items() if name not in KNOWN and value is not None]:
        what = f"the key {quoted(strange[0])}, here {quoted(values[strange[0]])}, is not supported"
        raise ConfigError(f"{place}: {what}: no option of generate that is known has this name")


def warn_of_options(values: Mapping[str, Any], place: Path) -> None:
    """Warn of generation options in a file that no search follows."""
    for name, off in OFF.items():
        if (value := values.get(name)) is not None and value not in off:
            logger.warning("%s: %s %s is not followed; outputs may differ for it", place, name, quoted(value))


def search_defaults(values: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """Return search options for the values of a `generation_config.json`; values that are null are left out.

    `max_length` counts the start token of a target, and for speech models the complete prefix of a target. For causal
    models it counts the prompt too and is ignored: outputs may have as many tokens as fit.
    """
    found = {ours: values[name] for name, ours in NAMES.items() if values.get(name) is not None}
    if found.get("do_sample"):
        found.setdefault("top_k", TOP_K)
    else:
        found = {name: value for name, value in found.items() if name not in SAMPLING}
    if values.get("force_bos_token_to_be_generated"):  # BART's files of 2020
        found.setdefault("forced_bos_token_id", values.get("bos_token_id", 0))
    longest = values.get("max_length")
    if facts.speech is not None and type(longest) is int and "max_new_tokens" not in found:
        return found | ({"max_length": longest} if longest <= facts.writes.longest else {})
    if facts.task == "seq2seq" and type(longest) is int and "max_new_tokens" not in found:
        found["max_new_tokens"] = max(1, min(longest - 1, facts.writes.longest))
    return found


def published_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return search options by their names in transformers."""
    theirs = {ours: name for name, ours in NAMES.items()}
    return {theirs.get(name, name): value for name, value in options.items()}
