// The parts of a step, each with its time at the limits of the machine: of arithmetic, of memory, of links between ranks.
import { layerKind } from "./sums.js";

const DEPTH = 3; // scopes of a part's name, from the outermost

/** The limits, with the words for what reaches them. */
export const LIMITS = { compute: "arithmetic", memory: "memory traffic", network: "communication" };

/** Bytes per second of the links that a collective uses. @param {any} machine @param {any} collective */
const linkRate = (machine, collective) => (machine.network && !/one host/.test(collective.link ?? "one host") ? machine.network : machine.link);

const empty = (phase, name) => ({ phase, name, nodes: 0, operations: 0, moved: 0, sent: 0, compute: 0, memory: 0, network: 0, predicted: 0 });

/** The limit that takes most of a part's time. @param {any} part */
export const boundOf = (part) => Object.keys(LIMITS).reduce((most, name) => (part[name] > part[most] ? name : most));

/** Parts of a graph with a predicted step: those of its phases, and those of its cells, the longest first; repeated
 * layers are one part. @param {import("./model.js").Graph} graph */
export function partsOf(graph) {
  const { machine } = graph.model.facts;
  const { schedule } = graph.facts;
  const phases = new Map(graph.facts.phases.map((phase) => [phase, empty(phase, "")]));
  const cells = new Map();
  for (let i = 0; i < graph.count; i++) {
    const seconds = graph.seconds(i);
    if (seconds === null) continue;
    const phase = graph.phase(i);
    const scope = layerKind(graph.text("scope", i).replace(/^Gradients\//, "").split("/").slice(0, DEPTH).join("/")) || "outside of cells";
    const key = `${phase} ${scope}`;
    const collective = graph.collective(i);
    const [tensor] = graph.type(i).tensors;
    for (const part of [phases.get(phase), cells.get(key) ?? cells.set(key, empty(phase, scope)).get(key)]) {
      part.nodes += 1;
      part.predicted += seconds;
      if (collective) {
        const sent = collective.bytes ?? 0;
        part.sent += sent;
        part.network += sent / linkRate(machine, collective);
      } else {
        part.operations += schedule.operations[i];
        part.moved += schedule.moved[i];
        part.compute += schedule.operations[i] / (machine.rates[tensor?.dtype] ?? machine.other);
        part.memory += schedule.moved[i] / machine.memory;
      }
    }
  }
  const found = [...phases.values()].filter(({ nodes }) => nodes);
  return { phases: found, cells: [...cells.values()].sort((a, b) => b.predicted - a.predicted) };
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
