// node pipeline.mjs BUNDLE TASK, with a JSON list of texts on standard input, prints what the pipeline gives for each.
import { readFileSync } from "node:fs";
import { env, pipeline } from "@huggingface/transformers";

env.allowRemoteModels = false;
env.localModelPath = "/";

const [bundle, task] = process.argv.slice(2);
const run = await pipeline(task, bundle, { dtype: "fp32" });
const results = [];
for (const text of JSON.parse(readFileSync(0, "utf8"))) results.push(await run(text));
console.log(JSON.stringify(results));
