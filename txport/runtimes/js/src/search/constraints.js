/** Which tokens may come next: bans, forced tokens, and what else changes scores before a token is chosen. */

import { best, logSoftmax } from "./numbers.js";

/**
 * @typedef {object} Candidates tokens that may come next, the best first, or all in the vocabulary's order
 * @property {ArrayLike<number>} values the scores by which to choose
 * @property {ArrayLike<number>} logProbs what each adds to its target's score
 * @property {number[]} ids
 */

/** Those of one source: of the options, of what its target must begin with, and of how long it may be. */
export class Constraints {
  /**
   * @param {import("./options.js").Chosen} options
   * @param {import("../index.js").Facts} facts
   * @param {number[]} source
   * @param {number[]} prefix
   */
  constructor(options, facts, source, prefix) {
    this.options = options;
    this.prefix = prefix;
    this.isPrompt = facts.task === "causal";
    this.before = this.isPrompt ? source.slice(0, -1) : []; // what looks at the tokens so far looks here too
    this.limit = limitOf(options, facts, this.isPrompt ? source.length : 0, prefix.length);
  }

  /**
   * The `count` best tokens of a row that may follow, or all; `log`: processors see log-probabilities.
   *
   * @param {Float32Array} logits of one row (V,)
   * @param {number[]} tokens of the row so far, from the start token, or the prompt's last, on
   * @param {number | undefined} count
   * @param {boolean} log
   * @returns {Candidates}
   */
  candidates(logits, tokens, count, log) {
    const own = logSoftmax(logits);
    const changes = this.options.repetition_penalty !== 1;
    const ranked = Float32Array.from(changes && log ? own : logits);
    const seen = this.before.length ? [...this.before, ...tokens] : tokens;
    if (changes) this.#penalise(ranked, seen);
    for (const token of this.#banned(seen, tokens.length)) ranked[token] = -Infinity;
    const forced = this.#forced(tokens.length);
    if (forced !== null) ranked.fill(-Infinity)[forced] = 0;
    const ids = count === undefined ? Array.from(ranked.keys()) : best(ranked, count);
    const read = (/** @type {boolean} */ isChanged) => (/** @type {number} */ id) =>
      ranked[id] === -Infinity ? -Infinity : forced !== null ? 0 : isChanged ? ranked[id] : own[id];
    return { ids, values: ids.map(read(changes || count === undefined)), logProbs: ids.map(read(changes && log)) };
  }

  /** @param {Float32Array} values @param {number[]} seen */
  #penalise(values, seen) {
    const penalty = this.options.repetition_penalty;
    for (const id of new Set(seen)) values[id] = values[id] < 0 ? values[id] * penalty : values[id] / penalty;
  }

  /**
   * Tokens that must not come next.
   *
   * @param {number[]} seen
   * @param {number} length of all that were seen, from the start token on
   */
  *#banned(seen, length) {
    const options = this.options;
    yield* options.suppress_tokens;
    const newTokens = length - 1 - this.prefix.length;
    if (newTokens === Number(options.forced_bos_token_id !== undefined)) yield* options.begin_suppress_tokens;
    if (newTokens < options.min_new_tokens) yield* options.ends;
    for (const words of options.bad_words_ids) {
      const before = words.length - 1;
      if (before < seen.length + Number(this.isPrompt) && endsWith(seen, words.slice(0, before))) yield words[before];
    }
    if (options.no_repeat_ngram_size) yield* repeated(seen, options.no_repeat_ngram_size);
  }

  /**
   * The one token that may come after `length` tokens, the start token counted.
   *
   * @param {number} length
   * @returns {number | null}
   */
  #forced(length) {
    const { forced_bos_token_id: first, forced_eos_token_id: last } = this.options;
    if (last !== undefined && length === this.limit) return last;
    if (length <= this.prefix.length) return this.prefix[length - 1];
    return length === 1 && first !== undefined ? first : null;
  }
}

/**
 * How many tokens a target may have, its prefix counted, its prompt not.
 *
 * @param {import("./options.js").Chosen} options
 * @param {import("../index.js").Facts} facts
 * @param {number} prompt
 * @param {number} prefix
 */
function limitOf(options, facts, prompt, prefix) {
  if (options.max_new_tokens !== undefined) return prefix + options.max_new_tokens;
  const longest = Math.min(facts.target.longest, (options.max_length ?? Infinity) - 1); // the start token is none of it
  return longest - prompt;
}

/** @param {number[]} tokens @param {number[]} ending */
function endsWith(tokens, ending) {
  const start = tokens.length - ending.length;
  return start >= 0 && ending.every((token, place) => tokens[start + place] === token);
}

/**
 * The tokens that would complete a sequence of `size` tokens for a second time.
 *
 * @param {number[]} tokens
 * @param {number} size
 */
function* repeated(tokens, size) {
  const newest = size > 1 ? tokens.slice(1 - size) : [];
  for (let end = size - 1; end < tokens.length; end += 1) {
    if (newest.every((token, place) => tokens[end - size + 1 + place] === token)) yield tokens[end];
  }
}
