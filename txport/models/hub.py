"""Checkpoints by their names on the hub of Hugging Face, `owner/name` or `owner/name@revision`, downloaded once.

The files lie in the cache of huggingface_hub, whose settings hold here too: `HF_HUB_OFFLINE=1` takes what is there.
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
TOKENIZERS = (  # none of which holds code
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
    """Whether a name is one of the hub's: one slash, and before it no folder that is here."""
    return NAME.fullmatch(name) is not None and not Path(name.partition("/")[0]).exists()


@cache
def download(name: str, making: tuple[str, ...]) -> Path:
    """The folder with the files of a repository, of those that make a checkpoint; pickles are never among them.

    `making` are patterns. Raises `CheckpointError` for what the hub does not have, or can't give now.
    """
    found = NAME.fullmatch(name)
    assert found is not None
    with needed("huggingface_hub", f"the checkpoint {name} of the hub"):
        from huggingface_hub import snapshot_download
    patterns = [*making, SHARDS, *TOKENIZERS]
    try:
        folder = snapshot_download(repo_id=found["id"], revision=found["revision"], allow_patterns=patterns)
    except Exception as error:  # of any of its libraries
        what = f"there is no folder {name}, and the hub gives none: {brief(error) or type(error).__name__}"
        raise CheckpointError(f"{what}; download the checkpoint elsewhere, and give the path of its folder") from error
    return Path(folder)
