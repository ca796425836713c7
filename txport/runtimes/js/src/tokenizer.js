/**
 * Text to token ids and back. A `tokenizer.json` of whole words or letters is read here; any other needs a library,
 * which the caller gives: a text is never cut in a way that the model was not trained with.
 */

import { abilityOf } from "./encoding.js";
import { BundleError, UnknownTextError, UnsupportedError, brief, quoted } from "./errors.js";
import { parse, readChecked } from "./files.js";
import { foreign, pairOf } from "./foreign.js";
import { bytesOf } from "./search/stops.js";
import { SPACE, idsOf, outside, specialOf, vocabularyOf } from "./words.js";

/**
 * @typedef {import("./index.js").Unknown} Unknown
 * @typedef {import("./words.js").Vocabulary} Vocabulary
 * @typedef {object} Reader what a model does with texts
 * @property {(text: string, unknown: Unknown, special: boolean) => number[]} encode special tokens included; with
 *   `special`, those that the text spells too
 * @property {(text: string, other: string, unknown: Unknown, longest?: number) => number[]} [encodePair] two texts read
 *   as one input, cut to so many tokens; an id of the second is larger by the vocabulary if tokens have types
 * @property {(text: string, other: string, unknown: Unknown) => import("./answers.js").Aligned} [encodeAligned] as
 *   `encodePair`, and where the tokens of the second text are in it
 * @property {(ids: number[]) => string} decode special tokens left out
 * @property {(ids: number[]) => string[]} tokens each as the vocabulary writes it
 * @property {(id: number) => string | null} spelling the bytes that a token adds to a text, one letter each; null for
 *   an id without a token
 * @property {number} size one more than the largest id that has a token
 * @property {(text: string) => number[]} ids of tokens as the vocabulary writes them, apart by spaces
 * @property {boolean} [readsIds] whether texts are token ids
 */

const FORMS = ["NFC", "NFD", "NFKC", "NFKD"];

/**
 * The tokenizer of a bundle, or the one that the caller gives in its place.
 *
 * @param {import("./files.js").Files} files
 * @param {import("./index.js").Manifest} manifest
 * @param {import("./index.js").LoadOptions["tokenizer"]} given
 * @returns {Promise<Reader>}
 */
export async function tokenizerOf(files, manifest, given) {
  const { facts } = manifest;
  const listed = (/** @type {string} */ name) => Object.hasOwn(manifest.files, name);
  const read = async (/** @type {string} */ name) => {
    return listed(name) ? parse(files, name, await readChecked(files, name, manifest.files[name])) : null;
  };
  const usage = await read("text.json");
  const source = await read("tokenizer.json");
  const target = await read("target_tokenizer.json");
  if (given === undefined && source === null) return numbers(facts);
  const pair = given === undefined ? null : await pairOf(given, { source, target }, files.where);
  try {
    const words = source === null ? null : vocabularyOf(target ?? source);
    if (pair === null) return own(files, facts, usage, source, target, /** @type {Vocabulary} */ (words));
    const reader = foreign(pair, facts, Boolean(usage?.clean_up), { source, target });
    const why = `text.json of ${files.where} says the languages of a source by tokens, which this package does not do`;
    return usage?.languages ? { ...reader, encode: refused(why, facts, words).encode } : reader;
  } catch (error) {
    throw error instanceof TypeError || error instanceof RangeError
      ? new BundleError(`${files.where}/tokenizer.json is damaged: ${brief(error)}`)
      : error;
  }
}

/**
 * The bundle's own tokenizer, or what refuses texts where this package does not read it.
 *
 * @param {import("./files.js").Files} files
 * @param {import("./index.js").Facts} facts
 * @param {any} usage of `text.json`
 * @param {any} source of `tokenizer.json`
 * @param {any} target of `target_tokenizer.json`, or null
 * @param {Vocabulary} words
 * @returns {Reader}
 */
function own(files, facts, usage, source, target, words) {
  const cleansUp = usage?.clean_up && facts.task !== "encode"; // of which nothing is decoded
  if (usage?.languages || cleansUp) {
    const what = usage.languages ? "the languages of a source by tokens" : "how decoded text is cleaned up";
    return refused(`text.json of ${files.where} says ${what}, which this package does not do`, facts, words);
  }
  try {
    const reads = /** @type {import("./index.js").Tokens} */ (facts.source ?? facts.target);
    const reader = simple(source, reads.size, facts);
    return target === null ? reader : { ...simple(target, facts.target.size, facts), encode: reader.encode };
  } catch (error) {
    if (!(error instanceof UnsupportedError)) throw error;
    return refused(`${error.message} (${files.where}/tokenizer.json)`, facts, words);
  }
}

/**
 * What refuses every text, since ids may be given all the same.
 *
 * @param {string} why
 * @param {import("./index.js").Facts} facts
 * @param {Vocabulary | null} words
 * @returns {Reader}
 */
function refused(why, facts, words) {
  const refuse = () => {
    const ids = facts.task === "encode" ? "in place of the text" : "to search()";
    const fix = `give load(bundle, { tokenizer }), such as transformers.js has, or token ids ${ids}`;
    throw new UnsupportedError(`${why}; ${fix}`);
  };
  return {
    encode: refuse,
    decode: refuse,
    tokens: words?.tokens ?? refuse,
    spelling: refuse,
    ids: refuse,
    size: words?.size ?? Infinity,
  };
}

/**
 * A `tokenizer.json` whose model is a list of words, as txport itself writes it; `UnsupportedError` for any other.
 *
 * @param {any} parts
 * @param {number} size of the model's vocabulary
 * @param {import("./index.js").Facts} facts
 * @returns {Reader}
 */
export function simple(parts, size, facts) {
  const { model, added_tokens: added = [] } = parts;
  if (model.type !== "WordLevel") throw unread(`a ${model.type} model`);
  if (parts.decoder !== null) throw unread(`a decoder of the kind ${parts.decoder.type}`);
  if (added.some((/** @type {any} */ token) => !token.special))
    throw unread("tokens that were added and are not special");
  const normalize = normalizer(parts.normalizer);
  const split = splitter(parts.pre_tokenizer);
  const around = template(parts.post_processor);
  const words = vocabularyOf(parts);
  if (words.size > size) {
    const sizes = `tokenizer.json has ids up to ${words.size - 1}, the model ${size} tokens`;
    throw new BundleError(`${sizes}: it belongs to another model`);
  }
  const { ids, tokens } = words;
  const mask = abilityOf(facts) === "fill" ? [Number(facts.source?.mask)] : [];
  const named = added.map((/** @type {any} */ token) => token.id);
  const cutPlain = aroundTokens(mask, words, added);
  const cutSpecial = (/** @type {string} */ text) =>
    aroundTokens([...new Set([...mask, ...named])], words, added)(text);
  const special = named.length ? new Set(named) : specialOf(facts.target ?? facts.source); // as in foreign.js
  const spells = parts.pre_tokenizer?.type === "Split";
  const unknownId = ids.get(model.unk_token);
  return {
    encode(text, unknown, readsSpecial) {
      const known = [];
      const strange = new Set();
      const cut = readsSpecial ? cutSpecial : cutPlain;
      const takes = unknown === "token" || (unknown === "auto" && !spells);
      for (const part of cut(text)) {
        const isToken = typeof part === "number";
        for (const piece of isToken ? tokens([part]) : split(normalize(part))) {
          const id = isToken ? part : Object.hasOwn(model.vocab, piece) ? model.vocab[piece] : undefined;
          if (id !== undefined && id !== unknownId) known.push(id);
          else if (takes && unknownId !== undefined) known.push(unknownId);
          else strange.add(piece);
        }
      }
      if (strange.size && unknown !== "skip") throw outside(text, [...strange]);
      if (known.length === 0) throw new UnknownTextError(`${quoted(text)} has no character of the vocabulary`);
      return [...around.before, ...known, ...around.after];
    },
    decode: (kept) => tokens(kept.filter((id) => !special.has(id) && words.has(id))).join(" "),
    tokens,
    spelling: (id) => (words.has(id) ? bytesOf(` ${tokens([id])[0]}`) : null),
    size: words.size,
    ids: (text) => idsOf(text, (token) => ids.get(token)),
  };
}

/**
 * What cuts a text at these tokens, which are read as the vocabulary writes them; no other special token is.
 *
 * @param {number[]} wanted
 * @param {Vocabulary} words
 * @param {any[]} added the tokens that were added to the vocabulary
 * @returns {(text: string) => (string | number)[]} texts, and the tokens between them
 */
function aroundTokens(wanted, words, added) {
  if (wanted.length === 0) return (text) => [text];
  const names = words.tokens(wanted);
  const longestFirst = [...wanted.keys()].sort((one, other) => names[other].length - names[one].length);
  const around = longestFirst.map((at) => {
    const how = added.find((token) => token.id === wanted[at]) ?? {};
    if (how.normalized || how.single_word)
      throw unread("a token that is read only after the text was normalised, or as a whole word");
    const letters = names[at].replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
    return `${how.lstrip ? `[${SPACE}]*` : ""}(${letters})${how.rstrip ? `[${SPACE}]*` : ""}`;
  });
  const ids = longestFirst.map((at) => wanted[at]);
  const pattern = new RegExp(around.join("|"), "gu");
  return (text) => {
    const parts = [];
    let end = 0;
    for (const found of text.matchAll(pattern)) {
      parts.push(text.slice(end, found.index), ids[found.slice(1).findIndex((group) => group !== undefined)]);
      end = found.index + found[0].length;
    }
    return [...parts, text.slice(end)];
  };
}

/** @param {string} what */
function unread(what) {
  return new UnsupportedError(`this package does not read a tokenizer with ${what}`);
}

/** @param {any} part @returns {(text: string) => string} */
function normalizer(part) {
  /** @type {((text: string) => string)[]} */
  const steps = [];
  const waiting = part === null ? [] : [part]; // no recursion: sequences may be nested thousands of times
  while (waiting.length) {
    const next = waiting.pop();
    if (next.type === "Sequence") waiting.push(...[...next.normalizers].reverse());
    else steps.push(step(next));
  }
  return (text) => steps.reduce((found, each) => each(found), text);
}

/** @param {any} part @returns {(text: string) => string} */
function step(part) {
  if (FORMS.includes(part.type)) return (text) => text.normalize(part.type);
  if (part.type === "Lowercase") return (text) => Array.from(text, (letter) => letter.toLowerCase()).join("");
  throw unread(`a normalizer of the kind ${part.type}`);
}

/** @param {any} part @returns {(text: string) => string[]} */
function splitter(part) {
  if (part?.type === "WhitespaceSplit") {
    const spaces = new RegExp(`[${SPACE}]+`, "u");
    return (text) => text.split(spaces).filter((word) => word !== "");
  }
  const isPlain = part?.type === "Split" && part.invert === false && part.behavior;
  if (isPlain === "Isolated" && part.pattern.Regex === "[\\s\\S]") return (text) => Array.from(text);
  if (isPlain === "Removed" && (part.pattern.Regex === " +" || part.pattern.String === " ")) {
    return (text) => text.split(/ +/).filter((word) => word !== "");
  }
  throw unread(part === null ? "no rule for where words end" : `a rule for words of the kind ${part.type}`);
}

/** The special tokens around a text. @param {any} part @returns {{ before: number[], after: number[] }} */
function template(part) {
  if (part === null) return { before: [], after: [] };
  if (part.type !== "TemplateProcessing") throw unread(`a post-processor of the kind ${part.type}`);
  const place = part.single.findIndex((/** @type {any} */ each) => each.Sequence?.id === "A");
  const idsOf = (/** @type {any[]} */ several) =>
    several.flatMap((each) => part.special_tokens[each.SpecialToken.id].ids);
  return { before: idsOf(part.single.slice(0, place)), after: idsOf(part.single.slice(place + 1)) };
}

/**
 * Text is token ids, apart by spaces, for a model without a tokenizer.
 *
 * @param {import("./index.js").Facts} facts
 * @returns {Reader}
 */
function numbers(facts) {
  const reads = /** @type {import("./index.js").Tokens} */ (facts.source ?? facts.target);
  const writes = facts.target ?? facts.source;
  const special = specialOf(writes);
  const number = (/** @type {number} */ size) => (/** @type {string} */ word) =>
    /^\d{1,9}$/.test(word) && Number(word) < size ? Number(word) : undefined;
  return {
    encode: (text) => [...reads.before, ...idsOf(text, number(reads.size)), ...reads.after],
    decode: (ids) => ids.filter((id) => !special.has(id)).join(" "),
    tokens: (ids) => ids.map(String),
    spelling: (id) => (id < writes.size ? ` ${id}` : null),
    size: Infinity,
    ids: (text) => idsOf(text, number(writes.size)),
    readsIds: true,
  };
}
