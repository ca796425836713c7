/** The driver of cpu bundles: ONNX Runtime's own operators, lengths in place of masks, caches of a fixed capacity. */

import { attentionName, stateNames } from "./ports.js";
import { padded, parts } from "./portable.js";

const TOGETHER = 4; // attention sums over so many places of a source at a time
const FIRST_CAPACITY = 32;

/**
 * @typedef {import("./sessions.js").Tensors} Tensors
 * @typedef {object} State what a step reads beside tokens
 * @property {Tensors} source what all rows share
 * @property {Tensors} caches the rows' own, by the inputs of a step: (R, G, M, H) each
 * @property {number} rows
 * @property {number} length
 * @property {number} capacity M, the places that caches have
 * @property {number} places S, those of the source
 */

/** Steps over the graphs of a cpu bundle; letters: R rows, G heads, S places of the source, V the vocabulary. */
export class CpuRuntime {
  /** @param {import("./sessions.js").Sessions} sessions */
  constructor(sessions) {
    this.sessions = sessions;
    this.facts = sessions.manifest.facts;
    this.own = this.facts.state.filter((each) => each.owner === "row");
    this.names = this.own.map((each) => stateNames("cpu", this.facts, each));
    this.cross = this.facts.state
      .filter((each) => each.owner === "source")
      .map((each) => stateNames("cpu", this.facts, each).past);
    this.attention = attentionName("cpu", this.facts);
  }

  /**
   * One source, or a prompt, of which all but the last token are read -> a state of one row.
   *
   * @param {number[]} source
   * @returns {Promise<State>}
   */
  async start(source) {
    if (this.facts.task === "causal") return this.#prefill(source);
    const { ids } = padded(source, this.facts, TOGETHER);
    const lengths = this.sessions.int32([source.length]);
    const given = { input_ids: this.sessions.int64(ids, [1, ids.length]), source_lengths: lengths };
    const found = await this.sessions.run("encoder", given, this.cross);
    const held = { source_lengths: lengths, ...found };
    const capacity = this.#capacity(FIRST_CAPACITY);
    return {
      source: held,
      caches: this.#zeros(1, capacity),
      rows: 1,
      length: 0,
      capacity,
      places: ids.length,
    };
  }

  /**
   * The places of caches for so many tokens; a table of positions has no more than the longest sequence.
   *
   * @param {number} size
   */
  #capacity(size) {
    return Math.min(Math.max(FIRST_CAPACITY, size), this.facts.target.longest);
  }

  /** @param {number[]} prompt @returns {Promise<State>} */
  async #prefill(prompt) {
    const size = prompt.length - 1;
    const capacity = this.#capacity(2 * size);
    const state = { source: {}, caches: this.#zeros(1, capacity), rows: 1, length: size, capacity, places: 0 };
    for (const [start, stop] of parts(size)) {
      const given = {
        input_ids: this.sessions.int64(prompt.slice(start, stop), [1, stop - start]),
        last_places: this.sessions.int32([stop - 1]),
        total_sequence_length: this.sessions.int32([stop]),
        logits_at: this.sessions.int64([0], [1]), // ONNX Runtime up to 1.30 dies if the TopK of experts has no rows
        k: this.sessions.int64([0], [1]),
      };
      const found = await this.sessions.run(
        "step",
        { ...given, ...state.caches },
        this.names.map((each) => each.present),
      );
      state.caches = this.#past(found);
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
    const { rows, length } = state;
    const held =
      length === state.capacity ? this.#moved(state, rows, [...tokens.keys()], this.#capacity(2 * length)) : state;
    const sessions = this.sessions;
    const lengths = sessions.int32(new Array(rows).fill(length));
    const capacity = sessions.int32([held.capacity]);
    const own = {
      input_ids: sessions.int64(tokens, [rows, 1]),
      last_places: lengths,
      total_sequence_length: capacity,
      logits_at: sessions.int64([...tokens.keys()], [rows]),
    };
    const shared = { input_ids: sessions.int64(tokens, [1, rows]), past_lengths: lengths, cache_capacity: capacity };
    const inputs = {
      ...(this.facts.task === "causal" ? own : shared),
      k: sessions.int64([0], [1]), // all logits; the best are found here
      ...held.source,
      ...held.caches,
      ...(this.attention ? { align: sessions.flag(align) } : {}),
    };
    const asked = align && this.attention ? [this.attention] : [];
    const found = await sessions.run("step", inputs, ["logits", ...this.names.map((each) => each.present), ...asked]);
    const logits = await sessions.numbers("logits", found.logits, [rows, this.facts.target.size]);
    const attention = align ? await sessions.numbers(asked[0], found[asked[0]], [rows, state.places]) : null;
    return { logits, attention, state: { ...held, caches: this.#past(found), length: length + 1 } };
  }

  /**
   * The state whose row i is the old row `rows[i]`.
   *
   * @param {State} state
   * @param {number[]} rows
   * @returns {Promise<State>}
   */
  async select(state, rows) {
    return this.#moved(state, rows.length, rows, state.capacity);
  }

  /** All outputs for one source, by name. @param {number[]} source */
  async infer(source) {
    const dims = [1, source.length];
    const given = {
      input_ids: this.sessions.int64(source, dims),
      source_lengths: this.sessions.int32([source.length]),
    };
    return {
      found: await this.sessions.run(
        "model",
        given,
        this.facts.outputs.map((each) => each.name),
      ),
      size: source.length,
    };
  }

  /** Nothing lies outside memory of JavaScript. @param {State} _ */
  release(_) {}

  /**
   * Rows in new memory of some capacity.
   *
   * @param {State} state
   * @param {number} count
   * @param {number[]} rows
   * @param {number} capacity
   */
  #moved(state, count, rows, capacity) {
    const caches = this.#zeros(count, capacity);
    this.own.forEach((tensor, number) => {
      const [heads, , width] = tensor.dims.map(Number);
      const name = this.names[number].past;
      const from = state.caches[name].data;
      const to = caches[name].data;
      for (let place = 0; place < count * heads; place += 1) {
        const start = (rows[Math.floor(place / heads)] * heads + (place % heads)) * state.capacity * width;
        to.set(from.subarray(start, start + state.length * width), place * capacity * width);
      }
    });
    return { ...state, caches, rows: count, capacity };
  }

  /** @param {number} rows @param {number} capacity @returns {Tensors} */
  #zeros(rows, capacity) {
    const zeros = this.own.map(({ dims }) => this.sessions.zeros([rows, Number(dims[0]), capacity, Number(dims[2])]));
    return Object.fromEntries(this.names.map((each, place) => [each.past, zeros[place]]));
  }

  /** What a graph leaves of the caches, as the next one reads it. @param {Tensors} found @returns {Tensors} */
  #past(found) {
    return Object.fromEntries(this.names.map((each) => [each.past, found[each.present]]));
  }
}
