/**
 * The hypotheses of beam search for one source: which go on, which have ended, and their tokens. The rules are those of
 * `txport/search/beams.py`. Letters: W running rows (1 in the first step, K later), K beams, S places of the source.
 */

import { alignmentOf } from "./alignment.js";
import { finishOf } from "./options.js";
import { largest, order } from "./numbers.js";
import { keptOf } from "./options.js";

const NO_END = -1; // in place of an end token, for hypotheses that were cut off

/**
 * @typedef {object} Beam a running hypothesis as it was after a step
 * @property {number} parent which one of the step before it continues
 * @property {number} token
 * @property {number} logProb what the token added to its score
 * @property {boolean} stopped whether the token completes a stop string
 * @property {number} total its score so far, a sum
 *
 * @typedef {object} Finished a hypothesis: its score, last step and beam, its end token with its log-prob
 * @property {number} score
 * @property {number} step
 * @property {number} beam
 * @property {number} end
 * @property {number} logProb
 * @property {boolean} stopped by a stop string
 */

export class Beams {
  /** @type {Beam[][]} */ #steps = [];
  /** @type {(Float32Array | null)[]} */ #attention = [];
  /** @type {Finished[]} */ #finished;
  /** @type {number[]} */ #sums = [0];
  #isRunning = true;

  /**
   * @param {import("./options.js").Chosen} options
   * @param {number} limit how many tokens the target may have, its prefix counted
   * @param {number} prefix
   * @param {number} places S
   */
  constructor(options, limit, prefix, places) {
    this.options = options;
    this.limit = limit;
    this.prefix = prefix;
    this.places = places;
    const nothing = { score: -Infinity, step: 0, beam: 0, end: 0, logProb: 0, stopped: false };
    this.#finished = new Array(keptOf(options)).fill(nothing); // in falling order of score
  }

  /** Candidates of each row, so that those that end leave enough that go on: Hugging Face's number. */
  get wanted() {
    return Math.max(2, 1 + this.options.ends.length) * this.options.beams;
  }

  /** The newest token of each running row. */
  get last() {
    return this.#steps[this.#steps.length - 1].map((beam) => beam.token);
  }

  /**
   * Candidates of every row, and their attention (W, S) -> which row each that goes on comes from; none at the end.
   *
   * @param {import("./constraints.js").Candidates[]} rows
   * @param {Float32Array | null} attention
   * @returns {number[]}
   */
  advance(rows, attention) {
    const size = this.options.beams;
    this.#attention.push(attention);
    const all = rows.flatMap(({ ids, logProbs, stops }, parent) =>
      ids.map((token, at) => {
        const total = this.#sums[parent] + logProbs[at];
        return { parent, token, logProb: logProbs[at], total, stopped: stops(token) };
      }),
    );
    const candidates = order(all.map((each) => each.total))
      .slice(0, this.wanted)
      .map((place) => all[place]);
    const before = this.#sums;
    const going = this.#part(candidates, size);
    this.#steps.push(going);
    this.#sums = going.map((beam) => beam.total);
    this.#cutOff(before);
    this.#isRunning = !this.#isDone();
    return this.#isRunning ? going.map((beam) => beam.parent) : [];
  }

  /**
   * Of candidates, the best first: those that end compete with the finished ones, the others go on.
   *
   * @param {Beam[]} candidates
   * @param {number} size
   * @returns {Beam[]}
   */
  #part(candidates, size) {
    const ends = (/** @type {Beam} */ beam) => beam.stopped || this.options.ends.includes(beam.token);
    const length = this.#steps.length + 1;
    const step = this.#steps.length - 1;
    this.#compete(
      candidates
        .slice(0, size)
        .filter(ends)
        .map((beam) => {
          const score = this.#score(beam.total, length);
          return { score, step, beam: beam.parent, end: beam.token, logProb: beam.logProb, stopped: beam.stopped };
        }),
    );
    const left = candidates.filter((beam) => !ends(beam)).slice(0, size);
    const known = left.length ? left : candidates.slice(0, size).map((beam) => ({ ...beam, total: -Infinity }));
    // a small vocabulary may have fewer candidates than beams
    return Array.from({ length: size }, (_, at) =>
      at < left.length ? left[at] : { ...known[at % known.length], total: -Infinity },
    );
  }

  /**
   * Where no token may follow and nothing has ended, the hypotheses of the step before stand as they are.
   *
   * @param {number[]} sums
   */
  #cutOff(sums) {
    if (largest(this.#sums) > -Infinity || this.#finished[0].score > -Infinity) return;
    const length = this.#steps.length - 1;
    this.#compete(sums.map((sum, beam) => this.#whole(this.#score(sum, length), this.#steps.length - 2, beam)));
  }

  #isDone() {
    const { early_stopping: early, length_penalty: penalty } = this.options;
    const length = this.#steps.length;
    const best = largest(this.#sums);
    const isFullLength = this.limit === length;
    if (isFullLength)
      this.#compete(this.#sums.map((sum, beam) => this.#whole(this.#score(sum, length), length - 1, beam)));
    if (best === -Infinity || isFullLength) return true;
    const worst = this.#finished[this.#finished.length - 1].score;
    if (worst === -Infinity) return false;
    if (early === true) return true;
    const reach = early === "never" && penalty > 0 ? this.limit : length;
    return worst >= best / this.#length(reach) ** penalty;
  }

  /** @param {number} score @param {number} step @param {number} beam @returns {Finished} */
  #whole(score, step, beam) {
    return { score, step, beam, end: NO_END, logProb: 0, stopped: false };
  }

  /** How many of so many tokens are new. @param {number} length */
  #length(length) {
    return Math.max(length - this.prefix, 1);
  }

  /** @param {number} total @param {number} length */
  #score(total, length) {
    return total / this.#length(length) ** this.options.length_penalty;
  }

  /** @param {Finished[]} others */
  #compete(others) {
    const joined = [...this.#finished, ...others];
    const best = order(joined.map((each) => each.score)).slice(0, this.#finished.length);
    this.#finished = best.map((place) => joined[place]);
  }

  /**
   * The best finished hypotheses.
   *
   * @param {number} count
   * @param {number} length of the source
   * @returns {import("../index.js").Found[]}
   */
  best(count, length) {
    const found = this.#finished.slice(0, count).filter((each) => each.score > -Infinity);
    return found.map((each) => {
      const beams = this.#path(each.step, each.beam);
      const tokens = beams.map(({ beam }) => beam.token);
      const tokenScores = beams.map(({ beam }) => beam.logProb);
      const rows = beams.map(({ beam }) => beam.parent);
      if (each.end !== NO_END) {
        tokens.push(each.end);
        tokenScores.push(each.logProb);
        rows.push(each.beam);
      }
      const attention = rows.map((row, step) =>
        this.#attention[step]?.subarray(row * this.places, row * this.places + length),
      );
      return {
        tokens,
        score: each.score,
        token_scores: tokenScores,
        finish: finishOf(tokens, this.options.ends, this.limit, each.stopped),
        ...alignmentOf(attention, this.options.alignment),
      };
    });
  }

  /** What all hypotheses that may still win begin with. @returns {number[]} */
  certain() {
    const finished = this.best(this.#isRunning ? this.#finished.length : 1, 0).map((each) => each.tokens);
    const step = this.#steps.length - 1;
    const alive = this.#isRunning ? this.#steps[step].flatMap((beam, at) => (beam.total > -Infinity ? [at] : [])) : [];
    const sequences = [...finished, ...alive.map((at) => this.#path(step, at).map(({ beam }) => beam.token))];
    const [first = [], ...others] = sequences;
    const end = first.findIndex((token, place) => others.some((tokens) => tokens[place] !== token));
    return end === -1 ? first : first.slice(0, end);
  }

  /** The beams that lead to one of a step. @param {number} step @param {number} at @returns {{ beam: Beam }[]} */
  #path(step, at) {
    const beams = [];
    for (let number = step; number >= 0; number -= 1) {
      const beam = this.#steps[number][at];
      beams.push({ beam });
      at = beam.parent;
    }
    return beams.reverse();
  }
}
