/** The targets of greedy search and of sampling: every row goes its own way, and leaves when it has ended. */

import { alignmentOf } from "./alignment.js";
import { finishOf } from "./options.js";

export class Rows {
  /**
   * @param {import("./options.js").Chosen} options
   * @param {number} first the token that each row starts from
   * @param {number} limit how many tokens a target may have, its prefix counted
   * @param {number} prefix
   * @param {number} places of the source, with its padding
   */
  constructor(options, first, limit, prefix, places) {
    this.options = options;
    this.limit = limit;
    this.prefix = prefix;
    this.places = places;
    const count = options.do_sample ? options.nbest : 1;
    this.rows = Array.from({ length: count }, (_, sample) => ({
      sample,
      tokens: [first],
      stopped: false,
      logProbs: /** @type {number[]} */ ([]),
      attention: /** @type {Float32Array[]} */ ([]),
    }));
    this.held = this.rows;
  }

  /** Which number of those drawn for a row comes next; a prefix uses up none. */
  get turn() {
    return Math.max(this.held[0].tokens.length - 1 - this.prefix, 0);
  }

  /**
   * The next token of each row that is held -> which of them stay. Where no token may follow, a target ends as it is.
   *
   * @param {{ token: number, logProb: number, stopped: boolean }[]} chosen `stopped`: it completes a stop string
   * @param {Float32Array | null} attention (R, S)
   * @returns {number[]}
   */
  advance(chosen, attention) {
    const kept = this.held.flatMap((row, at) => {
      const { token, logProb, stopped } = chosen[at];
      if (logProb === -Infinity) return [];
      row.tokens.push(token);
      row.logProbs.push(logProb);
      row.stopped = stopped;
      if (attention) row.attention.push(attention.slice(at * this.places, (at + 1) * this.places));
      const isEnd = stopped || this.options.ends.includes(token);
      return isEnd || row.logProbs.length >= this.limit ? [] : [at];
    });
    this.held = kept.map((at) => this.held[at]);
    return kept;
  }

  /**
   * The targets, in the order of their samples.
   *
   * @param {number} length of the source
   * @returns {import("../index.js").Found[]}
   */
  found(length) {
    return this.rows.map(({ tokens, logProbs, attention, stopped }) => {
      const sum = logProbs.reduce((one, other) => one + other, 0);
      const score = sum / Math.max(1, logProbs.length - this.prefix) ** this.options.length_penalty;
      const weights = attention.map((row) => row.subarray(0, length));
      return {
        tokens: tokens.slice(1),
        score,
        token_scores: logProbs,
        finish: finishOf(tokens.slice(1), this.options.ends, this.limit, stopped),
        ...alignmentOf(weights, this.options.alignment),
      };
    });
  }

  /** The tokens so far of the first row. */
  certain() {
    return this.rows[0].tokens.slice(1);
  }
}
