"""Tokenizer classes over SentencePiece models: the ids of their pieces, and the special tokens around a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from txport.errors import CheckpointError, quoted
from txport.models.names import TOKENIZER
from txport.text.assemble import Slots, Vocabulary, assemble, vocabulary
from txport.text.file import FOREIGN, OUTSIDE
from txport.text.sentencepiece import (
    BYTE_SCORE,
    CONTROL,
    UNKNOWN,
    Pieces,
    decoder_of,
    model_of,
    normalizer_of,
    read_pieces,
    splitter_of,
)
from txport.text.settings import Added, Settings
from txport.text.usage import Languages, Target
from txport.text.vocabularies import DEBERTA, read_ids

UNK = {"unk_token": "<unk>"}
ENDS = {"bos_token": "<s>", "eos_token": "</s>", **UNK}
T5 = {"eos_token": "</s>", **UNK, "pad_token": "<pad>"}
GEMMA = {"bos_token": "<bos>", "eos_token": "<eos>", **UNK, "pad_token": "<pad>"}
FAIRSEQ = {**ENDS, "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>"}
PEGASUS = {**T5, "mask_token": "<mask_2>"}
MARIAN = {"eos_token": "</s>", **UNK, "pad_token": "<pad>"}
M2M = {**ENDS, "sep_token": "</s>", "pad_token": "<pad>"}
M2M_LANGUAGES = (  # in the order of their ids
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy "
    "id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru "
    "sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
MOST_EXTRA = 1 << 16
OFFSET = 103  # of Pegasus: id - index of the piece in the model


@dataclass(frozen=True, kw_only=True)
class Made:
    """The result of a tokenizer class: `tokenizer.json`, and that of targets if they have a separate one."""

    text: str
    words: Vocabulary
    target: str | None = None
    languages: Languages | None = None


def file_of(settings: Settings, *names: str) -> Path:
    """Return the first of these files that exists; raise `CheckpointError` if none does."""
    for name in names:
        if (settings.folder / name).is_file():
            return settings.folder / name
    raise CheckpointError(f"{settings.folder} lacks {names[0]}, which its tokenizer needs; download it again")


def _plain(found: Pieces) -> Slots:
    return {place: (piece.text, piece.score) for place, piece in enumerate(found.pieces)}


def _special(found: Pieces) -> list[Added]:
    """Return the pieces that are not text. Classes with other ids for a few of them have no slots for those."""
    return [Added(piece.text) for piece in found.pieces if piece.kind in (CONTROL, UNKNOWN)]


def users_of(found: Pieces, prefix: bool | None = None) -> list[Added]:
    """Return the user-defined pieces as added tokens, which the library matches before all others; `prefix`: `made_of`.

    There are none if spaces are added or removed at the ends of a text, because readers would do that beside each.
    """
    if found.trims or (found.adds_prefix if prefix is None else prefix):
        return []
    return [Added(text, special=False, normalized=True) for text in found.users]


def made_of(
    found: Pieces,
    words: Vocabulary,
    before: list[str],
    after: list[str],
    languages: Languages | None = None,
    prefix: bool | None = None,
    prefix_first: bool = False,
) -> Made:
    """Return the tokenizer of a SentencePiece model and a vocabulary, with these tokens around each text.

    With `prefix`, a text begins with a space; None: as the model states. With `prefix_first`, the space is added only
    at the start of a text, and not after a special token. Raises `CheckpointError` if the vocabulary has no unknown
    token.
    """
    unknown = words.named.get("unk_token") or found.pieces[found.unknown].text
    if unknown not in words.ids:
        raise CheckpointError(f"the vocabulary of {found.path} has no {quoted(unknown)}, its unk_token")
    prefix = found.adds_prefix if prefix is None else prefix
    place = ("first" if prefix_first else "all") if prefix else None
    users = found.users if prefix or found.trims else ()
    for id_, token in words.added.items():  # the library would not skip a special token that the normalizer changes
        words.added[id_] = replace(token, normalized=token.normalized and not token.special)
    text = assemble(
        words,
        model_of(found, words.slots, words.ids[unknown], users),
        normalizer=normalizer_of(found, place, users),
        pre_tokenizer=splitter_of(found, place, users),
        decoder=decoder_of(found, prefix),
        before=before,
        after=after,
    )
    return Made(text=text, words=words, languages=languages)


def t5(settings: Settings) -> Made:
    """Return the tokenizer of T5 and mT5: the pieces with unchanged ids, and sentinel tokens."""
    found = read_pieces(file_of(settings, "spiece.model"))
    extra = settings.whole("extra_ids", 100, MOST_EXTRA)
    slots = _plain(found)
    size = len(found.pieces)
    names = [f"<extra_id_{extra - 1 - number}>" for number in range(extra)]
    slots |= {size + number: (name, 0.0) for number, name in enumerate(names)}
    special = [*_special(found), *(Added(name, lstrip=True, rstrip=True) for name in names)]
    words = vocabulary(settings, slots, T5, special, users_of(found))
    return made_of(found, words, [], [words.named["eos_token"]])


def pegasus(settings: Settings) -> Made:
    """Return the tokenizer of Pegasus: its pieces follow 103 tokens of its training."""
    found = read_pieces(file_of(settings, "spiece.model"))
    offset = settings.whole("offset", OFFSET, MOST_EXTRA)
    if offset != OFFSET:
        raise settings.wrong(f"offset {offset} is not supported; it must be {OFFSET}")
    named = [settings.token(name, PEGASUS[name]) or "" for name in ("pad_token", "eos_token", "mask_token")]
    sentence = settings.text("mask_token_sent", "<mask_1>")
    first = [named[0], named[1], sentence, named[2], *(f"<unk_{number}>" for number in range(2, OFFSET))]
    slots: Slots = {id_: (token, 0.0) for id_, token in enumerate(first)}
    slots |= {place + OFFSET: (piece.text, piece.score) for place, piece in enumerate(found.pieces) if place > 1}
    words = vocabulary(settings, slots, PEGASUS, map(Added, first), users_of(found))
    return made_of(found, words, [], [words.named["eos_token"]])


def llama(settings: Settings) -> Made:
    """Return the tokenizer of Llama and Mistral: byte fallback for unknown text, and a start token before each text."""
    return _decoder(settings, ENDS, read_pieces(file_of(settings, "tokenizer.model")))


def gemma(settings: Settings) -> Made:
    """Return the tokenizer of Gemma: like Llama's, but without a space before a text."""
    return _decoder(settings, GEMMA, read_pieces(file_of(settings, "tokenizer.model")))


def _decoder(settings: Settings, defaults: Mapping[str, str], found: Pieces) -> Made:
    prefix = found.adds_prefix and settings.flag("add_prefix_space", True)
    users = users_of(found, prefix)
    words = vocabulary(settings, _plain(found), defaults, _special(found), users)
    before = [words.named["bos_token"]] if settings.flag("add_bos_token", True) else []
    after = [words.named["eos_token"]] if settings.flag("add_eos_token", False) else []
    prefix_first = not settings.flag("legacy", True)
    return made_of(found, words, before, after, prefix=prefix, prefix_first=prefix_first)


def xlm_roberta(settings: Settings) -> Made:
    """Return the tokenizer of XLM-R: fairseq's special tokens, the pieces with ids shifted by one, the mask."""
    found = read_pieces(file_of(settings, "sentencepiece.bpe.model"))
    slots = _fairseq(settings, found)
    mask = settings.token("mask_token", "<mask>") or ""
    slots[max(slots) + 1] = (mask, 0.0)
    words = vocabulary(settings, slots, FAIRSEQ, [Added(mask, lstrip=True)], users_of(found))
    return made_of(found, words, [words.named["cls_token"]], [words.named["sep_token"]])


def deberta_v2(settings: Settings) -> Made:
    """Return the tokenizer of DeBERTa-v2 and v3: the pieces with unchanged ids, and the mask."""
    found = read_pieces(file_of(settings, "spm.model"))
    for name in ("do_lower_case", "split_by_punct"):
        if settings.flag(name, False):
            raise settings.wrong(f"{name} true is not supported; save the tokenizer as a {TOKENIZER}")
    words = vocabulary(settings, _plain(found), DEBERTA, _special(found), users_of(found))
    return made_of(found, words, [words.named["cls_token"]], [words.named["sep_token"]])


def camembert(settings: Settings) -> Made:
    """Return the tokenizer of CamemBERT: like XLM-R's, with two unknown tokens and two pairs of ends."""
    found = read_pieces(file_of(settings, "sentencepiece.bpe.model"))
    first = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]
    slots: Slots = {id_: (token, 0.0) for id_, token in enumerate(first)}
    slots |= {place + 4: (piece.text, piece.score) for place, piece in enumerate(found.pieces) if place}
    mask = settings.token("mask_token", "<mask>") or ""
    slots[max(slots) + 1] = (mask, 0.0)
    special = [Added(mask, lstrip=True), *map(Added, first)]
    words = vocabulary(settings, slots, FAIRSEQ, special, users_of(found))
    return made_of(found, words, [words.named["cls_token"]], [words.named["sep_token"]])


def _fairseq(settings: Settings, found: Pieces) -> Slots:
    kinds = [piece.kind for piece in found.pieces[:3]]
    if kinds != [UNKNOWN, CONTROL, CONTROL]:
        raise CheckpointError(f"{found.path} does not begin with an unknown, a start and an end token, as fairseq's do")
    first = [settings.token(name, FAIRSEQ[name]) or "" for name in ("bos_token", "pad_token", "eos_token", "unk_token")]
    slots: Slots = {id_: (token, 0.0) for id_, token in enumerate(first)}
    return slots | {place + 1: (piece.text, piece.score) for place, piece in enumerate(found.pieces) if place > 2}


def _multilingual(languages_of: Callable[[Settings], Languages | None]) -> Callable[[Settings], Made]:
    """Return the maker of mBART's and NLLB's tokenizer: like XLM-R's, with language tokens before the mask."""

    def make(settings: Settings) -> Made:
        found = read_pieces(file_of(settings, "sentencepiece.bpe.model"))
        slots = _fairseq(settings, found)
        mask = settings.token("mask_token", "<mask>") or ""
        names = [token for token in settings.others() if token != mask]
        if not settings.added():
            slots |= {len(slots) + number: (token, 0.0) for number, token in enumerate([*names, mask])}
        words = vocabulary(settings, slots, FAIRSEQ, [Added(mask, lstrip=True), *map(Added, names)], users_of(found))
        languages = languages_of(settings)
        if languages is None:
            fix = "save its tokenizer with transformers anew"
            raise settings.wrong(f"additional_special_tokens must name src_lang and all languages; {fix}")
        own = languages.tokens[languages.source or ""]
        before, after = (
            [own if each is None else each for each in side] for side in (languages.before, languages.after)
        )
        return made_of(found, words, before, after, languages)

    return make


def _languages(settings: Settings, default: str, *, first: bool, target: Target = "forced") -> Languages | None:
    """Return the languages of a folder, whose tokens are before (`first`) or after a source; None without any.

    The vocabulary does not state which tokens are those of languages.
    """
    tokens = {token: token for token in settings.others() if token != settings.token("mask_token", "<mask>")}
    source = settings.text("src_lang", default)
    if source not in tokens:
        return None
    end = settings.token("eos_token", "</s>")
    before, after = ((None,), (end,)) if first else ((), (end, None))
    return Languages(tokens=tokens, before=before, after=after, source=source, target=target)


def mbart_languages(settings: Settings) -> Languages | None:
    """Return the languages of mBART, whose decoder starts with a language token set by its config."""
    return _languages(settings, "en_XX", first=False, target="fixed")


def mbart50_languages(settings: Settings) -> Languages | None:
    """Return the languages of mBART-50, whose targets begin with a language token."""
    return _languages(settings, "en_XX", first=True)


def nllb_languages(settings: Settings) -> Languages | None:
    """Return the languages of NLLB, whose first tokenizers put the language token after a source."""
    return _languages(settings, "eng_Latn", first=not settings.flag("legacy_behaviour", False))


mbart, mbart50, nllb = map(_multilingual, (mbart_languages, mbart50_languages, nllb_languages))


def m2m100(settings: Settings) -> Made:
    """Return the tokenizer of M2M-100: SentencePiece, ids from `vocab.json`, and language tokens after them."""
    found = read_pieces(file_of(settings, "sentencepiece.bpe.model"))
    ids = read_ids(file_of(settings, "vocab.json"))
    codes = M2M_LANGUAGES if settings.get("language_codes", "m2m100") == "m2m100" else ""
    names = settings.others() or [f"__{code}__" for code in codes.split()]
    top = max(ids.values())
    ids |= {token: top + number for number, token in enumerate((each for each in names if each not in ids), 1)}
    tokens = {token.removeprefix("__").removesuffix("__"): token for token in names}
    source = settings.text("src_lang", "en")
    if source not in tokens:
        raise settings.wrong(f"additional_special_tokens must name the tokens of languages, __{source}__ among them")
    end = settings.token("eos_token", M2M["eos_token"])
    languages = Languages(tokens=tokens, before=(None,), after=(end,), source=source)
    return _by_ids(settings, found, found, ids, M2M, names, [tokens[source]], languages)


def marian(settings: Settings) -> Made:
    """Return the tokenizers of Marian: one SentencePiece model per side, and one `vocab.json` for both."""
    source, target = (read_pieces(file_of(settings, name)) for name in ("source.spm", "target.spm"))
    if settings.flag("separate_vocabs", False):
        raise settings.wrong("separate_vocabs is not supported: source and target must share a vocab.json")
    ids = read_ids(file_of(settings, "vocab.json"))
    names = [token for token in ids if token.startswith(">>") and token.endswith("<<") and len(token) > 4]
    tokens = {name[2:-2]: name for name in names}
    end = settings.token("eos_token", MARIAN["eos_token"])
    languages = Languages(tokens=tokens, after=(end,), target="source") if tokens else None
    return _by_ids(settings, source, target, ids, MARIAN, names, languages=languages)


def set_apart(words: Vocabulary, found: Pieces, *, reads: bool = True) -> bool:
    """Make a vocabulary fit a SentencePiece model of other tokens; return whether anything changed.

    Pieces that are not in the vocabulary get ids after its end, because the model does cut them. If the tokenizer
    `reads` texts, tokens that the model does not have get a name that occurs in no text.
    """
    own = {piece.text for piece in found.pieces}
    foreign = [id_ for id_, (text, _) in words.slots.items() if reads and text not in own and id_ not in words.added]
    ids = words.ids
    missing = [piece for piece in found.pieces if piece.text not in ids and piece.kind not in (CONTROL, UNKNOWN)]
    for id_ in foreign:
        words.slots[id_] = (FOREIGN + words.slots[id_][0], 0.0)
    if missing:
        size = max(words.slots) + 1
        words.slots[size] = (OUTSIDE, 0.0)
        words.slots |= {size + at: (piece.text, piece.score) for at, piece in enumerate(missing, 1)}
    return bool(foreign or missing)


def _by_ids(
    settings: Settings,
    source: Pieces,
    target: Pieces,
    ids: Mapping[str, int],
    defaults: Mapping[str, str],
    names: list[str],
    before: list[str] | None = None,
    languages: Languages | None = None,
) -> Made:
    """Return the tokenizers of source and target, whose pieces have the ids of a `vocab.json`.

    In the target's, tokens keep their names.
    """
    sides = []
    for found in (source, target):
        scores = {piece.text: piece.score for piece in found.pieces}
        slots: Slots = {id_: (text, scores.get(text, BYTE_SCORE)) for text, id_ in ids.items()}
        words = vocabulary(settings, slots, defaults, map(Added, names))
        sides.append(words)
    words = sides[0]
    changed = set_apart(words, source)
    after = [words.named["eos_token"]]
    made = made_of(source, words, before or [], after, languages)
    if source.path == target.path and not changed:
        return made
    other = made_of(target, sides[1], before or [], after)
    return Made(text=made.text, words=sides[1], target=other.text, languages=languages)
