"""Keys of `tokenizer_config.json` and `special_tokens_map.json` that are not read: why they change no ids and no text.

A key must be read, be listed here, or be null; `*_token` may name any special token. Any other key is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from txport.errors import CheckpointError, quoted

ORIGIN = "it says where the files come from"
CALLED = "it is a default of calls that pad, cut or return arrays; texts are encoded whole"
IN_FILE = "only some classes read it, and if there is a tokenizer.json, that says it"
SLOW = "only classes in Python read it; transformers takes those of the tokenizers library"
TEMPLATE = "what chat templates need is in the template"
PLAIN = "text is read as plain characters unless special tokens are asked for"
CLEANED = "without clean_up_tokenization_spaces nothing reads it"
SPEECH = "the facts of a speech model say it"
IN_ADDED = "the token is one of the added tokens"

UNUSED: Mapping[str, str] = {
    **dict.fromkeys(("tokenizer_class", "name_or_path", "processor_class", "auto_map", "_commit_hash"), ORIGIN),
    **dict.fromkeys(("transformers_version", "backend", "is_local", "local_files_only", "files_loaded"), ORIGIN),
    **dict.fromkeys(("special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file", "init_inputs"), ORIGIN),
    **dict.fromkeys(("source_spm", "target_spm", "spm_file", "target_vocab_file", "normalizer_file"), ORIGIN),
    **dict.fromkeys(("full_tokenizer_file", "tokenizer_type", "model_type", "use_fast", "from_slow"), ORIGIN),
    **dict.fromkeys(("trust_remote_code", "unsloth_version", "verbose", "revision", "token"), ORIGIN),
    **dict.fromkeys(("model_max_length", "max_len", "max_length", "stride", "truncation", "padding"), CALLED),
    **dict.fromkeys(("truncation_side", "truncation_strategy", "padding_side", "pad_to_multiple_of"), CALLED),
    **dict.fromkeys(("pad_token_type_id", "pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id"), CALLED),
    **dict.fromkeys(("model_input_names", "return_tensors", "return_attention_mask", "return_token_type_ids"), CALLED),
    **dict.fromkeys(("do_lower_case", "strip_accents", "tokenize_chinese_chars", "keep_accents"), IN_FILE),
    **dict.fromkeys(("remove_space", "add_prefix_space", "add_bos_token", "add_eos_token", "legacy"), IN_FILE),
    **dict.fromkeys(("legacy_behaviour", "extra_ids", "offset", "mask_token_sent", "language_codes"), IN_FILE),
    **dict.fromkeys(("num_madeup_words", "src_lang", "tgt_lang", "source_lang", "target_lang"), IN_FILE),
    **dict.fromkeys(("separate_vocabs", "trim_offsets", "vocab_size", "unk_id", "added_tokens_decoder"), IN_FILE),
    **dict.fromkeys(("do_basic_tokenize", "never_split", "errors", "spaces_between_special_tokens"), SLOW),
    **dict.fromkeys(("chat_template", "use_default_system_prompt", "response_template", "response_schema"), TEMPLATE),
    **dict.fromkeys(("chat_control_tokens", "tool_parser_type"), TEMPLATE),
    **dict.fromkeys(("split_special_tokens",), PLAIN),
    **dict.fromkeys(("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",), CLEANED),
    **dict.fromkeys(("language", "task"), SPEECH),
    **dict.fromkeys(("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"), IN_ADDED),
}
OFF: Mapping[str, tuple[Any, ...]] = {  # the only values that are supported
    "sp_model_kwargs": ({},),
    "fix_mistral_regex": (False,),
    "predict_timestamps": (False,),
    "add_special_tokens": (True,),
    "suffix_first": (False,),
}
TOKEN = "_token"  # noqa: S105 - the end of a key


def require_known(values: Mapping[str, Any], read: Collection[str], place: Path) -> None:
    """Raise `CheckpointError` for a key that is not read and may change ids or texts."""
    for name, value in values.items():
        if value is None or name in read or name in UNUSED:
            continue
        if name in OFF:
            if value not in OFF[name]:
                expected = " or ".join(map(repr, OFF[name]))
                raise CheckpointError(f"{place}: {name} {quoted(value)} is not supported; it must be {expected}")
        elif not (name.endswith(TOKEN) and isinstance(value, str | Mapping)):
            why = "no tokenizer of transformers that is known has this key, so ids or texts may depend on it"
            raise CheckpointError(f"{place}: the key {quoted(name)}, here {quoted(value)}, is not supported: {why}")
