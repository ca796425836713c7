"""Whisper, as transformers' `WhisperForConditionalGeneration` saves it.

`generation_config.json` has the special tokens of speech, `preprocessor_config.json` the audio settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txport.audio.targets import code_of
from txport.checkpoints.family import ACTIVATIONS, Family, Published
from txport.checkpoints.keys import OTHER_HEAD, TRAINING
from txport.errors import ConfigError, quoted

FRAMES_A_PLACE = 2
NO_TIMES, TASK_TOKENS = "<|notimestamps|>", ("<|transcribe|>", "<|translate|>")
ENGLISH_SIZE = 51864  # of the vocabulary of English models
DEFAULTS = {
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "d_model": 384,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_layers": 4,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "activation_function": "gelu",
    "dropout": 0.0,
    "scale_embedding": False,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "decoder_start_token_id": 50257,
    "pad_token_id": 50256,
    "eos_token_id": 50256,
    "tie_word_embeddings": True,
}
AUDIO = {"feature_size": None, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 30}
SILENT = {"padding_value": 0.0, "dither": 0.0, "do_normalize": False}  # the only supported values
DERIVED = ("n_samples", "nb_max_frames", "mel_filters")  # of preprocessor_config.json, from its other values
UNHEARD = (  # of preprocessor_config.json, and change no features
    "feature_extractor_type",
    "processor_class",
    "image_processor_type",
    "return_attention_mask",
    "padding_side",
    "transformers_version",
)


def config(values: Published) -> dict[str, object]:
    """Return the values of `WhisperConfig`."""
    return {
        "vocab_size": values.get("vocab_size"),
        "mel_bins": values.get("num_mel_bins"),
        "places": values.get("max_source_positions"),
        "d_model": values.get("d_model"),
        "heads": values.alike("encoder_attention_heads", "decoder_attention_heads"),
        "feed_forward": values.alike("encoder_ffn_dim", "decoder_ffn_dim"),
        "encoder_layers": values.get("encoder_layers"),
        "decoder_layers": values.get("decoder_layers"),
        "max_length": values.get("max_target_positions"),
        "activation": values.word("activation_function", ACTIVATIONS),
        "dropout": values.get("dropout"),
        "pad_id": values.get("pad_token_id"),
        "start_id": values.get("decoder_start_token_id"),
        "eos_id": values.token("eos_token_id"),
        **_audio(values),
        **_speech(values),
    }


def _audio(values: Published) -> dict[str, object]:
    """Return the settings of `preprocessor_config.json`; mel bins and frames must be the model's."""
    told = {name: each for name, each in values.beside("preprocessor_config").items() if each is not None}
    if strange := sorted(told.keys() - {*AUDIO, *SILENT, *DERIVED, *UNHEARD}):
        value = f"preprocessor_config's {strange[0]} {quoted(told[strange[0]])}"
        raise ConfigError(f"{value} is not supported: features may depend on it")
    for name, expected in SILENT.items():
        if (found := told.get(name, expected)) != expected:
            raise ConfigError(f"preprocessor_config's {name} {quoted(found)} is not supported; it must be {expected}")
    audio = {**AUDIO, **{name: each for name, each in told.items() if name in AUDIO}}
    bins = values.get("num_mel_bins")
    places = values.get("max_source_positions")
    if audio["feature_size"] not in (None, bins):
        both = f"feature_size {quoted(audio['feature_size'])} and num_mel_bins {quoted(bins)}"
        raise ConfigError(f"preprocessor_config's {both} must be the same")
    for name, found in audio.items():
        if found is not None and type(found) is not int:
            raise ConfigError(f"preprocessor_config's {name} must be a whole number, got {quoted(found)}")
    frames = audio["chunk_length"] * audio["sampling_rate"] // audio["hop_length"]
    if told and frames != FRAMES_A_PLACE * places:
        need = f"max_source_positions {quoted(places)} need {FRAMES_A_PLACE * places}"
        raise ConfigError(f"preprocessor_config's chunk_length makes {frames} frames, and {need}")
    return {name: audio[name] for name in ("sampling_rate", "hop_length", "n_fft")}


def _speech(values: Published) -> dict[str, object]:
    """Return the languages, tasks and timestamp settings of `generation_config.json`, or else of the tokenizer."""
    own = values.beside("generation_config")
    told = {**_of_tokenizer(values), **{name: each for name, each in own.items() if each is not None}}
    languages: Mapping[str, Any] = told.get("lang_to_id") or {} if told.get("is_multilingual", True) else {}
    tasks = (told.get("task_to_id") or {}) if languages else {}
    ordered = sorted(languages.items(), key=lambda each: each[1])
    no_timestamps = told.get("no_timestamps_token_id")
    found: dict[str, object] = {
        "languages": tuple(code_of(token) for token, _ in ordered),
        "language_ids": tuple(id_ for _, id_ in ordered),
        "transcribe_id": tasks.get("transcribe"),
        "translate_id": tasks.get("translate"),
        "no_timestamps_id": no_timestamps,
        "previous_id": told.get("prev_sot_token_id"),
        "max_initial_timestamp": told.get("max_initial_timestamp_index"),
    }
    language = told.get("language")
    task = told.get("task")
    if languages and (language is not None or task is not None):
        return found | {"language": None if language is None else code_of(language), "task": task}
    forced = told.get("forced_decoder_ids")
    forced = values.get("forced_decoder_ids", []) if forced is None else forced
    return found | _forced(forced, dict(map(reversed, ordered)), tasks, no_timestamps)  # type: ignore[arg-type]


def _of_tokenizer(values: Published) -> dict[str, object]:
    """Return the ids of special tokens, which files of 2022 have nowhere else, by their keys in newer files.

    Languages have the tokens between the start token and the tasks. English models have such tokens too, and do not use
    them; one that was published has 51,864 tokens, and its prompt is no language.
    """
    tokens = values.special or {}
    if not {NO_TIMES, *TASK_TOKENS} <= tokens.keys():
        return {}
    tasks = {token.strip("<|>"): tokens[token] for token in TASK_TOKENS}
    begin = values.get("decoder_start_token_id")
    languages = {token: id_ for token, id_ in tokens.items() if begin < id_ < min(tasks.values())}
    forced = values.beside("generation_config").get("forced_decoder_ids") or values.get("forced_decoder_ids", [])
    is_english = values.get("vocab_size") == ENGLISH_SIZE or (bool(forced) and forced[0][1] == tokens[NO_TIMES])
    return {
        "lang_to_id": languages,
        "task_to_id": tasks,
        "is_multilingual": not is_english,
        "no_timestamps_token_id": tokens[NO_TIMES],
        "prev_sot_token_id": tokens.get("<|startofprev|>"),
    }


def _forced(
    forced: Sequence[Sequence[int | None]], languages: Mapping[int, str], tasks: Mapping[str, int], no_times: int | None
) -> dict[str, object]:
    """Interpret `forced_decoder_ids`: [[1, language or null], [2, task], [3, no timestamps]], or any tokens."""
    if [place for place, _ in forced] != list(range(1, 1 + len(forced))):
        raise ConfigError(f"forced_decoder_ids {quoted(forced)} are not supported; their positions must be 1, 2, ...")
    ids = [token for _, token in forced if token != no_times]
    if not languages:
        return {"initial_ids": tuple(token for token in ids if token is not None)}
    kinds = {id_: task for task, id_ in tasks.items()}
    language, task = (*ids, None, None)[:2]
    if len(ids) > 2 or (language is not None and language not in languages) or (task is not None and task not in kinds):
        raise ConfigError(f"forced_decoder_ids {quoted(forced)} are not supported; they must be a language and a task")
    return {
        "language": None if language is None else code_of(languages[language]),
        "task": None if task is None else kinds[task],
    }


UNUSED = {
    "num_hidden_layers": "encoder_layers and decoder_layers say it",
    **dict.fromkeys(("classifier_proj_size", "use_weighted_layer_sum"), OTHER_HEAD),
    **dict.fromkeys(("mask_time_prob", "mask_time_length", "mask_time_min_masks", "apply_spec_augment"), TRAINING),
    **dict.fromkeys(("mask_feature_prob", "mask_feature_length", "mask_feature_min_masks"), TRAINING),
    **dict.fromkeys(("median_filter_width", "alignment_heads"), "only times of words use it"),
}
OFF = {"scale_embedding": (False,), "tie_word_embeddings": (True,)}
FAMILY = Family(
    defaults={"whisper": DEFAULTS},
    aliases={"hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads"},
    architecture="whisper",
    classes="ForConditionalGeneration",
    config=config,
    unused=UNUSED,
    off=OFF,
)
