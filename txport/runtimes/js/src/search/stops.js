/**
 * Stop strings: a target ends with the token that completes one of them. The rules are those of
 * `txport/search/stops.py`: tokens are compared as the bytes that they add to a text. A letter here is one byte.
 */

/** The bytes of a text, one letter each. @param {string} text */
export function bytesOf(text) {
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
}

/** The text of bytes. @param {string} bytes */
function textOf(bytes) {
  return new TextDecoder().decode(Uint8Array.from(bytes, (letter) => letter.charCodeAt(0)));
}

export class Stops {
  /** @type {Map<number, string | null>} */ #spelled = new Map();

  /**
   * @param {string[]} strings
   * @param {(id: number) => string | null} spelling of a token: its bytes; null for an id without a token
   */
  constructor(strings, spelling) {
    this.strings = strings;
    this.spelling = spelling;
    this.wanted = strings.map(bytesOf);
    this.longest = Math.max(...this.wanted.map((each) => each.length));
  }

  /** @param {number} id @returns {string | null} */
  #bytes(id) {
    if (!this.#spelled.has(id)) this.#spelled.set(id, this.spelling(id));
    return this.#spelled.get(id) ?? null;
  }

  /**
   * Where the first stop string begins that ends in the last of these tokens: the place of a token, and a byte in it.
   *
   * @param {number[]} tokens
   * @returns {{ token: number, byte: number } | null}
   */
  start(tokens) {
    const last = this.#bytes(tokens[tokens.length - 1]);
    if (!last || !this.wanted.some((each) => last.includes(each[each.length - 1]))) return null;
    const pieces = [last];
    let missing = this.longest - 1;
    for (let at = tokens.length - 2; at >= 0 && at >= tokens.length - this.longest && missing > 0; at -= 1) {
      const piece = this.#bytes(tokens[at]);
      if (piece === null) break;
      pieces.unshift(piece);
      missing -= piece.length;
    }
    const text = pieces.join("");
    const before = text.length - last.length;
    const starts = this.wanted.map((each) => text.indexOf(each, Math.max(0, before - each.length + 1)));
    let byte = Math.min(...starts.filter((start) => start >= 0));
    if (byte === Infinity) return null;
    let token = tokens.length - pieces.length;
    for (const piece of pieces) {
      if (byte < piece.length) break;
      byte -= piece.length;
      token += 1;
    }
    return { token, byte };
  }

  /**
   * The text of a target up to the stop string that its last token completes; null if it completes none. A stop string
   * that begins in the tokens before the target leaves no text.
   *
   * @param {number[]} before
   * @param {number[]} tokens
   * @param {(tokens: number[]) => string} decode
   * @returns {string | null}
   */
  cut(before, tokens, decode) {
    const place = tokens.length ? this.start([...before, ...tokens]) : null;
    if (place === null) return null;
    const first = place.token - before.length;
    if (first < 0) return "";
    const removed = tokens.slice(first).map((token) => this.#bytes(token) ?? "");
    const tail = textOf(removed.join("").slice(place.byte));
    const text = decode(tokens);
    return text.endsWith(tail) ? text.slice(0, text.length - tail.length) : decode(tokens.slice(0, first));
  }

  /** A text without an end that may become a stop string. @param {string} text */
  settled(text) {
    const longest = Math.max(...this.strings.map((each) => each.length)) - 1;
    for (let size = Math.min(text.length, longest); size > 0; size -= 1) {
      const end = text.slice(-size);
      if (this.strings.some((each) => each.startsWith(end))) return text.slice(0, -size);
    }
    return text;
  }
}
