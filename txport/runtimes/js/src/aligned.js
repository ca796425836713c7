/** Which characters the tokens of a text are: libraries tell only their ids, so each word is read by itself. */

/**
 * @typedef {{ id: number, token: string | undefined }} Piece
 * @typedef {{ word: number, start: number, end: number }} Place its word, and its characters in the text
 */

// Words as the pre-tokenizer of each kind finds them.
const PATTERNS = {
  BertPreTokenizer: /[\p{P}$+<=>^`|~]|\p{Script=Han}|[^\s\p{P}$+<=>^`|~\p{Script=Han}]+/gu,
  ByteLevel: /'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu,
  Metaspace: /\s?\S+/gu,
};

const plain = (/** @type {string} */ letter) => letter;
// As BERT strips accents.
const bare = (/** @type {string} */ letter) => letter.normalize("NFD").replace(/\p{Mn}/gu, "");

/**
 * The tokens of a text with the place of each; null for a tokenizer of another kind.
 *
 * @param {string} text
 * @param {any[]} parts of its pre-tokenizer
 * @param {boolean} trims whether a token begins after its spaces
 * @param {(word: string) => Piece[]} read without special tokens
 * @returns {(Place & { id: number })[] | null}
 */
export function placesOf(text, parts, trims, read) {
  const kind = Object.keys(PATTERNS).find((each) => parts.some(({ type }) => type === each));
  const pattern = kind === undefined ? null : patternOf(/** @type {keyof typeof PATTERNS} */ (kind), parts);
  if (kind === undefined || pattern === null) return null;
  return [...text.matchAll(pattern)].flatMap(({ 0: word, index }, number) => {
    const pieces = read(kind === "Metaspace" ? word.trim() : word);
    const lengths = pieces.map(({ token = "" }) => token.replace(kind === "BertPreTokenizer" ? /^##/ : "", "").length);
    const count = lengths.reduce((one, other) => one + other, 0);
    const spelled = [plain, bare].map((letters) => unitsOf(word, kind, letters)).find((each) => each.length === count);
    let begin = 0;
    return pieces.map(({ id }, at) => {
      const own = spelled?.slice(begin, (begin += lengths[at])) ?? [[0, word.length]]; // else it was changed
      const [start] = own[0];
      const [, end] = own[own.length - 1];
      const spaces = kind === "ByteLevel" && trims ? (/^ */.exec(word.slice(start, end))?.[0].length ?? 0) : 0;
      return { id, word: number, start: index + start + spaces, end: index + end };
    });
  });
}

/**
 * What finds words: the rule of a Split before bytes, else that of the kind; null where other parts find them.
 *
 * @param {keyof typeof PATTERNS} kind
 * @param {any[]} parts
 */
function patternOf(kind, parts) {
  if (kind === "BertPreTokenizer") return PATTERNS[kind]; // what else splits is in it
  const [split, ...others] = parts.filter(({ type }) => ![kind, "Sequence", "WhitespaceSplit"].includes(type));
  const isWhole = parts.some((part) => part.use_regex === false || part.split === false);
  if (split === undefined) return isWhole ? null : PATTERNS[kind];
  const isKnown = kind === "ByteLevel" && split.behavior === "Isolated" && !split.invert && split.pattern?.Regex;
  return isKnown && others.length === 0 ? expression(split.pattern.Regex) : null;
}

/** A rule of the tokenizers library as JavaScript writes it; null if it has no such. @param {string} rule */
function expression(rule) {
  const both = (/** @type {string} */ letters) => `[${letters.toLowerCase()}${letters.toUpperCase()}]`;
  const anyCase = (/** @type {string} */ part) => part.replace(/\[([^\]]*)\]|[a-z]/gi, (one, set) => both(set ?? one));
  const spelled = rule.replace(/\(\?i:([^()]*)\)/g, (_, part) => `(?:${anyCase(part)})`);
  try {
    return new RegExp(spelled, "gu");
  } catch {
    return null;
  }
}

/**
 * The characters (start, end) that each letter of a word's tokens stands for.
 *
 * @param {string} word
 * @param {string} kind
 * @param {(letter: string) => string} written
 * @returns {[number, number][]}
 */
function unitsOf(word, kind, written) {
  /** @type {[number, number][]} */
  const found = [];
  let start = 0;
  for (const letter of word) {
    const count = kind === "ByteLevel" ? new TextEncoder().encode(letter).length : written(letter).length;
    for (let at = 0; at < count; at += 1) found.push([start, start + letter.length]);
    start += letter.length;
  }
  return kind === "Metaspace" && !/^\s/.test(word) ? [found[0], ...found] : found;
}
