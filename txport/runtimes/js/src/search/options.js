/** How to search: the options of `docs/search.md`, by the same names, and what is wrong with them. */

import { UnsupportedError, quoted } from "../errors.js";

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

const DEFAULTS = {
  max_new_tokens: undefined,
  max_length: undefined,
  min_length: 0,
  min_new_tokens: 0,
  beams: 1,
  nbest: 1,
  length_penalty: 1,
  early_stopping: false,
  patience: 1,
  do_sample: false,
  temperature: 1,
  top_h: undefined,
  top_k: 0,
  top_p: 1,
  min_p: 0,
  typical_p: 1,
  epsilon_cutoff: 0,
  eta_cutoff: 0,
  seed: undefined,
  sequence_bias: [],
  encoder_repetition_penalty: 1,
  repetition_penalty: 1,
  no_repeat_ngram_size: 0,
  encoder_no_repeat_ngram_size: 0,
  suppress_tokens: [],
  begin_suppress_tokens: [],
  bad_words_ids: [],
  forced_bos_token_id: undefined,
  forced_eos_token_id: undefined,
  exponential_decay_length_penalty: undefined,
  renormalize_logits: false,
  eos_token_id: undefined,
  stop: [],
  alignment: undefined,
};
const NOT_HERE = { beam_groups: 1, diversity_penalty: 0, coverage_penalty: 0, scores: true };
const OPTIONAL = ["max_new_tokens", "max_length", "seed", "forced_bos_token_id", "forced_eos_token_id"];
const WHOLE = [
  ...OPTIONAL.filter((name) => name !== "seed"),
  "min_length",
  "min_new_tokens",
  "beams",
  "nbest",
  "top_k",
  "no_repeat_ngram_size",
  "encoder_no_repeat_ngram_size",
];
const PENALTIES = ["repetition_penalty", "encoder_repetition_penalty"];
const SHARES = ["top_p", "typical_p", "top_h"];
const CUTOFFS = ["epsilon_cutoff", "eta_cutoff"];
const REAL = ["length_penalty", "patience", "temperature", "top_p", "min_p", "typical_p", ...CUTOFFS, ...PENALTIES];
const SAMPLING = [...CUTOFFS, "min_p", "seed", "temperature", "top_h", "top_k", "top_p", "typical_p"];
const BEAMS = ["early_stopping", "patience"];
const MOST_ROWS = 4096;
const GREATEST = 1e9; // of penalties, so that scores stay numbers in fp32

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
  /** @type {Record<string, any>} */
  const options = { ...DEFAULTS };
  for (const [name, value] of [...applied(bundle, given), ...Object.entries(given)]) {
    if (value === undefined || (value === null && !(name in NOT_HERE))) continue;
    if (Object.hasOwn(NOT_HERE, name)) {
      if (value === NOT_HERE[/** @type {keyof typeof NOT_HERE} */ (name)]) continue;
      throw new UnsupportedError(`${name} is for txport in Python; leave it out here`);
    }
    if (!Object.hasOwn(DEFAULTS, name)) {
      const known = [...own, ...Object.keys(DEFAULTS)].join(", ");
      throw new UnsupportedError(`unknown option ${quoted(name)}; supported: ${known}`);
    }
    options[name] = value;
  }
  for (const problem of wrongTypes(options)) throw new UnsupportedError(problem);
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

/** @param {Record<string, any>} options @returns {Generator<string>} */
function* wrongTypes(options) {
  for (const name of WHOLE) {
    const value = options[name];
    if (value !== undefined && !Number.isSafeInteger(value))
      yield `${name} must be a whole number, got ${quoted(value)}`;
  }
  for (const name of REAL) {
    if (typeof options[name] !== "number") yield `${name} must be a number, got ${quoted(options[name])}`;
  }
  const { seed, early_stopping: early, alignment, exponential_decay_length_penalty: decay } = options;
  if (options.top_h !== undefined && typeof options.top_h !== "number") {
    yield `top_h must be a number, got ${quoted(options.top_h)}`;
  }
  if (seed !== undefined && !Number.isSafeInteger(seed) && typeof seed !== "bigint") {
    yield `seed must be a whole number, got ${quoted(seed)}`;
  }
  for (const name of ["do_sample", "renormalize_logits"]) {
    if (typeof options[name] !== "boolean") yield `${name} must be true or false, got ${quoted(options[name])}`;
  }
  if (decay !== undefined && !(isPair(decay) && Number.isSafeInteger(decay[0]))) {
    yield `exponential_decay_length_penalty must be a whole number and a factor, got ${quoted(decay)}`;
  }
  const biases = options.sequence_bias;
  const isBias = (/** @type {any} */ each) => isPair(each) && isTokens(each[0]) && each[0].length > 0;
  if (!Array.isArray(biases) || !biases.every(isBias)) {
    yield `sequence_bias must be pairs of token ids and a number, got ${quoted(biases)}`;
  }
  if (![true, false, "never"].includes(early))
    yield `early_stopping must be true, false or 'never', got ${quoted(early)}`;
  if (![undefined, "soft", "hard"].includes(alignment))
    yield `alignment must be 'soft' or 'hard', got ${quoted(alignment)}`;
  for (const name of ["suppress_tokens", "begin_suppress_tokens"]) {
    if (!isTokens(options[name])) yield `${name} must be a list of token ids, got ${quoted(options[name])}`;
  }
  const words = options.bad_words_ids;
  if (!Array.isArray(words) || !words.every((each) => isTokens(each) && each.length)) {
    yield `bad_words_ids must be lists of token ids, got ${quoted(words)}`;
  }
  const strings = [options.stop].flat();
  if (!strings.every((each) => typeof each === "string" && each !== "" && !/\p{Surrogate}/u.test(each))) {
    yield `stop must be strings with at least one character, got ${quoted(options.stop)}`;
  }
  const ends = options.eos_token_id;
  if (ends !== undefined && (!isTokens([ends].flat()) || ![ends].flat().length)) {
    yield `eos_token_id must name at least one token, got ${quoted(ends)}`;
  }
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
  for (const name of ["max_new_tokens", "beams", "nbest"]) {
    if (options[name] !== undefined && options[name] < 1) yield `${name} must be at least 1, got ${options[name]}`;
  }
  if (options.max_length < 2)
    yield `max_length must be at least 2, the start token and another, got ${options.max_length}`;
  for (const name of ["beams", "nbest"]) {
    if (options[name] > MOST_ROWS) yield `${name} must not exceed ${MOST_ROWS}, got ${options[name]}`;
  }
  const counts = ["min_length", "min_new_tokens", "top_k", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"];
  for (const name of [...counts, "seed"]) {
    if (options[name] < 0) yield `${name} must not be negative, got ${options[name]}`;
  }
  if (options.min_new_tokens > (options.max_new_tokens ?? Infinity)) {
    yield `min_new_tokens must lie in 0 to max_new_tokens, ${options.max_new_tokens}; got ${options.min_new_tokens}`;
  }
  for (const name of ["patience", "temperature", ...PENALTIES]) {
    if (!(options[name] > 0 && options[name] < Infinity))
      yield `${name} must be a positive number, got ${options[name]}`;
  }
  if (!(Math.abs(options.length_penalty) <= 20))
    yield `length_penalty must lie in -20 to 20, got ${options.length_penalty}`;
  if (options.patience > 100) yield `patience must not exceed 100, got ${options.patience}`;
  for (const name of PENALTIES) {
    if (options[name] > GREATEST || options[name] < 1 / GREATEST)
      yield `${name} must lie in 1e-9 to 1e9, got ${options[name]}`;
  }
  for (const name of SHARES) {
    const share = options[name] ?? 1;
    if (!(share > 0 && share <= 1)) yield `${name} must lie above 0 and up to 1, got ${share}`;
  }
  for (const name of CUTOFFS) {
    if (!(options[name] >= 0 && options[name] < 1)) yield `${name} must lie in 0 to below 1, got ${options[name]}`;
  }
  for (const [, bias] of options.sequence_bias) {
    if (!(Math.abs(bias) <= GREATEST)) yield `sequence_bias must lie in -1e9 to 1e9, got ${bias}`;
  }
  const [start, factor] = options.exponential_decay_length_penalty ?? [0, 1];
  if (!(start >= 0 && factor > 0 && factor <= GREATEST))
    yield `exponential_decay_length_penalty must start from 0 on, with a factor above 0 and up to 1e9`;
  if (!(options.min_p >= 0 && options.min_p <= 1)) yield `min_p must lie in 0 to 1, got ${options.min_p}`;
  yield* clashes(options);
}

/** @param {Record<string, any>} options @returns {Generator<string>} */
function* clashes(options) {
  /** @type {Record<string, any>} */
  const defaults = DEFAULTS;
  const changed = (/** @type {string} */ name) => options[name] !== defaults[name];
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
