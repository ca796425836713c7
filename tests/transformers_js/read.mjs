// node read.mjs, with a JSON list of jobs {folder, lines} on standard input, prints for each what both readers make of the
// lines: {transformers: {ids, texts}, tokenizers: {ids, texts}}. Texts are those of a reader's own ids.
import { readFileSync } from "node:fs";
import { AutoTokenizer, env } from "@huggingface/transformers";
import { Tokenizer } from "@huggingface/tokenizers";

env.allowRemoteModels = false;
env.localModelPath = "/";

const json = (path) => JSON.parse(readFileSync(path, "utf8"));

function read(lines, encode, decode) {
  const ids = lines.map(encode);
  return { ids, texts: ids.map((each) => decode(each, { skip_special_tokens: true })) };
}

const found = [];
for (const { folder, lines } of JSON.parse(readFileSync(0, "utf8"))) {
  const whole = await AutoTokenizer.from_pretrained(folder);
  const plain = new Tokenizer(json(`${folder}/tokenizer.json`), json(`${folder}/tokenizer_config.json`));
  found.push({
    transformers: read(lines, (text) => whole.encode(text), (ids, how) => whole.decode(ids, how)),
    tokenizers: read(lines, (text) => plain.encode(text).ids, (ids, how) => plain.decode(ids, how)),
  });
}
console.log(JSON.stringify(found));
