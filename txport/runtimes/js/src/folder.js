/** A bundle in a folder, for Node.js; browsers never load this module. */

import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { missing } from "./files.js";

/** @param {string | URL} place @returns {import("./files.js").Files} */
export function fromFolder(place) {
  const folder = resolve(String(place).startsWith("file:") ? fileURLToPath(place) : String(place));
  return {
    where: folder,
    path: (name) => join(folder, name),
    async read(name) {
      try {
        const found = await readFile(join(folder, name));
        return new Uint8Array(/** @type {ArrayBuffer} */ (found.buffer), found.byteOffset, found.byteLength);
      } catch (error) {
        throw missing(folder, name, /** @type {NodeJS.ErrnoException} */ (error).code ?? String(error), error);
      }
    },
  };
}
