/** A loaded bundle: texts or token ids in, texts or token ids out. */

import { CpuRuntime } from "./cpu.js";
import { TextError, UnsupportedError, quoted, requireKnown } from "./errors.js";
import { filesOf } from "./files.js";
import { readManifest } from "./manifest.js";
import { platformOf } from "./platform.js";
import { readsTokens } from "./ports.js";
import { PortableRuntime } from "./portable.js";
import { chosenOptions } from "./search/options.js";
import { requireNumbers } from "./search/numbers.js";
import { search } from "./search/search.js";
import { Sessions } from "./sessions.js";
import { tokenizerOf } from "./tokenizer.js";

/** @typedef {import("./index.js").Found} Found */

const UNKNOWN = ["auto", "token", "error", "skip"];
const POOLINGS = ["mean", "first", "none"];
const UNFINISHED = /\ufffd+$/; // what a decoder shows of a character whose other bytes are still to come
const TINY = 1e-12;
/** What makes scores of logits over labels. @type {Record<string, (logits: number[]) => number[]>} */
const SCORES = {
  softmax: (logits) => {
    const powers = logits.map((value) => Math.exp(value - Math.max(...logits)));
    const total = powers.reduce((one, other) => one + other);
    return powers.map((power) => power / total);
  },
  sigmoid: (logits) => logits.map((value) => 1 / (1 + Math.exp(-value))),
  none: (logits) => logits,
};

/**
 * Load a bundle: a folder, a URL, or a function from the name of a file to its bytes.
 *
 * @param {import("./index.js").Place} place
 * @param {import("./index.js").LoadOptions} [options]
 */
export async function load(place, options = {}) {
  requireKnown(options, ["ort", "provider", "threads", "tokenizer"]);
  const files = await filesOf(place);
  const manifest = await readManifest(files);
  if (!readsTokens(manifest.facts)) {
    throw new UnsupportedError(`${files.where} reads audio, this package text; use txport in Python`);
  }
  if (options.provider === "webgpu" && manifest.target !== "portable") {
    throw new UnsupportedError(
      `${files.where} is a ${manifest.target} bundle, WebGPU takes portable ones; export with \`--target portable\``,
    );
  }
  const platform = await platformOf(options, manifest.precision);
  const reader = await tokenizerOf(files, manifest, options.tokenizer);
  return new Model(await Sessions.open(files, platform, manifest), reader);
}

export class Model {
  #sessions;
  #reader;
  #runtime;

  /** @param {Sessions} sessions @param {import("./tokenizer.js").Reader} reader */
  constructor(sessions, reader) {
    this.#sessions = sessions;
    this.#reader = reader;
    this.#runtime = new (sessions.manifest.target === "cpu" ? CpuRuntime : PortableRuntime)(sessions);
    this.manifest = sessions.manifest;
    this.facts = sessions.manifest.facts;
    /** @type {import("./index.js").Provider} */
    this.provider = sessions.platform.provider;
    this.notes = sessions.platform.notes;
  }

  /**
   * Token ids of a text, special tokens included.
   *
   * @param {string} text
   * @param {import("./index.js").Unknown} [unknown]
   */
  encode(text, unknown = "auto") {
    if (typeof text !== "string") throw new TextError(`a text must be a string, got ${quoted(text)}`);
    if (!UNKNOWN.includes(unknown))
      throw new UnsupportedError(`unknown must be one of ${UNKNOWN.join(", ")}, got ${quoted(unknown)}`);
    if (text.trim() === "") throw new TextError("the text is empty; give at least one character");
    if (/\p{Surrogate}/u.test(text)) throw new TextError(`${quoted(text)} is not UTF-8 text`);
    return this.#checked(this.#reader.encode(text, unknown));
  }

  /** Text of target ids, special tokens left out. @param {number[]} ids */
  decode(ids) {
    return this.#reader.decode(ids);
  }

  /** Each target id as the vocabulary writes it. @param {number[]} ids */
  tokens(ids) {
    return this.#reader.tokens(ids);
  }

  /**
   * What the model makes of a text: the best hypothesis, and all that were asked for.
   *
   * @param {string} text
   * @param {import("./index.js").GenerateOptions} [options]
   */
  async generate(text, { unknown, prefix, ...options } = {}) {
    this.#requireGenerating();
    const source = this.encode(text, unknown);
    const found = await this.search(source, { ...options, prefix: this.#begin(prefix) });
    const hypotheses = found.map((each) => ({ output: this.#text(source, each.tokens), ...each }));
    return { input: text, output: hypotheses[0]?.output ?? "", score: hypotheses[0]?.score ?? 0, hypotheses };
  }

  /**
   * The output as far as it is certain, each time that it grows, and at last all of it. Leaving the loop, or the
   * signal, ends the search.
   *
   * @param {string} text
   * @param {import("./index.js").GenerateOptions} [options]
   */
  async *stream(text, { unknown, prefix, signal, ...options } = {}) {
    this.#requireGenerating();
    const source = this.encode(text, unknown);
    const chosen = chosenOptions(this.manifest.generation, options, this.facts);
    if (chosen.nbest > 1) throw new UnsupportedError(`only one hypothesis can be streamed, got nbest ${chosen.nbest}`);
    const steps = search(this.#runtime, this.facts, source, chosen, this.#begin(prefix), signal);
    let output = "";
    try {
      for (;;) {
        const { done, value } = await steps.next();
        const tokens = done ? (value[0]?.tokens ?? []) : value;
        const text = this.#text(source, tokens).replace(done ? /^$/ : UNFINISHED, "");
        if (done ? text !== output || text === "" : text !== output && text.startsWith(output)) {
          output = text;
          yield { output, tokens };
        }
        if (done) return;
      }
    } finally {
      await steps.return([]);
    }
  }

  /**
   * As `generate`, from token ids to token ids.
   *
   * @param {number[]} source
   * @param {import("./index.js").SearchOptions & { prefix?: number[], signal?: AbortSignal }} [options]
   * @returns {Promise<Found[]>}
   */
  async search(source, { prefix = [], signal, ...options } = {}) {
    this.#requireGenerating();
    const chosen = chosenOptions(this.manifest.generation, options, this.facts);
    const steps = search(this.#runtime, this.facts, this.#checked(source), chosen, prefix, signal);
    for (;;) {
      const { done, value } = await steps.next();
      if (done) return value;
    }
  }

  /**
   * All outputs of a model that only encodes, by name.
   *
   * @param {string} text
   * @param {{ unknown?: import("./index.js").Unknown }} [options]
   * @returns {Promise<Record<string, import("./index.js").Output>>}
   */
  async infer(text, options = {}) {
    requireKnown(options, ["unknown"]);
    if (this.facts.task !== "encode") {
      throw new UnsupportedError("infer is for models that only encode; this one generates: use generate");
    }
    const ids = this.encode(text, options.unknown);
    const { found, size } = await this.#runtime.infer(ids);
    /** @type {Record<string, import("./index.js").Output>} */
    const outputs = {};
    for (const { name, dims } of this.facts.outputs) {
      const own = dims.map((dim) => (dim === "length" ? size : Number(dim)));
      const data = await this.#sessions.numbers(name, found[name], [1, ...own]);
      requireNumbers(data);
      const real = dims.map((dim) => (dim === "length" ? ids.length : Number(dim)));
      outputs[name] = {
        dims: real,
        data: data.slice(
          0,
          real.reduce((one, other) => one * other, 1),
        ),
      };
    }
    return outputs;
  }

  /**
   * A vector for a text: the mean of its tokens', or that of its first; with the pooling "none", all of them (T x D).
   *
   * @param {string} text
   * @param {import("./index.js").EmbedOptions} [options]
   */
  async embed(text, options = {}) {
    requireKnown(options, ["unknown", "pooling", "normalize"]);
    /** @type {any} */
    const defaults = this.manifest.generation;
    const { pooling = defaults.pooling ?? "mean", normalize = defaults.normalize ?? false } = options;
    if (!POOLINGS.includes(pooling))
      throw new UnsupportedError(`pooling must be one of ${POOLINGS.join(", ")}, got ${quoted(pooling)}`);
    const { last_hidden_state: hidden } = await this.infer(text, { unknown: options.unknown });
    if (hidden === undefined)
      throw new UnsupportedError("embed is not for this model, which gives logits: use infer or classify");
    const width = this.facts.width;
    const count = pooling === "mean" ? hidden.data.length / width : 1;
    const pooled =
      pooling === "none"
        ? hidden.data
        : Float32Array.from({ length: width }, (_, at) => {
            let sum = 0;
            for (let token = 0; token < count; token += 1) sum += hidden.data[token * width + at];
            return sum / count;
          });
    return normalize ? units(pooled, width) : pooled;
  }

  /**
   * The labels of a text with their scores, the highest first: a softmax, a sigmoid of each, or the logits themselves,
   * as the bundle says.
   *
   * @param {string} text
   * @param {{ unknown?: import("./index.js").Unknown }} [options]
   */
  async classify(text, options = {}) {
    const { labels } = this.facts;
    const { logits } = await this.infer(text, options);
    if (logits === undefined || labels.length === 0 || logits.dims.length !== 1) {
      throw new UnsupportedError("classify is not for this model, which does not give a text one label: use infer");
    }
    const scores = SCORES[this.facts.function_to_apply ?? "softmax"](Array.from(logits.data));
    return labels.map((label, at) => ({ label, score: scores[at] })).sort((one, other) => other.score - one.score);
  }

  /** Let go of the sessions; nothing can be asked of the model any more. */
  async release() {
    await this.#sessions.release();
  }

  #requireGenerating() {
    if (this.facts.task === "encode") {
      throw new UnsupportedError("this model only encodes: use infer, embed or classify");
    }
  }

  /** @param {string | undefined} prefix @returns {number[]} */
  #begin(prefix) {
    if (prefix === undefined) return [];
    if (typeof prefix !== "string") throw new TextError(`a prefix must be a string, got ${quoted(prefix)}`);
    return this.#reader.ids(prefix);
  }

  /** @param {number[]} source */
  #checked(source) {
    const isCausal = this.facts.task === "causal";
    const what = isCausal ? "a prompt" : "a source";
    const { size, longest } = /** @type {import("./index.js").Tokens} */ (
      isCausal ? this.facts.target : this.facts.source
    );
    if (!Array.isArray(source) || !source.every((id) => Number.isInteger(id) && id >= 0 && id < size)) {
      throw new TextError(`${what} must be a list of token ids in 0 to ${size - 1}, got ${quoted(source)}`);
    }
    if (source.length < 1 || source.length > longest) {
      throw new TextError(`${what} must have 1 to ${longest} tokens, got ${source.length}; split the text`);
    }
    return source;
  }

  /**
   * The text of a target: of a causal model, what it adds to that of its prompt.
   *
   * @param {number[]} source
   * @param {number[]} tokens
   */
  #text(source, tokens) {
    if (this.facts.task !== "causal") return this.#reader.decode(tokens);
    const before = this.#reader.decode(source);
    const whole = this.#reader.decode([...source, ...tokens]);
    return whole.startsWith(before) ? whole.slice(before.length) : this.#reader.decode(tokens);
  }
}

/** Vectors of length 1. @param {Float32Array} vectors @param {number} width */
function units(vectors, width) {
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
