"""Settings of a speech model for other tools: `preprocessor_config.json`, and a part of `generation_config.json`."""

from __future__ import annotations

from typing import Any

from txport.models.audio.facts import TASKS, Features, Speech


def preprocessor_config(features: Features) -> dict[str, Any]:
    """Return the settings of a transformers feature extractor with the same features."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": features.size,
        "sampling_rate": features.sampling_rate,
        "hop_length": features.hop_length,
        "n_fft": features.n_fft,
        "chunk_length": features.samples // features.sampling_rate,
        "n_samples": features.samples,
        "nb_max_frames": features.frames,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def speech_config(speech: Speech) -> dict[str, Any]:
    """Return the languages, tasks and timestamp settings for `generation_config.json`."""
    found: dict[str, Any] = {}
    if speech.languages:
        ids = zip(speech.languages, speech.language_ids, strict=True)
        found |= {"is_multilingual": True, "lang_to_id": {f"<|{code}|>": id_ for code, id_ in ids}}
    tasks = {task: id_ for task in TASKS if (id_ := getattr(speech, task)) is not None}
    ones = {
        "task_to_id": tasks or None,
        "no_timestamps_token_id": speech.no_timestamps,
        "prev_sot_token_id": speech.previous,
        "max_initial_timestamp_index": speech.latest_first,
        "language": speech.language,
        "task": speech.task,
    }
    found |= {name: value for name, value in ones.items() if value is not None}
    if speech.initial:
        found["forced_decoder_ids"] = [[place, token] for place, token in enumerate(speech.initial, 1)]
    return found
