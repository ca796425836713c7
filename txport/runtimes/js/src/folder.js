/** A bundle in a folder, for Node.js; browsers never load this module. */

import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { missing } from "./files.js";

const PART = 1 << 20; // bytes that are read at a time

/** @param {string | URL} place @returns {import("./files.js").Files} */
export function fromFolder(place) {
  const folder = resolve(String(place).startsWith("file:") ? fileURLToPath(place) : String(place));
  const fail = (/** @type {string} */ name, /** @type {unknown} */ error) =>
    missing(folder, name, /** @type {NodeJS.ErrnoException} */ (error).code ?? String(error), error);
  return {
    where: folder,
    path: (name) => join(folder, name),
    async read(name) {
      try {
        const found = await readFile(join(folder, name));
        return new Uint8Array(/** @type {ArrayBuffer} */ (found.buffer), found.byteOffset, found.byteLength);
      } catch (error) {
        throw fail(name, error);
      }
    },
    async measure(name) {
      const hash = createHash("sha256");
      let bytes = 0;
      try {
        for await (const part of createReadStream(join(folder, name), { highWaterMark: PART })) {
          hash.update(part);
          bytes += part.length;
        }
      } catch (error) {
        throw fail(name, error);
      }
      return { bytes, sha256: hash.digest("hex") };
    },
  };
}
