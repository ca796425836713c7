/** Where the files of a bundle lie: a folder, a web address, or a function that reads them. */

import { BundleError, UnavailableError, UnsupportedError, brief, quoted } from "./errors.js";

/**
 * @typedef {object} Files
 * @property {string} where as messages name it
 * @property {(name: string) => Promise<Uint8Array<ArrayBuffer>>} read bytes of a file, or `BundleError`
 * @property {(name: string) => string} [path] where a file lies, if it lies on a disk
 * @property {(name: string) => Promise<import("./index.js").FileEntry>} [measure] size and hash of a file on a disk, or
 *   `BundleError`; of any size, where Node.js reads no file of 2 GiB at once
 */

export const IN_NODE = typeof process === "object" && Boolean(process.versions?.node);

/**
 * @param {import("./index.js").Place} place
 * @returns {Promise<Files>}
 */
export async function filesOf(place) {
  if (typeof place === "function") return fromFunction(place);
  if (!(place instanceof URL) && typeof place !== "string") {
    throw new UnsupportedError(`a bundle is a folder, a URL or a function that reads files, got ${quoted(place)}`);
  }
  const text = String(place);
  if (IN_NODE && !/^https?:/.test(text)) return (await import("./folder.js")).fromFolder(place);
  return fromAddress(text.endsWith("/") ? text : `${text}/`);
}

/** @param {(name: string) => Promise<Uint8Array | ArrayBuffer>} read @returns {Files} */
function fromFunction(read) {
  const told = async (/** @type {string} */ name) => {
    try {
      return await read(name);
    } catch (error) {
      throw missing("the bundle", name, brief(error), error);
    }
  };
  return {
    where: "the bundle",
    async read(name) {
      const found = await told(name);
      if (found === undefined || found === null) throw missing("the bundle", name, "the function gives nothing for it");
      if (ArrayBuffer.isView(found)) {
        return new Uint8Array(/** @type {ArrayBuffer} */ (found.buffer), found.byteOffset, found.byteLength).slice();
      }
      if (Object.prototype.toString.call(found) !== "[object ArrayBuffer]") {
        throw missing("the bundle", name, `the function must give its bytes, got ${quoted(found)}`);
      }
      return new Uint8Array(found);
    },
  };
}

/** @param {string} address @param {string | undefined} page @returns {URL} */
function parsed(address, page) {
  try {
    return new URL(address, page);
  } catch (error) {
    throw new UnsupportedError(`${quoted(address)} is not an address of a bundle`, { cause: error });
  }
}

/** @param {string} address @returns {Files} */
function fromAddress(address) {
  const page = globalThis.location?.href;
  const base = parsed(address, page);
  return {
    where: base.href.replace(/\/$/, ""),
    async read(name) {
      const url = new URL(name.split("/").map(encodeURIComponent).join("/"), base);
      const fail = (/** @type {unknown} */ error) => {
        throw missing(base.href, name, brief(error), error);
      };
      const answer = await fetch(url).catch(fail);
      if (!answer.ok) throw missing(base.href, name, `HTTP ${answer.status}`);
      return new Uint8Array(await answer.arrayBuffer().catch(fail));
    },
  };
}

/**
 * @param {string} where
 * @param {string} name
 * @param {string} why
 * @param {unknown} [cause] what was thrown
 * @returns {BundleError}
 */
export function missing(where, name, why, cause) {
  const what = name === "txport.json" ? "is not a bundle" : "is incomplete";
  const fix = name === "txport.json" ? "`txport export CHECKPOINT OUT` makes one" : "copy all of its files";
  const options = cause === undefined ? {} : { cause };
  return new BundleError(`${where.replace(/\/$/, "")} ${what}: ${name} can't be read (${why}); ${fix}`, options);
}

/**
 * A file that the manifest lists, held against its size and its hash. A page that is neither local nor https has no
 * SHA-256, so that there only the size counts.
 *
 * @param {Files} files
 * @param {string} name
 * @param {import("./index.js").FileEntry} entry
 */
export async function readChecked(files, name, entry) {
  const bytes = await files.read(name);
  const found = { bytes: bytes.length, sha256: entry.sha256 }; // the size alone, where there is no hash
  requireSame(files, name, entry, found);
  if (globalThis.crypto?.subtle === undefined) return bytes;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const sha256 = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  requireSame(files, name, entry, { ...found, sha256 });
  return bytes;
}

/**
 * Refuse a file that is not the one that the manifest lists.
 *
 * @param {Files} files
 * @param {string} name
 * @param {import("./index.js").FileEntry} entry
 * @param {import("./index.js").FileEntry} found
 */
export function requireSame(files, name, entry, found) {
  if (found.bytes !== entry.bytes) {
    const sizes = `${found.bytes} bytes, ${entry.bytes} in the manifest`;
    throw new BundleError(`${files.where} is damaged: ${name} has ${sizes}; copy or export it again`);
  }
  if (found.sha256 !== entry.sha256) {
    throw new BundleError(
      `${files.where} is damaged: ${name} has another SHA-256 than the manifest; copy or export it again`,
    );
  }
}

/**
 * JSON, or `BundleError` that says where it lies.
 *
 * @param {Files} files
 * @param {string} name
 * @param {Uint8Array} bytes
 * @returns {any}
 */
export function parse(files, name, bytes) {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    throw new BundleError(`${files.where} is damaged: ${name} is not JSON (${brief(error)}); export the bundle again`);
  }
}

/** ONNX Runtime's package for this platform, which may be absent. Bundlers read the names. @returns {Promise<any>} */
export async function importRuntime() {
  const name = IN_NODE ? "onnxruntime-node" : "onnxruntime-web";
  try {
    return IN_NODE ? await import("onnxruntime-node") : await import("onnxruntime-web");
  } catch (error) {
    const fix = `\`npm install ${name}\`, or give the module itself: load(bundle, { ort })`;
    throw new UnavailableError(`${name} can't be imported (${brief(error)}); ${fix}`);
  }
}
