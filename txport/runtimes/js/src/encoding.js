/** What models that only encode give for a text, as txport finds it in Python: vectors, labels, missing tokens. */

import { UnsupportedError, quoted } from "./errors.js";
import { best, largest } from "./search/numbers.js";

/**
 * @typedef {import("./index.js").Ability} Ability
 * @typedef {import("./index.js").Facts} Facts
 */

const POOLINGS = ["mean", "first", "last", "max", "weighted-mean", "none"];
/** What a token is called for which a model's only label is not so. @type {Record<string, string>} */
const OTHERWISE = { replaced: "original" };
const TINY = 1e-12;
/** The output that is the vector of a text. */
export const SENTENCE = "sentence_embedding";

/** What a model that only encodes is for; null of one that generates. @param {Facts} facts @returns {Ability | null} */
export function abilityOf(facts) {
  if (facts.task !== "encode") return null;
  if (facts.outputs.some((each) => each.name === "start_logits")) return "answer";
  const logits = facts.outputs.find((each) => each.name === "logits");
  if (logits === undefined) return "embed";
  if (facts.labels.length === 0) return "fill";
  return logits.dims[0] === "length" ? "tag" : "classify";
}

/** Refuse what a model is not for. @param {Facts} facts @param {Ability | "infer" | "generate" | "search"} asked */
export function requireAbility(facts, asked) {
  const able = abilityOf(facts);
  const generates = asked === "generate" || asked === "search";
  if (able === null ? generates : asked === able || asked === "infer") return;
  if (able === null) {
    throw new UnsupportedError(`${asked} needs an encoder-only model; this model generates: use generate`);
  }
  const gives = facts.outputs.map((each) => each.name).join(", ");
  throw new UnsupportedError(
    `${asked} is not for this encoder-only model with the outputs ${gives}: use ${able} or infer`,
  );
}

/** How many labels or tokens are asked for. @param {unknown} top */
export function requireTop(top) {
  if (top === undefined || (Number.isSafeInteger(top) && /** @type {number} */ (top) >= 1)) return;
  throw new UnsupportedError(`top must be a whole number from 1 on, got ${quoted(top)}`);
}

/** @param {unknown} pooling @param {unknown} normalize */
export function requirePooling(pooling, normalize) {
  if (typeof pooling !== "string" || !POOLINGS.includes(pooling)) {
    throw new UnsupportedError(`pooling must be one of ${POOLINGS.join(", ")}, got ${quoted(pooling)}`);
  }
  if (typeof normalize !== "boolean") {
    throw new UnsupportedError(`normalize must be true or false, got ${quoted(normalize)}`);
  }
}

/** How many numbers the vector of a text has, if the graph gives it; else undefined. @param {Facts} facts */
export function pooledSize(facts) {
  const found = facts.outputs.find((each) => each.name === SENTENCE);
  return found && Number(found.dims[0]);
}

/**
 * Refuse another pooling than that of the graph, and vectors that it has already normalised, but longer.
 *
 * @param {any} defaults of the bundle
 * @param {string} pooling
 * @param {boolean} normalize
 */
export function requireOwn(defaults, pooling, normalize) {
  const own = defaults.pooling ?? pooling;
  if (pooling !== own) {
    throw new UnsupportedError(
      `the graph of this bundle has the pooling ${quoted(own)} or 'none', got ${quoted(pooling)}`,
    );
  }
  if (defaults.normalize && !normalize) {
    throw new UnsupportedError("the graph of this bundle normalises its vectors: normalize must be true, got false");
  }
}

/** The first numbers of a vector that are asked for. @param {unknown} dimensions @param {number} width */
export function requireDimensions(dimensions, width) {
  if (Number.isSafeInteger(dimensions) && Number(dimensions) >= 1 && Number(dimensions) <= width) return;
  throw new UnsupportedError(`dimensions must be a whole number from 1 to ${width}, got ${quoted(dimensions)}`);
}

/**
 * The text of a prompt of the bundle: undefined is its default, "" is none.
 *
 * @param {any} defaults of the bundle
 * @param {unknown} name
 * @returns {string}
 */
export function promptOf(defaults, name = defaults.prompt ?? "") {
  const prompts = new Map(Object.entries(defaults.prompts ?? {}));
  if (name === "") return "";
  const known = prompts.size ? `one of ${[...prompts.keys()].join(", ")}` : "left out, since the bundle has none";
  if (typeof name !== "string" || !prompts.has(name))
    throw new UnsupportedError(`prompt must be ${known}, got ${quoted(name)}`);
  return prompts.get(name);
}

/**
 * The vectors of the tokens of a text (T x D), without the first `skip` -> one of D numbers; "none": all of them.
 *
 * @param {Float32Array} vectors
 * @param {number} width D
 * @param {import("./index.js").Pooling} pooling
 * @param {number} skip
 */
export function pooled(vectors, width, pooling, skip) {
  if (pooling === "none") return vectors;
  const count = vectors.length / width;
  const first = Math.min(skip, count - 1);
  if (pooling === "first") return vectors.slice(first * width, (first + 1) * width);
  if (pooling === "last") return vectors.slice(-width);
  const found = new Array(width).fill(pooling === "max" ? -Infinity : 0);
  let weights = 0;
  for (let at = first; at < count; at += 1) {
    const weight = pooling === "weighted-mean" ? at + 1 : 1;
    weights += weight;
    for (let each = 0; each < width; each += 1) {
      const value = vectors[at * width + each];
      found[each] = pooling === "max" ? Math.max(found[each], value) : found[each] + weight * value;
    }
  }
  return Float32Array.from(found, (value) => (pooling === "max" ? value : value / weights));
}

/** The first `size` numbers of each vector. @param {Float32Array} vectors @param {number} width @param {number} size */
export function cut(vectors, width, size) {
  return size === width ? vectors : vectors.filter((_, at) => at % width < size);
}

/** Vectors of length 1. @param {Float32Array} vectors @param {number} width */
export function units(vectors, width) {
  const found = new Float32Array(vectors.length);
  for (let start = 0; start < vectors.length; start += width) {
    const own = vectors.subarray(start, start + width);
    const length = Math.sqrt(own.reduce((sum, value) => sum + value * value, 0));
    found.set(
      own.map((value) => value / Math.max(length, TINY)),
      start,
    );
  }
  return found;
}

/**
 * Of each of several classes, what a function makes of their logits.
 *
 * @param {Float32Array} logits
 * @param {Facts["function_to_apply"]} kind
 * @returns {number[]}
 */
export function scores(logits, kind) {
  const values = Array.from(logits);
  if (kind === "none") return values;
  if (kind === "sigmoid") return values.map((value) => 1 / (1 + Math.exp(-value)));
  const shift = largest(values);
  const powers = values.map((value) => Math.exp(value - shift));
  const total = powers.reduce((one, other) => one + other, 0);
  return powers.map((power) => power / total);
}

/**
 * The likeliest of labels, and its probability; where a single label is less likely than not, its opposite.
 *
 * @param {number[]} found a probability for each label
 * @param {string[]} labels
 * @returns {import("./index.js").Label}
 */
export function likeliest(found, labels) {
  const [at] = best(found, 1);
  if (labels.length === 1 && found[at] < 0.5) {
    return { label: OTHERWISE[labels[at]] ?? `not-${labels[at]}`, score: 1 - found[at] };
  }
  return { label: labels[at], score: found[at] };
}
