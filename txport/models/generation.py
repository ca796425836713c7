"""Default search options of a published checkpoint: `generation_config.json`, by the names of `SearchOptions`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from txport.models.facts import Facts

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
SAMPLING = ("temperature", "top_k", "top_p", "min_p")  # ignored by greedy and beam search
TOP_K = 50  # default of transformers for sampling


def version_of(values: Mapping[str, Any]) -> int:
    """Return the major version of transformers that wrote a file; 4 if it is not named."""
    found = re.match(r"\d{1,3}", str(values.get("transformers_version")))
    return 4 if found is None else int(found[0])


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
