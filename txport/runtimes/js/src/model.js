/** A loaded bundle: texts or token ids in, texts or token ids out. */

import { answersOf, spansOf, windowsOf } from "./answers.js";
import { CpuRuntime } from "./cpu.js";
import {
  SENTENCE,
  abilityOf,
  cut,
  likeliest,
  pooled,
  pooledSize,
  promptOf,
  requireAbility,
  requireDimensions,
  requireOwn,
  requirePooling,
  requireTop,
  scores,
  units,
} from "./encoding.js";
import {
  BundleError,
  TextError,
  UnknownTextError,
  UnsupportedError,
  quoted,
  requireKnown,
  requireOptions,
} from "./errors.js";
import { filesOf } from "./files.js";
import { readManifest } from "./manifest.js";
import { platformOf } from "./platform.js";
import { readsTokens } from "./ports.js";
import { PortableRuntime } from "./portable.js";
import { chosenOptions } from "./search/options.js";
import { best, requireNumbers } from "./search/numbers.js";
import { search } from "./search/search.js";
import { Stops } from "./search/stops.js";
import { Sessions } from "./sessions.js";
import { tokenizerOf } from "./tokenizer.js";
import { specialOf } from "./words.js";

/**
 * @typedef {import("./index.js").Found} Found
 * @typedef {import("./index.js").Unknown} Unknown
 */

const UNKNOWN = ["auto", "token", "error", "skip"];
const OF_TEXTS = ["prefix", "unknown", "special", "signal"]; // options beside those of a search
/** What takes pairs of texts. @type {unknown[]} */
const OF_PAIRS = ["classify", "answer"];
const TRIES = 3; // of reading a bundle that other processes replace
const FILLS = 5; // tokens for a mask, where nothing else is asked
const UNFINISHED = /\ufffd+$/; // what a decoder shows of a character whose other bytes are still to come

/**
 * Load a bundle: a folder, a URL, or a function from the name of a file to its bytes. It is read again if it was
 * replaced meanwhile.
 *
 * @param {import("./index.js").Place} place
 * @param {import("./index.js").LoadOptions} [options]
 */
export async function load(place, options = {}) {
  requireKnown(options, ["ort", "provider", "threads", "tokenizer"]);
  const files = await filesOf(place);
  for (let tries = 0; tries < TRIES; tries += 1) {
    const manifest = await readManifest(files);
    const same = async () => JSON.stringify(await readManifest(files).catch(() => null)) === JSON.stringify(manifest);
    try {
      const model = await opened(files, manifest, options);
      if (await same()) return model;
      await model.release();
    } catch (error) {
      if (await same()) throw error;
    }
  }
  const fix = "try again when no process writes it";
  throw new BundleError(`${files.where} was replaced ${TRIES} times while it was read; ${fix}`);
}

/**
 * @param {import("./files.js").Files} files
 * @param {import("./index.js").Manifest} manifest
 * @param {import("./index.js").LoadOptions} options
 */
async function opened(files, manifest, options) {
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
    this.notes = [...sessions.platform.notes, ...notFollowed(this.manifest)];
  }

  /**
   * Token ids of a text, special tokens included. What the text spells as a special token is read as it with `special`.
   * A pair of texts, of a model that classifies or answers, is read as one input.
   *
   * @param {string | [string, string]} text
   * @param {Unknown} [unknown]
   * @param {boolean} [special]
   */
  encode(text, unknown = "auto", special = false) {
    return this.#encode(text, unknown, special, false);
  }

  /**
   * As `encode`; of a pair that is too long, the longer text may lose its end.
   *
   * @param {string | [string, string]} text
   * @param {Unknown} unknown
   * @param {boolean} special
   * @param {boolean} cuts
   */
  #encode(text, unknown, special, cuts) {
    this.#require(text, unknown, special);
    if (!isPair(text)) return this.#checked(this.#reader.encode(text, unknown, special));
    const longest = cuts ? Number(this.facts.source?.longest) : undefined;
    return this.#checked(this.#pairs("encodePair")(text[0], text[1], unknown, longest));
  }

  /** What reads pairs of texts. @template {"encodePair" | "encodeAligned"} Name @param {Name} name */
  #pairs(name) {
    const read = this.#reader[name];
    if (read === undefined) throw new UnsupportedError("a pair of texts needs load(bundle, { tokenizer })");
    return /** @type {NonNullable<import("./tokenizer.js").Reader[Name]>} */ (read.bind(this.#reader));
  }

  /**
   * Refuse what is no text, or no way to read one.
   *
   * @param {string | [string, string]} text
   * @param {Unknown} unknown
   * @param {boolean} special
   */
  #require(text, unknown, special) {
    const texts = isPair(text) && OF_PAIRS.includes(abilityOf(this.facts)) ? text : [text];
    const strange = texts.find((each) => typeof each !== "string");
    if (Array.isArray(strange))
      throw new TextError(`a text must be a string, got ${quoted(strange)}; call once for each text`);
    if (strange !== undefined) throw new TextError(`a text must be a string, got ${quoted(strange)}`);
    if (!UNKNOWN.includes(unknown))
      throw new UnsupportedError(`unknown must be one of ${UNKNOWN.join(", ")}, got ${quoted(unknown)}`);
    if (typeof special !== "boolean") throw new UnsupportedError(`special must be a boolean, got ${quoted(special)}`);
    for (const each of /** @type {string[]} */ (texts)) {
      if (each.trim() === "") throw new UnknownTextError("the text is empty; give at least one character");
      if (/\p{Surrogate}/u.test(each)) throw new TextError(`${quoted(each)} is not UTF-8 text`);
    }
    if (isPair(text) && special) throw new UnsupportedError("a pair of texts is not read with special: true");
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
  async generate(text, options = {}) {
    requireOptions(options);
    requireAbility(this.facts, "generate");
    const { unknown, special, prefix, ...others } = options;
    const source = this.encode(text, unknown, special);
    const { signal, ...rest } = others;
    const chosen = this.#chosen(rest, OF_TEXTS);
    const found = await this.#search(source, chosen, this.#begin(prefix), signal);
    const hypotheses = found.map((each) => ({ output: this.#untilStop(source, each.tokens, chosen.stops), ...each }));
    return { input: text, output: hypotheses[0]?.output ?? "", score: hypotheses[0]?.score ?? 0, hypotheses };
  }

  /**
   * The output as far as it is certain, each time that it grows, and at last all of it. Leaving the loop, or the
   * signal, ends the search.
   *
   * @param {string} text
   * @param {import("./index.js").GenerateOptions} [options]
   */
  async *stream(text, options = {}) {
    requireOptions(options);
    requireAbility(this.facts, "generate");
    const { unknown, special, prefix, signal, ...others } = options;
    const source = this.encode(text, unknown, special);
    const chosen = this.#chosen(others, OF_TEXTS);
    if (chosen.nbest > 1) throw new UnsupportedError(`only one hypothesis can be streamed, got nbest ${chosen.nbest}`);
    const steps = search(this.#runtime, this.facts, source, chosen, this.#begin(prefix), signal);
    let output = "";
    try {
      for (;;) {
        const { done, value } = await steps.next();
        const tokens = done ? (value[0]?.tokens ?? []) : value;
        const known = this.#untilStop(source, tokens, chosen.stops).replace(done ? /^$/ : UNFINISHED, "");
        const text = done || chosen.stops === null ? known : chosen.stops.settled(known);
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
  async search(source, options = {}) {
    requireOptions(options);
    requireAbility(this.facts, "search");
    const { prefix = [], signal, ...others } = options;
    return this.#search(this.#checked(source), this.#chosen(others, ["prefix", "signal"]), prefix, signal);
  }

  /**
   * @param {number[]} source
   * @param {import("./search/options.js").Chosen} chosen
   * @param {number[]} prefix
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<Found[]>}
   */
  async #search(source, chosen, prefix, signal) {
    const steps = search(this.#runtime, this.facts, source, chosen, prefix, signal);
    for (;;) {
      const { done, value } = await steps.next();
      if (done) return value;
    }
  }

  /**
   * All outputs of a model that only encodes, by name, for a text or its token ids.
   *
   * @param {string | number[]} text
   * @param {import("./index.js").TextOptions} [options]
   */
  async infer(text, options = {}) {
    requireKnown(options, ["unknown", "special"]);
    requireAbility(this.facts, "infer");
    return (await this.#infer(text, options)).outputs;
  }

  /**
   * A vector for a text: the graph's `sentence_embedding`, or else made of those of its tokens; with the pooling
   * "none", all of them (T x D).
   *
   * @param {string | number[]} text
   * @param {import("./index.js").EmbedOptions} [options]
   */
  async embed(text, options = {}) {
    requireKnown(options, ["unknown", "special", "pooling", "normalize", "dimensions", "prompt"]);
    requireAbility(this.facts, "embed");
    /** @type {any} */
    const defaults = this.manifest.generation;
    const { pooling = defaults.pooling ?? "mean", normalize = defaults.normalize ?? false } = options;
    requirePooling(pooling, normalize);
    const size = pooling === "none" ? undefined : pooledSize(this.facts);
    if (size !== undefined) requireOwn(defaults, pooling, normalize);
    const width = size ?? this.facts.width;
    const { dimensions = width } = options;
    requireDimensions(dimensions, width);
    const readsIds = Array.isArray(text) || this.#reader.readsIds === true;
    if (readsIds && options.prompt) {
      throw new UnsupportedError(`prompt ${quoted(options.prompt)} needs a tokenizer: this text is token ids`);
    }
    const prompt = readsIds ? "" : promptOf(defaults, options.prompt);
    const isLeft = prompt && this.#ids(text, options).length > 0; // else it has no vector, whatever the prompt
    const { ids, outputs } = await this.#infer(isLeft ? prompt + text : text, options);
    if (ids.length === 0 && pooling === "none") return new Float32Array();
    if (ids.length === 0) throw new UnknownTextError(`${quoted(text)} has no vector: nothing of it is left`);
    const skip = prompt && defaults.include_prompt === false ? this.#unended(this.#ids(prompt, options)) : 0;
    const hidden = () => pooled(outputs.last_hidden_state.data, width, pooling, skip);
    const vectors = cut(size === undefined ? hidden() : outputs[SENTENCE].data, width, dimensions);
    return normalize ? units(vectors, dimensions) : vectors;
  }

  /** The number of tokens without a special one at their end. @param {number[]} ids */
  #unended(ids) {
    return ids.length - (specialOf(this.facts.source).has(ids[ids.length - 1]) ? 1 : 0);
  }

  /**
   * The labels of a text with their scores, the highest first: a softmax, a sigmoid of each, or the logits themselves,
   * as the bundle says.
   *
   * @param {string | number[] | [string, string]} text a pair is read as one input
   * @param {import("./index.js").TopOptions} [options]
   */
  async classify(text, options = {}) {
    requireKnown(options, ["unknown", "special", "top"]);
    requireAbility(this.facts, "classify");
    const { labels, function_to_apply: kind } = this.facts;
    const { top = labels.length } = options;
    requireTop(top);
    const { ids, outputs } = await this.#infer(text, options);
    if (ids.length === 0) return [];
    const found = scores(outputs.logits.data, kind);
    return best(found, top).map((at) => ({ label: labels[at], score: found[at] }));
  }

  /**
   * Texts with their scores for a query, the highest first; of a reranker, a classifier with one label. Of a pair that
   * is too long, the longer text loses its end.
   *
   * @param {string} query
   * @param {string[]} texts
   * @param {import("./index.js").TopOptions} [options]
   */
  async rank(query, texts, options = {}) {
    requireKnown(options, ["unknown", "special", "top"]);
    requireAbility(this.facts, "classify");
    const { top, ...others } = options;
    requireTop(top);
    if (typeof query !== "string" || !Array.isArray(texts) || texts.some((text) => typeof text !== "string"))
      throw new TextError("rank needs a query and an array of texts, all strings");
    if (this.facts.labels.length !== 1) {
      throw new UnsupportedError(`rank needs a model with one label; this one has ${this.facts.labels.length}`);
    }
    const found = [];
    for (const [index, text] of texts.entries()) {
      const ids = this.#ids([query, text], others, true);
      if (ids.length === 0) continue;
      const [{ score }] = await this.classify(ids);
      found.push({ index, text, score });
    }
    return found.sort((one, other) => other.score - one.score).slice(0, top);
  }

  /**
   * The tokens of a text with their likeliest labels, special ones left out.
   *
   * @param {string | number[]} text
   * @param {import("./index.js").TextOptions} [options]
   */
  async tag(text, options = {}) {
    requireKnown(options, ["unknown", "special"]);
    requireAbility(this.facts, "tag");
    const { labels, function_to_apply: kind } = this.facts;
    const { ids, outputs } = await this.#infer(text, options);
    const special = specialOf(this.facts.source);
    const places = Array.from(ids.keys()).filter((place) => !special.has(ids[place]));
    const tokens = this.#reader.tokens(places.map((place) => ids[place]));
    return places.map((place, number) => {
      const found = likeliest(scores(rowOf(outputs.logits, place), kind), labels);
      return { token: tokens[number], ...found };
    });
  }

  /**
   * The likeliest tokens for each mask of a text, the likeliest first.
   *
   * @param {string | number[]} text
   * @param {import("./index.js").TopOptions} [options]
   */
  async fill(text, options = {}) {
    requireKnown(options, ["unknown", "special", "top"]);
    requireAbility(this.facts, "fill");
    const { top = FILLS } = options;
    requireTop(top);
    const mask = Number(this.facts.source?.mask);
    const ids = this.#ids(text, options);
    if (ids.length === 0) return [];
    if (!ids.includes(mask)) {
      const name = this.#reader.tokens([mask])[0];
      throw new TextError(`${quoted(text)} has no mask token; insert ${name}`);
    }
    const { outputs } = await this.#infer(ids);
    const places = Array.from(ids.keys()).filter((place) => ids[place] === mask);
    return places.map((place) => {
      const found = scores(rowOf(outputs.logits, place), "softmax");
      return best(found, top).map((id) => ({ token: this.#name(id), id, score: found[id] }));
    });
  }

  /**
   * Parts of a context that answer a question, the most probable first. A context of any length is read in windows.
   *
   * @param {string} question
   * @param {string} context
   * @param {import("./index.js").AnswerOptions} [options]
   */
  async answer(question, context, options = {}) {
    requireKnown(options, ["unknown", "special", "nbest", "longest", "stride", "window", "impossible"]);
    requireAbility(this.facts, "answer");
    const { unknown = "auto", special = false } = options;
    const spans = spansOf(options);
    if (typeof question !== "string" || typeof context !== "string")
      throw new TextError(`a question and its context must be strings, got ${quoted([question, context])}`);
    this.#require([question, context], unknown, special);
    if (unknown === "skip")
      throw new TextError("unknown: 'skip' leaves out text in which answers are looked for; use another value");
    const aligned = this.#pairs("encodeAligned")(question, context, unknown);
    const windows = windowsOf(question, aligned, spans, Number(this.facts.source?.longest));
    const outputs = [];
    for (const { ids } of windows) outputs.push((await this.#infer(ids)).outputs);
    return answersOf(context, windows, outputs, spans);
  }

  /** Let go of the sessions; nothing can be asked of the model any more. */
  async release() {
    await this.#sessions.release();
  }

  /**
   * A text, or its token ids -> the ids, and every output by name; none of a text of which nothing is left.
   *
   * @param {string | number[] | [string, string]} text
   * @param {import("./index.js").TextOptions} [options]
   */
  async #infer(text, options) {
    const ids = this.#ids(text, options);
    if (ids.length === 0) return { ids, outputs: {} };
    const { found, size } = await this.#runtime.infer(ids);
    /** @type {Record<string, import("./index.js").Output>} */
    const outputs = {};
    for (const { name, dims } of this.facts.outputs) {
      const own = dims.map((dim) => (dim === "length" ? size : Number(dim)));
      const data = await this.#sessions.numbers(name, found[name], [1, ...own]);
      requireNumbers(data);
      const real = dims.map((dim) => (dim === "length" ? ids.length : Number(dim)));
      const count = real.reduce((one, other) => one * other, 1);
      outputs[name] = { dims: real, data: data.slice(0, count) };
    }
    return { ids, outputs };
  }

  /**
   * No ids of a text of which nothing is known, if what is unknown is to be left out.
   *
   * @param {string | number[] | [string, string]} text
   * @param {import("./index.js").TextOptions} [options]
   * @param {boolean} [cuts] as in `#encode`
   */
  #ids(text, { unknown = "auto", special = false } = {}, cuts = false) {
    if (Array.isArray(text) && !isPair(text)) return this.#checked(text);
    try {
      return this.#encode(text, unknown, special, cuts);
    } catch (error) {
      if (unknown === "skip" && error instanceof UnknownTextError) return [];
      throw error;
    }
  }

  /**
   * The given options over those of the bundle; `own` are the method's others.
   *
   * @param {import("./index.js").SearchOptions} options
   * @param {string[]} own
   */
  #chosen(options, own) {
    const chosen = chosenOptions(this.manifest.generation, options, this.facts, own);
    if (chosen.stop.length) chosen.stops = new Stops(chosen.stop, this.#reader.spelling);
    return chosen;
  }

  /** A token as the vocabulary writes it; a model may have more than its vocabulary. @param {number} id */
  #name(id) {
    return id < this.#reader.size ? this.#reader.tokens([id])[0] : String(id);
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
    const most = this.facts.has_token_types ? 2 * size : size;
    if (!Array.isArray(source) || !source.every((id) => Number.isInteger(id) && id >= 0 && id < most)) {
      throw new TextError(`${what} must be a list of token ids in 0 to ${most - 1}, got ${quoted(source)}`);
    }
    if (source.length < 1 || source.length > longest) {
      throw new TextError(`${what} must have 1 to ${longest} tokens, got ${source.length}; split the text`);
    }
    return source;
  }

  /**
   * The text of a target up to its stop string, if it has one.
   *
   * @param {number[]} source
   * @param {number[]} tokens
   * @param {Stops | null} stops
   */
  #untilStop(source, tokens, stops) {
    const before = this.facts.task === "causal" ? source : [Number(this.facts.target.start)];
    const decode = (/** @type {number[]} */ some) => this.#text(source, some);
    return stops?.cut(before, tokens, decode) ?? decode(tokens);
  }

  /**
   * The text of a target: of a causal model, what it adds to that of its prompt.
   *
   * @param {number[]} source
   * @param {number[]} tokens
   */
  #text(source, tokens) {
    if (this.facts.task !== "causal" || this.#reader.readsIds) return this.#reader.decode(tokens);
    const before = this.#reader.decode(source);
    const whole = this.#reader.decode([...source, ...tokens]);
    return whole.startsWith(before) ? whole.slice(before.length) : this.#reader.decode(tokens);
  }
}

/** What outputs may differ from transformers' for. @param {import("./index.js").Manifest} manifest */
function notFollowed({ not_followed: options = {} }) {
  const named = Object.entries(options).map(([name, value]) => `${name} ${quoted(value)}`);
  if (named.length === 0) return [];
  return [`outputs may differ from transformers', because txport does not follow ${named.join(", ")}`];
}

/** The numbers of one token of all (T, C). @param {import("./index.js").Output} output @param {number} place */
function rowOf({ dims, data }, place) {
  return data.subarray(place * dims[1], (place + 1) * dims[1]);
}

/** Whether two texts were given. @param {unknown} text @returns {text is [string, string]} */
function isPair(text) {
  return Array.isArray(text) && text.length === 2 && text.every((each) => typeof each === "string");
}
