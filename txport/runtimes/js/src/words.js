/** The vocabulary of a `tokenizer.json` of any kind, and what is said of texts that it lacks. */

import { BundleError, TextError, quoted } from "./errors.js";
import { largest } from "./search/numbers.js";

/** Unicode's White_Space, within the brackets of an expression. */
export const SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const SHOWN = 10; // unknown characters that a message names

/**
 * @typedef {object} Vocabulary the tokens of a `tokenizer.json` of any kind
 * @property {Map<string, number>} ids
 * @property {number} size one more than the largest id
 * @property {(wanted: number[]) => string[]} tokens
 * @property {(id: number) => boolean} has whether an id has a token
 *
 * @param {any} parts
 * @returns {Vocabulary}
 */
export function vocabularyOf({ model, added_tokens: added = [] }) {
  const { vocab } = model;
  const isList = Array.isArray(vocab); // of tokens with their scores
  const ids = new Map(isList ? vocab.map(([token], id) => [token, id]) : Object.entries(vocab));
  for (const { content, id } of added) ids.set(content, id);
  const names = new Map([...ids].map(([token, id]) => [id, token]));
  const tokens = (/** @type {number[]} */ wanted) => wanted.map(nameOf);
  return { ids, size: 1 + largest([...names.keys()]), tokens, has: (id) => names.has(id) };

  /** @param {number} id @returns {string} */
  function nameOf(id) {
    const token = names.get(id);
    if (token !== undefined) return token;
    throw new BundleError(`tokenizer.json has no token for id ${id}`);
  }
}

/** @param {string} text @param {string[]} pieces */
export function outside(text, pieces) {
  const more = pieces.length > SHOWN ? ` and ${pieces.length - SHOWN} more` : "";
  const shown = pieces.slice(0, SHOWN).map(quoted).join(", ");
  return new TextError(
    `${quoted(text)} has characters outside the vocabulary: ${shown}${more}; unknown: "skip" leaves them out`,
  );
}

/** The tokens that are no text. @param {import("./index.js").Tokens | null} side @returns {Set<number>} */
export function specialOf(side) {
  if (side === null || "frames" in side) return new Set();
  const ones = [side.pad, side.start, side.mask].filter((id) => id !== null);
  return new Set([...ones, ...side.ends, ...side.before, ...side.after]);
}

/** @param {string} text @param {(token: string) => number | undefined} idOf @returns {number[]} */
export function idsOf(text, idOf) {
  const words = text.split(new RegExp(`[${SPACE}]+`, "u")).filter((word) => word !== "");
  return words.map((word) => {
    const id = idOf(word);
    if (id === undefined) throw new TextError(`${quoted(word)} is not a token of the vocabulary`);
    return id;
  });
}
