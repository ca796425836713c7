/**
 * The random numbers of NumPy's `default_rng`, so that a seed draws here what it draws in Python: SeedSequence and
 * PCG-64 (O'Neill 2014, "PCG: A family of simple fast space-efficient statistically good algorithms").
 */

const MASK_64 = (1n << 64n) - 1n;
const MASK_128 = (1n << 128n) - 1n;
const MULTIPLIER = (2549297995355413924n << 64n) | 4865540595714422341n;
const POOL = 4; // words of 32 bits

/**
 * `length` numbers in 0 to 1, of a list of whole numbers from 0 on.
 *
 * @param {(number | bigint)[]} seeds
 * @param {number} length
 * @returns {Float64Array}
 */
export function uniforms(seeds, length) {
  const words = stateOf(poolOf(seeds.flatMap(wordsOf)), 8);
  const [high, low, streamHigh, streamLow] = [0, 2, 4, 6].map(
    (at) => BigInt(words[at]) | (BigInt(words[at + 1]) << 32n),
  );
  const increment = ((((streamHigh << 64n) | streamLow) << 1n) | 1n) & MASK_128;
  const next = (/** @type {bigint} */ state) => (state * MULTIPLIER + increment) & MASK_128;
  let state = next((increment + ((high << 64n) | low)) & MASK_128);
  return Float64Array.from({ length }, () => {
    state = next(state);
    const mixed = (state >> 64n) ^ (state & MASK_64);
    const turn = state >> 122n;
    const drawn = ((mixed >> turn) | (mixed << (64n - turn))) & MASK_64;
    return Number(drawn >> 11n) / 2 ** 53;
  });
}

/** A whole number as words of 32 bits, the lowest first. @param {number | bigint} value @returns {number[]} */
function wordsOf(value) {
  const words = [];
  for (let rest = BigInt(value); rest > 0n; rest >>= 32n) words.push(Number(rest & 0xffffffffn));
  return words.length ? words : [0];
}

/** @param {number[]} entropy @returns {Uint32Array} */
function poolOf(entropy) {
  const hash = hashes(0x43b0d7e5, 0x931e8875);
  const pool = Uint32Array.from({ length: POOL }, (_, place) => hash(entropy[place] ?? 0));
  const mixIn = (/** @type {number} */ place, /** @type {number} */ value) => {
    const mixed = (Math.imul(0xca01f9dd, pool[place]) - Math.imul(0x4973f715, hash(value))) >>> 0;
    pool[place] = mixed ^ (mixed >>> 16);
  };
  for (let from = 0; from < POOL; from += 1) {
    for (let to = 0; to < POOL; to += 1) if (from !== to) mixIn(to, pool[from]);
  }
  for (const value of entropy.slice(POOL)) for (let to = 0; to < POOL; to += 1) mixIn(to, value);
  return pool;
}

/** @param {Uint32Array} pool @param {number} count @returns {Uint32Array} */
function stateOf(pool, count) {
  const hash = hashes(0x8b51f9dd, 0x58f38ded);
  return Uint32Array.from({ length: count }, (_, place) => hash(pool[place % POOL]));
}

/** A hash whose constant changes with each call. @param {number} constant @param {number} factor */
function hashes(constant, factor) {
  return (/** @type {number} */ value) => {
    const mixed = value ^ constant;
    constant = Math.imul(constant, factor);
    const hashed = Math.imul(mixed, constant) >>> 0;
    return (hashed ^ (hashed >>> 16)) >>> 0;
  };
}
