/** The options of a search, as txport in Python declares them; `python -m docs.options` writes this file. */

/**
 * @typedef {object} Option
 * @property {string} kind what its values are
 * @property {any} [value] the default
 * @property {string} [range] the bounds in words
 * @property {number} [least]
 * @property {number} [most]
 * @property {number} [above]
 * @property {number} [below]
 * @property {string} [needs] the option without which it has no effect
 * @property {any[]} [choices]
 */

/** @type {Record<string, Option>} */
export const OPTIONS = {
  beams: { kind: "whole", value: 1, range: "lie in 1 to 4096", least: 1, most: 4096 },
  nbest: { kind: "whole", value: 1, range: "lie in 1 to 4096", least: 1, most: 4096 },
  length_penalty: { kind: "number", value: 1, range: "lie in -20 to 20", least: -20, most: 20 },
  early_stopping: { kind: "choice", value: false, needs: "beams", choices: [true, false, "never"] },
  patience: { kind: "number", value: 1, range: "lie above 0 and up to 100", most: 100, above: 0, needs: "beams" },
  do_sample: { kind: "switch", value: false },
  temperature: { kind: "number", value: 1, range: "be a positive number", above: 0, needs: "do_sample" },
  top_h: { kind: "number", range: "lie above 0 and up to 1", most: 1, above: 0, needs: "do_sample" },
  top_k: { kind: "whole", value: 0, range: "not be negative", least: 0, needs: "do_sample" },
  top_p: { kind: "number", value: 1, range: "lie above 0 and up to 1", most: 1, above: 0, needs: "do_sample" },
  min_p: { kind: "number", value: 0, range: "lie in 0 to 1", least: 0, most: 1, needs: "do_sample" },
  typical_p: { kind: "number", value: 1, range: "lie above 0 and up to 1", most: 1, above: 0, needs: "do_sample" },
  epsilon_cutoff: { kind: "number", value: 0, range: "lie in 0 to below 1", least: 0, below: 1, needs: "do_sample" },
  eta_cutoff: { kind: "number", value: 0, range: "lie in 0 to below 1", least: 0, below: 1, needs: "do_sample" },
  seed: { kind: "seed", range: "not be negative", least: 0, needs: "do_sample" },
  max_new_tokens: { kind: "whole", range: "be at least 1", least: 1 },
  max_length: { kind: "whole", range: "be at least 2", least: 2 },
  min_length: { kind: "whole", value: 0, range: "not be negative", least: 0 },
  min_new_tokens: { kind: "whole", value: 0, range: "not be negative", least: 0 },
  repetition_penalty: { kind: "number", value: 1, range: "lie in 1e-09 to 1e+09", least: 1e-9, most: 1e9 },
  encoder_repetition_penalty: { kind: "number", value: 1, range: "lie in 1e-09 to 1e+09", least: 1e-9, most: 1e9 },
  no_repeat_ngram_size: { kind: "whole", value: 0, range: "not be negative", least: 0 },
  encoder_no_repeat_ngram_size: { kind: "whole", value: 0, range: "not be negative", least: 0 },
  sequence_bias: { kind: "biases", value: [] },
  exponential_decay_length_penalty: { kind: "decay" },
  renormalize_logits: { kind: "switch", value: false },
  forced_bos_token_id: { kind: "token" },
  forced_eos_token_id: { kind: "token" },
  suppress_tokens: { kind: "tokens", value: [] },
  begin_suppress_tokens: { kind: "tokens", value: [] },
  bad_words_ids: { kind: "sequences", value: [] },
  eos_token_id: { kind: "ends" },
  stop: { kind: "strings", value: [] },
  alignment: { kind: "choice", choices: ["soft", "hard"] },
};

/** Options of Python alone, with the values without effect. */
export const NOT_HERE = {
  beam_groups: 1,
  diversity_penalty: 0,
  coverage_penalty: 0,
  scores: true,
};
