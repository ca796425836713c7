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
 * @param {string[]} kinds of its pre-tokenizer and of the parts of that
 * @param {(word: string) => Piece[]} read without special tokens
 * @returns {(Place & { id: number })[] | null}
 */
export function placesOf(text, kinds, read) {
  const kind = /** @type {(keyof typeof PATTERNS)[]} */ (Object.keys(PATTERNS)).find((each) => kinds.includes(each));
  if (kind === undefined) return null;
  return [...text.matchAll(PATTERNS[kind])].flatMap(({ 0: word, index }, number) => {
    const pieces = read(kind === "Metaspace" ? word.trim() : word);
    const lengths = pieces.map(({ token = "" }) => token.replace(kind === "BertPreTokenizer" ? /^##/ : "", "").length);
    const count = lengths.reduce((one, other) => one + other, 0);
    const spelled = [plain, bare].map((letters) => unitsOf(word, kind, letters)).find((each) => each.length === count);
    let begin = 0;
    return pieces.map(({ id }, at) => {
      const own = spelled?.slice(begin, (begin += lengths[at])) ?? [[0, word.length]]; // else it was changed
      const [start] = own[0];
      const [, end] = own[own.length - 1];
      const spaces = kind === "ByteLevel" ? (/^ */.exec(word.slice(start, end))?.[0].length ?? 0) : 0;
      return { id, word: number, start: index + start + spaces, end: index + end };
    });
  });
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
