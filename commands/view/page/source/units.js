// Numbers for people.

/** @param {number} count */
export function bytesText(count) {
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (count < 1024 || unit === "TiB") return `${unit === "B" ? Math.round(count) : count.toFixed(1)} ${unit}`;
    count /= 1024;
  }
}

/** @param {number} seconds */
export function timeText(seconds) {
  if (seconds === 0) return "0";
  const size = Math.abs(seconds);
  if (size < 1e-6) return `${(seconds * 1e9).toFixed(0)} ns`;
  if (size < 1e-3) return `${(seconds * 1e6).toFixed(1)} µs`;
  return size < 1 ? `${(seconds * 1e3).toFixed(2)} ms` : `${seconds.toFixed(2)} s`;
}

/** @param {number} count */
export function countText(count) {
  for (const unit of ["", "k", "M", "G", "T", "P"]) {
    if (count < 1000 || unit === "P") return unit === "" ? String(Math.round(count)) : `${count.toFixed(1)} ${unit}`;
    count /= 1000;
  }
}

/** @param {number} share */
export const shareText = (share) => `${(100 * share).toFixed(1)} %`;

/** @param {number[]} shape */
export const shapeText = (shape) => `(${shape.join(", ")})`;

/** @param {number} count @param {string} what @param {string} [several] */
export const several = (count, what, several = `${what}s`) => `${count} ${count === 1 ? what : several}`;
