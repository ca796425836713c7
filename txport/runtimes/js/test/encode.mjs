/** `{ library, jobs: { folder, lines, size }[] }` as JSON on stdin -> the ids of each line, by a library's tokenizer. */

import { readFileSync } from "node:fs";
import { text } from "node:stream/consumers";
import { foreign } from "../src/foreign.js";

const { library, jobs } = JSON.parse(await text(process.stdin));
const { Tokenizer } = await import(library); // of @huggingface/tokenizers
const found = jobs.map((/** @type {{ folder: string, lines: string[], size: number }} */ { folder, lines, size }) => {
  const file = JSON.parse(readFileSync(`${folder}/tokenizer.json`, "utf-8"));
  const tokenizer = new Tokenizer(file, {});
  const tokens = { size, longest: size, pad: -1, start: null, ends: [], before: [], after: [], mask: null };
  /** @type {any} */
  const facts = { source: tokens, target: tokens };
  const reader = foreign({ source: tokenizer, target: tokenizer }, facts, false, { source: file, target: null });
  return lines.map((line) => reader.encode(line, "token", false));
});
process.stdout.write(JSON.stringify(found));
