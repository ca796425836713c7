"""Languages that a trainer's vocabulary has tokens for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from txport.models.tokenizers.trainers.words import Words
from txport.models.tokenizers.usage import Languages

FORCED = (  # how tokens of languages are written
    re.compile(r"__([a-z]{2,3})__"),  # of M2M-100
    re.compile(r"__([a-z]{3}_[A-Z][a-z]{3})__"),  # of NLLB, by fairseq
    re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"),  # of NLLB
    re.compile(r"\[?([a-z]{2}_[A-Z]{2})\]?"),  # of mBART-50
)
ENGLISH = ("en", "eng_Latn", "en_XX")  # in which sources are unless told otherwise
TOLD = re.compile(r">>([^<>\s]+)<<")  # the target's, before a source of Marian's


def languages_of(words: Words, pieces: Collection[str] | None) -> Languages | None:
    """The languages of a checkpoint's vocabularies; None where there are none.

    Sources begin with the token of theirs, if the trainer puts one there; what else stands around them stays. Without
    English, a source is in the first language that there is. `pieces` are the tokens that are cut from texts, None
    where nothing says which: of these, no token is inferred to be one of a language.
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
    """The names of languages, and their tokens among these; nothing where there is one at most."""
    tokens = list(tokens)
    found = ({match[1]: match[0] for token in tokens if (match := each.fullmatch(token))} for each in FORCED)
    return next((each for each in found if len(each) > 1), {})
