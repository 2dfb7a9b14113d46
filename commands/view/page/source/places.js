// Which rank holds what: layouts and groups as arithmetic, for any number of ranks.

/** @typedef {[number[], number[][], number[], string]} Layout mesh, axes of every dimension, partial axes, reduction */
/** @typedef {[number, number][]} Strides size and stride of every axis of a group, the slowest first */

/** @param {number[]} sizes @returns {number} */
export const product = (sizes) => sizes.reduce((a, b) => a * b, 1);

/** The place of a rank on a mesh, the last axis the fastest. @param {number[]} mesh @param {number} rank */
export function coordinates(mesh, rank) {
  const place = new Array(mesh.length);
  for (let a = mesh.length - 1; a >= 0; a--) {
    place[a] = rank % mesh[a];
    rank = Math.floor(rank / mesh[a]);
  }
  return place;
}

/** How many slices every dimension has. @param {Layout} layout @returns {number[]} */
export const shardCounts = ([mesh, dims]) => dims.map((axes) => product(axes.map((a) => mesh[a])));

/** Which slice of every dimension a rank holds, from 0. @param {Layout} layout @param {number} rank */
export function sliceIndex([mesh, dims], rank) {
  const place = coordinates(mesh, rank);
  return dims.map((axes) => axes.reduce((index, a) => index * mesh[a] + place[a], 0));
}

/** What a rank holds of a tensor of a shape: [begin, end] of every dimension.
 * @param {Layout} layout @param {number[]} shape @param {number} rank @returns {[number, number][]} */
export function slices(layout, shape, rank) {
  const index = sliceIndex(layout, rank);
  return shardCounts(layout).map((count, d) => {
    const size = shape[d] / count;
    return [index[d] * size, (index[d] + 1) * size];
  });
}

/** The ranks of a rank's group. @param {Strides} strides @param {number} rank @returns {number[]} */
export function members(strides, rank) {
  let base = rank;
  for (const [size, stride] of strides) base -= (Math.floor(rank / stride) % size) * stride;
  let found = [base];
  for (const [size, stride] of strides) {
    found = found.flatMap((m) => Array.from({ length: size }, (_, i) => m + i * stride));
  }
  return found;
}

/** Axes of a mesh along which ranks hold copies. @param {Layout} layout */
export function copiedAxes([mesh, dims, partial]) {
  const used = new Set([...dims.flat(), ...partial]);
  return mesh.map((_, a) => a).filter((a) => !used.has(a));
}

/** A layout as dumps write it. @param {Layout} layout */
export function layoutText([mesh, dims, partial, reduction]) {
  const sharding = dims.map((axes) => (axes.length ? axes.join(".") : "-")).join(", ");
  return `(${mesh.join(", ")}) [${sharding}]` + (partial.length ? ` ${reduction}[${partial.join(", ")}]` : "");
}

/** A layout in words. @param {Layout} layout @param {number[]} shape */
export function layoutWords(layout, shape) {
  const [mesh, dims, partial, reduction] = layout;
  const said = shardCounts(layout)
    .map((count, d) => (count > 1 ? `dimension ${d} (${shape[d] ?? "?"}) is sharded into ${count} slices` : ""))
    .filter(Boolean);
  const copies = product(copiedAxes(layout).map((a) => mesh[a]));
  if (partial.length) said.push(`${product(partial.map((a) => mesh[a]))} ranks hold partial values of a ${reduction}`);
  if (copies > 1) said.push(said.length ? `${copies} ranks hold copies of each slice` : `replicated on all ${copies} ranks`);
  if (!said.length) said.push(dims.length ? "the global tensor on one rank" : "one number");
  return said.join("; ");
}

/** The mesh on which strides are whole axes, so that a group can be drawn: sizes, row-major.
 * @param {Strides} strides @param {number} ranks */
export function meshOfGroup(strides, ranks) {
  const edges = new Set([1, ranks]);
  for (const [size, stride] of strides) {
    edges.add(stride);
    edges.add(size * stride);
  }
  const sorted = [...edges].sort((a, b) => a - b);
  const mesh = [];
  for (let i = 1; i < sorted.length; i++) {
    if (sorted[i] % sorted[i - 1]) return [ranks];
    mesh.unshift(sorted[i] / sorted[i - 1]);
  }
  return mesh.length ? mesh : [1];
}

/** Ranks in few words: runs of one step as first-last. @param {number[]} ranks */
export function ranksText(ranks) {
  const found = [];
  for (let i = 0; i < ranks.length; ) {
    let j = i + 1;
    const step = j < ranks.length ? ranks[j] - ranks[i] : 1;
    while (j < ranks.length && ranks[j] - ranks[j - 1] === step) j++;
    if (j - i > 3) found.push(`${ranks[i]} to ${ranks[j - 1]}` + (step > 1 ? ` by ${step}` : ""));
    else {
      j = Math.min(j, i + 1);
      found.push(String(ranks[i]));
    }
    i = j;
  }
  return found.join(", ");
}
