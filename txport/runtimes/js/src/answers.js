/** Answers to questions that are parts of a text: windows over it, and the best spans of all, as in Python. */

import { scores } from "./encoding.js";
import { TextError, UnsupportedError, quoted } from "./errors.js";

/**
 * @typedef {import("./aligned.js").Place} Place
 * @typedef {{ ids: number[], begins: boolean, first: number, places: Place[] }} Aligned two texts as one input, whether
 *   the first token stands for no answer, the index of the first token of the second, and where its tokens are
 * @typedef {{ nbest: number, longest: number, stride?: number, window?: number, impossible: boolean }} Spans
 * @typedef {Aligned} Window the same of a part of the second text
 * @typedef {{ text: string, score: number, start: number, end: number }} Answer
 */

const MORE = 10; // spans of a window that are tried beside two for each answer: several may be of the same words
const WINDOW = 384;
const STRIDE = 128;

/** Options with their defaults. @param {import("./index.js").AnswerOptions} options @returns {Spans} */
export function spansOf({ nbest = 1, longest = 15, stride, window, impossible = false }) {
  for (const [name, value, least] of /** @type {const} */ ([
    ["nbest", nbest, 1],
    ["longest", longest, 1],
    ["stride", stride, 0],
    ["window", window, 1],
  ])) {
    if (value !== undefined && !(Number.isSafeInteger(value) && value >= least))
      throw new UnsupportedError(`${name} must be a whole number from ${least} on, got ${quoted(value)}`);
  }
  if (typeof impossible !== "boolean")
    throw new UnsupportedError(`impossible must be true or false, got ${quoted(impossible)}`);
  return { nbest, longest, stride, window, impossible };
}

/**
 * The windows of a question and its context, of which neighbours share tokens.
 *
 * @param {string} question
 * @param {Aligned} aligned
 * @param {Spans} spans
 * @param {number} longest tokens that the model takes
 * @returns {Window[]}
 */
export function windowsOf(question, { ids, begins, first, places }, spans, longest) {
  const size = Math.min(longest, spans.window ?? WINDOW);
  const stride = spans.stride ?? Math.min(Math.floor(size / 2), STRIDE);
  const room = size - (ids.length - places.length);
  if (room <= stride) {
    const what = `${quoted(question)} leaves ${Math.max(room, 0)} of ${size} tokens of a window for the context`;
    throw new TextError(`${what}, which must be more than the stride, ${stride}; shorten the question`);
  }
  const windows = [];
  for (let start = 0; start < Math.max(1, places.length - stride); start += room - stride) {
    const end = Math.min(start + room, places.length);
    const own = [...ids.slice(0, first), ...ids.slice(first + start, first + end), ...ids.slice(first + places.length)];
    windows.push({ ids: own, begins, first, places: wholeWords(places.slice(start, end)) });
  }
  return windows;
}

/** For each token, the characters of its word, as far as its tokens are here. @param {Place[]} places */
function wholeWords(places) {
  /** @type {Map<number, Place>} */
  const words = new Map();
  for (const each of places) words.set(each.word, { ...each, start: words.get(each.word)?.start ?? each.start });
  return places.map(({ word }) => /** @type {Place} */ (words.get(word)));
}

/**
 * The best answers of all windows, the most probable first; spans of the same words count together.
 *
 * @param {string} context
 * @param {Window[]} windows
 * @param {Record<string, import("./index.js").Output>[]} outputs of each window
 * @param {Spans} spans
 * @returns {Answer[]}
 */
export function answersOf(context, windows, outputs, spans) {
  /** @type {Map<string, Answer>} */
  const found = new Map();
  let nothing = 1;
  for (const [at, { begins, first, places }] of windows.entries()) {
    const [starts, ends] = ["start_logits", "end_logits"].map((name) => {
      const { data } = outputs[at][name];
      const none = begins ? data[0] : -Infinity;
      return scores(Float32Array.of(none, ...data.subarray(first, first + places.length)), "softmax");
    });
    nothing = Math.min(nothing, starts[0] * ends[0]);
    for (const [begin, last, score] of best(starts.slice(1), ends.slice(1), spans)) {
      const { start } = places[begin];
      const { end } = places[last];
      const text = context.slice(start, end);
      const same = found.get(text.toLowerCase());
      found.set(text.toLowerCase(), same ? { ...same, score: same.score + score } : { text, score, start, end });
    }
  }
  const none = spans.impossible ? [{ text: "", score: nothing, start: 0, end: 0 }] : [];
  return [...found.values(), ...none].sort((one, other) => other.score - one.score).slice(0, spans.nbest);
}

/**
 * The most probable spans of a window: the first and the last token, and the probability.
 *
 * @param {number[]} starts
 * @param {number[]} ends
 * @param {Spans} spans
 */
function best(starts, ends, { nbest, longest }) {
  /** @type {[number, number, number][]} */
  const found = [];
  for (const [first, start] of starts.entries()) {
    for (let last = first; last < Math.min(ends.length, first + longest); last += 1) {
      if (start * ends[last] > 0) found.push([first, last, start * ends[last]]);
    }
  }
  return found.sort((one, other) => other[2] - one[2]).slice(0, 2 * nbest + MORE);
}
