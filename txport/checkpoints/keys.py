"""Keys of a published `config.json` that its family does not read: what they mean, and why they change no output.

A key of a file must be read by its family, be listed here or in the table of its family, or be null. Any other key is
refused, since it may change what the model computes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from txport.errors import ConfigError, quoted
from txport.models.generation import IN_CONFIG

ORIGIN = "it says where the file comes from"
TRAINING = "it is used in training only"
STARTING = "it is used to start a training"
RETURNED = "it selects what a call returns in Python"
MEMORY = "it changes the use of memory, not the result"
PRECISION = "a bundle has a precision of its own"
LABELS = "only classes with labels use it"
PIPELINES = "only the pipelines of transformers read it"
OTHER_HEAD = "only classes with another head use it"
IN_FILE = "the weights say it"
NOTHING = "no class of this family reads it"
SCALED = "only scaled rotary positions use it"
BROWSER = "only transformers.js reads it"
GENERATED = "it is a generation option, which generation_config.json may replace"
TOKENS = "the tokenizer and generation_config.json say it"

UNUSED: Mapping[str, str] = {
    **dict.fromkeys(("architectures", "model_type", "transformers_version", "_name_or_path", "name_or_path"), ORIGIN),
    **dict.fromkeys(("_attn_implementation_autoset", "attn_implementation", "_attn_implementation"), MEMORY),
    **dict.fromkeys(("language", "name"), ORIGIN),  # of deepset's models
    "_model_name_or_path": ORIGIN,  # transformers writes it for a model that it read from a GGUF file
    **dict.fromkeys(("auto_map", "_commit_hash", "is_llama_config", "unsloth_version", "unsloth_fixed"), ORIGIN),
    **dict.fromkeys(("torch_dtype", "dtype", "use_bfloat16"), PRECISION),
    **dict.fromkeys(("initializer_range", "initializer_factor", "init_std", "init_xavier_std"), STARTING),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "classifier_dropout"), TRAINING),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop", "layerdrop", "classif_dropout"), TRAINING),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"), TRAINING),
    **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop", "gradient_checkpointing", "tf_legacy_loss"), TRAINING),
    **dict.fromkeys(("router_aux_loss_coef", "z_loss"), TRAINING),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_scores", "output_past"), RETURNED),
    **dict.fromkeys(("return_dict", "return_dict_in_generate", "torchscript", "use_return_dict"), RETURNED),
    **dict.fromkeys(("use_cache", "cache_implementation", "chunk_size_feed_forward"), MEMORY),
    **dict.fromkeys(("id2label", "label2id", "num_labels", "_num_labels", "problem_type", "finetuning_task"), LABELS),
    **dict.fromkeys(("task_specific_params", "prefix", "tokenizer_class", "custom_pipelines"), PIPELINES),
    **dict.fromkeys(("is_encoder_decoder", "cross_attention_hidden_size"), IN_FILE),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), TOKENS),
    **dict.fromkeys(("sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id"), TOKENS),
    **dict.fromkeys(("transformers.js_config",), BROWSER),
    **dict.fromkeys(("original_max_position_embeddings",), SCALED),
    **dict.fromkeys(IN_CONFIG, GENERATED),
}
OFF: Mapping[str, tuple[object, ...]] = {  # the only values that every family supports
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({},),
}


def require_known(
    values: Mapping[str, object],
    read: Collection[str],
    unused: Mapping[str, str],
    off: Mapping[str, tuple[object, ...]],
    kind: str,
) -> None:
    """Raise `ConfigError` for a key that is not read and may change outputs.

    `unused` and `off` are the tables of the family `kind`, next to those of all families.
    """
    allowed = {**OFF, **off}
    for name, value in values.items():
        if value is None or name in read:
            continue
        if name in allowed:
            if value not in allowed[name]:
                expected = " or ".join(map(repr, allowed[name]))
                raise ConfigError(f"{name} {quoted(value)} is not supported; it must be {expected}")
        elif name not in UNUSED and name not in unused:
            why = f"no {kind} of transformers that is known has this key, so outputs may depend on it"
            raise ConfigError(f"the key {quoted(name)}, here {quoted(value)}, is not supported: {why}")
