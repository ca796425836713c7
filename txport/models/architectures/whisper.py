"""Whisper: Radford et al. 2022, "Robust speech recognition via large-scale weak supervision".

A pre-norm encoder-decoder. The encoder reads log-mel spectrograms of 30 seconds, and two convolutions reduce the frames
to half as many positions. Both stacks have learned positions, and the projection is tied to the target embedding.
Whisper's key projections have no bias. Here they have a zero bias, so that the projections of queries, keys and values
have the same form. Any key bias would add the same number to all scores of a query, which does not change the softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from txport.models.architecture import Architecture
from txport.models.audio import Features, Speech, feature_problems
from txport.models.config import LONGEST, Config, choice, layers, real, require_token, size
from txport.models.facts import Facts, Tokens
from txport.models.model import Model, Side
from txport.models.parts import NORMS, Attention, DotProduct, Embedding, FeedForward, Frames, Layer, Residual
from txport.models.rules import FAIRSEQ_LAYERS, Constant, Rename
from txport.models.stacks import EncoderDecoder, seq2seq_facts

FRAMES_A_PLACE = 2


@dataclass(frozen=True, kw_only=True)
class WhisperConfig(Config):
    """The sizes of a Whisper, its audio features, and its special tokens for speech.

    `places` is the number of positions of the encoder, half of the frames of a spectrogram. `max_length` is the longest
    target in tokens. The fields from `languages` on are those of `Speech` (docs/families/whisper.md); a model without
    them generates from the start token alone.
    """

    vocab_size: int = size(51865)
    mel_bins: int = size(80, most=1 << 12)
    places: int = size(1500, most=1 << 15)
    d_model: int = size(512)
    heads: int = size(8)
    feed_forward: int = size(2048)
    encoder_layers: int = layers(6)
    decoder_layers: int = layers(6)
    max_length: int = size(448, least=2, most=LONGEST)
    activation: str = choice("gelu", "relu", "silu", "gelu_tanh")
    norm_epsilon: float = real(1e-5, above=0, below=1)
    dropout: float = real(0.0, least=0, below=1)
    sampling_rate: int = size(16000, most=1 << 20)
    hop_length: int = size(160, most=1 << 20)
    n_fft: int = size(400, most=1 << 20)
    pad_id: int = 50257
    start_id: int = 50258
    eos_id: int = 50257
    languages: tuple[str, ...] = ()
    language_ids: tuple[int, ...] = ()
    transcribe_id: int | None = None
    translate_id: int | None = None
    no_timestamps_id: int | None = None
    previous_id: int | None = None
    language: str | None = None
    task: str | None = None
    initial_ids: tuple[int, ...] = ()
    max_initial_timestamp: int | None = None

    def problems(self) -> Iterator[str]:
        """See `Config.problems`."""
        if self.d_model % self.heads:
            yield f"heads must divide d_model, got {self.heads} for {self.d_model}"
        for name in ("pad_id", "start_id", "eos_id"):
            yield from require_token(name, getattr(self, name), "target", self.vocab_size)
        yield from feature_problems(features(self))
        yield from speech(self).problems(self.vocab_size)
        if self.max_initial_timestamp is not None and self.max_initial_timestamp < 0:
            yield f"max_initial_timestamp must not be negative, got {self.max_initial_timestamp}"


def features(config: WhisperConfig) -> Features:
    """Return the facts about the audio features."""
    return Features(
        size=config.mel_bins,
        frames=FRAMES_A_PLACE * config.places,
        longest=config.places,
        sampling_rate=config.sampling_rate,
        hop_length=config.hop_length,
        n_fft=config.n_fft,
    )


def speech(config: WhisperConfig) -> Speech:
    """Return the special tokens for speech."""
    return Speech(
        languages=config.languages,
        language_ids=config.language_ids,
        transcribe=config.transcribe_id,
        translate=config.translate_id,
        no_timestamps=config.no_timestamps_id,
        previous=config.previous_id,
        language=config.language,
        task=config.task,
        initial=config.initial_ids,
        latest_first=config.max_initial_timestamp,
    )


def facts(config: WhisperConfig) -> Facts:
    """Return the facts about a model of this config."""
    return seq2seq_facts(
        width=config.d_model,
        source=features(config),
        target=Tokens(
            size=config.vocab_size,
            longest=config.max_length,
            pad=config.pad_id,
            start=config.start_id,
            ends=(config.eos_id,),
        ),
        decoder_layers=config.decoder_layers,
        heads=config.heads,
        head_size=config.d_model // config.heads,
        has_plain_logits=True,
        speech=speech(config),
    )


def build(config: WhisperConfig) -> Model:
    """Build a model of this config."""
    return EncoderDecoder(
        config,
        facts(config),
        embedding=lambda vocabulary: Embedding(
            vocabulary, config.d_model, positions="learned", longest=config.max_length, dropout=config.dropout
        ),
        layer=partial(_layer, config),
        final_norm=partial(_norm, config),
        layers=(config.encoder_layers, config.decoder_layers),
        tied="target",
        source_embedding=lambda: Frames(config.mel_bins, config.d_model, config.places, config.activation),
    )


def _layer(config: WhisperConfig, side: Side) -> Layer:
    head_size = config.d_model // config.heads
    core = partial(DotProduct, config.heads, config.heads, head_size**-0.5)
    attention = partial(Attention, config.d_model, head_size=head_size)
    return Layer(
        attention(core()),
        FeedForward(config.d_model, config.feed_forward, config.activation),
        lambda: Residual(_norm(config), first=True, dropout=config.dropout),
        attention(core(), over="source") if side == "decoder" else None,
    )


def _norm(config: WhisperConfig) -> nn.Module:
    return NORMS["layer"](config.d_model, config.norm_epsilon)


def hugging_face(config: WhisperConfig) -> dict[str, object]:
    """Return the `config.json` of a Whisper."""
    activations = {"gelu_tanh": "gelu_new"}
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": config.vocab_size,
        "num_mel_bins": config.mel_bins,
        "max_source_positions": config.places,
        "max_target_positions": config.max_length,
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "num_hidden_layers": config.encoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.feed_forward,
        "decoder_ffn_dim": config.feed_forward,
        "activation_function": activations.get(config.activation, config.activation),
        "scale_embedding": False,
        "begin_suppress_tokens": None,  # generation_config.json has the suppressed tokens
    }


def draw(rng: np.random.Generator) -> WhisperConfig:
    """Return a small random config of any variant."""
    heads = int(rng.choice([1, 2, 4]))
    vocabulary = int(rng.integers(24, 60))
    end = int(rng.integers(4, 8))
    knows_languages, tells_times = (bool(rng.integers(2)) for _ in range(2))
    known: dict[str, Any] = {}
    if knows_languages:
        known |= {"languages": ("en", "de"), "language_ids": (end + 2, end + 3)}
        known |= {"translate_id": end + 4, "transcribe_id": end + 5}
    if tells_times:
        known |= {"previous_id": end + 6, "no_timestamps_id": end + 7, "max_initial_timestamp": int(rng.integers(9))}
    hop = int(rng.integers(2, 9))
    return WhisperConfig(
        vocab_size=vocabulary,
        mel_bins=int(rng.integers(3, 12)),
        places=int(rng.integers(8, 40)),
        d_model=heads * int(rng.choice([8, 16])),
        heads=heads,
        feed_forward=int(rng.integers(8, 40)),
        encoder_layers=int(rng.integers(1, 3)),
        decoder_layers=int(rng.integers(1, 4)),
        max_length=int(rng.integers(8, 40)),
        activation=str(rng.choice(WhisperConfig.choices()["activation"])),
        hop_length=hop,
        n_fft=2 * hop,
        pad_id=int(rng.integers(end + 1)),
        eos_id=end,
        start_id=end + 1,
        **known,
    )


# renames the modules of transformers' WhisperForConditionalGeneration, and the tensors of its checkpoints
WEIGHTS = (
    Rename(r"^model\.", ""),
    Rename(r"^proj_out\.", "projection."),
    Rename(r"^encoder\.conv1\.", "source_embedding.first."),
    Rename(r"^encoder\.conv2\.", "source_embedding.second."),
    Rename(r"^encoder\.embed_positions\.weight$", "source_embedding.positions"),
    Rename(r"^decoder\.embed_positions\.weight$", "target_embedding.positions"),
    Rename(r"^decoder\.embed_tokens\.", "target_embedding.tokens."),
    *FAIRSEQ_LAYERS,
    Constant(r"(en|de)coder\.\d+\.(cross_)?attention\.key\.bias"),
)


def _published(width: int, heads: int, depth: int, decoder_depth: int | None = None, **more: Any) -> WhisperConfig:
    """Return the config of a published Whisper; they differ in their sizes."""
    return WhisperConfig(
        d_model=width,
        heads=heads,
        feed_forward=4 * width,
        encoder_layers=depth,
        decoder_layers=decoder_depth or depth,
        **more,
    )


# Table 1 of the paper, and two later models with 128 mel bins and one more language; `whisper-mini-tiny` is for tests
# and first tries.
PRESETS = {
    "whisper-mini-tiny": WhisperConfig(
        vocab_size=64,
        mel_bins=8,
        places=24,
        d_model=32,
        heads=4,
        feed_forward=64,
        encoder_layers=2,
        decoder_layers=2,
        max_length=40,
        hop_length=80,
        n_fft=200,
        pad_id=20,
        start_id=21,
        eos_id=20,
        languages=("en", "de", "fr"),
        language_ids=(22, 23, 24),
        translate_id=25,
        transcribe_id=26,
        previous_id=28,
        no_timestamps_id=30,
        max_initial_timestamp=10,
    ),
    "whisper-tiny": _published(384, 6, 4),
    "whisper-base": _published(512, 8, 6),
    "whisper-small": _published(768, 12, 12),
    "whisper-medium": _published(1024, 16, 24),
    "whisper-large-v3": _published(1280, 20, 32, mel_bins=128, vocab_size=51866),
    "whisper-turbo": _published(1280, 20, 32, 4, mel_bins=128, vocab_size=51866),
}
ARCHITECTURE = Architecture(
    config=WhisperConfig, build=build, presets=PRESETS, hugging_face=hugging_face, draw=draw, weights=WEIGHTS
)
