"""How a program runs the graphs of a bundle, as text: the steps, and notes on batches, beams and attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from txport.bundles.manifest import Manifest
from txport.bundles.ports import DECODER, GROW_ROWS, SELECT, SELECT_ROWS, STEP, screens
from txport.bundles.readme import settings
from txport.bundles.readme.settings import ability_of, pooling_of, reads_features
from txport.models.audio.facts import Features, Speech
from txport.models.facts import Ability, Facts, Function
from txport.system.markdown import code

SHOWN = 8  # items of a long list
SCORES = "`logits` has a score for each token that may come next, in its last row. Greedy search takes the largest."


def steps(manifest: Manifest) -> list[str]:
    """Return the steps in order, as Markdown, without numbers."""
    facts = manifest.facts
    if facts.task == "encode":
        return list(_encoding(manifest))
    follow = _portable if manifest.target == "portable" else _in_place
    return [_reading(facts), *follow(manifest), SCORES, ending(manifest)]


def _reading(facts: Facts) -> str:
    """Return how to make the inputs of the model."""
    source = facts.source
    if isinstance(source, Features):
        return (
            f"Make log-mel features of up to {source.seconds:g} seconds of audio: samples at {source.sampling_rate} "
            f"Hz, filled up with zeros; windows (Hann) of {source.n_fft} samples every {source.hop_length}; powers in "
            f"{source.size} mel bins (Slaney's scale); the logarithm to base 10, at least the largest minus 8, plus 4, "
            f"over 4. That gives ({source.size}, {source.frames}) numbers. transformers' `WhisperFeatureExtractor` "
            "computes the same."
        )
    if facts.task == "causal":
        prompt = around(facts.writes.before, ())
        return f"Make the ids of the prompt: {prompt}; with what continues it, at most {facts.writes.longest} in all."
    words = facts.vocabulary
    return f"Make the ids of the source: {around(words.before, words.after)}; at most {words.longest} in all."


def around(before: Sequence[int], after: Sequence[int]) -> str:
    """Return the special ids before and after the ids of a text, as words."""
    return ", then ".join(part for part in (numbers(before), "the ids of the text", numbers(after)) if part)


def numbers(ids: Sequence[int]) -> str:
    """Return ids separated by commas."""
    return ", ".join(map(str, ids))


def _portable(manifest: Manifest) -> Iterator[str]:
    graphs = manifest.graphs
    empty = "every `past_key_values.*` empty: (1, heads, 0, head size)"
    if manifest.facts.task == "causal":
        yield (
            f"Run `{graphs[DECODER].file}` on the whole prompt: `input_ids` (1, T), `position_ids` 0 to T - 1, "
            f"`attention_mask` (1, T) of ones, and {empty}."
        )
        yield (
            "Each `present.*` becomes the `past_key_values.*` of the same name. The next run takes the one new token: "
            "`position_ids` is its place, and `attention_mask` is one longer, for it covers the past too."
        )
        return
    is_heard = reads_features(manifest)
    read = "`input_features`" if is_heard else "`input_ids` and `attention_mask`, a 1 for each,"
    mask = "" if is_heard else ", `encoder_attention_mask` the same mask"
    yield f"Run `{graphs['encoder'].file}` once on {read} -> `last_hidden_state`."
    yield (
        f"Run `{graphs[DECODER].file}` on the first tokens: `input_ids` are [[{numbers(settings.start(manifest))}]]"
        f"{_spoken(manifest.facts.speech)}, `encoder_hidden_states` is `last_hidden_state`{mask}, and {empty}."
    )
    yield (
        "Each `present.*` becomes the `past_key_values.*` of the same name in the next run, on the one new token. "
        "Those of the source (`...encoder.*`) do not change after the first run, so fetch them once."
    )


def _in_place(manifest: Manifest) -> Iterator[str]:
    """Yield the steps of the cpu and cuda targets, whose graphs write caches in place."""
    graphs = manifest.graphs
    facts = manifest.facts
    is_cuda = manifest.target == "cuda"
    if facts.task == "seq2seq":
        lengths = "how many" if not reads_features(manifest) else f"{facts.reads.longest}, the places that it makes"
        read = "`input_features`" if reads_features(manifest) else "`input_ids`"
        yield (
            f"Run `{graphs['encoder'].file}` once on {read} and `source_lengths`, {lengths} -> `cross.L.*`, the keys "
            f"and values of the source for each decoder layer, which every step reads{_on_device(manifest, ' from')}."
        )
    size = "; the best is a multiple of 4" if is_cuda else ", and give `cache_capacity` the same number"
    yield (
        f"Make a cache of zeros{_on_device(manifest)} for each `past.L.*`, with room for all tokens to come{size}. "
        "Bind its memory to the input `past.L.*` and to the output `present.L.*` at once: the graphs write in place. "
        "Where these are two, each step copies all of it."
    )
    first = settings.start(manifest)
    order = ", one after the other" if len(first) > 1 else ""
    begin = f"0 at first. The first tokens are {numbers(first)}{_spoken(facts.speech)}{order}."
    if facts.task == "causal":
        places = "`past_lengths` 0" if is_cuda else "`last_places` T - 2, `prompt_size` T - 1"
        yield (
            f"Run `{graphs['prefill'].file}` once on all but the last token of the prompt: `input_ids` (1, T - 1), "
            f"{places}. A prompt of one token needs none."
        )
        begin = "T - 1 for the prompt's last token, which is the first one here."
    best = "how many of the best tokens are wanted, 1 or more, and lies on the host: `ids` and `log_probs`"
    yield (
        f"A step runs `{graphs[STEP].file}` on one token for each row, `input_ids` (1, 1), and `past_lengths` (1,), "
        f"how many tokens the caches hold already: {begin} `k` is {best if is_cuda else '0'}."
    )


def _on_device(manifest: Manifest, by: str = " in") -> str:
    return f"{by} the device's memory" if manifest.target == "cuda" else ""


def _spoken(speech: Speech | None) -> str:
    """Return the meaning of the start tokens of a speech model's target."""
    if speech is None or not speech.languages:
        return ""
    pairs = [f"{name} {id_}" for name, id_ in zip(speech.languages, speech.language_ids, strict=True)]
    more = f" and {len(pairs) - SHOWN} more in the metadata" if len(pairs) > SHOWN else ""
    tasks = {"transcribe": speech.transcribe, "translate": speech.translate, "no times": speech.no_timestamps}
    rest = ", ".join(f"{name} {id_}" for name, id_ in tasks.items() if id_ is not None)
    return f" (the second one is the language: {code(', '.join(pairs[:SHOWN]))}{more}; then {rest})"


def ending(manifest: Manifest) -> str:
    """Return a sentence on when the loop over steps ends."""
    ends = manifest.facts.writes.ends
    longest = f"{manifest.facts.writes.longest} tokens, the prompt counted"
    most = longest if manifest.facts.task == "causal" else f"{settings.most(manifest)} tokens"
    when = f"until it is {' or '.join(map(str, ends))}, an end token, or" if ends else "until"
    return f"Give each new token to the next step, {when} there are {most}."


CLASSIFIES: dict[Function | None, str] = {  # if labels are independent
    "sigmoid": "1 / (1 + exp(-number)) of each number is the probability of that label.",
    "none": "Each number is the value of its label.",
}


def _encoding(manifest: Manifest) -> Iterator[str]:
    ability = ability_of(manifest)
    yield _reading(manifest.facts).replace("of the source", "of the input")
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


def notes(manifest: Manifest) -> list[str]:
    """Return notes on batches, beams and attention, as Markdown."""
    facts = manifest.facts
    found = [f"**Batches**: {_batches(manifest)}."]
    if facts.task == "encode":
        return found
    found.append(f"**Beams**: {_beams(manifest)}.")
    if manifest.target == "cuda":
        found.append(
            "**Without the host**: bind `next_ids` to the memory of `input_ids`, `present_lengths` to that of "
            "`past_lengths`, and greedy search goes on by itself: no input changes its place, so a CUDA graph replays "
            "it."
        )
    if manifest.target == "cpu":
        exact = screens(facts, manifest.precision)
        found.append(
            "**The best tokens**: with `k` above 0, the graph gives the k best tokens of each row in `ids`, and their "
            "`log_probs`."
            + (" Do not use `k` below 0: what it gives is exact on some processors alone." if exact else "")
        )
    if facts.attention is not None:
        name = manifest.graphs[DECODER if manifest.target == "portable" else STEP].attention
        asked = "" if manifest.target != "cpu" else ", if `align` is true"
        found.append(f"**Alignment**: {code(str(name))} is the attention of each token over the source{asked}.")
    return found


def _batches(manifest: Manifest) -> str:
    facts = manifest.facts
    pad = facts.vocabulary.pad
    if isinstance(facts.source, Features):
        return "several sources are rows of `input_features`; all have the same length"
    is_portable = manifest.target == "portable"
    if facts.task == "causal":
        return {
            "portable": f"pad shorter prompts at the left with {pad}; `attention_mask` is 0 there, and `position_ids` "
            "count from the first real token",
            "cpu": f"pad shorter prompts at the right with {pad}. `last_places` and `past_lengths` are each row's own, "
            "`prompt_size` is the longest",
            "cuda": f"pad shorter prompts at the right with {pad}; in steps, `past_lengths` are each row's own, and "
            "what padding left in the caches is written over",
        }[manifest.target]
    where = "`attention_mask` is 0 there" if is_portable else "`source_lengths` says how many are real"
    return f"pad shorter rows at the right with {pad}; {where}"


def _beams(manifest: Manifest) -> str:
    graphs = manifest.graphs
    shared = (
        "`input_ids` may be (batch_size, beams); the beams of one source stand side by side and share its keys and "
    )
    shared += "values. "
    if SELECT in graphs:
        return f"`{graphs[SELECT].file}` picks `rows` of the state by their numbers; each `selected.X` becomes `X`"
    if manifest.target == "cuda":
        return (shared if manifest.facts.task == "seq2seq" else "") + (
            f"`{graphs[SELECT_ROWS].file}` picks rows of the caches by their numbers, `{graphs[GROW_ROWS].file}` gives "
            "them more places, and `onnx/admit_rows.onnx` puts those of others in their place"
        )
    if manifest.facts.task == "causal":
        return "rows of the caches may be copied from one to another; all rows are independent"
    return f"{shared}When beams change places, copy their rows in the caches"
