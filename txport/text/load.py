"""Loading the tokenizer of a bundle or of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from txport.errors import BundleError
from txport.models.facts import Facts
from txport.models.names import TARGET_TOKENIZER, TEXT, TOKENIZER
from txport.text.base import Tokenizer, TokenizerPair
from txport.text.chat import ChatReader
from txport.text.file import FileTokenizer
from txport.text.languages import LanguageReader
from txport.text.numbers import NumberTokenizer
from txport.text.usage import Usage, read_usage

Files = Mapping[str, Path | str]  # name -> path of a file, or its text if it is in memory only


def load_tokenizer(folder: Path, facts: Facts) -> Tokenizer:
    """Return the tokenizer of a bundle, or of a checkpoint with the same files as a bundle.

    Without a tokenizer file, text is token ids. See `tokenizer_of`.
    """
    names = (TOKENIZER, TARGET_TOKENIZER, TEXT)
    return tokenizer_of({name: folder / name for name in names if (folder / name).exists()}, folder, facts)


def tokenizer_of(files: Files, folder: Path, facts: Facts) -> Tokenizer:
    """Return the tokenizer made of a bundle's files; error messages name them as files in `folder`.

    `tokenizer.json` is for sources, and for targets if there is no separate file. Raises `BundleError` for a tokenizer
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
    if usage.languages is not None and facts.generates:  # else only the source's is used, which the file has
        return TokenizerPair(LanguageReader(source, usage.languages, writer=target), target)
    return source if source is target else TokenizerPair(source, target)


def chat_of(files: Files, folder: Path, tokenizer: Tokenizer) -> ChatReader | None:
    """Return the reader of chat messages; None without a chat template or without a `FileTokenizer`."""
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
