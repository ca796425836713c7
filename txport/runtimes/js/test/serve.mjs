/** A static server on a free port of this machine, as `python -m http.server` is, and Chromium with a profile of its own. */

import { createReadStream } from "node:fs";
import { mkdtemp, rm, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join, normalize } from "node:path";
import { chromium } from "playwright-core";

/** @type {Record<string, string>} */
const TYPES = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".css": "text/css",
  ".wasm": "application/wasm",
  ".json": "application/json",
};
const ISOLATED = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
};
const FLAGS = [
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/**
 * Serve folders by the first part of a path; "" is the folder of all other paths.
 *
 * @param {Record<string, string>} folders
 * @param {boolean} [isolated] with the headers that let a page have threads
 */
export async function serve(folders, isolated = false) {
  const server = createServer(async (request, response) => {
    const path = normalize(decodeURIComponent(new URL(String(request.url), "http://localhost").pathname)).slice(1);
    const [first, ...rest] = path.split("/");
    const folder = first === "" ? undefined : folders[first];
    const file = folder ? join(folder, ...rest) : join(folders[""], path || "index.html");
    const found = await stat(file).catch(() => null);
    if (!found?.isFile()) return response.writeHead(404).end();
    const type = TYPES[extname(file)] ?? "application/octet-stream";
    response.writeHead(200, { "Content-Type": type, "Content-Length": found.size, ...(isolated ? ISOLATED : {}) });
    return createReadStream(file).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(undefined)));
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  return { address: `http://localhost:${port}`, close: () => server.close() };
}

/**
 * Chromium for as long as `work` takes.
 *
 * @param {string} executable
 * @param {(browser: import("playwright-core").BrowserContext) => Promise<void>} work
 * @param {{ flags?: string[], options?: object }} [how]
 */
export async function withChromium(executable, work, { flags = [], options = {} } = {}) {
  const profile = await mkdtemp(join(tmpdir(), "chromium-"));
  const browser = await chromium.launchPersistentContext(profile, {
    executablePath: executable,
    headless: true,
    chromiumSandbox: false,
    args: [...FLAGS, ...flags],
    ...options,
  });
  try {
    await work(browser);
  } finally {
    await browser.close();
    await rm(profile, { recursive: true, force: true });
  }
}
