import assert from "node:assert/strict";
import test from "node:test";
import { Model } from "../source/model.js";
import { firstOpen, openRows, pathsTo, rowOf } from "../source/scopes.js";
import { aliveAt, layerKind, memoryCurve, sourceLines } from "../source/sums.js";
import { facts, graph, strings } from "./facts.mjs";
import { bytesText, countText, several, shortened, timeText } from "../source/units.js";

test("gradients stand in the cell whose gradients they are", () => {
  const rows = openRows(graph(), new Set(["Default/net", "Default/net/a"]), new Set());
  assert.deepEqual(rows.map(([depth, what]) => [depth, what.name ?? what]), [[0, "Default/net"], [1, "a"], [2, 0], [2, 1], [2, 2], [1, "b"]]);
});

test("a scope that holds nothing but a scope is one row with it", () => {
  assert.equal(graph().tree.children[0].name, "Default/net");
  assert.deepEqual(graph().tree.children[0].phases, [3, 1, 0]);
  assert.equal(graph().tree.children[0].bytes, 64);
});

test("hidden phases leave their nodes out, and scopes that hold nothing else", () => {
  const rows = openRows(graph(), new Set(["Default/net", "Default/net/a"]), new Set(["forward"]));
  assert.deepEqual(rows.map(([, what]) => what.name ?? what), ["Default/net", "a", 2]);
});

test("nodes that are several open into lines", () => {
  const own = graph();
  const [depth, { graph: of, node, line }] = openRows(own, new Set(["Default/net", "Default/net/b", "%3"]), new Set()).at(-1);
  assert.deepEqual([depth, of === own, node, line], [3, true, 3, 0]);
});

/** The page of `facts` whose node 0 runs a graph twice, in which node 3 runs another. */
function withRegions() {
  const one = facts();
  const [main] = one.graphs;
  const region = (name, more) => ({ ...main, name, body: {}, root: 0, planned: -1, runs: 9, ...more });
  const graphs = [{ ...main, regions: { 0: [1, 1] } }, region("outer", { regions: { 3: [2] } }), region("inner", {})];
  return new Model({ ...one, strings: [...one.strings, "2 times"], graphs });
}

test("graphs that a node runs stand below it, with their names above their nodes", () => {
  const { graphs, main } = withRegions();
  const open = new Set(["Default/net", "Default/net/a", "%0", "%0@1%3"]);
  const rows = openRows(main, open, new Set()).map(([depth, what]) => [depth, what.region?.facts.name ?? what.path ?? what.name ?? what]);
  assert.deepEqual(rows.slice(0, 12), [
    [0, "Default/net"], [1, "Default/net/a"], [2, 0], [3, "outer"], [4, "%0@1%0"], [4, "%0@1%1"], [4, "%0@1%2"],
    [4, "%0@1%3"], [5, "inner"], [6, "%0@1%3@2%0"], [6, "%0@1%3@2%1"], [6, "%0@1%3@2%2"],
  ]);
  assert.deepEqual(openRows(main, open, new Set(["forward"])).map(([, what]) => what.path ?? what), ["Default/net", "Default/net/a", 2]);
  assert.equal(rowOf(graphs[2], 1), "%0@1%3@2%1");
  assert.deepEqual(pathsTo(graphs[2], 1), ["Default", "Default/net", "Default/net/a", "%0", "%0@1%3"]);
});

test("graphs that nodes run know what runs them, and how often", () => {
  const { graphs, main } = withRegions();
  assert.deepEqual(main.inside.map((one) => one.facts.name), ["outer", "inner"]);
  assert.deepEqual(graphs[1].runners.map(([own, index]) => [own.number, index]), [[0, 0]]);
  assert.deepEqual(graphs[2].runners.map(([own, index]) => [own.number, index]), [[1, 3]]);
  assert.equal(graphs[2].root, main);
  assert.equal(graphs[2].runs, "2 times");
  assert.equal(graphs[2].title, "@inner in the program of ranks 0, 1");
  assert.equal(main.runs, "");
});

test("what leads to a node is opened, and all of a small graph at the beginning", () => {
  assert.deepEqual(pathsTo(graph(), 2), ["Default", "Default/net", "Default/net/a"]);
  assert.deepEqual([...firstOpen(graph())].sort(), ["Default/net", "Default/net/a", "Default/net/b"]);
  assert.equal(firstOpen(graph(), 1).size, 0);
});

/** A graph with a node in every one of these scopes. @param {string[]} scopes */
function graphOf(scopes) {
  const one = facts();
  const columns = one.graphs[0].nodes;
  for (const name of Object.keys(columns)) columns[name] = scopes.map(() => columns[name][0]);
  columns.inputs = scopes.map(() => []);
  columns.scope = scopes.map((_, i) => one.strings.length + i);
  return new Model({ ...one, strings: [...one.strings, ...scopes], graphs: [{ ...one.graphs[0], body: {}, collectives: {}, results: [0] }] }).main;
}

test("of a larger graph what it consists of is open, of layers beside each other the first, and no cell that holds operators alone", () => {
  const layers = [0, 1, 2].flatMap((i) => [`net/layers/${i}-Block/conv-Conv2d`, `net/layers/${i}-Block/bn-Norm`]);
  const scopes = ["net/stem-Conv2d", ...layers, "net/head-Dense"];
  assert.equal(firstOpen(graphOf(scopes)).size, 13);
  assert.deepEqual([...firstOpen(graphOf(scopes), 15)], ["net", "net/layers", "net/layers/0-Block"]);
});

test("operands, readers and links", () => {
  const own = graph();
  assert.deepEqual(own.columns.inputs[0].map((operand) => own.operand(operand)), [{ parameter: 0 }, { constant: "x = y" }]);
  assert.deepEqual(own.readers(2), [3]);
  assert.deepEqual(own.readers(-1), [0]);
  assert.equal(own.model.linked("3").index, 3);
  assert.equal(own.model.linked("4"), null);
  assert.equal(own.model.linked("plan.0"), null);
  assert.equal(own.model.linked("<b>"), null);
});

test("search by operator, parameter, line and what a node consists of", () => {
  const own = graph();
  assert.deepEqual(own.search("allreduce", 9).nodes, [1]);
  assert.deepEqual(own.search("net.py:7 matmul", 9).nodes, [0, 2]);
  assert.deepEqual(own.search("mul(x0", 9).nodes, [3]);
  assert.deepEqual(own.search("w", 9).parameters, [0]);
  assert.deepEqual(own.search("matmul", 1), { nodes: [0], parameters: [], more: true });
  assert.deepEqual(own.search(" ", 9).nodes, []);
});

test("memory: what is alive after every node, and where most is", () => {
  const memory = { blocks: [[0, 10, 0, 1, [0]], [10, 5, 1, 4, [1]]] };
  const { alive, peak } = memoryCurve(memory, 3);
  assert.deepEqual([...alive], [10, 15, 5]);
  assert.equal(peak, 1);
  assert.deepEqual(aliveAt(memory, 1).map(([, bytes]) => bytes), [10, 5]);
});

test("source lines add up what they are turned into", () => {
  const [file] = sourceLines(graph());
  assert.equal(file.file, "net.py");
  assert.deepEqual(file.lines.map(({ line, nodes, collectives, bytes }) => [line, nodes.map(([, index]) => index), collectives, bytes]), [[7, [0, 1, 2], 1, 64]]);
  const [inner] = sourceLines(withRegions().main);
  assert.deepEqual(inner.lines[0].nodes.map(([own, index]) => `${own.number}.${index}`), ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2", "2.0", "2.1", "2.2"]);
});

test("lines stand without the indentation that all of a file have", () => {
  const own = facts();
  own.strings.push("    if x:", "        y = x");
  own.frames = [[5, 7, 1, 3, 9], [5, 8, 1, 3, 10]];
  own.stacks = [[0], [1]];
  own.graphs[0].nodes.stack = [0, 1, 0, -1];
  assert.deepEqual(sourceLines(new Model(own).main)[0].lines.map(({ text }) => text), ["if x:", "    y = x"]);
});

test("figures of a scope are never truncated, names that are too long are", () => {
  const most = `${several(99999, "node")}, ${several(99999, "collective")} ${bytesText(1023.9 * 2 ** 30)}, ${timeText(0.99999)}`;
  assert.equal(shortened(most, 1), most);
  assert.equal(shortened("stages-SequentialCell", 0), "stages-SequentialCell");
  assert.match(shortened("x".repeat(100), 0), /^x{39}…$/);
});

test("numbers for people", () => {
  assert.equal(bytesText(1536), "1.5 KiB");
  assert.equal(bytesText(7), "7 B");
  assert.equal(timeText(1.2e-5), "12.0 µs");
  assert.equal(timeText(2.5), "2.50 s");
  assert.equal(countText(3e12), "3.0 T");
});

test("numbers of layers are one kind in names, and those of sentences are not", () => {
  assert.equal(layerKind("Default/layers-CellList/3-Layer/a-Dense"), "Default/layers-CellList/*-Layer/a-Dense");
  assert.equal(layerKind("the gradient of 0.a.bias in 2 partial sums"), "the gradient of *.a.bias in 2 partial sums");
  assert.equal(layerKind("18 gradients in one bucket"), "18 gradients in one bucket");
});
