// Beam search over any bundle of text, by the package for JavaScript: node package.mjs BUNDLE WORD...
import * as ort from "onnxruntime-node";
import { load } from "../../txport/runtimes/js/src/index.js"; // from npm: "txport"

const [folder, ...words] = process.argv.slice(2);
const model = await load(folder, { ort });
for (const word of words) {
  const { output } = await model.generate(word, { beams: 5 });
  console.log(output);
}
