// Numbers for people.

/** @param {number} count @param {number} [digits] behind the point: then all bytes are counted */
export function bytesText(count, digits) {
  if (digits !== undefined) return `${count.toLocaleString("en-US")} B`;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (count < 1024 || unit === "TiB") return `${unit === "B" ? Math.round(count) : count.toFixed(1)} ${unit}`;
    count /= 1024;
  }
}

/** @param {number} seconds @param {number} [digits] behind the point */
export function timeText(seconds, digits) {
  if (seconds === 0) return "0";
  const size = Math.abs(seconds);
  if (size < 1e-6) return `${(seconds * 1e9).toFixed(digits ?? 0)} ns`;
  if (size < 1e-3) return `${(seconds * 1e6).toFixed(digits ?? 1)} µs`;
  return size < 1 ? `${(seconds * 1e3).toFixed(digits ?? 2)} ms` : `${seconds.toFixed(digits ?? 2)} s`;
}

/** @param {number} count */
export function countText(count) {
  for (const unit of ["", "k", "M", "G", "T", "P"]) {
    if (count < 1000 || unit === "P") return unit === "" ? String(Math.round(count)) : `${count.toFixed(1)} ${unit}`;
    count /= 1000;
  }
}

/** @param {number} share @param {number} [digits] behind the point */
export const shareText = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;

/** @param {number[]} shape */
export const shapeText = (shape) => `(${shape.join(", ")})`;

/** @param {number} count @param {string} what @param {string} [several] */
export const several = (count, what, several = `${what}s`) => `${count} ${count === 1 ? what : several}`;

/** Numbers beside each other in words, with as many digits as tell unequal ones apart.
 * @param {number[]} numbers @param {(number: number, digits?: number) => string} text @returns {string[]} */
export function toldApart(numbers, text) {
  const apart = new Set(numbers).size;
  let told = numbers.map((number) => text(number));
  for (let digits = 3; digits <= 15 && new Set(told).size < apart; digits++) told = numbers.map((number) => text(number, digits));
  return told;
}

const LONGEST = [40, 64]; // characters: names may be of any length, all figures of a scope fit

/** The first or second line of a box, truncated where it is longer than any box shall be wide. @param {string} text @param {number} line */
export const shortened = (text, line) => (text.length > LONGEST[line] ? `${text.slice(0, LONGEST[line] - 1)}…` : text);
