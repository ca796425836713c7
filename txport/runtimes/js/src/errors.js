/** Anything that txport refuses or that fails while it works: one line that says what to do. */
export class TxportError extends Error {
  /** @param {string} message @param {ErrorOptions} [options] */
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** A bundle that is damaged, incomplete, or of another format. */
export class BundleError extends TxportError {}

/** What this package, this build of ONNX Runtime or this model can't do. */
export class UnsupportedError extends TxportError {}

/** What the platform lacks: a package, WebAssembly's SIMD, threads. */
export class UnavailableError extends TxportError {}

/** A text, or token ids, that the model can't take. */
export class TextError extends TxportError {}

/** A text of which the model knows nothing, or that is empty. */
export class UnknownTextError extends TextError {}

/** A graph that fails while it runs. */
export class RunError extends TxportError {}

/** Refuse options that are no object, such as null. @param {unknown} options */
export function requireOptions(options) {
  if (typeof options !== "object" || options === null) {
    throw new UnsupportedError(`options must be an object, got ${quoted(options)}`);
  }
}

/** Refuse options that nobody reads. @param {object} options @param {string[]} names */
export function requireKnown(options, names) {
  requireOptions(options);
  const strange = Object.keys(options).find((name) => !names.includes(name));
  if (strange !== undefined) {
    throw new UnsupportedError(`unknown option ${quoted(strange)}; supported: ${names.join(", ")}`);
  }
}

const LONGEST = 40; // characters of a text that a message quotes

/** A value as a message quotes it. @param {unknown} value @returns {string} */
export function quoted(value) {
  const written = (/** @type {string} */ _, /** @type {any} */ part) => (typeof part === "bigint" ? `${part}n` : part);
  const text =
    typeof value === "string"
      ? `'${value}'`
      : typeof value === "bigint"
        ? String(value)
        : JSON.stringify(value, written);
  const shown = text ?? String(value);
  return shown.length > LONGEST + 3 ? `${shown.slice(0, LONGEST)}...` : shown;
}

/** What a foreign error says, in one line. @param {unknown} error @returns {string} */
export function brief(error) {
  const text = error instanceof Error ? error.message : String(error);
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > 300 ? `${line.slice(0, 297)}...` : line;
}
