"""The steps of a program that runs the graphs of a bundle, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from txport.bundles.manifest import Manifest
from txport.bundles.ports import SELECT, screens
from txport.bundles.readme import device
from txport.bundles.readme.settings import Settings, ability_of, pooling_of
from txport.models.audio.facts import Features, Speech
from txport.models.facts import Ability, Facts, Function
from txport.system.markdown import code

SHOWN = 8  # items of a long list


def steps(manifest: Manifest) -> list[str]:
    """Return the steps in order, as Markdown, without numbers."""
    if manifest.facts.task == "encode":
        return list(_encoding(manifest))
    settings = Settings(manifest)
    portable = manifest.target == "portable"
    if manifest.target == "cuda":
        return [*_read(settings), *(device.encoded if settings.start else device.prompted)(settings), ending(settings)]
    if manifest.facts.task == "causal":
        return [*(_portable_causal(settings) if portable else _cpu_causal(settings)), ending(settings)]
    return [*_read(settings), *(_portable_seq2seq(settings) if portable else _cpu_seq2seq(settings)), ending(settings)]


def _read(settings: Settings) -> Iterator[str]:
    """Yield how to make the inputs of the model."""
    if settings.facts.task == "causal":
        yield _prompt(settings.facts)
    elif settings.reads_features:
        yield from _features(settings)
    else:
        yield _source(settings.facts)


def notes(manifest: Manifest) -> list[str]:
    """Return notes on batches, beams and attention, as Markdown."""
    facts = manifest.facts
    portable = manifest.target == "portable"
    found = [_batches(manifest)]
    if manifest.target == "cuda":
        found += device.notes(manifest) if facts.task != "encode" else []
    elif SELECT in manifest.graphs:
        found.append(
            f"**Beams**: `{manifest.graphs[SELECT].file}` picks rows of the state: `rows` are the numbers of the "
            f"rows to "
            "keep, and each `selected.X` becomes `X`."
        )
    elif facts.task == "seq2seq":
        found.append(
            "**Beams**: `input_ids` may be (batch_size, beams); the beams of one source stand side by side, so there "
            "are "
            "batch_size x beams rows. They share the source's keys and values. When beams change places, copy their "
            "rows "
            "in the caches."
        )
    elif facts.task == "causal":
        found.append("**Beams**: rows of the caches may be copied from one to another; all rows are independent.")
    if manifest.target == "cpu" and facts.task != "encode":
        found.append(_best(manifest))
    if facts.attention is not None:
        name = manifest.graphs["decoder" if portable else "step"].attention
        asked = "" if manifest.target != "cpu" else ", if `align` is true"
        found.append(f"**Alignment**: {code(str(name))} is the attention of each token over the source{asked}.")
    return found


def _source(facts: Facts) -> str:
    source = facts.vocabulary
    return f"Make the ids of the source: {around(source.before, source.after)}; at most {source.longest} in all."


def around(before: Sequence[int], after: Sequence[int]) -> str:
    """Return the special ids before and after the ids of a text, as words."""
    parts = [numbers(before), "the ids of the text", numbers(after)]
    return ", then ".join(part for part in parts if part)


def _features(settings: Settings) -> Iterator[str]:
    reads = settings.facts.source
    assert isinstance(reads, Features)
    yield (
        f"Make log-mel features of up to {reads.seconds:g} seconds of audio: samples at {reads.sampling_rate} Hz, "
        f"filled "
        f"up with zeros; windows (Hann) of {reads.n_fft} samples every {reads.hop_length}; powers in {reads.size} mel "
        "bins (Slaney's scale); the logarithm to base 10, at least the largest minus 8, plus 4, over 4. That gives "
        f"({reads.size}, {reads.frames}) numbers. transformers' `WhisperFeatureExtractor` computes the same."
    )


def _portable_seq2seq(settings: Settings) -> Iterator[str]:
    graphs = settings.manifest.graphs
    features = settings.reads_features
    mask = "" if features else " and `attention_mask`, a 1 for each,"
    yield (
        f"Run `{graphs['encoder'].file}` once on {'`input_features`' if features else '`input_ids`'}{mask} -> "
        "`last_hidden_state`."
    )
    same = "" if features else ", `encoder_attention_mask` is the same mask"
    yield (
        f"The first step of `{graphs['decoder'].file}`: `input_ids` are [[{numbers(settings.start)}]]"
        f"{_spoken(settings.facts.speech)}, `encoder_hidden_states` is `last_hidden_state`{same}, and every "
        f"`past_key_values.*` is empty: {_empty(settings)}."
    )
    yield "The last row of `logits` has a score for each token that may come next. Greedy search takes the largest."
    yield (
        "Each `present.L.decoder.*` becomes `past_key_values.L.decoder.*`, one place longer for each token. What the "
        "first step gives as `present.L.encoder.*`, the keys and values of the source, becomes "
        "`past_key_values.L.encoder.*` in all later steps: it does not change, so fetch it once."
    )


def _portable_causal(settings: Settings) -> Iterator[str]:
    file = settings.graph.file
    yield _prompt(settings.facts)
    yield (
        f"The first run of `{file}` takes the whole prompt: `input_ids` (1, T), `position_ids` 0 to T - 1, "
        f"`attention_mask` (1, T) of ones, and every `past_key_values.*` empty: {_empty(settings)}."
    )
    yield "The last row of `logits` has a score for each token that may come next. Greedy search takes the largest."
    yield (
        "Each `present.*` becomes the `past_key_values.*` of the same name. The next run takes the one new token: "
        "`position_ids` is its place, and `attention_mask` is one longer, for it covers the past too."
    )


def _cpu_seq2seq(settings: Settings) -> Iterator[str]:
    graphs = settings.manifest.graphs
    features = settings.reads_features
    reads = settings.facts.reads
    lengths = (
        f"`source_lengths` {reads.longest}, the places that it makes" if features else "`source_lengths`, how many"
    )
    yield (
        f"Run `{graphs['encoder'].file}` once on {'`input_features`' if features else '`input_ids`'} and {lengths} -> "
        "`cross.L.*`, the keys and values of the source for each decoder layer, which every step reads."
    )
    yield _caches(settings)
    yield (
        f"A step runs `{graphs['step'].file}` on one token for each row, `input_ids` (1, 1), and `past_lengths` "
        f"(1,), how "
        f"many tokens the caches hold already: 0 at first. The first tokens are {numbers(settings.start)}"
        f"{_spoken(settings.facts.speech)}{', one after the other' if len(settings.start) > 1 else ''}. `k` is 0."
    )
    yield "`logits` has a score for each token that may come next. Greedy search takes the largest."


def _cpu_causal(settings: Settings) -> Iterator[str]:
    graphs = settings.manifest.graphs
    yield _prompt(settings.facts)
    yield _caches(settings)
    yield (
        f"Run `{graphs['prefill'].file}` once on all but the last token of the prompt: `input_ids` (1, T - 1), "
        "`last_places` T - 2, `prompt_size` T - 1. A prompt of one token needs none."
    )
    yield (
        f"A step runs `{graphs['step'].file}` on one token for each row, `input_ids` (1, 1), and `past_lengths` "
        f"(1,), how "
        "many tokens the caches hold already. The first is the prompt's last token, with T - 1 behind it. `k` is 0."
    )
    yield "`logits` has a score for each token that may come next. Greedy search takes the largest."


def _prompt(facts: Facts) -> str:
    target = facts.writes
    return (
        f"Make the ids of the prompt: {around(target.before, ())}. The prompt and what continues it have at most "
        f"{target.longest} tokens in all."
    )


def _caches(settings: Settings) -> str:
    heads, size = settings.cache or ("heads", "head size")
    return (
        f"Make a cache for each `past.L.*`, (1, {heads}, capacity, {size}), with room for all tokens to come, and give "
        "`cache_capacity` the same number. Bind its memory to the input `past.L.*` and to the output `present.L.*` at "
        "once: the graphs write in place. Where these are two, each step copies all of it."
    )


def _empty(settings: Settings) -> str:
    return f"(1, {settings.cache[0]}, 0, {settings.cache[1]})" if settings.cache else "(1, heads, 0, head size)"


def _spoken(speech: Speech | None) -> str:
    """Return the meaning of the start tokens of a speech model's target."""
    if speech is None or not speech.languages:
        return ""
    pairs = [f"{name} {id_}" for name, id_ in zip(speech.languages, speech.language_ids, strict=True)]
    more = f" and {len(pairs) - SHOWN} more in the metadata" if len(pairs) > SHOWN else ""
    tasks = {"transcribe": speech.transcribe, "translate": speech.translate, "no times": speech.no_timestamps}
    told = ", ".join(f"{name} {id_}" for name, id_ in tasks.items() if id_ is not None)
    return f" (the second one is the language: {code(', '.join(pairs[:SHOWN]))}{more}; then {told})"


def ending(settings: Settings) -> str:
    """Return a sentence on when the loop over steps ends."""
    ends = settings.facts.writes.ends
    most = (
        f"{settings.most} tokens" if settings.start else f"{settings.facts.writes.longest} tokens, the prompt counted"
    )
    when = f"until it is {' or '.join(map(str, ends))}, an end token, or" if ends else "until"
    return f"Give each new token to the next step, {when} there are {most}."


CLASSIFIES: dict[Function | None, str] = {  # if labels are independent
    "sigmoid": "1 / (1 + exp(-number)) of each number is the probability of that label.",
    "none": "Each number is the value of its label.",
}


def _encoding(manifest: Manifest) -> Iterator[str]:
    facts = manifest.facts
    ability = ability_of(manifest)
    yield _source(facts).replace("of the source", "of the input")
    second = "`attention_mask`, 1 for each" if manifest.target == "portable" else "`source_lengths`, how many there are"
    output = "last_hidden_state" if ability == "embed" else "logits"
    yield f"Run `{next(iter(manifest.graphs.values())).file}` on `input_ids` and {second} -> `{output}`."
    yield meaning_of_outputs(manifest, ability)


def meaning_of_outputs(manifest: Manifest, ability: Ability) -> str:
    """Return the meaning of the outputs of an encoder-only model."""
    facts = manifest.facts
    pooling, normalize = pooling_of(manifest)
    likeliest = "is at the likeliest label; softmax gives probabilities"
    one = "1 / (1 + exp(-logit)) is the probability of the only label"
    return {
        "embed": f"The vector of the text is {'the mean of all rows' if pooling == 'mean' else 'the first row'}"
        f"{', brought to length 1' if normalize else ''}.",
        "classify": CLASSIFIES.get(facts.function_to_apply, f"The largest number {likeliest}."),
        "tag": f"In the row of each token, {one if len(facts.labels) == 1 else f'the largest number {likeliest}'}.",
        "fill": f"In the row of each mask (id {facts.vocabulary.mask}), the largest number is at the likeliest token.",
    }[ability]  # fmt: skip


def _batches(manifest: Manifest) -> str:
    facts = manifest.facts
    portable = manifest.target == "portable"
    pad = facts.vocabulary.pad
    if isinstance(facts.source, Features):
        return "**Batches**: several sources are rows of `input_features`; all have the same length."
    if facts.task == "causal" and portable:
        return (
            f"**Batches**: pad shorter prompts at the left with {pad}; `attention_mask` is 0 there, and `position_ids` "
            "count from the first real token."
        )
    if facts.task == "causal" and manifest.target == "cuda":
        return (
            f"**Batches**: pad shorter prompts at the right with {pad}; in steps, `past_lengths` are each row's own, "
            "and what padding left in the caches is written over."
        )
    if facts.task == "causal":
        return (
            f"**Batches**: pad shorter prompts at the right with {pad}. `last_places` and `past_lengths` are each "
            f"row's "
            "own, `prompt_size` is the longest."
        )
    where = "`attention_mask` is 0 there" if portable else "`source_lengths` says how many are real"
    return f"**Batches**: pad shorter rows at the right with {pad}; {where}."


def _best(manifest: Manifest) -> str:
    text = "**The best tokens**: with `k` above 0, the graph gives the k best tokens of each row in `ids`, and their "
    text += "`log_probs`."
    if screens(manifest.facts, manifest.precision):
        text += " Do not use `k` below 0, which txport does on some processors: what it gives is exact on those alone."
    return text


def numbers(ids: Sequence[int]) -> str:
    """Return ids separated by commas."""
    return ", ".join(map(str, ids))
