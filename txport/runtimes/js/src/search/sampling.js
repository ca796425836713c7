/** Drawing the next token: temperature, top-p, min-p, and a number in 0 to 1. Top-k is the number of candidates. */

import { largest, order } from "./numbers.js";

const LEAST = -Number.MAX_VALUE;

/**
 * Scores in any order, and a number in 0 to 1 -> the place that is drawn.
 *
 * @param {ArrayLike<number>} values
 * @param {import("./options.js").Chosen} options
 * @param {number} uniform
 */
export function draw(values, options, uniform) {
  const shift = Math.max(largest(values), LEAST); // all may be -Infinity
  let weights = Float64Array.from(values, (value) => Math.exp((value - shift) / options.temperature));
  if (options.top_p < 1) weights = nucleus(weights, options.top_p);
  if (options.min_p) weights = weights.map((weight) => (weight < options.min_p ? 0 : weight)); // the best weighs 1
  const reached = summed(weights);
  const goal = uniform * reached[reached.length - 1];
  return Math.max(
    reached.findIndex((sum) => sum > goal),
    0,
  );
}

/**
 * Weights of which only the fewest stay that are together at least such a share of all.
 *
 * @param {Float64Array} weights
 * @param {number} share
 */
function nucleus(weights, share) {
  const sums = summed(weights);
  const total = sums[sums.length - 1];
  const least = ((1 - share) * total) / weights.length; // what weighs less is none of them
  const kept = new Float64Array(weights.length);
  let before = 0;
  for (const place of order(weights)) {
    if (!(before < share * total && weights[place] > least)) break;
    kept[place] = weights[place];
    before += weights[place];
  }
  return kept;
}

/** @param {Float64Array} values */
function summed(values) {
  let sum = 0;
  return values.map((value) => (sum += value));
}
