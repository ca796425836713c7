/** The driver of portable bundles: standard operators, and caches that grow by a token a step. */

import { attentionName, stateNames } from "./ports.js";
import { dispose } from "./sessions.js";

const TOGETHER = { float32: 4, float16: 8 }; // attention sums over so many places at a time
const PROMPT_PART = 128; // tokens that are filled in together

/**
 * @typedef {import("./sessions.js").Tensors} Tensors
 * @typedef {{ tensors: Tensors, rows: number, length: number, places: number }} State what a step reads beside tokens
 */

/** Steps over the graphs of a portable bundle; letters: R rows, S places of the source, V the vocabulary. */
export class PortableRuntime {
  /** @param {import("./sessions.js").Sessions} sessions */
  constructor(sessions) {
    this.sessions = sessions;
    this.facts = sessions.manifest.facts;
    this.names = this.facts.state.map((each) => ({ ...stateNames("portable", this.facts, each), owner: each.owner }));
    this.attention = attentionName("portable", this.facts);
  }

  /**
   * One source, or a prompt, of which all but the last token are read -> a state of one row.
   *
   * @param {number[]} source
   * @returns {Promise<State>}
   */
  async start(source) {
    return this.facts.task === "causal" ? this.#prefill(source) : this.#encode(source);
  }

  /** @param {number[]} source @returns {Promise<State>} */
  async #encode(source) {
    const { ids, mask } = padded(source, this.facts, TOGETHER[this.sessions.type]);
    const given = {
      input_ids: this.sessions.int64(ids, [1, ids.length]),
      attention_mask: this.sessions.int64(mask, [1, ids.length]),
    };
    const found = await this.sessions.run("encoder", given, ["last_hidden_state"]);
    const kept = { encoder_hidden_states: found.last_hidden_state, encoder_attention_mask: given.attention_mask };
    return { tensors: { ...kept, ...this.#empty() }, rows: 1, length: 0, places: ids.length };
  }

  /** @param {number[]} prompt @returns {Promise<State>} */
  async #prefill(prompt) {
    const size = prompt.length - 1;
    const ones = (/** @type {number} */ count) => this.sessions.int64(new Array(count).fill(1), [1, count]);
    /** @type {State} */
    const state = { tensors: { attention_mask: ones(size), ...this.#empty() }, rows: 1, length: size, places: 0 };
    for (const [start, stop] of parts(size)) {
      const places = Array.from({ length: stop - start }, (_, place) => start + place);
      const given = {
        attention_mask: ones(stop),
        input_ids: this.sessions.int64(prompt.slice(start, stop), [1, stop - start]),
        position_ids: this.sessions.int64(places, [1, stop - start]),
      };
      const outputs = this.names.map((each) => each.present);
      const found = await this.sessions.run("decoder", { ...state.tensors, ...given }, outputs);
      dispose(this.names.map((each) => state.tensors[each.past]));
      for (const { past, present } of this.names) state.tensors[past] = found[present];
    }
    return state;
  }

  /**
   * The last token of each row -> logits of the next one (R, V), attention (R, S) if it is asked for, and the state.
   *
   * @param {number[]} tokens
   * @param {State} state
   * @param {boolean} align
   */
  async step(tokens, state, align) {
    const rows = tokens.length;
    const size = this.facts.target.size;
    const fetched = this.names.filter((each) => each.owner === "row" || state.length === 0);
    const outputs = [
      "logits",
      ...fetched.map((each) => each.present),
      ...(align && this.attention ? [this.attention] : []),
    ];
    const beside = this.#beside(rows, state);
    const inputs = { input_ids: this.sessions.int64(tokens, [rows, 1]), ...state.tensors, ...beside.given };
    const found = await this.sessions.run("decoder", inputs, outputs);
    const logits = await this.sessions.numbers("logits", found.logits, [rows, 1, size]);
    dispose(fetched.map((each) => state.tensors[each.past]));
    const grown = Object.fromEntries(fetched.map((each) => [each.past, found[each.present]]));
    const after = { ...state, tensors: { ...state.tensors, ...beside.kept, ...grown }, length: state.length + 1 };
    return { logits, attention: align ? await this.#mean(found, rows, state.places) : null, state: after };
  }

  /**
   * The mean over the heads of attention (R, N, 1, S).
   *
   * @param {Tensors} found
   * @param {number} rows
   * @param {number} places
   */
  async #mean(found, rows, places) {
    const heads = /** @type {import("./index.js").CrossAttention} */ (this.facts.attention).heads;
    const name = String(this.attention);
    const values = await this.sessions.numbers(name, found[name], [rows, heads, 1, places]);
    const mean = new Float32Array(rows * places);
    for (let row = 0; row < rows; row += 1) {
      for (let place = 0; place < places; place += 1) {
        let sum = 0;
        for (let head = 0; head < heads; head += 1) sum += values[(row * heads + head) * places + place];
        mean[row * places + place] = sum / heads;
      }
    }
    return mean;
  }

  /** What a step of a causal model reads beside token and caches. @param {number} rows @param {State} state */
  #beside(rows, state) {
    if (this.facts.task !== "causal") return { given: {}, kept: {} };
    const { length } = state;
    const mask = this.sessions.int64(new Array(rows * (length + 1)).fill(1), [rows, length + 1]);
    const places = this.sessions.int64(new Array(rows).fill(length), [rows, 1]);
    return { given: { attention_mask: mask, position_ids: places }, kept: { attention_mask: mask } };
  }

  /**
   * The state whose row i is the old row `rows[i]`.
   *
   * @param {State} state
   * @param {number[]} rows
   * @returns {Promise<State>}
   */
  async select(state, rows) {
    const names = Object.keys(state.tensors);
    const given = { ...state.tensors, rows: this.sessions.int64(rows, [rows.length]) };
    const found = await this.sessions.run(
      "select",
      given,
      names.map((name) => `selected.${name}`),
    );
    dispose(Object.values(state.tensors));
    const tensors = Object.fromEntries(names.map((name) => [name, found[`selected.${name}`]]));
    return { ...state, tensors, rows: rows.length };
  }

  /** All outputs for one source, by name. @param {number[]} source */
  async infer(source) {
    const { ids, mask } = padded(source, this.facts, TOGETHER[this.sessions.type]);
    const dims = [1, ids.length];
    const size = Number(this.facts.source?.size);
    const tokens = this.facts.has_token_types ? ids.map((id) => id % size) : ids;
    /** @type {Tensors} */
    const given = { input_ids: this.sessions.int64(tokens, dims), attention_mask: this.sessions.int64(mask, dims) };
    if (this.facts.has_token_types) {
      const types = ids.map((id) => (id < size ? 0 : 1));
      given.token_type_ids = this.sessions.int64(types, dims);
    }
    return {
      found: await this.sessions.run(
        "model",
        given,
        this.facts.outputs.map((each) => each.name),
      ),
      size: ids.length,
    };
  }

  /** @param {State} state */
  release(state) {
    dispose(Object.values(state.tensors));
  }

  /** @returns {Tensors} */
  #empty() {
    const zeros = this.facts.state.map(({ dims }) => this.sessions.zeros([1, Number(dims[0]), 0, Number(dims[2])]));
    return Object.fromEntries(this.names.map((each, place) => [each.past, zeros[place]]));
  }
}

/**
 * A source, padded until attention sums over whole blocks, and its mask.
 *
 * @param {number[]} source
 * @param {import("./index.js").Facts} facts
 * @param {number} together
 */
export function padded(source, facts, together) {
  const reads = /** @type {import("./index.js").Tokens} */ (facts.source);
  const size = Math.min(Math.ceil(source.length / together) * together, Math.max(reads.longest, source.length));
  const ids = Array.from({ length: size }, (_, place) => source[place] ?? reads.pad);
  return { ids, mask: ids.map((_, place) => Number(place < source.length)) };
}

/**
 * A prompt's tokens as they are run together, of which none is by itself.
 *
 * @param {number} size
 * @returns {[number, number][]}
 */
export function parts(size) {
  /** @type {number[]} */
  const ends = [];
  for (let end = PROMPT_PART; end < size; end += PROMPT_PART) ends.push(end);
  if (ends.length && size - ends[ends.length - 1] < 2) ends[ends.length - 1] -= 1;
  return size ? [...ends, size].map((stop, place) => [place ? ends[place - 1] : 0, stop]) : [];
}
