/** How to search: the options of `docs/search.md`, by the same names, and what is wrong with them. */

import { UnsupportedError, quoted } from "../errors.js";
import { NOT_HERE, OPTIONS } from "./table.js";

/**
 * @typedef {import("../index.js").SearchOptions} SearchOptions
 *
 * Options of which each has its value; those that may be left out are undefined then.
 * @typedef {Required<Omit<SearchOptions, Optional | "stop">> & Pick<SearchOptions, Optional> & Bound} Chosen
 * @typedef {{ ends: number[], stop: string[], stops: import("./stops.js").Stops | null }} Bound
 * @typedef {"max_new_tokens" | "max_length" | "seed" | "alignment" | "eos_token_id" | Forced | Rules} Optional
 * @typedef {"forced_bos_token_id" | "forced_eos_token_id"} Forced
 * @typedef {"top_h" | "exponential_decay_length_penalty"} Rules
 */

const SAMPLING = needing("do_sample");
const BEAMS = needing("beams");
const GREATEST = 1e9; // of penalties, so that scores stay numbers in fp32

/** The options that have no effect without another one. @param {string} other */
function needing(other) {
  return Object.keys(OPTIONS).filter((name) => OPTIONS[name].needs === other);
}

/** @returns {Record<string, any>} */
function defaults() {
  return Object.fromEntries(Object.entries(OPTIONS).map(([name, option]) => [name, option.value]));
}

/**
 * The defaults of a bundle, and what differs from them, checked. `own` are the other options of the method.
 *
 * @param {Record<string, any>} bundle
 * @param {SearchOptions} given
 * @param {import("../index.js").Facts} facts
 * @param {string[]} own
 * @returns {Chosen}
 */
export function chosenOptions(bundle, given, facts, own) {
  const options = defaults();
  for (const [name, value] of [...applied(bundle, given), ...Object.entries(given)]) {
    if (value === undefined || (value === null && !(name in NOT_HERE))) continue;
    if (Object.hasOwn(NOT_HERE, name)) {
      if (value === NOT_HERE[/** @type {keyof typeof NOT_HERE} */ (name)]) continue;
      throw new UnsupportedError(`${name} is for txport in Python; leave it out here`);
    }
    if (!Object.hasOwn(OPTIONS, name)) {
      const known = [...own, ...Object.keys(OPTIONS)].join(", ");
      throw new UnsupportedError(`unknown option ${quoted(name)}; supported: ${known}`);
    }
    options[name] = value;
  }
  for (const problem of wrongValues(options)) throw new UnsupportedError(problem);
  for (const problem of problems(options)) throw new UnsupportedError(problem);
  const ends = options.eos_token_id === undefined ? facts.target.ends : [options.eos_token_id].flat();
  const chosen = { ...options, ends, stop: [options.stop].flat(), stops: null };
  for (const problem of unfit(chosen, facts)) throw new UnsupportedError(problem);
  return /** @type {any} */ (chosen);
}

/**
 * The defaults of a bundle that apply next to given options: those of sampling and of beam search only with it.
 *
 * @param {Record<string, any>} bundle
 * @param {Record<string, any>} given
 */
function applied(bundle, given) {
  const { do_sample: draws = bundle.do_sample, beams = bundle.beams ?? 1 } = given;
  const idle = [...(draws ? [] : SAMPLING), ...(beams === 1 ? BEAMS : [])];
  return Object.entries(bundle).filter(([name]) => !idle.includes(name));
}

/** How many finished hypotheses are waited for, half of one rounded to even. @param {Chosen} options */
export function keptOf({ beams, patience }) {
  const product = beams * patience;
  const below = Math.floor(product);
  const rounded = product - below === 0.5 ? below + (below % 2) : Math.round(product);
  return Math.max(1, rounded);
}

/** What the values of a kind are, in words, and whether a value is one. @type {Record<string, [string, Function]>} */
const KINDS = {
  whole: ["a whole number", Number.isSafeInteger],
  token: ["a whole number", Number.isSafeInteger],
  seed: ["a whole number", (/** @type {any} */ value) => Number.isSafeInteger(value) || typeof value === "bigint"],
  number: ["a number", (/** @type {any} */ value) => typeof value === "number"],
  switch: ["true or false", (/** @type {any} */ value) => typeof value === "boolean"],
  tokens: ["a list of token ids", isTokens],
  sequences: [
    "lists of token ids",
    (/** @type {any} */ value) => Array.isArray(value) && value.every((each) => isTokens(each) && each.length),
  ],
  ends: ["one token id or several", (/** @type {any} */ value) => isTokens([value].flat()) && [value].flat().length],
  strings: [
    "strings with at least one character",
    (/** @type {any} */ value) =>
      [value].flat().every((each) => typeof each === "string" && each !== "" && !/\p{Surrogate}/u.test(each)),
  ],
  biases: [
    "pairs of token ids and a number",
    (/** @type {any} */ value) =>
      Array.isArray(value) && value.every((each) => isPair(each) && isTokens(each[0]) && each[0].length),
  ],
  decay: ["a whole number and a factor", (/** @type {any} */ value) => isPair(value) && Number.isSafeInteger(value[0])],
};

/** @param {Record<string, any>} options @returns {Generator<string>} */
function* wrongValues(options) {
  for (const [name, option] of Object.entries(OPTIONS)) {
    const value = options[name];
    if (value === undefined && option.value === undefined) continue;
    const [words, fits] = option.choices
      ? [inWords(option.choices), (/** @type {any} */ each) => option.choices?.includes(each)]
      : KINDS[option.kind];
    if (!fits(value)) yield `${name} must be ${words}, got ${quoted(value)}`;
    else if (option.range && !contains(option, value)) yield `${name} must ${option.range}, got ${value}`;
  }
}

/** @param {any[]} choices */
function inWords(choices) {
  const words = choices.map((choice) => (typeof choice === "string" ? `'${choice}'` : String(choice)));
  return `${words.slice(0, -1).join(", ")} or ${words.at(-1)}`;
}

/**
 * Whether a number is finite and lies within the bounds.
 *
 * @param {import("./table.js").Option} option
 * @param {any} value
 */
function contains({ least, most, above, below }, value) {
  return (
    (typeof value === "bigint" || Number.isFinite(value)) &&
    (least === undefined || value >= least) &&
    (above === undefined || value > above) &&
    (most === undefined || value <= most) &&
    (below === undefined || value < below)
  );
}

/** True if the second of two values is a number. @param {any} value */
function isPair(value) {
  return Array.isArray(value) && value.length === 2 && typeof value[1] === "number";
}

/** @param {any} value */
function isTokens(value) {
  return Array.isArray(value) && value.every(Number.isSafeInteger);
}

/** Why options make no sense, most basic first. @param {Record<string, any>} options @returns {Generator<string>} */
function* problems(options) {
  if (options.min_new_tokens > (options.max_new_tokens ?? Infinity)) {
    yield `min_new_tokens must not exceed max_new_tokens, ${options.max_new_tokens}; got ${options.min_new_tokens}`;
  }
  for (const [, bias] of options.sequence_bias) {
    if (!(Math.abs(bias) <= GREATEST)) yield `sequence_bias must lie in -1e+09 to 1e+09`;
  }
  const [start, factor] = options.exponential_decay_length_penalty ?? [0, 1];
  if (!(start >= 0 && factor > 0 && factor <= GREATEST))
    yield `exponential_decay_length_penalty must start from 0 on, with a factor above 0 and up to 1e9`;
  yield* clashes(options);
}

/** @param {Record<string, any>} options @returns {Generator<string>} */
function* clashes(options) {
  const changed = (/** @type {string} */ name) => options[name] !== OPTIONS[name].value;
  if (!options.do_sample) {
    for (const name of SAMPLING.filter(changed)) {
      yield `${name} is for sampling; give do_sample too`;
    }
    if (options.nbest > options.beams) yield `nbest can't exceed beams, got ${options.nbest} of ${options.beams}`;
  } else if (options.beams > 1) {
    yield "do_sample and beams exclude each other; give one of them";
  }
  if (options.beams === 1) {
    for (const name of BEAMS.filter(changed)) yield `${name} is for beam search; give beams too`;
  } else if (options.nbest > keptOf(/** @type {any} */ (options))) {
    const waited = keptOf(/** @type {any} */ (options));
    yield `nbest can't exceed beams x patience: so many hypotheses are waited for, ${waited}`;
  }
  const alone = options.bad_words_ids.filter((/** @type {number[]} */ words) => words.length === 1).flat();
  const forbidden = { suppress_tokens: options.suppress_tokens, bad_words_ids: alone };
  for (const [name, tokens] of Object.entries(forbidden)) {
    for (const forced of ["forced_bos_token_id", "forced_eos_token_id"]) {
      if (tokens.includes(options[forced])) yield `${name} must not forbid what ${forced} says; got ${options[forced]}`;
    }
  }
}

/**
 * What this model can't take.
 *
 * @param {Record<string, any>} options
 * @param {import("../index.js").Facts} facts
 * @returns {Generator<string>}
 */
function* unfit(options, facts) {
  const { size, longest } = facts.target;
  if (options.alignment && facts.attention === null) {
    yield `alignment needs attention over a source, which this ${facts.task} model has not`;
  }
  const readers = { encoder_repetition_penalty: 1, encoder_no_repeat_ngram_size: 0 };
  for (const [name, without] of Object.entries(readers)) {
    if (options[name] === without || !facts.source || facts.source.size === size) continue;
    const sizes = `this model reads ${facts.source.size} tokens and writes ${size}`;
    yield `${name} needs one vocabulary for sources and targets; ${sizes}`;
  }
  if (facts.task === "causal" && options.forced_bos_token_id !== undefined)
    yield "forced_bos_token_id is not for a causal model, which starts from a prompt";
  for (const name of ["max_new_tokens", "min_new_tokens"]) {
    if (options[name] > longest)
      yield `${name} must not exceed the model's longest sequence, ${longest}; got ${options[name]}`;
  }
  /** @type {Record<string, number[]>} */
  const named = {
    suppress_tokens: options.suppress_tokens,
    begin_suppress_tokens: options.begin_suppress_tokens,
    bad_words_ids: options.bad_words_ids.flat(),
    sequence_bias: options.sequence_bias.flatMap((/** @type {[number[], number]} */ [words]) => words),
    forced_bos_token_id: [options.forced_bos_token_id ?? 0],
    forced_eos_token_id: [options.forced_eos_token_id ?? 0],
    eos_token_id: options.ends,
  };
  for (const [name, tokens] of Object.entries(named)) {
    const strange = tokens.find((token) => token < 0 || token >= size);
    if (strange !== undefined) yield `${name} must lie in the vocabulary, 0 to ${size - 1}; got ${strange}`;
  }
  if ((options.min_new_tokens || options.min_length > 1) && options.ends.includes(options.forced_bos_token_id)) {
    const least = options.min_new_tokens ? "min_new_tokens" : "min_length";
    const fault = `forced_bos_token_id must not be an end token where ${least} forbids it`;
    yield `${fault}; got ${options.forced_bos_token_id}`;
  }
}

/**
 * What ended a target of at most `limit` tokens: an end token, a stop string, the limit, or that no token was allowed.
 *
 * @param {number[]} tokens
 * @param {number[]} ends
 * @param {number} limit
 * @param {boolean} stopped by a stop string
 * @returns {import("../index.js").Finish}
 */
export function finishOf(tokens, ends, limit, stopped) {
  if (tokens.length && ends.includes(tokens[tokens.length - 1])) return "end";
  return tokens.length >= limit && !stopped ? "length" : "stop";
}
