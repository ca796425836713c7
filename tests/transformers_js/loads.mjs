// node loads.mjs, with a JSON list of jobs on standard input, prints what each gives, or {error} where a class or a
// pipeline does not load or run a bundle. A job is {bundle, kind | task, ids | features | texts | audio, count, prompted,
// how}: a class `kind` gives the tokens that greedy search finds, up to `count`, or outputs as {name: {dims, data}}; the
// pipeline of a `task` gives what it gives for each text.
import { readFileSync } from "node:fs";
import * as transformers from "@huggingface/transformers";

transformers.env.allowRemoteModels = false;
transformers.env.localModelPath = "/";

function tensor(values) {
  return new transformers.Tensor("int64", BigInt64Array.from(values.map(BigInt)), [1, values.length]);
}

async function generate(model, inputs, { prompt, count }) {
  const attention_mask = inputs.type === "int64" ? tensor(inputs.tolist()[0].map(() => 1)) : undefined;
  const how = { max_new_tokens: count, do_sample: false, num_beams: 1 };
  const found = await model.generate({ inputs, attention_mask, ...how });
  return found.tolist()[0].map(Number).slice(prompt);
}

async function encode(model, ids) {
  const outputs = {};
  const found = await model({ input_ids: ids, attention_mask: tensor(ids.tolist()[0].map(() => 1)) });
  for (const [name, value] of Object.entries(found)) {
    if (value?.data) outputs[name] = { dims: value.dims, data: Array.from(value.data) };
  }
  return outputs;
}

async function withClass({ bundle, kind, ids = [], features = [], count = 0, prompted = false }) {
  const model = await transformers[kind].from_pretrained(bundle, { dtype: "fp32" });
  const results = [];
  for (const each of ids) {
    const how = { prompt: prompted ? each.length : 1, count };
    results.push(count ? await generate(model, tensor(each), how) : await encode(model, tensor(each)));
  }
  for (const each of features) {
    const values = Float32Array.from(each.flat());
    const inputs = new transformers.Tensor("float32", values, [1, each.length, each[0].length]);
    results.push(await generate(model, inputs, { prompt: 1, count }));
  }
  return results;
}

async function withPipeline({ bundle, task, texts = [], audio = [], how = {} }) {
  const run = await transformers.pipeline(task, bundle, { dtype: "fp32" });
  const results = [];
  for (const each of [...texts, ...audio.map((samples) => Float32Array.from(samples))]) {
    const found = await run(each, how);
    results.push(found instanceof transformers.Tensor ? found.tolist() : found);
  }
  return results;
}

const results = [];
for (const job of JSON.parse(readFileSync(0, "utf8"))) {
  const run = job.task ? withPipeline : withClass;
  results.push(await run(job).catch((error) => ({ error: String(error?.message ?? error) })));
}
console.log(JSON.stringify(results));
