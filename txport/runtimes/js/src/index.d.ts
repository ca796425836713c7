/** Bundles of txport in JavaScript: on Node.js and in browsers, over ONNX Runtime. */

/** A folder (Node.js), an address below which the files lie, or a function that reads a file of the bundle. */
export type Place = string | URL | ((name: string) => Promise<Uint8Array | ArrayBuffer>);
export type Provider = "cpu" | "wasm" | "webgpu";
export type Task = "seq2seq" | "causal" | "encode";
export type Pooling = "mean" | "first" | "last" | "max" | "weighted-mean" | "none";
/** What a model that only encodes is for: the name of the method. */
export type Ability = "embed" | "classify" | "tag" | "fill" | "answer";

/**
 * What to do with what is not in the vocabulary: take the unknown token, refuse the text, leave it out, or, "auto",
 * what suits the tokenizer: its unknown token, unless it reads letter by letter.
 */
export type Unknown = "auto" | "token" | "error" | "skip";

/** A tokenizer of a library, such as `@huggingface/tokenizers`. Of options it is given Hugging Face's. */
export interface ForeignTokenizer {
  encode(text: string, options?: any): any; // ids, or an object with `ids` and `tokens`
  decode(ids: any, options?: any): string;
  tokenize?(text: string, options?: any): string[];
}

/** What makes a tokenizer of a library: it is given what a `tokenizer.json` of the bundle holds. */
export type MakeTokenizer = (file: any) => ForeignTokenizer | Promise<ForeignTokenizer>;

export interface LoadOptions {
  /** The module of onnxruntime-node or onnxruntime-web; without it, the one that is installed is imported. */
  ort?: unknown;
  /** What runs the graphs: "cpu" on Node.js; in browsers "wasm", the default, or "webgpu". */
  provider?: Provider;
  /** Threads for one operator; without it, as many as ONNX Runtime takes, or one where a page can't have more. */
  threads?: number;
  /**
   * What reads a `tokenizer.json` of a kind that this package does not read: a function that makes a tokenizer of such
   * a file, a tokenizer, or one for sources and one for targets.
   */
  tokenizer?: MakeTokenizer | ForeignTokenizer | { source: ForeignTokenizer; target: ForeignTokenizer };
}

/** How to search; names, meanings and defaults are those of txport in Python. */
export interface SearchOptions {
  /** Width of beam search; 1 is greedy. */
  beams?: number;
  /** Hypotheses a text; with `do_sample`, samples. */
  nbest?: number;
  /** Exponent of the length that a score is divided by. */
  length_penalty?: number;
  /** Stopping condition of beam search, as in Hugging Face. */
  early_stopping?: boolean | "never";
  /** Finished hypotheses to wait for, as a multiple of `beams`. */
  patience?: number;
  /** Sample each token instead of taking the most probable one. */
  do_sample?: boolean;
  /** Divide logits by this before sampling; values below 1 sharpen the distribution. */
  temperature?: number;
  /** Sample from the most probable tokens that have at most this share of the entropy. */
  top_h?: number;
  /** Sample from the k most probable tokens; 0: all. */
  top_k?: number;
  /** Sample from the smallest set of tokens with total probability >= p. */
  top_p?: number;
  /** Sample from tokens with p >= min_p * max(p). */
  min_p?: number;
  /** Sample from the tokens of total probability p whose -log(p) is closest to the entropy. */
  typical_p?: number;
  /** Sample from tokens with at least this probability. */
  epsilon_cutoff?: number;
  /** Sample from tokens with p >= min(eta, sqrt(eta) * exp(-entropy)). */
  eta_cutoff?: number;
  /** Random seed, the same in Python and JavaScript; samples of a text do not depend on its batch. */
  seed?: number | bigint;
  /** Maximum number of new tokens. */
  max_new_tokens?: number;
  /** Like `max_new_tokens`, but the start token and a prefix count too, or the prompt. */
  max_length?: number;
  /** Like `min_new_tokens`, but the start token and a prefix count too, or the prompt. */
  min_length?: number;
  /** Minimum number of tokens before the end token. */
  min_new_tokens?: number;
  /** Above 1: lower the scores of tokens that the target already has. */
  repetition_penalty?: number;
  /** Above 1: raise the scores of tokens that the source, or the prompt, has. */
  encoder_repetition_penalty?: number;
  /** Let no sequence of this many tokens occur twice; 0: no limit. */
  no_repeat_ngram_size?: number;
  /** Write no sequence of this many tokens of the source, or of the prompt; 0: no limit. */
  encoder_no_repeat_ngram_size?: number;
  /** Sequences of tokens, and what is added to the score of the last token after the others. */
  sequence_bias?: [number[], number][];
  /** A number of new tokens, and the factor by which the scores of end tokens grow after it. */
  exponential_decay_length_penalty?: [number, number];
  /** Beam search: make scores log-probabilities again after all changes. */
  renormalize_logits?: boolean;
  /** First token that is generated. */
  forced_bos_token_id?: number;
  /** Last token of a target that reaches the maximum length. */
  forced_eos_token_id?: number;
  /** Tokens that are never generated. */
  suppress_tokens?: number[];
  /** Tokens that are not generated as the first token. */
  begin_suppress_tokens?: number[];
  /** Sequence of tokens that is never generated. */
  bad_words_ids?: number[][];
  /** End a target at this token instead of the model's own. */
  eos_token_id?: number | number[];
  /** End a target with the token that completes this text; the output ends before it. */
  stop?: string | string[];
  /** Each token's attention over the input (soft), or where it is largest (hard). */
  alignment?: "soft" | "hard";
}

export interface TextOptions {
  unknown?: Unknown;
  /** Whether what a text spells as a special token is the token; a library's tokenizer always reads it so. */
  special?: boolean;
}

export interface GenerateOptions extends SearchOptions, TextOptions {
  /** What the target of a seq2seq model begins with: tokens as the vocabulary writes them, apart by spaces. */
  prefix?: string;
  /** Ends the search between two steps; the promise is then rejected with the signal's reason. */
  signal?: AbortSignal;
}

export interface EmbedOptions extends TextOptions {
  pooling?: Pooling;
  normalize?: boolean;
  /** Only the first so many numbers of a vector. */
  dimensions?: number;
  /** The name of a prompt of the bundle, which is put before the text; "" is none. */
  prompt?: string;
}

export interface TopOptions extends TextOptions {
  /** So many labels, or tokens for each mask: by default all labels, or 5 tokens. */
  top?: number;
}

/** Which parts of a context may be answers; names, meanings and defaults are those of txport in Python. */
export interface AnswerOptions extends TextOptions {
  /** Number of answers; default: 1. */
  nbest?: number;
  /** Maximum number of tokens of an answer; default: 15. */
  longest?: number;
  /** Tokens of the context that two windows share; default: 128, at most half a window. */
  stride?: number;
  /** Maximum number of tokens of a window, with the question; default: 384, or what the model takes. */
  window?: number;
  /** One of the answers may be "": that there is none. */
  impossible?: boolean;
}

/** What ended a target: an end token, the maximum length, or a stop string (also if no token was allowed). */
export type Finish = "end" | "length" | "stop";

/** One target: its token ids, the end token included if it was reached, its score, and the log-prob of each token. */
export interface Found {
  tokens: number[];
  score: number;
  token_scores: number[];
  finish: Finish;
  alignment?: number[][] | number[];
}

export interface Hypothesis extends Found {
  output: string;
}

export interface Generated {
  input: string;
  output: string;
  score: number;
  hypotheses: Hypothesis[];
}

/** A target as far as it is certain. */
export interface Grown {
  output: string;
  tokens: number[];
}

/** An output of a model that only encodes: its numbers, row by row, and its dims. */
export interface Output {
  dims: number[];
  data: Float32Array;
}

/** A label and its probability; of a model that gives values, the value. */
export interface Label {
  label: string;
  score: number;
}

/** A token of a text as the vocabulary writes it, its likeliest label, and the probability of that. */
export interface Tag extends Label {
  token: string;
}

/** A token for the place of a mask: as the vocabulary writes it, its id, and its probability. */
export interface Fill {
  token: string;
  id: number;
  score: number;
}

/** A part of a context, `context.slice(start, end)`, and its probability; "" if there is no answer. */
export interface Answer {
  text: string;
  score: number;
  start: number;
  end: number;
}

export interface Tokens {
  size: number;
  longest: number;
  pad: number;
  start: number | null;
  ends: number[];
  before: number[];
  after: number[];
  mask: number | null;
}

export interface StateTensor {
  layer: number;
  role: "key" | "value";
  owner: "row" | "source";
  dims: (number | "length")[];
}

export interface CrossAttention {
  layer: number;
  heads: number;
}

/** What is true of the model; one that only encodes has no target, and one without a source no encoder. */
export interface Facts {
  task: Task;
  width: number;
  source: Tokens | null;
  target: Tokens;
  state: StateTensor[];
  attention: CrossAttention | null;
  outputs: { name: string; dims: (number | "length")[] }[];
  labels: string[];
  /** What makes scores of the logits over labels; absent where there are no labels. */
  function_to_apply?: "softmax" | "sigmoid" | "none";
  /** Two texts may be read as one input: an id of the second is its token's id + `source.size`. */
  has_token_types?: boolean;
}

export interface FileEntry {
  bytes: number;
  sha256: string;
}

export interface Graph {
  file: string;
  inputs: { name: string; dtype: string; dims: (number | string)[] }[];
  outputs: { name: string; dtype: string; dims: (number | string)[] }[];
}

/** `txport.json`. */
export interface Manifest {
  format: number;
  target: "portable" | "cpu";
  precision: "fp32" | "fp16" | "int8" | "int4";
  architecture: string;
  facts: Facts;
  generation: SearchOptions & EmbedOptions & { prompts?: Record<string, string>; include_prompt?: boolean };
  /** Generation options of the checkpoint that no search follows, by transformers' names; absent if there are none. */
  not_followed?: Record<string, unknown>;
  graphs: Record<string, Graph>;
  files: Record<string, FileEntry>;
}

export interface Model {
  readonly manifest: Manifest;
  readonly facts: Facts;
  readonly provider: Provider;
  /** What is slower here than it could be, and why; generation options of the checkpoint that are not followed. */
  readonly notes: string[];
  encode(text: string | [string, string], unknown?: Unknown, special?: boolean): number[];
  decode(ids: number[]): string;
  tokens(ids: number[]): string[];
  generate(text: string, options?: GenerateOptions): Promise<Generated>;
  stream(text: string, options?: GenerateOptions): AsyncGenerator<Grown, void>;
  search(source: number[], options?: SearchOptions & { prefix?: number[]; signal?: AbortSignal }): Promise<Found[]>;
  // Of models that only encode; a text may be given as its token ids, special ones included.
  infer(text: string | number[], options?: TextOptions): Promise<Record<string, Output>>;
  embed(text: string | number[], options?: EmbedOptions): Promise<Float32Array>;
  /** A pair of texts is read as one input. */
  classify(text: string | number[] | [string, string], options?: TopOptions): Promise<Label[]>;
  /**
   * Texts with their scores for a query, the highest first; of a reranker, a classifier with one label. Of a pair that
   * is too long, the longer text loses its end.
   */
  rank(query: string, texts: string[], options?: TopOptions): Promise<{ index: number; text: string; score: number }[]>;
  tag(text: string | number[], options?: TextOptions): Promise<Tag[]>;
  /** Parts of a context that answer a question, the most probable first. */
  answer(question: string, context: string, options?: AnswerOptions): Promise<Answer[]>;
  /** The likeliest tokens for each mask of a text. */
  fill(text: string | number[], options?: TopOptions): Promise<Fill[][]>;
  release(): Promise<void>;
}

/** Load a bundle of the portable target, or of the cpu target on wasm and Node.js. */
export function load(place: Place, options?: LoadOptions): Promise<Model>;

/** Anything that txport refuses or that fails while it works: one line that says what to do. */
export class TxportError extends Error {}
/** A bundle that is damaged, incomplete, or of another format. */
export class BundleError extends TxportError {}
/** What this package, this build of ONNX Runtime or this model can't do. */
export class UnsupportedError extends TxportError {}
/** What the platform lacks: a package, WebAssembly's SIMD, threads. */
export class UnavailableError extends TxportError {}
/** A text, or token ids, that the model can't take. */
export class TextError extends TxportError {}
/** A text of which the model knows nothing, or that is empty. */
export class UnknownTextError extends TextError {}
/** A graph that fails while it runs. */
export class RunError extends TxportError {}
