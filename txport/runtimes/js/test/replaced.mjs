/** A bundle that another replaces while it loads: the hash of the tokenizer that was loaded, or the error. */

import { readFile } from "node:fs/promises";
import { text } from "node:stream/consumers";
import * as ort from "onnxruntime-node";
import { load } from "../src/index.js";

const { before, after } = JSON.parse(await text(process.stdin));

/** Which bundle a file comes from, by how often the manifest was read. @type {Record<string, (reads: number, name: string) => string>} */
const PLACES = {
  never: () => before,
  "before its files": (reads, name) => (reads === 1 && name === "txport.json" ? before : after),
  "behind its files": (reads) => (reads === 1 ? before : after),
  always: (reads) => (reads % 2 ? before : after),
};

/** @type {Record<string, string>} */
const found = {};
for (const [how, from] of Object.entries(PLACES)) {
  let reads = 0;
  const place = (/** @type {string} */ name) => {
    if (name === "txport.json") reads += 1;
    return readFile(`${from(reads, name)}/${name}`);
  };
  const model = await load(place, { ort }).catch((error) => error);
  found[how] = model.manifest?.files["tokenizer.json"].sha256 ?? `${model.name}: ${model.message}`;
}
process.stdout.write(JSON.stringify(found));
