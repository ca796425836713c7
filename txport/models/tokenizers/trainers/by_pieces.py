"""Tokenizers of SentencePiece models with the ids of a trainer's vocabulary."""

from __future__ import annotations

from txport.errors import CheckpointError, quoted
from txport.models.tokenizers.assemble import Slots, Vocabulary
from txport.models.tokenizers.pieces import made_of, set_apart, users_of
from txport.models.tokenizers.sentencepiece import BYTE_SCORE, CONTROL, UNKNOWN, Pieces
from txport.models.tokenizers.settings import Added
from txport.models.tokenizers.trainers.words import Around, Side


def by_pieces(side: Side, found: Pieces, around: Around, *, reads: bool) -> str:
    """Return the `tokenizer.json` of one side; only if it `reads` texts must it split them as the trainer does."""
    scores = {piece.text: piece.score for piece in found.pieces}
    slots: Slots = {id_: (token, scores.get(token, BYTE_SCORE)) for token, id_ in side.ids.items()}
    users = {each.text: each for each in users_of(found, found.adds_prefix)}
    if lacking := users.keys() - side.ids.keys():
        raise CheckpointError(f"{found.path} has a piece {quoted(min(lacking))} of its user, {side.place} has none")
    special = {*around.special, *(piece.text for piece in found.pieces if piece.kind in (CONTROL, UNKNOWN))}
    whole = {**{token: Added(token) for token in special}, **users}
    added = {id_: whole[token] for token, id_ in side.ids.items() if token in whole}
    words = Vocabulary(slots, added, {"unk_token": side.unknown})
    set_apart(words, found, reads=reads)
    return made_of(found, words, [*around.before], [*around.after]).text
