/** What a model answers to requests that come as JSON; the same on Node.js and in a page. */

/**
 * @typedef {object} Asked
 * @property {any} bundle where it lies
 * @property {any} [load] options of `load`
 * @property {[string, ...any[]][]} requests methods with their arguments
 *
 * @param {(place: any, options: any) => Promise<any>} load
 * @param {any} ort
 * @param {Asked} asked
 * @returns {Promise<any[]>} what each gives, or `{ error, message }`
 */
export async function answers(load, ort, { bundle, load: options, requests }) {
  const opened = await told(() => load(bundle, { ort, ...options }));
  if (opened.error) return [opened];
  const found = [];
  for (const [method, ...given] of requests) {
    const [, how] = given;
    if (typeof how?.seed === "string") how.seed = BigInt(how.seed); // JSON has no numbers so large
    found.push(await told(() => calls[method]?.(opened, ...given) ?? opened[method](...given)));
  }
  await opened.release();
  return found;
}

/** @type {Record<string, (model: any, ...given: any[]) => Promise<any>>} */
const calls = {
  async grow(model, text, options) {
    const found = [];
    for await (const each of model.stream(text, options)) found.push(each);
    return found;
  },
  /** Leave the stream after its first token, and ask for something else. */
  async leave(model, text) {
    for await (const { output } of model.stream(text)) return [output, (await model.generate(text)).output];
    return [];
  },
  async cancel(model, text, options) {
    const control = new AbortController();
    for await (const { output } of model.stream(text, { ...options, signal: control.signal }))
      control.abort(new Error(output));
  },
  async cancelled(model, text) {
    return model.generate(text, { signal: AbortSignal.abort(new Error("before it began")) });
  },
  async together(model, texts) {
    const found = await Promise.all(texts.map((/** @type {string} */ text) => model.generate(text)));
    return found.map((each) => each.output);
  },
  /** Ids as tensors of ONNX Runtime have them. */
  async wide(model, ids) {
    return model.search(ids.map(BigInt));
  },
  async notes(model) {
    return model.notes;
  },
  async vector(model, text, options) {
    return Array.from(await model.embed(text, options));
  },
  async outputs(model, text) {
    const found = Object.entries(await model.infer(text));
    return Object.fromEntries(found.map(([name, { dims, data }]) => [name, { dims, data: Array.from(data) }]));
  },
};

/** @param {() => Promise<any>} work */
async function told(work) {
  try {
    return await work();
  } catch (error) {
    const { name, message } = /** @type {Error} */ (error);
    return { error: name, message };
  }
}
