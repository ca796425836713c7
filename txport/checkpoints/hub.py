"""Checkpoints on Hugging Face's hub, named `owner/name` or `owner/name@revision`, which are downloaded once.

The files are stored in the cache of huggingface_hub, and its settings apply: `HF_HUB_OFFLINE=1` uses only the cache.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from txport.errors import CheckpointError, brief
from txport.system.packages import needed

WORD = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
NAME = re.compile(rf"(?P<id>{WORD}/{WORD})(?:@(?P<revision>[\w][\w./-]*))?", re.ASCII)
SHARDS = "model-*-of-*.safetensors"
TOKENIZERS = (  # none of these files contains code
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "source.spm",
    "target.spm",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)


def is_hub_name(name: str) -> bool:
    """Return True for a name of the hub: it has one slash, and no local folder is named like the part before it."""
    return NAME.fullmatch(name) is not None and not Path(name.partition("/")[0]).exists()


@cache
def download(name: str, making: tuple[str, ...]) -> Path:
    """Download the files of a repository that belong to a checkpoint, never pickles, and return their folder.

    `making` are the patterns of these files. Raises `CheckpointError` if the download fails.
    """
    found = NAME.fullmatch(name)
    assert found is not None
    with needed("huggingface_hub", f"the checkpoint {name} of the hub"):
        from huggingface_hub import snapshot_download
    patterns = [*making, SHARDS, *TOKENIZERS]
    try:
        folder = snapshot_download(repo_id=found["id"], revision=found["revision"], allow_patterns=patterns)
    except Exception as error:  # huggingface_hub and its libraries raise many types
        what = f"there is no folder {name}, and the hub gives none: {brief(error) or type(error).__name__}"
        raise CheckpointError(f"{what}; download the checkpoint elsewhere, and give the path of its folder") from error
    return Path(folder)
