"""Language tokens of a trainer's vocabularies."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from txport.models.tokenizers.trainers.words import Words
from txport.models.tokenizers.usage import Languages

FORCED = (  # forms of language tokens
    re.compile(r"__([a-z]{2,3})__"),  # of M2M-100
    re.compile(r"__([a-z]{3}_[A-Z][a-z]{3})__"),  # of NLLB, by fairseq
    re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"),  # of NLLB
    re.compile(r"\[?([a-z]{2}_[A-Z]{2})\]?"),  # of mBART-50
)
ENGLISH = ("en", "eng_Latn", "en_XX")  # default source languages
TOLD = re.compile(r">>([^<>\s]+)<<")  # the target language, before a source of Marian's


def languages_of(words: Words, pieces: Collection[str] | None) -> Languages | None:
    """Return the languages of a checkpoint's vocabularies; None if there are none.

    Sources begin with their language's token if the trainer adds one; other tokens around them are kept. The default
    source language is English, or else the first language. `pieces` are the tokens that are cut from texts: none of
    them is assumed to be a language token. If `pieces` is None, likely language tokens are ignored.
    """
    told = {match[1]: match[0] for token in words.source.ids if (match := TOLD.fullmatch(token))}
    told = {name: token for name, token in told.items() if token not in (pieces or ())}
    if told and not words.languages:
        return Languages(tokens=told, before=words.before, after=words.after, target="source")
    likely = [] if pieces is None else [token for token in words.likely_languages if token not in pieces]
    if not (found := words.languages or forced_in(likely)):
        return None
    source = next((name for name in ENGLISH if name in found), next(iter(found)))
    return Languages(tokens=found, before=(*words.before, None), after=words.after, source=source)


def forced_in(tokens: Iterable[str]) -> dict[str, str]:
    """Return the names and tokens of languages among these tokens; {} if there is at most one."""
    tokens = list(tokens)
    found = ({match[1]: match[0] for token in tokens if (match := each.fullmatch(token))} for each in FORCED)
    return next((each for each in found if len(each) > 1), {})
