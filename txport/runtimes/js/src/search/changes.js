/** What changes scores before tokens are banned or forced, in the order of transformers: `txport/search/changes.py`. */

import { logSoftmax } from "./numbers.js";

const LARGEST = 1e30; // score; sums of such scores are finite in fp32

/** True if options other than bans change scores. @param {import("./options.js").Chosen} options */
export function changesScores(options) {
  return (
    options.sequence_bias.length > 0 ||
    options.encoder_repetition_penalty !== 1 ||
    options.repetition_penalty !== 1 ||
    options.exponential_decay_length_penalty !== undefined ||
    (options.renormalize_logits && options.beams > 1)
  );
}

/**
 * Change the scores of one row (V,) in place.
 *
 * @param {Float32Array} values
 * @param {import("./options.js").Chosen} options
 * @param {number[]} source
 * @param {number[]} seen the tokens so far
 * @param {number} newTokens how many of them come after the prefix
 */
export function change(values, options, source, seen, newTokens) {
  for (const [words, bias] of options.sequence_bias) {
    if (endsWith(seen, words.slice(0, -1))) values[words[words.length - 1]] += Math.fround(bias);
  }
  penalise(values, source, 1 / options.encoder_repetition_penalty);
  penalise(values, seen, options.repetition_penalty);
  const [start, factor] = options.exponential_decay_length_penalty ?? [Infinity, 1];
  if (newTokens <= start) return;
  for (const end of options.ends) {
    const growth = Math.min(factor ** (newTokens - start) - 1, LARGEST);
    if (Number.isFinite(values[end])) values[end] = Math.min(values[end] + Math.abs(values[end]) * growth, LARGEST);
  }
}

/** Change scores in place to log-probabilities; a row without allowed tokens stays. @param {Float32Array} values */
export function renormalise(values) {
  if (values.some((value) => value > -Infinity)) values.set(logSoftmax(values));
}

/** @param {number[]} tokens @param {number[]} ending */
export function endsWith(tokens, ending) {
  const start = tokens.length - ending.length;
  return start >= 0 && ending.every((token, place) => tokens[start + place] === token);
}

/** @param {Float32Array} values @param {number[]} ids @param {number} penalty */
function penalise(values, ids, penalty) {
  if (penalty === 1) return;
  for (const id of new Set(ids)) values[id] = values[id] < 0 ? values[id] * penalty : values[id] / penalty;
}
