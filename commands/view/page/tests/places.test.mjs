import assert from "node:assert/strict";
import test from "node:test";
import { coordinates, shardCounts, layoutText, layoutWords, members, meshOfGroup, product, ranksText, sliceIndex, slices } from "../source/places.js";

const sharded = [[2, 4], [[0], [1]], [], ""];
const partial = [[2, 4], [[0], []], [1], "sum"];

test("a rank's place on a mesh: the last axis is the fastest", () => {
  assert.deepEqual(coordinates([2, 4], 6), [1, 2]);
  assert.deepEqual(coordinates([2, 3, 4], 23), [1, 2, 3]);
});

test("slices are those of the layout", () => {
  assert.deepEqual(shardCounts(sharded), [2, 4]);
  assert.deepEqual(sliceIndex(sharded, 6), [1, 2]);
  assert.deepEqual(slices(sharded, [16, 32], 6), [[8, 16], [16, 24]]);
  assert.deepEqual(slices(partial, [16, 32], 3), [[0, 8], [0, 32]]);
});

test("a dimension that several axes shard counts the first as the most significant", () => {
  const layout = [[2, 2, 2], [[2, 0]], [], ""];
  assert.deepEqual([0, 1, 4, 5].map((rank) => sliceIndex(layout, rank)[0]), [0, 2, 1, 3]);
});

test("all slices together are the tensor, each as often as there are copies", () => {
  const layout = [[2, 2, 3], [[1], [2]], [], ""];
  const seen = new Map();
  for (let rank = 0; rank < 12; rank++) {
    const key = sliceIndex(layout, rank).join();
    seen.set(key, (seen.get(key) ?? 0) + 1);
  }
  assert.equal(seen.size, product(shardCounts(layout)));
  assert.deepEqual(new Set(seen.values()), new Set([2]));
});

test("groups by strides", () => {
  assert.deepEqual(members([[4, 1]], 6), [4, 5, 6, 7]);
  assert.deepEqual(members([[2, 4]], 6), [2, 6]);
  assert.deepEqual(members([[2, 4], [2, 1]], 7), [2, 3, 6, 7]);
  assert.deepEqual(members([], 3), [3]);
  assert.deepEqual(meshOfGroup([[4, 1]], 8), [2, 4]);
  assert.deepEqual(meshOfGroup([[2, 4]], 16), [2, 2, 4]);
  assert.deepEqual(meshOfGroup([[8, 1]], 8), [8]);
});

test("layouts in text and in words", () => {
  assert.equal(layoutText(partial), "(2, 4) [0, -] sum[1]");
  assert.equal(layoutWords(partial, [16, 32]), "dimension 0 (16) is sharded into 2 slices; 4 ranks hold partial values of a sum");
  assert.equal(layoutWords([[8], [[], []], [], ""], [2, 2]), "replicated on all 8 ranks");
  assert.equal(layoutWords([[1], [], [], ""], []), "one number");
});

test("ranks in few words", () => {
  assert.equal(ranksText([0, 1, 2, 3, 4]), "0 to 4");
  assert.equal(ranksText([0, 4]), "0, 4");
  assert.equal(ranksText([0, 8, 16, 24]), "0 to 24 by 8");
});
