/** What the package tells of its types is what its code has, and what a caller writes fits it. */

import * as own from "../src/model.js";
import { BundleError, type Generated, type Manifest, type Model, load } from "../src/index.js";

const told: typeof load = own.load;

async function caller(): Promise<string> {
  const model: Model = await told("bundle", { provider: "wasm", threads: 1 });
  const reader = { encode: (text: string) => [text.length], decode: (ids: number[]) => String(ids) };
  await told("bundle", { tokenizer: async (file: unknown) => (file ? reader : reader) });
  await told("bundle", { tokenizer: { source: reader, target: reader } });
  const manifest: Manifest = model.manifest;
  const found: Generated = await model.generate("word", { beams: 4, nbest: 2, alignment: "soft", seed: 1n });
  for await (const { output, tokens } of model.stream("word", { signal: AbortSignal.timeout(1000) })) {
    if (tokens.length > manifest.facts.target.longest) return output;
  }
  const [[fill]] = await model.fill("a [MASK]", { top: 1 });
  const vector: Float32Array = await model.embed([fill.id], { pooling: "first" });
  const [tag] = await model.tag("word");
  if (vector.length > fill.score) return `${fill.token} ${tag.token} ${tag.label}`;
  // @ts-expect-error: there is no such option
  await model.generate("word", { num_beams: 4 });
  return found.hypotheses[0].output;
}

export const promise: Promise<string | void> = caller().catch((error: unknown) => {
  if (!(error instanceof BundleError)) throw error;
});
