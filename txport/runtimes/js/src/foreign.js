/**
 * Tokenizers of libraries, which the caller gives for a `tokenizer.json` that this package does not read. Their ids
 * become those that txport in Python finds: what the model has no id for is unknown, and may be refused or left out.
 */

import { placesOf } from "./aligned.js";
import { BundleError, UnknownTextError, UnsupportedError, quoted } from "./errors.js";
import { bytesOf } from "./search/stops.js";
import { idsOf, outside, specialOf, vocabularyOf } from "./words.js";

/**
 * @typedef {import("./index.js").ForeignTokenizer} ForeignTokenizer
 * @typedef {import("./words.js").Vocabulary} Vocabulary
 * @typedef {{ source: ForeignTokenizer, target: ForeignTokenizer }} Pair
 * @typedef {{ id: number, token: string | undefined }} Piece
 * @typedef {object} Files the tokenizers of a bundle, or null
 * @property {any} source of `tokenizer.json`
 * @property {any} target of `target_tokenizer.json`
 */

const CONTEXT = "abcdef"; // before a token, so that it is not decoded as the first of a text
const BYTE = /^<0x[0-9a-fA-F]{2}>$/; // the token of one byte
const LETTERS = byteLetters();
const OUTSIDE = " outside the vocabulary"; // the model's ids end before this token
const FOREIGN = " "; // before a token of the model that is a text without pieces

/**
 * The tokenizers that the caller gives: one, a pair, or a function that makes one of a `tokenizer.json`.
 *
 * @param {import("./index.js").LoadOptions["tokenizer"]} given
 * @param {Files} files
 * @param {string} where the bundle lies
 * @returns {Promise<Pair>}
 */
export async function pairOf(given, files, where) {
  if (typeof given !== "function" || "encode" in given) return required(sidesOf(given));
  if (files.source === null) throw new BundleError(`${where} has no tokenizer.json; leave the option tokenizer out`);
  const source = await given(files.source);
  return required({ source, target: files.target === null ? source : await given(files.target) });
}

/** @param {any} given */
function sidesOf(given) {
  return given?.source === undefined ? { source: given, target: given } : given;
}

/** @param {any} pair @returns {Pair} */
function required(pair) {
  if (typeof pair.source?.encode === "function" && typeof pair.target?.decode === "function") return pair;
  const others = "{ source, target } of such, or a function that makes one of a tokenizer.json";
  throw new UnsupportedError(`tokenizer must have the methods encode and decode, or be ${others}`);
}

/**
 * What a model does with texts by tokenizers of a library: `encode` gives ids, or an object with `ids`; `decode` takes
 * them.
 *
 * @param {Pair} pair
 * @param {import("./index.js").Facts} facts
 * @param {boolean} cleansUp whether decoded text has no spaces before punctuation
 * @param {Files} files
 * @returns {import("./tokenizer.js").Reader}
 */
export function foreign({ source, target }, facts, cleansUp, files) {
  const file = files.target ?? files.source;
  const marks = (file?.added_tokens ?? []).some((/** @type {any} */ token) => token.special);
  const special = marks ? new Set() : specialOf(facts.target ?? facts.source); // a pad without a mark may be a piece
  const how = { skip_special_tokens: true, clean_up_tokenization_spaces: cleansUp };
  const reads = /** @type {import("./index.js").Tokens} */ (facts.source ?? facts.target);
  const words = files.source === null ? null : vocabularyOf(file);
  const known = files.source === null ? null : knownBy(files.source, reads);
  const plain = (/** @type {string} */ text) => idsIn(target.encode(text, { add_special_tokens: false }));
  const name = (/** @type {number} */ id) => String(target.decode([id], { skip_special_tokens: false }));
  const after = partsOf(files.source?.post_processor);
  const trims = after.some((part) => part.trim_offsets);
  const isJoined = after.some((part) => part.type !== "ByteLevel"); // else libraries drop the second text
  const piecesOfPair = (/** @type {string} */ text, /** @type {string} */ other) => {
    if (isJoined || after.length === 0) return piecesOf(source, text, { text_pair: other });
    return [...piecesOf(source, text), ...piecesOf(source, other)];
  };
  /** @type {NonNullable<import("./tokenizer.js").Reader["encodePair"]>} */
  const encodePair = (text, other, unknown, longest = Infinity) => {
    if (known === null)
      throw new UnsupportedError("a pair of texts needs the bundle's tokenizer.json, and it has none");
    const first = piecesOf(source, text);
    const both = piecesOfPair(text, other);
    if (both.length <= first.length || !first.every(({ id }, place) => both[place].id === id))
      throw new UnsupportedError("the tokenizer's encode must read text_pair, as those of transformers.js do");
    const read = (/** @type {Piece[]} */ pieces) => known(`${text} with ${other}`, pieces, unknown);
    const sides = [first, both.slice(first.length)];
    const bare = () => [text, other].map((each) => piecesOf(source, each, { add_special_tokens: false }));
    const ids = (both.length > longest ? fitting(sides, bare(), longest) : sides).map(read);
    return facts.has_token_types ? [...ids[0], ...ids[1].map((id) => id + reads.size)] : ids.flat();
  };
  const splitters = partsOf(files.source?.pre_tokenizer);
  return {
    encode(text, unknown) {
      if (known !== null) return known(text, piecesOf(source, text), unknown);
      if (unknown === "auto" || unknown === "token") return idsIn(source.encode(text, {}));
      throw new UnsupportedError(`unknown ${quoted(unknown)} needs the bundle's tokenizer.json, and it has none`);
    },
    encodePair,
    encodeAligned(text, other, unknown) {
      const ids = encodePair(text, other, unknown);
      const both = piecesOfPair(text, other);
      const bare = (/** @type {string} */ word) => piecesOf(source, word, { add_special_tokens: false });
      const places = placesOf(other, splitters, trims, bare);
      const isAt = (/** @type {number} */ first) => places?.every(({ id }, at) => both[first + at]?.id === id);
      const from = piecesOf(source, text).length;
      const first = Array.from(both.keys()).find((at) => at >= from && isAt(at));
      if (places === null || first === undefined || ids.length !== both.length)
        throw new UnsupportedError("this package can't tell which characters the tokens of the context are");
      const begins = (reads.ends.length === 0 || reads.start !== null) && bare(text)[0]?.id !== both[0].id;
      return { ids, begins, first, places };
    },
    decode(ids) {
      const kept = ids.filter((id) => !special.has(id) && (words === null || words.has(id)));
      return kept.length ? String(target.decode(kept, how)) : "";
    },
    tokens: words?.tokens ?? ((ids) => ids.map(name)),
    spelling: spellingOf(target, file, words),
    size: words?.size ?? Infinity,
    ids: words === null ? plain : (text) => idsOf(text, (token) => words.ids.get(token)),
  };
}

/** @param {any} found what a library encodes @returns {number[]} */
function idsIn(found) {
  const ids = Array.isArray(found) ? found : found?.ids;
  if (!Array.isArray(ids))
    throw new UnsupportedError("the tokenizer's encode must give token ids, or an object with ids");
  return ids.map(Number);
}

/**
 * The pieces of a text, with the text of each where the library tells it.
 *
 * @param {ForeignTokenizer} tokenizer
 * @param {string} text
 * @param {{ text_pair?: string, add_special_tokens?: boolean }} [how]
 * @returns {Piece[]}
 */
function piecesOf(tokenizer, text, how = {}) {
  const found = tokenizer.encode(text, how);
  const tokens = found.tokens ?? tokenizer.tokenize?.(text, { add_special_tokens: true, ...how });
  const ids = idsIn(found);
  return ids.map((id, place) => ({ id, token: tokens?.length === ids.length ? tokens[place] : undefined }));
}

/**
 * The pieces that remain of two texts, by the rule of `fitting` in `txport/text/file.py`: the longer one loses its end.
 *
 * @param {Piece[][]} sides with special tokens
 * @param {Piece[][]} bare without them
 * @param {number} longest
 * @returns {Piece[][]}
 */
function fitting(sides, bare, longest) {
  const starts = sides.map((side, at) =>
    side.findIndex((_, start) => bare[at].every(({ id }, place) => side[start + place]?.id === id)),
  );
  if (starts.includes(-1))
    throw new UnsupportedError("this package can't tell which tokens of a pair are special; shorten its texts");
  const [one, other] = bare.map((side) => side.length);
  const around = sides.flat().length - one - other;
  const room = Math.max(0, longest - around);
  const shorter = Math.min(one, other);
  let less = shorter;
  let more = shorter > room ? shorter : Math.max(shorter, room - shorter);
  if (less + more > room) [less, more] = [Math.floor(room / 2), room - Math.floor(room / 2)];
  const sizes = one > other ? [more, less] : [less, more];
  return sides.map((side, at) => [
    ...side.slice(0, starts[at] + sizes[at]),
    ...side.slice(starts[at] + bare[at].length),
  ]);
}

/**
 * What turns pieces into ids of the model.
 *
 * @param {any} parts of `tokenizer.json`
 * @param {import("./index.js").Tokens} reads
 * @returns {(text: string, pieces: Piece[], unknown: import("./index.js").Unknown) => number[]}
 */
function knownBy(parts, reads) {
  const { ids } = vocabularyOf(parts);
  const { model } = parts;
  const unknownId = model.unk_id ?? ids.get(model.unk_token);
  const limit = Math.min(reads.size, ids.get(OUTSIDE) ?? Infinity);
  const idOf = (/** @type {string} */ token) => {
    const id = ids.get(token);
    return id !== undefined && id < limit ? id : undefined;
  };
  const around = specialOf({ ...reads, mask: null });

  /** The ids of a piece; none if it is unknown. @param {Piece} piece @returns {number[]} */
  function idsFor({ id, token }) {
    if (id !== unknownId && id < limit) return [id];
    if (id !== unknownId || token === undefined) return [];
    const whole = idOf(FOREIGN + token);
    if (whole !== undefined) return [whole];
    const bytes = model.type === "Unigram" && model.byte_fallback ? byteTokens(token).map(idOf) : [];
    return /** @type {number[]} */ (bytes.includes(undefined) ? [] : bytes);
  }

  return (text, pieces, unknown) => {
    const takes = (unknown === "token" || unknown === "auto") && unknownId !== undefined && unknownId < limit;
    const found = pieces.map(idsFor);
    const strange = pieces.filter((_, place) => found[place].length === 0);
    if (strange.length && !takes && unknown !== "skip")
      throw outside(text, [...new Set(strange.map(({ id, token }) => token ?? String(id)))]);
    const known = found.flatMap((each) => (each.length === 0 && takes ? [unknownId] : each));
    if (known.every((id) => around.has(id)))
      throw new UnknownTextError(`${quoted(text)} has no character of the vocabulary`);
    return known;
  };
}

/**
 * What tells the bytes that a token adds to a text, also a special one, as `FileTokenizer.spelling` in Python.
 *
 * @param {ForeignTokenizer} tokenizer
 * @param {any} parts of its `tokenizer.json`, or null
 * @param {Vocabulary | null} words
 * @returns {(id: number) => string | null}
 */
function spellingOf(tokenizer, parts, words) {
  const kinds = partsOf(parts?.decoder).map((part) => part.type);
  const how = { skip_special_tokens: false, clean_up_tokenization_spaces: false };
  /** @type {{ ids: number[], text: string } | undefined} */
  let context;
  return (id) => {
    if (words !== null && !words.has(id)) return null;
    const token = words === null ? "" : words.tokens([id])[0];
    if (kinds.includes("ByteFallback") && BYTE.test(token)) return String.fromCharCode(parseInt(token.slice(3, 5), 16));
    if (kinds.includes("ByteLevel") && !kinds.includes("ByteFallback")) {
      const bytes = Array.from(token, (letter) => LETTERS.get(letter));
      if (!bytes.includes(undefined)) return bytes.join("");
    }
    if (context === undefined) {
      const ids = idsIn(tokenizer.encode(CONTEXT, { add_special_tokens: false }));
      context = { ids, text: String(tokenizer.decode(ids, how)) };
    }
    const text = String(tokenizer.decode([...context.ids, id], how));
    return bytesOf(text.startsWith(context.text) ? text.slice(context.text.length) : text);
  };
}

/** A part of a tokenizer, if there is one, and its parts. @param {any} part @returns {any[]} */
function partsOf(part) {
  return part ? [part, ...(part.decoders ?? part.pretokenizers ?? part.processors ?? []).flatMap(partsOf)] : [];
}

/** The letter that byte-level tokens are written with -> its byte: 255 is followed by those that can't be shown. */
function byteLetters() {
  const bytes = Array.from({ length: 256 }, (_, byte) => byte);
  const isShown = (/** @type {number} */ byte) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  const hidden = bytes.filter((byte) => !isShown(byte));
  return new Map(
    bytes.map((byte) => [
      String.fromCharCode(isShown(byte) ? byte : 256 + hidden.indexOf(byte)),
      String.fromCharCode(byte),
    ]),
  );
}

/** The tokens of a text's bytes. @param {string} text @returns {string[]} */
function byteTokens(text) {
  return Array.from(
    new TextEncoder().encode(text),
    (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`,
  );
}
