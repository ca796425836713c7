/** What tokens attended to in the source. */

/**
 * The attention of each token (T, S) as it was asked for: all of it, or where it is largest.
 *
 * @param {(ArrayLike<number> | undefined)[]} attention
 * @param {"soft" | "hard" | undefined} kind
 * @returns {{ alignment?: number[][] | number[] }}
 */
export function alignmentOf(attention, kind) {
  if (kind === undefined) return {};
  const rows = attention.map((row) => Array.from(row ?? []));
  return { alignment: kind === "soft" ? rows : rows.map((row) => row.indexOf(Math.max(...row))) };
}
