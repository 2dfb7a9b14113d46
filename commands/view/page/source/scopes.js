// The scopes of a graph as a tree, and which of its rows are open.

const GRADIENTS = "Gradients/";
const ELEMENT = "TupleGetItem";

/**
 * @typedef {object} Scope
 * @property {string} path the scope, without what says that gradients are taken
 * @property {string} name its last part, or parts where one scope holds nothing but another
 * @property {(Scope | number)[]} children scopes and nodes in run order
 * @property {number} nodes @property {number} collectives @property {number} bytes @property {number} seconds
 * @property {number[]} phases nodes of every phase
 */

/** The scopes of a graph: gradients stand in the cells whose gradients they are. @param {Graph} graph @returns {Scope} */
export function makeTree(graph) {
  const scope = (path, name) => ({
    path, name, children: [], nodes: 0, collectives: 0, bytes: 0, seconds: 0, phases: graph.facts.phases.map(() => 0),
  });
  const root = scope("", "");
  const known = new Map([["", root]]);
  const of = new Map();
  const find = (number) => {
    if (of.has(number)) return of.get(number);
    let path = graph.model.string(number);
    while (path.startsWith(GRADIENTS)) path = path.slice(GRADIENTS.length);
    const chain = [root];
    let here = "";
    for (const part of path.split("/").filter(Boolean).slice(0, 64)) {
      const name = here ? `${here}/${part}` : part;
      let found = known.get(name);
      if (!found) {
        found = scope(name, part);
        known.set(name, found);
        chain[chain.length - 1].children.push(found);
      }
      chain.push(found);
      here = name;
    }
    of.set(number, chain);
    return chain;
  };
  for (let index = 0; index < graph.count; index++) {
    const chain = find(graph.columns.scope[index]);
    chain[chain.length - 1].children.push(index);
    const collective = graph.collective(index);
    const seconds = graph.seconds(index) ?? 0;
    for (const one of chain) {
      one.nodes += 1;
      one.phases[graph.columns.phase[index]] += 1;
      one.seconds += seconds;
      if (collective) {
        one.collectives += 1;
        one.bytes += collective.bytes ?? 0;
      }
    }
  }
  joinChains(root);
  return root;
}

/** A scope that holds one scope and nothing else stands with it in one row, and one that is made for a single operator,
 * as MindSpore does, not at all. @param {Scope} scope */
function joinChains(scope) {
  const waiting = [scope];
  while (waiting.length) {
    const one = waiting.pop();
    one.children = one.children.map((child) => {
      while (typeof child === "object" && child.children.length === 1 && typeof child.children[0] === "object") {
        const [inner] = child.children;
        inner.name = `${child.name}/${inner.name}`;
        child = inner;
      }
      if (typeof child !== "object") return child;
      if (child.children.length === 1 && /-op\d+$/.test(child.name)) return child.children[0];
      waiting.push(child);
      return child;
    });
  }
}

/** The path of a node's row: `%3`, in a graph that node 3 runs `%3@5%1`, where 5 is that graph's number.
 * @param {string} before the path of the graph: "" of the one that runs first, else `%3@5` @param {number} index */
export const pathOfNode = (before, index) => `${before}%${index}`;

/** Rows of the tree that are open, as [depth, scope | node | {graph, node, line} | {region} | {graph, index, path}]: of a
 * node that is open its lines, and below the name of every graph that it runs that graph's nodes. A phase that is hidden
 * leaves its nodes out.
 * @param {Graph} graph @param {Set<string>} open @param {Set<string>} hidden phases */
export function openRows(graph, open, hidden) {
  const rows = [];
  const shown = graph.facts.phases.map((phase) => !hidden.has(phase));
  const openNode = (own, index, path, depth) => {
    const lines = own.facts.body[index] ?? [];
    lines.forEach((_, line) => rows.push([depth, { graph: own, node: index, line, at: path }]));
    for (const region of own.regions(index)) {
      rows.push([depth, { region, at: path }]);
      for (let inner = 0; inner < region.count; inner++) {
        if (hidden.has(region.phase(inner))) continue;
        const there = pathOfNode(`${path}@${region.number}`, inner);
        rows.push([depth + 1, { graph: region, index: inner, path: there }]);
        if (open.has(there)) openNode(region, inner, there, depth + 2);
      }
    }
  };
  // Calls of stages have results for every tensor that passes a border: a row each would hide the stages.
  const staged = Boolean(graph.model.facts.stages);
  const walk = (scope, depth) => {
    for (const child of scope.children) {
      if (typeof child === "number") {
        if (!shown[graph.columns.phase[child]] || (staged && graph.text("op", child) === ELEMENT)) continue;
        rows.push([depth, child]);
        if (open.has(`%${child}`)) openNode(graph, child, `%${child}`, depth + 1);
      } else if (child.phases.some((count, phase) => count && shown[phase])) {
        rows.push([depth, child]);
        if (open.has(child.path)) walk(child, depth + 1);
      }
    }
  };
  walk(graph.tree, 0);
  return rows;
}

/** The names of the scopes around a node, the outermost first; of a gradient those of what it is the gradient of.
 * @param {Graph} graph @param {number} index */
export function pathOf(graph, index) {
  let path = graph.text("scope", index);
  while (path.startsWith(GRADIENTS)) path = path.slice(GRADIENTS.length);
  return path.split("/").filter(Boolean).slice(0, 64);
}

/** The path of a node's row in the tree of the graph that runs first. @param {Graph} graph @param {number} index */
export function rowOf(graph, index) {
  const [runner] = graph.runners;
  return pathOfNode(runner ? `${rowOf(...runner)}@${graph.number}` : "", index);
}

/** The paths that must be open for a node to be seen. @param {Graph} graph @param {number} index */
export function pathsTo(graph, index) {
  const [runner] = graph.runners;
  if (runner) return [...pathsTo(...runner), rowOf(...runner)];
  const parts = pathOf(graph, index);
  return parts.map((_, i) => parts.slice(0, i + 1).join("/"));
}

const classOf = (name) => name.replace(/^.*-/, "");

/** The first scope of every class of cells among some that lie beside each other. @param {Scope[]} scopes */
function firstOfEachClass(scopes) {
  const known = new Set();
  return scopes.filter(({ name }) => !known.has(classOf(name)) && known.add(classOf(name)));
}

/** Scopes that are open at the beginning: all of a graph that has at most so many rows. Of a larger one those that hold
 * cells, of cells of one class that lie beside each other the first, so that what is seen first is what the network
 * consists of, and no operators of its layers.
 * @param {Graph} graph @param {number} most rows */
export function firstOpen(graph, most = 80) {
  const within = ({ children }) => children.filter((child) => typeof child === "object");
  const all = [graph.tree];
  for (const scope of all) for (const inner of within(scope)) all.push(inner);
  const small = all.reduce((rows, { children }) => rows + children.length, 0) <= most;
  if (small) return new Set(all.slice(1).map(({ path }) => path));
  const open = new Set();
  let rows = graph.tree.children.length;
  let level = [graph.tree];
  while (level.length) {
    const inner = level.flatMap((scope) => firstOfEachClass(within(scope))).filter((scope) => within(scope).length);
    for (const scope of inner) {
      if (rows + scope.children.length > most) continue;
      open.add(scope.path);
      rows += scope.children.length;
    }
    level = inner.filter((scope) => open.has(scope.path));
  }
  return open;
}
