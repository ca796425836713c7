/**
 * Drawing the next token: temperature, top-h, top-p, min-p, typical-p, cutoffs, and a number in 0 to 1. Top-k is the
 * number of candidates. The rules are those of `txport/search/sampling.py`.
 */

import { largest, order } from "./numbers.js";

const LEAST = -Number.MAX_VALUE;
export const MOST_OF_ENTROPY = 100; // candidates of top-h

/**
 * Scores in any order, and a number in 0 to 1 -> the place that is drawn.
 *
 * @param {ArrayLike<number>} values
 * @param {import("./options.js").Chosen} options
 * @param {number} uniform
 */
export function draw(values, options, uniform) {
  const shift = Math.max(largest(values), LEAST); // all may be -Infinity
  const weights = Float64Array.from(values, (value) => Math.exp((value - shift) / options.temperature));
  const reached = summed(narrowed(weights, options));
  const goal = uniform * reached[reached.length - 1];
  return Math.max(
    reached.findIndex((sum) => sum > goal),
    0,
  );
}

/**
 * Weights, the largest of which is 1, without those that are not drawn. With top-h, the best come first.
 *
 * @param {Float64Array} weights
 * @param {import("./options.js").Chosen} options
 */
function narrowed(weights, options) {
  if (options.top_h !== undefined) {
    weights = withinEntropy(weights, options.top_h);
    if (options.top_k) weights.fill(0, options.top_k);
  }
  if (options.top_p < 1) weights = nucleus(weights, options.top_p);
  if (options.min_p) weights = weights.map((weight) => (weight < options.min_p ? 0 : weight));
  if (options.typical_p < 1) weights = typical(weights, options.typical_p);
  if (options.epsilon_cutoff) weights = above(weights, options.epsilon_cutoff);
  const { eta_cutoff: eta } = options;
  if (eta) weights = above(weights, Math.min(eta, Math.exp(-surprise(weights).entropy) * Math.sqrt(eta)));
  return weights;
}

/** Probabilities of weights; 0 where no token is allowed. @param {Float64Array} weights */
function shares(weights) {
  const total = weights.reduce((one, other) => one + other, 0);
  return weights.map((weight) => weight / (total || 1));
}

/** Probabilities p of weights, -log(p), the terms of the entropy, and their sum. @param {Float64Array} weights */
function surprise(weights) {
  const probs = shares(weights);
  const surprises = probs.map((prob) => -Math.log(prob));
  const terms = probs.map((prob, place) => (prob > 0 ? prob * surprises[place] : 0));
  return { probs, surprises, terms, entropy: terms.reduce((one, other) => one + other, 0) };
}

/**
 * The first weights whose terms of the entropy are together at most such a share of it.
 *
 * @param {Float64Array} weights
 * @param {number} share
 */
function withinEntropy(weights, share) {
  const { terms, entropy } = surprise(weights);
  const reached = summed(terms);
  return weights.map((weight, place) => (place === 0 || reached[place] <= share * entropy ? weight : 0));
}

/**
 * The fewest weights that are together at least such a share of all, and whose -log(p) is closest to the entropy.
 *
 * @param {Float64Array} weights
 * @param {number} share
 */
function typical(weights, share) {
  const { probs, surprises, entropy } = surprise(weights);
  const closeness = surprises.map((each) => -Math.abs(each - entropy));
  const closest = order(closeness);
  const reached = summed(Float64Array.from(closest, (place) => probs[place]));
  const count = reached.filter((sum) => sum < share).length;
  const least = closeness[closest[Math.min(count, closest.length - 1)]];
  return weights.map((weight, place) => (closeness[place] >= least ? weight : 0));
}

/**
 * Weights of at least such a probability, and the largest.
 *
 * @param {Float64Array} weights
 * @param {number} least
 */
function above(weights, least) {
  const best = largest(weights);
  const probs = shares(weights);
  return weights.map((weight, place) => (probs[place] >= least || weight === best ? weight : 0));
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
  /** @type {number[]} */
  const heavy = [];
  for (let place = 0; place < weights.length; place += 1) if (weights[place] > least) heavy.push(place);
  let before = 0;
  for (const at of order(heavy.map((place) => weights[place]))) {
    if (!(before < share * total)) break;
    const place = heavy[at];
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
