"""What tokenizers of transformers 4.57.6 make of lines of many scripts, by small vocabularies of each class we convert.

tests/recorded/tokenizers holds a folder for each, as `save_pretrained` wrote it, and what the tokenizer makes of a few
hundred lines, which our conversion is held to. `python -m tests.hugging_face.record_tokenizers [NAME ...]` records them
anew; it needs `sentencepiece` and this version of transformers, since later ones have no classes in Python.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import transformers

from tests.recorded import TOKENIZERS
from tests.text.corpus import SENTENCES, lines
from txport.text.pieces import M2M_LANGUAGES

EXPECTED = "expected.json"
FEW = 150  # lines of each kind


def rules(folder: Path) -> Path:
    """Compatibility characters and composed letters of a few blocks: what a map of characters is made of."""
    chosen = [*range(0xA0, 0x180), *range(0x1E00, 0x1F00), *range(0x3041, 0x3100), *range(0xFF01, 0xFFA0)]
    chosen += [*range(0xFB00, 0xFB07), *range(0x2460, 0x2470), 0x2122, 0x2026, 0x212B, 0x3000, *range(0x0958, 0x0960)]
    found: dict[str, str] = {"\u200b": " ", "\u2581": " ", "\t": " ", "\ufeff": " "}
    for code in chosen:
        letter = chr(code)
        for written in {letter, unicodedata.normalize("NFD", letter)}:
            if written != (wanted := unicodedata.normalize("NFKC", letter)):
                found[written] = wanted
    for code in range(0xFF66, 0xFF9E):
        for mark in "\uff9e\uff9f":
            whole = unicodedata.normalize("NFKC", chr(code) + mark)
            if len(whole) == 1:
                found[chr(code) + mark] = whole
    found["\u1112\u1161\u11ab"] = "\ud55c"
    path = folder / "rules.tsv"
    spelled = ("\t".join(" ".join(f"{ord(each):X}" for each in side) for side in pair) for pair in found.items())
    path.write_text("\n".join(spelled) + "\n", encoding="utf-8")
    return path


def train(path: Path, sentences: list[str] = SENTENCES, full: bool = False, **how: Any) -> None:
    """A model of SentencePiece over our sentences; `full` with the map of characters that published ones have."""
    import sentencepiece

    with tempfile.TemporaryDirectory() as folder:
        name = how.pop("normalization", "rules")
        if name == "rules":
            how |= {"normalization_rule_name": "nmt_nfkc"} if full else {"normalization_rule_tsv": rules(Path(folder))}
        else:
            how["normalization_rule_name"] = name
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_prefix=str(Path(folder) / "m"),
            **{"vocab_size": 700, "hard_vocab_limit": False, "minloglevel": 2, "character_coverage": 0.995, **how},
        )
        shutil.copyfile(Path(folder) / "m.model", path)


def t5(folder: Path, full: bool) -> Any:
    train(folder / "spiece.model", full=full, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    return transformers.T5Tokenizer(str(folder / "spiece.model"), extra_ids=10, legacy=False)


def t5_legacy(folder: Path, full: bool) -> Any:
    train(folder / "spiece.model", full=full, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, byte_fallback=True)
    return transformers.T5Tokenizer(str(folder / "spiece.model"), legacy=True, extra_ids=0)


def pegasus(folder: Path, full: bool) -> Any:
    train(folder / "spiece.model", full=full, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    return transformers.PegasusTokenizer(str(folder / "spiece.model"))


def marian(folder: Path, full: bool, languages: tuple[str, ...] = (), fewer: int = 0) -> Any:
    import sentencepiece

    plain = {"bos_id": -1, "eos_id": 0, "unk_id": 1, "pad_id": -1}
    half = len(SENTENCES) // 2
    train(folder / "source.spm", SENTENCES[:half], full=full, **plain)
    train(folder / "target.spm", SENTENCES[half - 8 :], full=full, **plain)
    pieces: list[str] = ["</s>", "<unk>", *languages]
    for name in ("source.spm", "target.spm"):
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
        pieces += sorted(model.id_to_piece(number) for number in range(2, len(model)))[fewer:]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys([*pieces, "<pad>"]))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return transformers.MarianTokenizer(
        str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"), source_lang="eng"
    )


def fairseq(folder: Path, full: bool) -> str:
    train(folder / "sentencepiece.bpe.model", full=full)
    return str(folder / "sentencepiece.bpe.model")


def m2m100(folder: Path, full: bool) -> Any:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=fairseq(folder, full))
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *(model.id_to_piece(number) for number in range(len(model) - 1, 2, -1))]
    (folder / "vocab.json").write_text(json.dumps({piece: at for at, piece in enumerate(pieces)}), encoding="utf-8")
    return transformers.M2M100Tokenizer(
        str(folder / "vocab.json"),
        str(folder / "sentencepiece.bpe.model"),
        src_lang="en",
        tgt_lang="de",
        additional_special_tokens=[f"__{code}__" for code in M2M_LANGUAGES.split()],
    )


def deberta_v2(folder: Path, full: bool) -> Any:
    ids = {"pad": 0, "bos": 1, "eos": 2, "unk": 3}
    names = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    how: dict[str, Any] = {f"{name}_id": id_ for name, id_ in ids.items()}
    train(folder / "spm.model", full=full, **how, **{f"{name}_piece": token for name, token in names.items()})
    return transformers.DebertaV2Tokenizer(str(folder / "spm.model"))


def llama(folder: Path, legacy: bool = True, **how: Any) -> Any:
    train(
        folder / "tokenizer.model",
        model_type="bpe",
        byte_fallback=True,
        normalization="identity",
        remove_extra_whitespaces=False,
        **how,
    )
    return transformers.LlamaTokenizer(str(folder / "tokenizer.model"), legacy=legacy)


def gemma(folder: Path, full: bool) -> Any:
    train(
        folder / "tokenizer.model",
        model_type="bpe",
        byte_fallback=True,
        normalization="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        user_defined_symbols=["<start_of_turn>", "<end_of_turn>", "\u2581\u2581", "\u2581\u2581\u2581", "\n"],
    )
    return transformers.GemmaTokenizer(str(folder / "tokenizer.model"))


def mpnet(folder: Path) -> Any:
    bert(folder)
    text = (folder / "vocab.txt").read_text(encoding="utf-8")
    for theirs, own in {"[PAD]": "<pad>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"}.items():
        text = text.replace(theirs, own)
    (folder / "vocab.txt").write_text(text, encoding="utf-8")
    return transformers.MPNetTokenizer(str(folder / "vocab.txt"))


def bert(folder: Path, **how: Any) -> Any:
    from tokenizers import BertWordPieceTokenizer

    trainer = BertWordPieceTokenizer(lowercase=how.get("do_lower_case", True), strip_accents=how.get("strip_accents"))
    trainer.train_from_iterator(SENTENCES, vocab_size=700, limit_alphabet=300, show_progress=False)
    tokens = sorted(trainer.get_vocab(), key=trainer.get_vocab().get)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return transformers.BertTokenizer(str(folder / "vocab.txt"), **how)


def byte_level(folder: Path, kind: Any, special: list[str], first: int | None = None, **how: Any) -> Any:
    from tokenizers import ByteLevelBPETokenizer

    trainer = ByteLevelBPETokenizer()
    before = special if first is None else special[:first]
    trainer.train_from_iterator(SENTENCES, vocab_size=700, special_tokens=before, show_progress=False)
    trainer.save_model(str(folder))
    if first is not None:
        ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        ids |= {token: len(ids) + at for at, token in enumerate(special[first:])}
        (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    return kind(str(folder / "vocab.json"), str(folder / "merges.txt"), **how)


TEMPLATES = {  # in the manner of published ones
    "qwen2": """{%- if messages[0].role != 'system' -%}
{{- '<|im_start|>system\nYou help.<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- set content = message.content | trim if message.content is string else message.content[0].text -%}
{%- if message.role == 'tool' -%}{%- set content = message.content | tojson -%}{%- endif -%}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}""",
    "llama-new": """{{ bos_token }}{% for message in messages %}
    {% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
    {% elif message['role'] == 'assistant' %}
{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}
    {% else %}
{{ raise_exception('Only users and assistants talk here') }}
    {% endif %}
{% endfor %}""",
    "llama": """{{ bos_token }}{% for message in messages %}{% if loop.index > 5 %}{% break %}{% endif %}"""
    """{{ message['role'] | upper }}: {{ message['content'] }}{{ eos_token }}{% endfor %}ASSISTANT:""",
    "gemma": """{{ bos_token }}{% for message in messages %}"""
    """{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"""
    """{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"""
    """{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""",
}
HELLO = {"role": "user", "content": "  Hello there,\n\n  Straße!  "}
CHATS: list[list[dict[str, Any]]] = [
    [HELLO],
    [HELLO, {"role": "assistant", "content": "The weather is fine."}, {"role": "user", "content": "x < y ? Why? ["}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "今天天气很好"}],
    [{"role": "user", "content": [{"type": "text", "text": "One part"}]}],
    [HELLO, {"role": "tool", "content": {"temperature": 12.5, "sky": "été"}}],
]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
DEBERTA = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
WHISPER = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
KINDS: dict[str, tuple[str, Callable[[Path, bool], Any]]] = {  # name -> model_type, and what makes it
    "t5": ("t5", t5),
    "t5-bytes": ("t5", t5_legacy),
    "pegasus": ("pegasus", pegasus),
    "marian": ("marian", marian),
    "marian-languages": ("marian", lambda folder, full: marian(folder, full, (">>deu<<", ">>fra<<"), fewer=9)),
    "m2m100": ("m2m_100", m2m100),
    "nllb": (
        "m2m_100",
        lambda folder, full: transformers.NllbTokenizer(
            fairseq(folder, full), src_lang="eng_Latn", tgt_lang="deu_Latn"
        ),
    ),
    "nllb-legacy": (
        "m2m_100",
        lambda folder, full: transformers.NllbTokenizer(fairseq(folder, full), legacy_behaviour=True),
    ),
    "mbart": ("mbart", lambda folder, full: transformers.MBartTokenizer(fairseq(folder, full), src_lang="en_XX")),
    "mbart50": ("mbart", lambda folder, full: transformers.MBart50Tokenizer(fairseq(folder, full), src_lang="de_DE")),
    "xlm-roberta": ("xlm-roberta", lambda folder, full: transformers.XLMRobertaTokenizer(fairseq(folder, full))),
    "camembert": ("camembert", lambda folder, full: transformers.CamembertTokenizer(fairseq(folder, full))),
    "llama": ("llama", lambda folder, full: llama(folder)),
    "llama-new": ("llama", lambda folder, full: llama(folder, legacy=False)),
    "gemma": ("gemma", gemma),
    "bert": ("bert", lambda folder, full: bert(folder)),
    "mpnet": ("mpnet", lambda folder, full: mpnet(folder)),
    "bert-cased": ("bert", lambda folder, full: bert(folder, do_lower_case=False)),
    "gpt2": ("gpt2", lambda folder, full: byte_level(folder, transformers.GPT2Tokenizer, ["<|endoftext|>"])),
    "opt": (
        "opt",
        lambda folder, full: byte_level(
            folder,
            transformers.GPT2Tokenizer,
            ROBERTA[:4],
            add_bos_token=True,
            bos_token="</s>",  # noqa: S106
            eos_token="</s>",  # noqa: S106
            unk_token="</s>",  # noqa: S106
            pad_token="<pad>",  # noqa: S106
        ),
    ),
    "roberta": ("roberta", lambda folder, full: byte_level(folder, transformers.RobertaTokenizer, ROBERTA, 4)),
    "deberta": ("deberta", lambda folder, full: byte_level(folder, transformers.DebertaTokenizer, DEBERTA, 4)),
    "deberta-v2": ("deberta-v2", deberta_v2),
    "bart": ("bart", lambda folder, full: byte_level(folder, transformers.BartTokenizer, ROBERTA, 4)),
    "whisper": (
        "whisper",
        lambda folder, full: byte_level(
            folder, transformers.WhisperTokenizer, ["<|endoftext|>"], additional_special_tokens=WHISPER
        ),
    ),
    "qwen2": (
        "qwen2",
        lambda folder, full: byte_level(
            folder,
            transformers.Qwen2Tokenizer,
            [],
            additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        ),
    ),
}


# Llama's slow tokenizer drops one space more than it put before a text, and reads spaces that begin a text otherwise
# where it is not `legacy`; BERT's composes letters and marks, as the first one did not. `AutoTokenizer` takes these:
FAST = ("llama", "llama-new", "bert", "bert-cased", "mpnet")


def made(name: str, folder: Path, full: bool = False) -> Any:
    """The tokenizer of a class, and its files in a folder, as a checkpoint has them."""
    kind, make = KINDS[name]
    with tempfile.TemporaryDirectory() as raw:
        tokenizer = make(Path(raw), full)
        tokenizer.chat_template = TEMPLATES.get(name)
        tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
    return transformers.AutoTokenizer.from_pretrained(folder) if name in FAST else tokenizer


def ids_of(theirs: Any, line: str) -> list[int]:
    """The ids of a line, special tokens at its ends included, none in it."""
    return list(theirs(line).input_ids)


def unknown_of(theirs: Any) -> int | None:
    """The id of what is unknown; None where it stands around each text, of a vocabulary of all bytes."""
    return None if theirs.unk_token_id in ids_of(theirs, "a") else theirs.unk_token_id


def written(theirs: Any, ids: list[int]) -> str:
    return str(theirs.decode(ids, skip_special_tokens=True))


def chats(theirs: Any) -> list[Any]:
    """What the template makes of chats: ids, or None of one that it refuses."""
    found: list[Any] = []
    for messages in CHATS:
        try:
            found.append(theirs.apply_chat_template(messages, add_generation_prompt=True))
        except (ValueError, TypeError, jinja2.TemplateError):
            found.append(None)
    return found


NOT_RECORDED = ("bart", "nllb-legacy")  # which differ little from others


LITERAL = ("bert", "bert-cased", "gpt2", "gemma", "llama", "llama-new", "mpnet", "opt", "qwen2", "roberta")
LITERALLY = 30  # lines


def literal(folder: Path, said: list[list[int]]) -> list[str]:
    """Some lines with their special tokens, as the fast tokenizer of a class writes them."""
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    assert fast.is_fast
    return [str(fast.decode(ids, skip_special_tokens=False)) for ids in said[:LITERALLY]]


def record(name: str) -> None:
    """A folder in tests/recorded/tokenizers, and what its tokenizer says."""
    folder = TOKENIZERS / name
    shutil.rmtree(folder, ignore_errors=True)
    theirs = made(name, folder)
    said = [ids_of(theirs, text) for text in lines(FEW, 2)]
    values: dict[str, Any] = {
        "unknown": unknown_of(theirs),
        "ids": said,
        "texts": [written(theirs, ids) for ids in said],
    }
    if name in LITERAL:
        values["literal"] = literal(folder, said)
    if name in TEMPLATES:
        values |= {"chats": CHATS, "prompts": chats(theirs)}
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    (folder / EXPECTED).write_text(text.replace("],[", "],\n[") + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in sys.argv[1:] or [name for name in KINDS if name not in NOT_RECORDED]:
        record(each)
