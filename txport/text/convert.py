"""The text files that a bundle gets from its checkpoint; a `tokenizer.json` is made if the folder has other files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from txport.errors import CheckpointError
from txport.models.generation import version_of
from txport.models.names import (
    COMPANIONS,
    CONFIG,
    PIECES,
    TARGET_TOKENIZER,
    TEXT,
    TOKENIZER,
    WORDS,
)
from txport.system.documents import DocumentError, read_json, read_text
from txport.text import pieces, vocabularies
from txport.text.applied import applied
from txport.text.assemble import Vocabulary
from txport.text.library import LARGEST
from txport.text.pieces import Made
from txport.text.settings import DEFAULT, TOOL_USE, Settings
from txport.text.usage import Chat, Usage, write_usage

Make = Callable[[Settings], Made]


def _spelled(how: Callable[[Settings], tuple[str, Vocabulary]]) -> Make:
    def make(settings: Settings) -> Made:
        text, words = how(settings)
        return Made(text=text, words=words)

    return make


CLASSES: dict[str, Make] = {  # tokenizer classes of transformers, without "Fast"
    "T5Tokenizer": pieces.t5,
    "MT5Tokenizer": pieces.t5,
    "PegasusTokenizer": pieces.pegasus,
    "MarianTokenizer": pieces.marian,
    "M2M100Tokenizer": pieces.m2m100,
    "NllbTokenizer": pieces.nllb,
    "MBartTokenizer": pieces.mbart,
    "MBart50Tokenizer": pieces.mbart50,
    "XLMRobertaTokenizer": pieces.xlm_roberta,
    "CamembertTokenizer": pieces.camembert,
    "DebertaV2Tokenizer": pieces.deberta_v2,
    "LlamaTokenizer": pieces.llama,
    "GemmaTokenizer": pieces.gemma,
    "BertTokenizer": _spelled(vocabularies.bert),
    "DistilBertTokenizer": _spelled(vocabularies.bert),
    "ElectraTokenizer": _spelled(vocabularies.bert),
    "MPNetTokenizer": _spelled(vocabularies.mpnet),
    "GPT2Tokenizer": _spelled(vocabularies.gpt2),
    "RobertaTokenizer": _spelled(vocabularies.roberta),
    "BartTokenizer": _spelled(vocabularies.roberta),
    "MvpTokenizer": _spelled(vocabularies.roberta),
    "DebertaTokenizer": _spelled(vocabularies.deberta),
    "Qwen2Tokenizer": _spelled(vocabularies.qwen2),
    "WhisperTokenizer": _spelled(vocabularies.whisper),
}
OF_TYPES = {  # the class of a model_type, where tokenizer_config.json names none
    "t5": "T5Tokenizer",
    "mt5": "MT5Tokenizer",
    "pegasus": "PegasusTokenizer",
    "marian": "MarianTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "mbart": "MBartTokenizer",
    "bart": "BartTokenizer",
    "mvp": "BartTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "bert": "BertTokenizer",
    "ernie": "BertTokenizer",
    "data2vec-text": "RobertaTokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "mpnet": "MPNetTokenizer",
    "deberta": "DebertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "gpt2": "GPT2Tokenizer",
    "opt": "GPT2Tokenizer",
    "llama": "LlamaTokenizer",
    "mistral": "LlamaTokenizer",
    "phi3": "LlamaTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "whisper": "WhisperTokenizer",
}
ANSWERS = "ForQuestionAnswering"  # the end of the name of a class
PADS_LEFT = ("LlamaTokenizer", "GemmaTokenizer")  # unless the settings say otherwise
UNSAID = (None, "PreTrainedTokenizer")  # class names without information
SPOKEN = {  # classes whose `tokenizer.json` has language tokens
    "NllbTokenizer": pieces.nllb_languages,
    "MBartTokenizer": pieces.mbart_languages,
    "MBart50Tokenizer": pieces.mbart50_languages,
}
BPE_CLEANED = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
DEFAULTS = {  # special tokens by name, for templates that use one that the settings do not name
    "LlamaTokenizer": pieces.ENDS,
    "GemmaTokenizer": pieces.GEMMA,
    "GPT2Tokenizer": vocabularies.GPT2,
    "Qwen2Tokenizer": vocabularies.QWEN,
}


def companions_of(folder: Path) -> dict[str, Path | str]:
    """Return the files that a bundle takes from a checkpoint, by name: their paths, or their text if it was made.

    Files of a checkpoint that transformers did not write are not converted. Raises `CheckpointError` for a tokenizer
    that no `tokenizer.json` can represent exactly.
    """
    files = as_they_are(folder)
    if (values := _published(folder)) is None:
        return files
    default = OF_TYPES.get(values["model_type"])
    made = of_class(folder, files, default, version_of(values))
    if TOKENIZER in made and any(str(each).endswith(ANSWERS) for each in values.get("architectures") or ()):
        _require_question_first(Settings(folder), default)
    return made


def _require_question_first(settings: Settings, default: str | None) -> None:
    """Raise `CheckpointError` for a tokenizer for which transformers puts the context before the question."""
    usual = "left" if (settings.kind or default) in PADS_LEFT else "right"
    if settings.text("padding_side", usual) != "right":
        what = "the tokenizer pads on the left, so transformers puts a context before its question, as txport does not"
        raise settings.wrong(f'{what}; write "padding_side": "right" if the model was trained on questions first')


def added_tokens(files: Mapping[str, Path | str]) -> dict[str, int] | None:
    """Return the added tokens of a `tokenizer.json` as text -> id; None if there is none, {} if it is invalid."""
    found = files.get(TOKENIZER)
    try:
        if found is None:
            return None
        tokens = (read_json(found) if isinstance(found, Path) else json.loads(found))["added_tokens"]
        return {each["content"]: each["id"] for each in tokens if type(each["id"]) is int}
    except (DocumentError, LookupError, TypeError):  # loading the tokenizer reports the error
        return {}


def as_they_are(folder: Path) -> dict[str, Path | str]:
    """Return the files of a checkpoint that a bundle copies unchanged, by name."""
    return {name: folder / name for name in COMPANIONS if (folder / name).is_file()}


def of_class(
    folder: Path, files: dict[str, Path | str], default: str | None = None, version: int = 4
) -> dict[str, Path | str]:
    """Return these files and those made by a transformers tokenizer class: the one that is named, or `default`.

    `version` is the major version of transformers that saved the folder.
    """
    files = dict(files)
    settings = Settings(folder)
    name = default if settings.kind in UNSAID else settings.kind
    languages = SPOKEN[name](settings) if name in SPOKEN else None
    defaults = DEFAULTS.get(name or "", {})
    if TOKENIZER not in files:
        sources = [each for each in (*PIECES, *WORDS) if (folder / each).is_file()]
        if not sources:
            return files
        made = _make(settings, name, sources)
        files[TOKENIZER] = made.text
        languages = made.languages
        if made.target is not None:
            files[TARGET_TOKENIZER] = made.target
    elif isinstance(file := files[TOKENIZER], Path):
        own = applied(file, settings, settings.kind or default, version)
        files[TOKENIZER] = _for_javascript(own) or own
    templates = settings.templates()
    chat = None
    if (template := templates.get(DEFAULT)) is not None:
        chat = Chat(template=template, variables=settings.variables(defaults), tool_use=templates.get(TOOL_USE))
    clean_up = settings.flag("clean_up_tokenization_spaces", False)
    if clean_up and _is_bpe(files[TOKENIZER]):  # as transformers 5, since it loses spaces of the text (`if x : y`)
        clean_up = settings.flag(BPE_CLEANED, False)
    settings.require_known()
    usage = Usage(clean_up=clean_up, languages=languages, chat=chat)
    if TEXT not in files and usage != Usage():
        files[TEXT] = write_usage(usage)
    return files


def _for_javascript(file: Path | str) -> str | None:
    try:
        return vocabularies.bert_for_javascript(read_text(file, LARGEST) if isinstance(file, Path) else file)
    except (DocumentError, LookupError, TypeError, ValueError, RecursionError):  # the error is raised when it is loaded
        return None


def _is_bpe(file: Path | str) -> bool:
    """Return whether the model of a `tokenizer.json`, a file or its text, is a BPE."""
    try:
        values = read_json(file, LARGEST) if isinstance(file, Path) else json.loads(file)
        return bool(values["model"]["type"] == "BPE")
    except (DocumentError, LookupError, TypeError):  # the error is raised when it is loaded
        return False


def _published(folder: Path) -> dict[str, Any] | None:
    """Return the values of a folder's `config.json`; None for a model that is not transformers'."""
    try:
        values = read_json(folder / CONFIG)
    except DocumentError:  # the error is raised when the model is read
        return None
    return values if isinstance(values.get("model_type"), str) and "architecture" not in values else None


def _make(settings: Settings, name: str | None, sources: list[str]) -> Made:
    if name not in CLASSES:
        which = "does not say what its tokenizer is" if name is None else f"has a {name}, which is not known here"
        fix = f"save it as a {TOKENIZER}, or take {', '.join(sources)} away and give token ids (`txport run --ids`)"
        raise CheckpointError(f"{settings.folder} {which}; {fix}")
    return CLASSES[name](settings)
