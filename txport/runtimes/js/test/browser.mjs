/** Requests as JSON on stdin -> answers on stdout, by onnxruntime-web in a page of Chromium. */

import { mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { serve, withChromium } from "./serve.mjs";

const { chromium, bundle, isolated, runs } = JSON.parse(await text(process.stdin));
const own = fileURLToPath(new URL("..", import.meta.url));
const empty = await mkdtemp(join(tmpdir(), "page-"));
await writeFile(join(empty, "index.html"), '<!doctype html><title>test</title><link rel="icon" href="data:,">');
const folders = { "": empty, txport: own, ort: join(own, "node_modules/onnxruntime-web/dist"), bundle };
const server = await serve(folders, isolated);
await withChromium(chromium, async (browser) => {
  const page = await browser.newPage();
  await page.goto(server.address);
  const found = await page.evaluate(async (runs) => {
    const load = async (/** @type {string} */ path) => import(path);
    const [{ load: open }, { answers }, ort] = await Promise.all(
      ["/txport/src/index.js", "/txport/test/answers.mjs", "/ort/ort.wasm.min.mjs"].map(load),
    );
    const all = [];
    for (const run of runs) all.push(await answers(open, ort, { bundle: "/bundle", ...run }));
    return all;
  }, runs);
  process.stdout.write(JSON.stringify(found));
});
server.close();
