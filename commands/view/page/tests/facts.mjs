// A page's facts for tests.
import { Model } from "../source/model.js";

export const strings = ["MatMul", "AllReduce", "Default/net/a", "Gradients/Default/net/a", "Default/net/b", "net.py", "x = y", "Mul(x0, x1)", "w"];

/** Four nodes: a product, a sum of ranks, its gradient, and a node that is two. */
export function facts() {
  const columns = {
    op: [0, 1, 0, 0], value: [-1, -1, -1, -1], instance: [-1, -1, -1, -1], scope: [2, 2, 3, 4], phase: [0, 0, 1, 0],
    inputs: [[-1, 4], [0], [1], [2, 2]], type: [0, 0, 0, 0], layout: [[], [], [], []], stack: [0, 0, 0, -1],
    fields: [-1, -1, -1, -1], facts: [-1, -1, -1, -1], reason: [-1, -1, -1, -1], stream: [-1, -1, -1, -1],
  };
  const parameters = { name: [8], kind: [8], trainable: [1], type: [0], whole: [0], layout: [[]] };
  const graph = {
    kind: "rank", name: "net", phases: ["forward", "backward", "update"], nodes: columns, parameters, body: { 3: [7] },
    gradient_of: {}, results: [3], constants: [6], collectives: { 1: { size: 2, bytes: 64, seconds: 1e-5, group: [[2, 1]] } },
  };
  return {
    strings, types: [["<Tensor[Float32], (2, 2)>", [["Float32", [2, 2], 16]]]], layouts: [], frames: [[5, 7, 1, 3, 6]], stacks: [[0]],
    graphs: [graph], main: 0, plan: -1, ways: {}, measured: {}, ranks: 2, programs: [{ graph: 0, ranks: [[0, 1, 1]], count: 2, own: {} }],
  };
}

export const graph = () => new Model(facts()).main;
