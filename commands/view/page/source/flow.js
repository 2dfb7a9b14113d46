// What flows through one scope: its nodes and the scopes in it as boxes, and what they hand to each other.
import { pathOf } from "./scopes.js";

const FEW = 5; // things in a scope that say little
const MOST = 40; // things in a scope that are drawn one by one; of more those that follow each other are one box
const FOLDED = 24; // such boxes of a scope
const NAMED = 2; // parameters that a box reads, each drawn by itself

/**
 * @typedef {object} Box
 * @property {string} id @property {number} order when it begins in the run
 * @property {number} [node] @property {import("./scopes.js").Scope} [scope] of the scope that is drawn
 * @property {number} [parameter] that is read in it @property {number} [parameters] how many
 * @property {string} [outside] a scope beside it, by its path
 * @typedef {{from: string, to: string, phase: string, count: number, collective: boolean}} Edge
 */

/** Scopes by path, each with the one around it. @param {import("./model.js").Graph} graph
 * @returns {Map<string, {scope: import("./scopes.js").Scope, around: string | null}>} */
export function scopesOf(graph) {
  if (graph.scopesByPath) return graph.scopesByPath;
  const found = new Map([["", { scope: graph.tree, around: null }]]);
  const waiting = [graph.tree];
  while (waiting.length) {
    const one = waiting.pop();
    one.drawn = folded(graph, one);
    for (const child of one.drawn) {
      if (typeof child === "number") continue;
      found.set(child.path, { scope: child, around: one.path });
      waiting.push(child);
    }
  }
  graph.scopesByPath = found;
  return found;
}

/** What is drawn of a scope: what it holds, or where that is a lot scopes made of what follows each other, which open.
 * @param {import("./model.js").Graph} graph @param {import("./scopes.js").Scope} scope */
function folded(graph, scope) {
  const { children } = scope;
  if (children.length <= MOST) return children;
  const each = Math.max(Math.ceil(Math.sqrt(children.length)), Math.ceil(children.length / FOLDED));
  const found = [];
  for (let from = 0; from < children.length; from += each) {
    const held = children.slice(from, from + each);
    if (held.length === 1) found.push(held[0]);
    else found.push(foldOf(graph, scope.path, from, held));
  }
  return found;
}

const nameOf = (graph, child) => (typeof child === "number" ? `%${child} ${graph.text("op", child)}` : child.name);

function foldOf(graph, path, from, children) {
  const fold = {
    path: `${path}#${from}-${from + children.length - 1}`, name: `${nameOf(graph, children[0])} to ${nameOf(graph, children[children.length - 1])}`,
    fold: true, children, nodes: 0, collectives: 0, bytes: 0, seconds: 0,
  };
  for (const child of children) {
    const collective = typeof child === "number" ? graph.collective(child) : null;
    const one = typeof child === "number" ? { nodes: 1, collectives: collective ? 1 : 0, bytes: collective?.bytes ?? 0, seconds: graph.seconds(child) ?? 0 } : child;
    for (const sum of ["nodes", "collectives", "bytes", "seconds"]) fold[sum] += one[sum];
  }
  return fold;
}

/** The path of the innermost scope of the tree that a node stands in. @param {import("./model.js").Graph} graph @param {number} index */
export function scopeAround(graph, index) {
  const known = scopesOf(graph);
  const parts = pathOf(graph, index);
  for (let count = parts.length; count > 0; count--) {
    const path = parts.slice(0, count).join("/");
    if (known.has(path)) return inFold(known.get(path).scope, index);
  }
  return inFold(graph.tree, index);
}

/** The path of the innermost fold of a scope that holds one of its own nodes, else of the scope. */
function inFold(scope, index) {
  for (;;) {
    const inner = (scope.drawn ?? []).find((child) => child.fold && child.children.includes(index));
    if (!inner) return scope.path;
    scope = inner;
  }
}

/** The scopes around a path, the innermost first, itself among them. */
function chainOf(known, path) {
  const found = [];
  for (let at = path; at !== null && at !== undefined; at = known.get(at)?.around) found.push(at);
  return found;
}

/** The scope that is drawn at the beginning: the outermost that is not little more than one of the scopes in it.
 * @param {import("./model.js").Graph} graph */
export function firstScope(graph) {
  let scope = graph.tree;
  for (;;) {
    scopesOf(graph);
    const inner = scope.children.find((child) => typeof child === "object" && child.nodes > scope.nodes / 2);
    if (!inner || scope.children.length > FEW) return scope.path;
    scope = inner;
  }
}

/** Boxes and edges of a scope. @param {import("./model.js").Graph} graph @param {string} path
 * @param {Set<string>} hidden phases @param {number} most boxes
 * @returns {{boxes: Box[], edges: Edge[], left: number}} left: boxes of the scope that are left out */
export function flow(graph, path, hidden, most) {
  const known = scopesOf(graph);
  const scope = known.get(path)?.scope ?? graph.tree;
  const inside = new Set(chainOf(known, scope.path));
  const shown = (index) => !hidden.has(graph.phase(index));
  const owner = new Map();
  /** @type {Box[]} */
  const boxes = [];
  let left = 0;
  for (const child of scope.drawn) {
    const held = typeof child === "number" ? [child].filter(shown) : nodesIn(child).filter(shown);
    if (!held.length) continue;
    if (boxes.length === most) {
      left += 1;
      continue;
    }
    const id = typeof child === "number" ? `%${child}` : `/${child.path}`;
    const [order] = held;
    boxes.push(typeof child === "number" ? { id, order, node: child } : { id, order, scope: child });
    for (const index of held) owner.set(index, id);
  }
  const beside = new Map();
  const edges = new Map();
  const read = new Map(); // by box its parameters, each with a node that reads it
  const outside = (index, side) => {
    const chain = chainOf(known, scopeAround(graph, index));
    const there = chain.filter((at) => !inside.has(at)).pop() ?? chain[0]; // the outermost that this one is not in
    const id = `${side} ${there}`;
    if (!beside.has(id)) beside.set(id, { id, outside: there, order: side === "to" ? graph.count : -1 });
    return id;
  };
  const join = (from, to, reader, sender) => {
    if (from === to) return;
    const phase = graph.phase(reader);
    const key = `${from}\n${to}\n${phase}`;
    const edge = edges.get(key) ?? { from, to, phase, count: 0, collective: false };
    edges.set(key, edge);
    edge.count += 1;
    if (sender >= 0 && graph.collective(sender)) edge.collective = true;
  };
  for (const [index, id] of owner) {
    for (const input of new Set(graph.columns.inputs[index])) {
      if (input >= graph.count) continue;
      if (input < 0) {
        const reads = read.get(id) ?? read.set(id, new Map()).get(id);
        if (!reads.has(input)) reads.set(input, index);
      } else if (owner.has(input)) join(owner.get(input), id, index, input);
      else if (shown(input)) join(outside(input, "from"), id, index, input);
    }
    for (const reader of graph.readers(index)) {
      if (!owner.has(reader) && shown(reader)) join(id, outside(reader, "to"), reader, index);
    }
  }
  for (const [id, reads] of read) {
    const named = reads.size <= NAMED;
    for (const [input, index] of reads) {
      const from = named ? `p${-1 - input}` : `parameters ${id}`;
      if (!beside.has(from)) beside.set(from, named ? { id: from, order: -1, parameter: -1 - input } : { id: from, order: -1, parameters: reads.size });
      join(from, id, index, -1);
    }
  }
  const others = [...beside.values()];
  const room = Math.max(0, Math.ceil(most / 2));
  const remaining = new Set([...boxes, ...others.slice(0, room)].map((box) => box.id));
  return {
    boxes: [...boxes, ...others.slice(0, room)],
    edges: [...edges.values()].filter(({ from, to }) => remaining.has(from) && remaining.has(to)),
    left: left + Math.max(0, others.length - room),
  };
}

function nodesIn(scope) {
  const found = [];
  const waiting = [scope];
  while (waiting.length) {
    for (const child of waiting.pop().children) {
      if (typeof child === "number") found.push(child);
      else waiting.push(child);
    }
  }
  return found.sort((a, b) => a - b);
}
