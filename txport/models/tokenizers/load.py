"""The tokenizer of a bundle, or of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from txport.errors import BundleError
from txport.models.facts import Facts
from txport.models.names import TARGET_TOKENIZER, TEXT, TOKENIZER
from txport.models.tokenizers.base import Tokenizer, TokenizerPair
from txport.models.tokenizers.chat import ChatReader
from txport.models.tokenizers.file import FileTokenizer
from txport.models.tokenizers.languages import LanguageReader
from txport.models.tokenizers.numbers import NumberTokenizer
from txport.models.tokenizers.usage import Usage, read_usage

Files = Mapping[str, Path | str]  # name -> where a file lies, or its text where it lies in memory only


def load_tokenizer(folder: Path, facts: Facts) -> Tokenizer:
    """The tokenizer of a bundle, or of a checkpoint whose files are those of a bundle.

    Without a file, token ids stand for text. See `tokenizer_of`.
    """
    names = (TOKENIZER, TARGET_TOKENIZER, TEXT)
    return tokenizer_of({name: folder / name for name in names if (folder / name).exists()}, folder, facts)


def tokenizer_of(files: Files, folder: Path, facts: Facts) -> Tokenizer:
    """The tokenizer of the files that a bundle has, or is to have, named as if they lay in `folder`.

    `tokenizer.json` is the source's, and the target's too if that has none of its own. Raises `BundleError` for one
    that does not fit the model's vocabularies.
    """
    file = folder / TOKENIZER
    target_file = folder / TARGET_TOKENIZER
    sizes = facts.vocabulary.size, facts.writes.size
    if TOKENIZER not in files and TARGET_TOKENIZER not in files:
        return NumberTokenizer(facts)
    if TOKENIZER not in files:
        raise BundleError(f"{target_file} is there, but not the source's tokenizer; add {TOKENIZER}")
    usage = read_usage(folder / TEXT, files[TEXT]) if TEXT in files else Usage()
    source = _load_file(files[TOKENIZER], file, "source", sizes[0], facts, usage)
    target = source
    if TARGET_TOKENIZER in files:
        target = _load_file(files[TARGET_TOKENIZER], target_file, "target", sizes[1], facts, usage)
    elif sizes[0] != sizes[1]:
        both = f"a source vocabulary of {sizes[0]} and a target vocabulary of {sizes[1]}"
        raise BundleError(f"{file} can't serve both {both}; add {TARGET_TOKENIZER}, the target's, to the checkpoint")
    if usage.languages is not None:
        return TokenizerPair(LanguageReader(source, usage.languages, writer=target), target)
    return source if source is target else TokenizerPair(source, target)


def chat_of(files: Files, folder: Path, tokenizer: Tokenizer) -> ChatReader | None:
    """What reads the messages of a chat, if the files of a bundle say how."""
    if TEXT not in files or not isinstance(tokenizer, FileTokenizer):
        return None
    chat = read_usage(folder / TEXT, files[TEXT]).chat
    return None if chat is None else ChatReader(tokenizer, chat)


def _load_file(content: Path | str, path: Path, side: str, size: int, facts: Facts, usage: Usage) -> FileTokenizer:
    mask = facts.vocabulary.mask if facts.ability == "fill" else None
    tokenizer = FileTokenizer(
        path,
        facts.writes.special,
        facts.vocabulary.longest,
        mask,
        content=content if isinstance(content, str) else None,
        limit=size,
        clean_up=usage.clean_up,
    )
    tokenizer.require_fit(f"the model's {side} vocabulary", size)
    return tokenizer
