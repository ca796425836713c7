"""A character-level tokenizer."""

from __future__ import annotations

from collections.abc import Sequence


def spelling_tokenizer(vocabulary: Sequence[str]) -> str:
    """Return the JSON of a character-level, lower-case tokenizer, whose decoded tokens are separated by spaces.

    The first four tokens of `vocabulary` are padding, start, end and unknown.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    pad, start, end, unknown = vocabulary[:4]
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    tokenizer.add_special_tokens([pad, start, end, unknown])
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, ids[end])])
    return str(tokenizer.to_str(pretty=True))
