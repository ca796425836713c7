"""BERT and related models as transformers saves them: RoBERTa, XLM-R, CamemBERT, data2vec, ERNIE, DistilBERT.

The outputs are those of the class that a checkpoint was saved from: hidden states, logits over the vocabulary, or
labels of texts or tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txport.checkpoints.family import ACTIVATIONS, BARE, Family, Published
from txport.checkpoints.keys import IN_FILE, NOTHING, OTHER_HEAD, STARTING, TRAINING
from txport.checkpoints.pooling import ACTIVATION, OF_CROSS
from txport.errors import ConfigError, quoted
from txport.models.rules import Drop, Rename, Rule, Settle, Spare, Take

BERT: dict[str, object] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
ROBERTA = {**BERT, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
ROBERTAS = ("roberta", "xlm-roberta", "camembert", "data2vec-text")
DISTILBERT = {
    "vocab_size": 30522,
    "dim": 768,
    "n_layers": 6,
    "n_heads": 12,
    "hidden_dim": 3072,
    "activation": "gelu",
    "dropout": 0.1,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
DEFAULTS = {"bert": BERT, "ernie": BERT, **dict.fromkeys(ROBERTAS, ROBERTA), "distilbert": DISTILBERT}
HEADS = {  # by the end of a class's name
    "ForMaskedLM": "tokens",
    "ForPreTraining": "tokens",
    "ForSequenceClassification": "labels",
    "ForTokenClassification": "token_labels",
    "ForQuestionAnswering": "spans",
    BARE: "hidden",
}
# Names of special tokens, and their usual ids. Without usual ids, the last token of the vocabulary is used.
WRITTEN = {"cls": ("[CLS]", "<s>"), "sep": ("[SEP]", "</s>"), "mask": ("[MASK]", "<mask>")}
USUAL = {"cls": 101, "sep": 102, "mask": 103}
REPLACED = ("replaced",)  # the label of ELECTRA's discriminator
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")  # of text labels


def config(values: Published) -> dict[str, object]:
    """Return the values of `BertConfig`."""
    if values.type in ROBERTAS:
        return kin(values, offset=values.get("pad_token_id") + 1, ends=("bos", "eos"), has_gelu=True)
    if values.type == "distilbert":
        return kin(values, names=DISTIL_NAMES, segment=False, pooler="relu", usual=USUAL)
    return kin(values, usual=USUAL)


def kin(
    values: Published,
    *,
    names: Mapping[str, str] | None = None,
    heads: Mapping[str, str] = HEADS,
    offset: int = 0,
    segment: bool = True,
    pooler: str = "tanh",
    ends: tuple[str, str] = ("cls", "sep"),
    usual: Mapping[str, int] | None = None,
    has_gelu: bool = False,
) -> dict[str, object]:
    """Return the values of `BertConfig` that all related models have.

    `names` are the keys of sizes. `ends` are the keys of the tokens at the start and end of texts. `usual` are ids of
    special tokens that are not in the files. With `has_gelu`, the head of masked language models always uses GELU.
    """
    names = NAMES if names is None else names
    head = values.head(heads, "hidden")
    pad = values.get("pad_token_id")
    activation = values.word(names["activation"], ACTIVATIONS)
    if has_gelu and head == "tokens":
        values.require(names["activation"], "gelu")
    if head == "spans" and len(labels_of(values)) != 2:
        raise ConfigError(f"id2label of a class for questions must have 2 labels, got {len(labels_of(values))}")
    labels = REPLACED if head == "replaced" else labels_of(values) if head.endswith("labels") else ()
    if head == "labels":
        values.require("problem_type", *PROBLEM_TYPES)
    return {
        "vocab_size": values.get("vocab_size"),
        **{ours: values.get(theirs) for ours, theirs in names.items()},
        "max_length": values.get("max_position_embeddings") - offset,
        "position_offset": offset,
        "segment": segment,
        "token_types": types_of(values) if head in ("labels", "spans") and segment else 0,
        "norm_epsilon": 1e-12 if values.type == "distilbert" else values.get("layer_norm_eps", 1e-12),
        "activation": activation,
        "head": head,
        "labels": labels,
        "problem_type": problem_of(values, labels) if head == "labels" else PROBLEM_TYPES[0],
        "pooler": pooler,
        "pad_id": pad,
        "cls_id": special(values, "cls", ends[0], usual),
        "sep_id": special(values, "sep", ends[1], usual),
        "mask_id": special(values, "mask", "mask", usual, None if head == "tokens" else pad),
    }


NAMES = {
    "d_model": "hidden_size",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
    "encoder_layers": "num_hidden_layers",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
}
DISTIL_NAMES = {
    "d_model": "dim",
    "heads": "n_heads",
    "feed_forward": "hidden_dim",
    "encoder_layers": "n_layers",
    "activation": "activation",
    "dropout": "dropout",
}


def special(
    values: Published, name: str, key: str, usual_ids: Mapping[str, int] | None, fallback: int | None = None
) -> int:
    """Return the id of a special token from `config.json` or the tokenizer, or else its usual id.

    `fallback` is used for an unnecessary token that is in neither. Raises `ConfigError` if the id is unknown.
    """
    known = values.special or {}
    found = [values.token(f"{key}_token_id"), *(known.get(written) for written in WRITTEN[name])]
    for id_ in (id_ for id_ in found if id_ is not None):
        return int(id_)
    if fallback is not None:
        return fallback
    usual = values.get("vocab_size") - 1 if usual_ids is None else usual_ids[name]
    if values.special is not None or usual >= values.get("vocab_size"):
        written = " or ".join(WRITTEN[name])
        raise ConfigError(f"{key}_token_id is missing, and {written} in tokenizer.json: say the id in config.json")
    return int(usual)


def types_of(values: Published) -> int:
    """Return the number of types of tokens that tell two texts apart; 0 if there is one, or the tokenizer uses one."""
    types = 1 if values.type in ROBERTAS else values.get("type_vocab_size", 2)
    return types if types > 1 else 0


def problem_of(values: Published, labels: Sequence[str]) -> str:
    """Return the problem type; a cross-encoder of sentence-transformers names the function of its scores instead."""
    beside = values.beside(OF_CROSS)
    named = values.get("sbert_ce_default_activation_function", beside.get(ACTIVATION) or None)
    function = str(named).rpartition(".")[2]
    if strange := [key for key in beside if key not in (ACTIVATION, "version")]:
        raise ConfigError(f"the key {quoted(strange[0])} of sentence_transformers is not supported")
    if named is not None and function not in SCORED:
        raise ConfigError(f"the activation {quoted(named)} of a cross-encoder is not supported: {', '.join(SCORED)}")
    return SCORED[function] if named and len(labels) == 1 else str(values.get("problem_type", PROBLEM_TYPES[0]))


def labelled(values: Published) -> dict[str, object]:
    """Return the labels of texts and their problem type."""
    values.require("problem_type", *PROBLEM_TYPES)
    labels = labels_of(values)
    return {"labels": labels, "problem_type": problem_of(values, labels)}


def labels_of(values: Published) -> tuple[str, ...]:
    """Return the names of the labels, in the order of their numbers."""
    count = values.get("num_labels", 2)
    named = values.get("id2label", {str(number): f"LABEL_{number}" for number in range(count)})
    return tuple(str(name) for _, name in sorted(named.items(), key=lambda pair: int(pair[0])))


UNUSED = {
    **dict.fromkeys(("type_vocab_size", "tie_word_embeddings"), IN_FILE),
    "task_type_vocab_size": "only use_task_id uses it",
    **dict.fromkeys(("qa_dropout", "seq_classif_dropout", "summary_last_dropout"), TRAINING),
    **dict.fromkeys(("sinusoidal_pos_embds",), STARTING),
    **dict.fromkeys(("summary_type", "summary_use_proj", "summary_activation"), OTHER_HEAD),
    **dict.fromkeys(("directionality", "pooler_fc_size", "pooler_num_attention_heads", "tie_weights_"), NOTHING),
    **dict.fromkeys(("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"), NOTHING),
}
OFF = {"position_embedding_type": ("absolute",), "use_task_id": (False,)}


# function of the scores of a cross-encoder with one label -> problem type; with several, labels are exclusive
SCORED = {"Identity": "regression", "Sigmoid": "single_label_classification"}
LAYER = r"^(encoder\.\d+)\."
BEFORE: tuple[Rule, ...] = (
    Drop(r"(roberta|mpnet|data2vec_text)\.pooler\."),  # classes with a head replace the pooler
    Rename(r"^(bert|ernie|roberta|data2vec_text|distilbert|mpnet|electra|albert|deberta)\.", ""),
)
WEIGHTS: tuple[Rule, ...] = (
    *BEFORE,
    Drop(r"embeddings\.position_ids$"),
    Drop(r"cls\.seq_relationship\."),  # next-sentence prediction, which is not used
    Rename(r"^(cls\.predictions\.decoder|lm_head\.decoder|vocab_projector)\.", "projection."),
    Rename(r"^embeddings\.word_embeddings\.", "source_embedding.tokens."),
    Rename(r"^embeddings\.position_embeddings\.weight$", "source_embedding.positions"),
    Rename(r"^embeddings\.LayerNorm\.", "source_embedding.norm."),
    Rename(r"^(encoder|transformer)\.layer\.", "encoder."),
    Rename(LAYER + r"attention\.self\.", r"\1.attention."),
    Rename(LAYER + r"attention\.q_lin\.", r"\1.attention.query."),
    Rename(LAYER + r"attention\.k_lin\.", r"\1.attention.key."),
    Rename(LAYER + r"attention\.v_lin\.", r"\1.attention.value."),
    Rename(LAYER + r"attention\.(output\.dense|out_lin)\.", r"\1.attention.output."),
    Rename(LAYER + r"(attention\.output\.LayerNorm|sa_layer_norm)\.", r"\1.attention_residual.norm."),
    Rename(LAYER + r"(intermediate\.dense|ffn\.lin1)\.", r"\1.feed_forward.inner."),
    Rename(LAYER + r"(output\.dense|ffn\.lin2)\.", r"\1.feed_forward.outer."),
    Rename(LAYER + r"(output\.LayerNorm|output_layer_norm)\.", r"\1.feed_forward_residual.norm."),
    Rename(r"^(pooler\.dense|pre_classifier|classifier\.dense)\.", "pooler."),
    Rename(r"^(classifier\.out_proj|qa_outputs)\.", "classifier."),
    Rename(r"^(cls\.predictions\.transform\.dense|lm_head\.dense|vocab_transform)\.", "transform."),
    Rename(r"^(cls\.predictions\.transform\.LayerNorm|lm_head\.layer_norm|vocab_layer_norm)\.", "transform_norm."),
    Rename(r"^(cls\.predictions|lm_head)\.bias$", "projection.bias"),
    Rename(r"\.gamma$", ".weight"),  # in old files
    Rename(r"\.beta$", ".bias"),
    Rename(r"^embeddings\.token_type_embeddings\.weight$", "source_embedding.segments"),
    Settle(),  # a model without types of tokens takes that of the first
    Take(r"^source_embedding\.segments$"),
    Rename(r"^source_embedding\.segments$", "source_embedding.segment"),
    Spare(r"(pooler|transform|transform_norm|projection)\."),
)
FAMILY = Family(
    defaults=DEFAULTS,
    architecture="bert",
    classes="|".join(HEADS),
    config=config,
    weights=WEIGHTS,
    unused=UNUSED,
    off=OFF,
)
