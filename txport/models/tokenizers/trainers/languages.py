"""Languages that a trainer's vocabulary has tokens for."""

from __future__ import annotations

import re
from collections.abc import Collection

from txport.models.tokenizers.usage import Languages

FORCED = (  # how tokens of languages are written, and the one that sources are in unless told otherwise
    (re.compile(r"__([a-z]{2,3})__"), "en"),  # of M2M-100
    (re.compile(r"__([a-z]{3}_[A-Z][a-z]{3})__"), "eng_Latn"),  # of NLLB, by fairseq
    (re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"), "eng_Latn"),  # of NLLB
    (re.compile(r"\[?([a-z]{2}_[A-Z]{2})\]?"), "en_XX"),  # of mBART-50
)
TOLD = re.compile(r">>([^<>\s]+)<<")  # the target's, before a source of Marian's


def languages_of(tokens: Collection[str], after: tuple[str, ...]) -> Languages | None:
    """The languages among tokens that are no pieces of text; None where there are none.

    Sources begin with theirs and end with `after`. Without English, a source is in the first language that there is.
    """
    told = {match[1]: match[0] for token in tokens if (match := TOLD.fullmatch(token))}
    if told:
        return Languages(tokens=told, after=after, target="source")
    for pattern, english in FORCED:
        found = {match[1]: match[0] for token in tokens if (match := pattern.fullmatch(token))}
        if len(found) > 1:
            source = english if english in found else next(iter(found))
            return Languages(tokens=found, before=(None,), after=after, source=source)
    return None
