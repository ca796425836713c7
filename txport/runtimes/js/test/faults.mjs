/**
 * A bundle whose manifest or tokenizer has one value in place of another, over and over: node faults.mjs with
 * `{ bundle, count, seed, request }` on stdin -> JSON of what was neither run nor refused in one line.
 */

import { readFileSync } from "node:fs";
import { text } from "node:stream/consumers";
import * as ort from "onnxruntime-node";
import { TxportError, load } from "../src/index.js";
import { uniforms } from "../src/search/random.js";

const { bundle, count, seed, request } = JSON.parse(await text(process.stdin));
const numbers = uniforms([seed], count * 3);
let turn = 0;
const below = (/** @type {number} */ size) => Math.floor(numbers[turn++] * size);
const VALUES = [null, true, 0, -1, 1.5, 2 ** 53, 99, "", "x", "../x", [], {}, [null], { a: 1 }, [[]], "length"];

/** Every place of a value in a document, by the keys that lead there. @param {any} value @param {any[]} keys @returns {any[][]} */
function places(value, keys = []) {
  const inner = typeof value === "object" && value !== null ? Object.keys(value) : [];
  return [...(keys.length ? [keys] : []), ...inner.flatMap((key) => places(value[key], [...keys, key]))];
}

const read = (/** @type {string} */ name) => readFileSync(`${bundle}/${name}`);
const manifest = JSON.parse(read("txport.json").toString());
const tokenizer = JSON.parse(read("tokenizer.json").toString());
for (const name of ["config", "parity", "tools", "passes", "parts", "weights", "shared", "checkpoint"])
  delete manifest[name];
const documents = { "txport.json": manifest, "tokenizer.json": tokenizer };
/** The manifest with the size and the hash of another tokenizer. @param {Uint8Array} tokenizer */
async function sealed(tokenizer) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", Uint8Array.from(tokenizer)));
  const sha256 = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  const entry = { bytes: tokenizer.length, sha256 };
  return new TextEncoder().encode(
    JSON.stringify({ ...manifest, files: { ...manifest.files, "tokenizer.json": entry } }),
  );
}

const [method, ...given] = request;
const found = [];
const kinds = { run: 0, refused: 0 };
for (let number = 0; number < count; number += 1) {
  const name = number % 4 ? "txport.json" : "tokenizer.json";
  const document = structuredClone(documents[name]);
  const all = places(document);
  const keys = all[below(all.length)];
  const last = keys.pop();
  const holder = keys.reduce((part, key) => part[key], document);
  const value = VALUES[below(VALUES.length)];
  if (number % 8) holder[last] = value;
  else delete holder[last];
  /** @type {Record<string, Uint8Array>} */
  const files = { [name]: new TextEncoder().encode(JSON.stringify(document)) };
  if (name === "tokenizer.json") files["txport.json"] = await sealed(files[name]);
  const place = async (/** @type {string} */ file) => files[file] ?? read(file);
  try {
    /** @type {any} */
    const model = await load(place, { ort, threads: 1 });
    try {
      await model[method](...given);
    } finally {
      await model.release();
    }
    kinds.run += 1;
  } catch (error) {
    const { message, stack } = /** @type {Error} */ (error);
    if (error instanceof TxportError && !message.includes("\n")) kinds.refused += 1;
    else found.push({ name, keys: [...keys, last].join("."), value, message, stack });
  }
}
process.stdout.write(JSON.stringify({ ...kinds, found }));
