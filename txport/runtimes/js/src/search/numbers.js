/** The best of scores, log-probabilities, and sums in the order in which NumPy makes them. */

import { RunError } from "../errors.js";

const FEW = 64; // up to so many of the best are kept in order while all are looked at

/**
 * Logits of one row as log-probabilities, rounded as fp32 is.
 *
 * @param {Float32Array} logits
 * @returns {Float32Array}
 */
export function logSoftmax(logits) {
  const shift = largest(logits);
  let total = 0;
  for (const value of logits) total += Math.exp(Math.fround(value - shift));
  const log = Math.fround(Math.log(total));
  return logits.map((value) => Math.fround(value - shift) - log);
}

/** @param {ArrayLike<number>} values */
export function largest(values) {
  let found = -Infinity;
  for (let place = 0; place < values.length; place += 1) if (values[place] > found) found = values[place];
  return found;
}

/**
 * Where the largest values are, the largest first; of equal ones, the first.
 *
 * @param {ArrayLike<number>} values
 * @param {number} count
 * @returns {number[]}
 */
export function best(values, count) {
  if (count > FEW) return order(values).slice(0, count);
  /** @type {number[]} */
  const found = [];
  for (let place = 0; place < values.length; place += 1) {
    if (found.length === count && !(values[place] > values[found[count - 1]])) continue;
    let at = Math.min(found.length, count - 1);
    while (at > 0 && values[place] > values[found[at - 1]]) {
      found[at] = found[at - 1];
      at -= 1;
    }
    found[at] = place;
  }
  return found;
}

/**
 * All places in falling order of their values, equal ones as they are.
 *
 * @param {ArrayLike<number>} values
 * @returns {number[]}
 */
export function order(values) {
  const places = Array.from({ length: values.length }, (_, place) => place);
  return places.sort((one, other) => falling(values[one], values[other]));
}

/** @param {number} one @param {number} other */
function falling(one, other) {
  return one > other ? -1 : one < other ? 1 : 0;
}

/** Raise `RunError` where scores are no numbers. @param {Float32Array} logits */
export function requireNumbers(logits) {
  for (const value of logits) {
    if (Number.isNaN(value)) {
      const fix = "look for NaN or infinity in its weights, and at the size of its activations in this precision";
      throw new RunError(`the model's scores are NaN; ${fix}`);
    }
  }
}
