// The parts of a step, each with its time at the limits of the machine: of arithmetic, of memory, of links between ranks.
import { layerKind } from "./sums.js";

const DEPTHS = [8, 7, 6, 5, 4, 3, 2]; // scopes of a cell's name, from the outermost; the first that gives few cells
const FEW = 16;

/** The limits, with the words for what reaches them. */
export const LIMITS = { compute: "arithmetic", memory: "memory traffic", network: "communication" };

/** Bytes per second of the links that a collective uses. @param {any} machine @param {any} collective */
const linkRate = (machine, collective) => (machine.network && !/one host/.test(collective.link ?? "one host") ? machine.network : machine.link);

const empty = (phase, name) => ({ phase, name, nodes: 0, operations: 0, moved: 0, sent: 0, compute: 0, memory: 0, network: 0, predicted: 0 });

/** The limit that takes most of a part's time. @param {any} part */
export const boundOf = (part) => Object.keys(LIMITS).reduce((most, name) => (part[name] > part[most] ? name : most));

/** Adds a node to a part. @param {any} part @param {import("./model.js").Graph} graph @param {number} index */
function add(part, graph, index) {
  const { machine } = graph.model.facts;
  const { operations, moved } = graph.facts.schedule;
  const collective = graph.collective(index);
  part.nodes += 1;
  part.predicted += graph.seconds(index);
  if (collective) {
    const sent = collective.bytes ?? 0;
    part.sent += sent;
    part.network += sent / linkRate(machine, collective);
  } else {
    part.operations += operations[index];
    part.moved += moved[index];
    part.compute += operations[index] / (machine.rates[graph.type(index).tensors[0]?.dtype] ?? machine.other);
    part.memory += moved[index] / machine.memory;
  }
}

/** The nodes of a graph by key. @param {import("./model.js").Graph} graph @param {(index: number) => [string, string]} key */
function grouped(graph, key) {
  const found = new Map();
  for (let i = 0; i < graph.count; i++) {
    if (graph.seconds(i) === null) continue;
    const [phase, name] = key(i);
    const both = `${phase} ${name}`;
    add(found.get(both) ?? found.set(both, empty(phase, name)).get(both), graph, i);
  }
  return [...found.values()];
}

/** Parts of a graph with a predicted step: those of its phases, and those of its cells, the longest first; repeated
 * layers are one part. @param {import("./model.js").Graph} graph */
export function partsOf(graph) {
  const scopes = Array.from({ length: graph.count }, (_, i) => layerKind(graph.text("scope", i).replace(/^Gradients\//, "")).split("/"));
  const ofDepth = (depth) => grouped(graph, (i) => [graph.phase(i), scopes[i].slice(0, depth).join("/") || "outside of cells"]);
  let cells = [];
  for (const depth of DEPTHS) {
    cells = ofDepth(depth);
    if (cells.length <= FEW) break;
  }
  const order = graph.facts.phases;
  const phases = grouped(graph, (i) => [graph.phase(i), ""]).sort((a, b) => order.indexOf(a.phase) - order.indexOf(b.phase));
  return { phases, cells: cells.sort((a, b) => b.predicted - a.predicted) };
}

/** The sum of parts. @param {any[]} parts */
export function total(parts) {
  const sum = empty("", "");
  for (const part of parts) for (const key of Object.keys(sum)) if (typeof sum[key] === "number") sum[key] += part[key];
  return sum;
}

/** The reason of a node as a sentence. @param {string} operator @param {string} reason */
export function because(operator, reason) {
  const text = reason.replace(/, (?=input \d+ of |the caller )/, ", but ").replace(/[.\s]+$/, "");
  if (/^\d+ \w+ in one bucket/.test(text)) return `This ${operator} is of ${text}.`;
  return /^[\w ]+: /.test(text) ? `This ${operator}: ${text}.` : `This ${operator} is here because ${text}.`;
}
