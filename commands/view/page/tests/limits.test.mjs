import assert from "node:assert/strict";
import test from "node:test";
import { Model } from "../source/model.js";
import { because, boundOf, partsOf, total } from "../source/limits.js";
import { facts } from "./facts.mjs";

const MACHINE = { memory: 100, rates: { Float32: 10 }, other: 5, link: 4, network: 2 };

function timed() {
  const own = facts();
  own.machine = MACHINE;
  own.graphs[0].schedule = { begin: [0, 2, 30, null], seconds: [2, 20, 3, null], operations: [20, 0, 10, 0], moved: [100, 0, 400, 0] };
  return new Model(own).main;
}

test("every part has its time at the limits of arithmetic, memory and links", () => {
  const { phases, cells } = partsOf(timed());
  assert.deepEqual(phases.map(({ phase, compute, memory, network, predicted }) => [phase, compute, memory, network, predicted]), [["forward", 2, 1, 16, 22], ["backward", 1, 4, 0, 3]]);
  assert.deepEqual(phases.map(boundOf), ["network", "memory"]);
  assert.deepEqual(cells.map(({ name, phase, nodes }) => [name, phase, nodes]), [["Default/net/a", "forward", 2], ["Default/net/a", "backward", 1]]);
  const { sent, operations, moved } = total(phases);
  assert.deepEqual([sent, operations, moved], [64, 30, 500]);
});

test("a collective between hosts is limited by their network", () => {
  const graph = timed();
  graph.facts.collectives[1].link = "between 2 hosts";
  assert.equal(partsOf(graph).phases[0].network, 32);
});

test("a reason is a sentence", () => {
  assert.equal(because("AllGather", "the result is sharded, input 0 of ReLU must be replicated"), "This AllGather is here because the result is sharded, but input 0 of ReLU must be replicated.");
  assert.equal(because("AllReduce", "2 gradients in one bucket, the first because it is partial"), "This AllReduce is of 2 gradients in one bucket, the first because it is partial.");
  assert.equal(because("Cast", "data parallel: sums are Float32."), "This Cast: data parallel: sums are Float32.");
});
