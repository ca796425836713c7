"""Base classes of models that are stacks of layers, built by an architecture's factories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from txport.models.audio import Features, Speech
from txport.models.config import Config
from txport.models.facts import CrossAttention, Facts, Tokens, by_layer, key_values
from txport.models.model import Model, Side, Stack
from txport.models.ops import Ops
from txport.models.parts import Attention, Embedding, Layer, Linear, SoftCap
from txport.models.parts.sentence import Sentence

BOUNDS = 2  # logits of each token: as the first, and as the last of an answer


class EncoderDecoder(Model):
    """An encoder and a decoder, each with embedding, layers and final norm, and a projection to the vocabulary.

    `embedding`, `layer` and `final_norm` create the parts of each stack. `source_embedding` creates a different input
    layer for the encoder, for models that read features. `tied` states which matrices are shared: "all" (source
    embedding, target embedding and projection), "target" (target embedding and projection), "embeddings" (both
    embeddings) or "none". The decoder's states are multiplied by `scale` before the projection. Outputs are logits, or
    their log-softmax if `log_probs` is True.

    If the facts have outputs, there is no projection. The decoder reads the source after the encoder, one token later,
    and gives logits over the labels for the last end token, or those of spans for each token, as BART of transformers
    does. Its layers' windows hide later tokens.
    """

    def __init__(
        self,
        config: Config,
        facts: Facts,
        *,
        embedding: Callable[[int], Embedding],  # size of the vocabulary -> a new embedding
        layer: Callable[[Side], Layer],
        final_norm: Callable[[], nn.Module],
        layers: tuple[int, int],  # of the encoder, of the decoder
        tied: str,
        output_bias: bool = False,
        scale: float = 1.0,
        log_probs: bool = False,
        source_embedding: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__(config, facts)
        self.scale = scale
        self.log_probs = log_probs
        self.source_embedding: Any = source_embedding() if source_embedding else embedding(facts.reads.size)
        self.encoder = nn.ModuleList(layer("encoder") for _ in range(layers[0]))
        self.encoder_norm = final_norm()
        self.target_embedding = embedding(facts.writes.size)
        self.decoder = nn.ModuleList(layer("decoder") for _ in range(layers[1]))
        self.decoder_norm = final_norm()
        if facts.labels:
            self.pooler = Linear(facts.width, facts.width, tag="pooler")
        if facts.outputs:
            self.classifier = Linear(facts.width, len(facts.labels) or BOUNDS, tag="classifier")
        else:
            self.projection = Linear(facts.width, facts.writes.size, output_bias, tag="projection")
        self._tie(tied)
        self.initialise()

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """See `Model.stacks`."""
        encoder = Stack("encoder", self.source_embedding, self.encoder, self.encoder_norm)
        return (encoder, Stack("decoder", self.target_embedding, self.decoder, self.decoder_norm))

    def encoder_states(self, source: Tensor, ops: Ops) -> Tensor:
        """See `Model.encoder_states`; or the decoder's states: (..., D), with labels of the last end tokens (B, D)."""
        x = self.source_embedding(source, ops)
        for number, layer in enumerate(self.encoder):
            x = layer(x, ops, number)
        x = self.encoder_norm(x)
        if not self.facts.outputs:
            return cast(Tensor, x)
        ops.source = x
        x = self.decoder_states(self._later(source, ops), ops)
        return ops.last_token(x, source == self.facts.vocabulary.end) if self.facts.labels else x

    def _later(self, source: Tensor, ops: Ops) -> Tensor:
        """Return tokens (B, S) one place later, after the start token or, if there is none, each row's last token."""
        tokens = self.facts.vocabulary
        if tokens.start is None:
            count = ((source != tokens.pad) & ops.seen()).long().sum(1, keepdim=True)
            start = source.gather(1, (count - 1).clamp(min=0))
        else:
            start = torch.full_like(source[:, 0], tokens.start)[:, None]
        return torch.cat([start, source[:, :-1]], 1)

    def decoder_states(self, ids: Tensor, ops: Ops) -> Tensor:
        """See `Model.decoder_states`."""
        x = self.target_embedding(ids, ops)
        for number, layer in enumerate(self.decoder):
            x = layer(x, ops, number)
        return cast(Tensor, self.decoder_norm(x))

    def logits(self, states: Tensor) -> Tensor:
        """See `Model.logits`."""
        logits: Tensor = self.projection(states if self.scale == 1 else states * self.scale)
        return torch.log_softmax(logits, -1) if self.log_probs else logits

    def outputs(self, states: Tensor, ops: Ops) -> tuple[Tensor, ...]:
        """See `Model.outputs`."""
        if not self.facts.labels:
            return spans(ops.whole(self.classifier(states)))
        return (self.classifier(torch.tanh(self.pooler(states))),)

    def cross_attention(self, layer: int) -> Attention:
        """See `Model.cross_attention`."""
        return cast(Attention, cast(Layer, self.decoder[layer]).cross_attention)

    def _tie(self, tied: str) -> None:
        """Share the matrices of projection and embeddings that `tied` states."""
        if tied in ("all", "target") and not self.facts.outputs:
            self.projection.weight = self.target_embedding.tokens.weight
        if tied in ("all", "embeddings"):
            self.source_embedding.tokens.weight = self.target_embedding.tokens.weight


class DecoderOnly(Model):
    """A causal model: embedding, layers, final norm, and a projection to the vocabulary.

    `layer` creates each layer. If `tied` is True, projection and embedding share one matrix. `embedding_out` projects
    the output of the final norm to the size of the token embeddings, if that is not D. The final states are multiplied
    by `scale` before the projection, which has a bias if `output_bias` is True. `logit_cap` is applied to the logits.
    """

    def __init__(
        self,
        config: Config,
        facts: Facts,
        *,
        embedding: Embedding,
        layer: Callable[[], Layer],
        layers: int,
        final_norm: nn.Module,
        tied: bool,
        embedding_out: Linear | None = None,
        scale: float = 1.0,
        output_bias: bool = False,
        logit_cap: SoftCap | None = None,
    ) -> None:
        super().__init__(config, facts)
        self.target_embedding = embedding
        self.decoder = nn.ModuleList(layer() for _ in range(layers))
        self.decoder_norm = final_norm
        self.embedding_out = embedding_out or nn.Identity()
        self.scale = scale
        self.projection = Linear(facts.width, facts.writes.size, output_bias, tag="projection")
        self.logit_cap = logit_cap or nn.Identity()
        if tied:
            self.projection.weight = embedding.tokens.weight
        self.initialise()

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """See `Model.stacks`."""
        return (Stack("decoder", self.target_embedding, self.decoder, self.decoder_norm),)

    def decoder_states(self, ids: Tensor, ops: Ops) -> Tensor:
        """See `Model.decoder_states`."""
        x = self.target_embedding(ids, ops)
        for number, layer in enumerate(self.decoder):
            x = layer(x, ops, number)
        x = self.embedding_out(self.decoder_norm(x))
        return cast(Tensor, x if self.scale == 1 else x * self.scale)

    def logits(self, states: Tensor) -> Tensor:
        """See `Model.logits`."""
        return cast(Tensor, self.logit_cap(self.projection(states)))


class TextEncoder(Model):
    """The layers of a decoder-only model, or of an encoder, over whole texts, without a cache.

    It gives their hidden states, and their vectors by the steps of `sentence`; or, if the facts have labels, logits
    over these for each token, or for the last token that is not the padding token, as in transformers; or the logits of
    spans. The tensors have the names of `DecoderOnly`, or of this `side` of `EncoderDecoder`. A decoder's layers'
    windows hide later tokens.
    """

    def __init__(
        self,
        config: Config,
        facts: Facts,
        *,
        embedding: Embedding,
        layer: Callable[[], Layer],
        layers: int,
        final_norm: nn.Module,
        sentence: Sequence[str] = (),
        side: Side = "decoder",
    ) -> None:
        super().__init__(config, facts)
        self._names = ("source_embedding" if side == "encoder" else "target_embedding", side, f"{side}_norm")
        modules = (embedding, nn.ModuleList(layer() for _ in range(layers)), final_norm)
        for name, module in zip(self._names, modules, strict=True):
            self.add_module(name, module)
        self.sentence = Sentence(facts.width, sentence) if sentence else None
        self.classifies = facts.ability == "classify"
        self.classifier: nn.Module = nn.Identity()
        if count := BOUNDS if facts.ability == "answer" else len(facts.labels):
            self.classifier = Linear(facts.width, count, bias=not self.classifies, tag="classifier")
        self.initialise()

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """See `Model.stacks`."""
        embedding, layers, norm = map(self.get_submodule, self._names)
        return (Stack("encoder", embedding, cast(nn.ModuleList, layers), norm),)

    def encoder_states(self, source: Tensor, ops: Ops) -> Tensor:
        """See `Model.encoder_states`; with labels of texts, those of the last tokens: (B, D)."""
        (stack,) = self.stacks
        x = stack.embedding(source, ops)
        for number, layer in enumerate(stack.layers):
            x = layer(x, ops, number)
        x = x if stack.norm is None else stack.norm(x)
        return ops.last_token(x, source != self.facts.vocabulary.pad) if self.classifies else cast(Tensor, x)

    def outputs(self, states: Tensor, ops: Ops) -> tuple[Tensor, ...]:
        """See `Model.outputs`."""
        found = self.classifier(states)
        found = found if self.classifies else ops.whole(found)
        if self.facts.ability == "answer":
            return spans(found)
        return (found,) if self.sentence is None else (found, self.sentence(states, ops))


def spans(logits: Tensor) -> tuple[Tensor, ...]:
    """Return the logits of the first and of the last token of an answer: (B, S, 2) -> (B, S) twice."""
    return logits[..., 0], logits[..., 1]


def seq2seq_facts(
    *,
    width: int,
    source: Tokens | Features,
    target: Tokens,
    decoder_layers: int,
    heads: int,
    head_size: int,
    has_plain_logits: bool,
    speech: Speech | None = None,
) -> Facts:
    """Return the facts of an encoder-decoder whose decoder layers cache `heads` heads of keys and values."""
    owners: Sequence[Literal["row", "source"]] = ("row", "source")
    caches = (key_values(decoder_layers, owner, heads, head_size) for owner in owners)
    return Facts(
        task="seq2seq",
        width=width,
        source=source,
        target=target,
        state=by_layer(*caches),
        attention=CrossAttention(decoder_layers - 1, heads),
        has_plain_logits=has_plain_logits,
        speech=speech,
    )


def causal_facts(
    *,
    width: int,
    target: Tokens,
    layers: int,
    key_heads: int,
    head_size: int,
    has_plain_logits: bool = True,
    windows: tuple[int, ...] = (),
) -> Facts:
    """Return the facts of a decoder-only model whose layers all cache `key_heads` heads of keys and values."""
    return Facts(
        task="causal",
        width=width,
        target=target,
        state=key_values(layers, "row", key_heads, head_size),
        has_plain_logits=has_plain_logits,
        windows=windows,
    )
