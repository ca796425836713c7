/** Search for the targets of one source: greedy, sampling and beams. */

import { TextError, UnsupportedError, quoted } from "../errors.js";
import { Beams } from "./beams.js";
import { Constraints, longestOf } from "./constraints.js";
import { requireNumbers } from "./numbers.js";
import { uniforms } from "./random.js";
import { Rows } from "./rows.js";
import { MOST_OF_ENTROPY, draw } from "./sampling.js";

/**
 * @typedef {import("../index.js").Found} Found
 * @typedef {import("./options.js").Chosen} Chosen
 * @typedef {{ logits: Float32Array, attention: Float32Array | null, state: any }} Scores
 * @typedef {object} Runtime
 * @property {(source: number[]) => Promise<any>} start
 * @property {(tokens: number[], state: any, align: boolean) => Promise<Scores>} step
 * @property {(state: any, rows: number[]) => Promise<any>} select
 * @property {(state: any) => void} release
 */

/**
 * Token ids of a source -> its `nbest` hypotheses, best first, or as they were drawn. After each step it yields what
 * the best target is known to begin with by then. Closing it, or the signal, ends the search.
 *
 * @param {Runtime} runtime
 * @param {import("../index.js").Facts} facts
 * @param {number[]} source
 * @param {Chosen} options
 * @param {number[]} prefix
 * @param {AbortSignal | undefined} signal
 * @returns {AsyncGenerator<number[], Found[]>}
 */
export async function* search(runtime, facts, source, options, prefix, signal) {
  requireRoom(facts, source, options, prefix);
  const constraints = new Constraints(options, facts, source, prefix);
  signal?.throwIfAborted();
  let state = await runtime.start(source);
  try {
    const places = state.places;
    const first = facts.task === "causal" ? source[source.length - 1] : Number(facts.target.start);
    const kind = options.beams > 1 ? byBeams : byRows;
    const steps = kind(constraints, options, first, prefix.length, places, source.length);
    let turn = steps.next();
    while (!turn.done) {
      const { rows, tokens } = turn.value;
      signal?.throwIfAborted();
      if (rows !== null) state = await runtime.select(state, rows);
      const found = await runtime.step(tokens, state, options.alignment !== undefined);
      state = found.state;
      requireNumbers(found.logits);
      turn = steps.next(found);
      signal?.throwIfAborted();
      yield turn.done ? (turn.value[0]?.tokens ?? []) : turn.value.certain();
    }
    return turn.value;
  } finally {
    runtime.release(state);
  }
}

/**
 * @typedef {object} Request a step: rows that go on, where they change, and the last token of each
 * @property {number[] | null} rows
 * @property {number[]} tokens
 * @property {() => number[]} certain
 */

/**
 * Every row for itself, greedy or drawn, until an end token.
 *
 * @param {Constraints} constraints
 * @param {Chosen} options
 * @param {number} first
 * @param {number} prefix
 * @param {number} places
 * @param {number} length
 * @returns {Generator<Request, Found[], Scores>}
 */
function* byRows(constraints, options, first, prefix, places, length) {
  const rows = new Rows(options, first, constraints.limit, prefix, places);
  const drawn = options.do_sample ? drawnNumbers(options, constraints.limit) : [];
  const count = !options.do_sample ? 1 : options.top_h === undefined ? options.top_k || undefined : MOST_OF_ENTROPY;
  let moved = rows.rows.length > 1 ? rows.rows.map(() => 0) : null;
  while (true) {
    const tokens = rows.held.map((row) => row.tokens[row.tokens.length - 1]);
    const found = yield { rows: moved, tokens, certain: () => rows.certain() };
    const chosen = rows.held.map((row, at) => {
      const candidates = constraints.candidates(rowOf(found.logits, at, tokens.length), row.tokens, count, false);
      const place = options.do_sample ? draw(candidates.values, options, drawn[row.sample][rows.turn]) : 0;
      const token = candidates.ids[place];
      return { token, logProb: candidates.logProbs[place], stopped: candidates.stops(token) };
    });
    const kept = rows.advance(chosen, found.attention);
    if (kept.length === 0) return rows.found(length);
    moved = kept.length < tokens.length ? kept : null;
  }
}

/**
 * Keep the K best running hypotheses; enough candidates that ended ones starve nobody.
 *
 * @param {Constraints} constraints
 * @param {Chosen} options
 * @param {number} first
 * @param {number} prefix
 * @param {number} places
 * @param {number} length
 * @returns {Generator<Request, Found[], Scores>}
 */
function* byBeams(constraints, options, first, prefix, places, length) {
  const beams = new Beams(options, constraints.limit, prefix, places);
  let sequences = [[first]];
  let moved = null;
  while (true) {
    const tokens = sequences.map((row) => row[row.length - 1]);
    const found = yield { rows: moved, tokens, certain: () => beams.certain() };
    const rows = sequences.map((row, at) =>
      constraints.candidates(rowOf(found.logits, at, tokens.length), row, beams.wanted, true),
    );
    const parents = beams.advance(rows, found.attention);
    if (parents.length === 0) return beams.best(options.nbest, length);
    moved = parents.length === tokens.length && parents.every((parent, at) => parent === at) ? null : parents;
    sequences = beams.last.map((token, at) => [...sequences[parents[at]], token]);
  }
}

/** The logits of one row of all (R, V). @param {Float32Array} logits @param {number} row @param {number} rows */
function rowOf(logits, row, rows) {
  const size = logits.length / rows;
  return logits.subarray(row * size, (row + 1) * size);
}

/**
 * Numbers in 0 to 1 for each sample, one for every new token; with a seed, those of the seed and of which sample it is.
 *
 * @param {Chosen} options
 * @param {number} length
 */
function drawnNumbers({ seed, nbest }, length) {
  const own = seed ?? crypto.getRandomValues(new BigUint64Array(1))[0];
  return Array.from({ length: nbest }, (_, sample) => uniforms([own, sample], length));
}

/**
 * @param {import("../index.js").Facts} facts
 * @param {number[]} source
 * @param {Chosen} options
 * @param {number[]} prefix
 */
function requireRoom(facts, source, options, prefix) {
  const { size } = facts.target;
  const isCausal = facts.task === "causal";
  const what = isCausal ? `a prompt of ${source.length} tokens` : `a prefix of ${prefix.length} tokens`;
  const isToken = (/** @type {number} */ each) => Number.isInteger(each) && each >= 0 && each < size;
  if (!Array.isArray(prefix) || !prefix.every((each) => isToken(each) && !options.ends.includes(each))) {
    throw new TextError(
      `a prefix must be a list of tokens of 0 to ${size - 1} that end nothing, got ${quoted(prefix)}`,
    );
  }
  if (isCausal && prefix.length) {
    throw new UnsupportedError("prefixes begin targets, and a causal model continues its prompt: put them at its end");
  }
  if (prefix.length && options.forced_bos_token_id !== undefined) {
    throw new UnsupportedError("a prefix says what the first token is; forced_bos_token_id must not");
  }
  const taken = isCausal ? source.length : prefix.length;
  const most = longestOf(options, facts);
  for (const wanted of [1, options.max_new_tokens ?? 1, options.min_new_tokens]) {
    if (taken + wanted > most) {
      const limit = `the model's longest sequence, ${most}`;
      throw new UnsupportedError(`${what} and ${wanted} new ones exceed ${limit}; shorten it, or ask for fewer`);
    }
  }
}
