import assert from "node:assert/strict";
import test from "node:test";
import { firstScope, flow, scopeAround } from "../source/flow.js";
import { graph } from "./facts.mjs";

const told = ({ boxes, edges, left }) => ({
  boxes: boxes.map(({ id }) => id), edges: edges.map(({ from, to, phase }) => `${from} -> ${to} ${phase}`), left,
});

test("a scope's nodes and the scopes in it are boxes, and what lies beside it", () => {
  assert.deepEqual(told(flow(graph(), "Default/net", new Set(), 10)), {
    boxes: ["/Default/net/a", "/Default/net/b", "p0"],
    edges: ["/Default/net/a -> /Default/net/b forward", "p0 -> /Default/net/a forward"], left: 0,
  });
  assert.deepEqual(told(flow(graph(), "Default/net/a", new Set(), 10)), {
    boxes: ["%0", "%1", "%2", "to Default/net/b", "p0"],
    edges: ["%0 -> %1 forward", "%1 -> %2 backward", "%2 -> to Default/net/b forward", "p0 -> %0 forward"], left: 0,
  });
});

test("what leaves a collective is marked", () => {
  const { edges } = flow(graph(), "Default/net/a", new Set(), 10);
  assert.deepEqual(edges.filter(({ collective }) => collective).map(({ from }) => from), ["%1"]);
});

test("hidden phases and boxes beyond some are left out, with their edges", () => {
  assert.deepEqual(told(flow(graph(), "Default/net/a", new Set(["backward"]), 10)).boxes, ["%0", "%1", "p0"]);
  const { boxes, edges, left } = flow(graph(), "Default/net/a", new Set(), 1);
  assert.deepEqual(boxes.map(({ id }) => id).slice(0, 1), ["%0"]);
  assert.equal(boxes.length, 2);
  assert.equal(left, 3);
  for (const { from, to } of edges) assert.ok([from, to].every((id) => boxes.some((box) => box.id === id)));
});

test("the scope of a gradient is that of what it is the gradient of, and the first is where the nodes are", () => {
  assert.equal(scopeAround(graph(), 2), "Default/net/a");
  assert.equal(firstScope(graph()), "Default/net/a");
});

test("of many nodes those that follow each other are one box, which opens", () => {
  const own = graph();
  const count = 100;
  for (const column of Object.keys(own.columns)) own.columns[column] = Array.from({ length: count }, () => own.columns[column][0]);
  own.columns.inputs = Array.from({ length: count }, (_, i) => [i - 1]);
  Object.assign(own, { count, collectives: [] });
  own.facts.collectives = {};
  const { boxes, edges } = flow(own, "Default/net/a", new Set(), 200);
  const folds = boxes.filter(({ scope }) => scope?.fold);
  assert.equal(folds.length, 10);
  assert.equal(folds.reduce((sum, { scope }) => sum + scope.nodes, 0), count);
  assert.equal(edges.filter(({ from, to }) => from.startsWith("/") && to.startsWith("/")).length, 9);
  assert.equal(scopeAround(own, 37), folds[3].scope.path);
  const inside = flow(own, folds[3].scope.path, new Set(), 200).boxes;
  assert.deepEqual(inside.filter(({ node }) => node !== undefined).map(({ node }) => node), [30, 31, 32, 33, 34, 35, 36, 37, 38, 39]);
  assert.deepEqual(inside.filter(({ outside }) => outside).map(({ id }) => id), [`from ${folds[2].scope.path}`, `to ${folds[4].scope.path}`]);
});
