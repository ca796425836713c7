"""Names of layers that several trainers share: those of fairseq, which transformers adopted for many models."""

from __future__ import annotations

from txport.models.weights.rules import Drop, Rename, Rule

SINUSOIDS: tuple[Rule, ...] = (
    Drop(r"(model\.)?encoder\.embed_positions\.weights?$", "source_embedding.positions"),
    Drop(r"(model\.)?decoder\.embed_positions\.weights?$", "target_embedding.positions"),
)
LAYERS: tuple[Rule, ...] = (
    Rename(r"^(encoder|decoder)\.layer_norm\.", r"\1_norm."),
    Rename(r"^(encoder|decoder)\.layers\.", r"\1."),
    Rename(r"\.self_attn\.", ".attention."),
    Rename(r"\.encoder_attn\.", ".cross_attention."),
    Rename(r"attention\.q_proj\.", "attention.query."),
    Rename(r"attention\.k_proj\.", "attention.key."),
    Rename(r"attention\.v_proj\.", "attention.value."),
    Rename(r"attention\.out_proj\.", "attention.output."),
    Rename(r"\.fc1\.", ".feed_forward.inner."),
    Rename(r"\.fc2\.", ".feed_forward.outer."),
    Rename(r"\.self_attn_layer_norm\.", ".attention_residual.norm."),
    Rename(r"\.encoder_attn_layer_norm\.", ".cross_attention_residual.norm."),
    Rename(r"\.final_layer_norm\.", ".feed_forward_residual.norm."),
)
