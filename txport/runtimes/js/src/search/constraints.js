/** Which tokens may come next: bans, forced tokens, and what else changes scores before a token is chosen. */

import { change, changesScores, endsWith, renormalise } from "./changes.js";
import { best, logSoftmax } from "./numbers.js";

/**
 * @typedef {object} Candidates tokens that may come next, the best first, or all in the vocabulary's order
 * @property {ArrayLike<number>} values the scores by which to choose
 * @property {ArrayLike<number>} logProbs what each adds to its target's score
 * @property {number[]} ids
 * @property {(id: number) => boolean} stops whether one of them completes a stop string
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
    this.source = source;
    const isPrompt = facts.task === "causal";
    this.before = isPrompt ? source.slice(0, -1) : []; // what looks at the tokens so far looks here too
    this.limit = limitOf(options, facts, isPrompt ? source.length : 0, prefix.length);
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
    const changes = changesScores(this.options);
    const ranked = Float32Array.from(changes && log ? own : logits);
    const seen = this.before.length ? [...this.before, ...tokens] : tokens;
    if (changes) change(ranked, this.options, this.source, seen, tokens.length - 1 - this.prefix.length);
    for (const token of this.#banned(seen, tokens.length)) ranked[token] = -Infinity;
    const forced = this.#forced(tokens.length);
    if (forced !== null) ranked.fill(-Infinity)[forced] = 0;
    if (log && this.options.renormalize_logits) renormalise(ranked);
    const ids = count === undefined ? Array.from(ranked.keys()) : best(ranked, count);
    const read = (/** @type {boolean} */ isChanged) => (/** @type {number} */ id) =>
      ranked[id] === -Infinity ? -Infinity : forced !== null ? 0 : isChanged ? ranked[id] : own[id];
    const { stops } = this.options;
    const isGiven = tokens.length <= this.prefix.length;
    return {
      ids,
      values: ids.map(read(changes || count === undefined)),
      logProbs: ids.map(read(changes && log)),
      stops: (id) => stops !== null && !isGiven && stops.start([...seen, id]) !== null,
    };
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
    const isShort = options.min_new_tokens ? newTokens < options.min_new_tokens : seen.length < options.min_length;
    if (isShort) yield* options.ends;
    for (const words of options.bad_words_ids) {
      if (endsWith(seen, words.slice(0, -1))) yield words[words.length - 1];
    }
    if (options.no_repeat_ngram_size) yield* repeated(seen, seen, options.no_repeat_ngram_size);
    const size = options.encoder_no_repeat_ngram_size;
    if (size) yield* repeated(this.source, seen, size);
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
  return longestOf(options, facts) - prompt;
}

/**
 * How many tokens a target without its start token, or a prompt with what follows it, may have.
 *
 * @param {import("./options.js").Chosen} options
 * @param {import("../index.js").Facts} facts
 */
export function longestOf(options, facts) {
  const { task, target } = facts;
  if (options.max_new_tokens !== undefined || options.max_length === undefined) return target.longest;
  return Math.min(target.longest, options.max_length - Number(task === "seq2seq"));
}

/**
 * The tokens that would complete a sequence of `size` tokens that is among others already.
 *
 * @param {number[]} within
 * @param {number[]} tokens
 * @param {number} size
 */
function* repeated(within, tokens, size) {
  if (tokens.length < size - 1) return;
  const newest = size > 1 ? tokens.slice(1 - size) : [];
  for (let end = size - 1; end < within.length; end += 1) {
    if (newest.every((token, place) => within[end - size + 1 + place] === token)) yield within[end];
  }
}
