// The facts of a page as objects that are made when they are looked at: a graph of 100,000 nodes costs nothing else.

import { makeTree } from "./scopes.js";

const MOST_PARTS = 6; // runs of ranks that are written out

/** Whom a message between stages is from or for, in words. @param {any} message */
export function partnerText({ stage, received, micro_batch: number }) {
  return `${received ? "from" : "to"} stage ${stage}${number < 0 ? "" : `, micro-batch ${number}`}`;
}

/** Facts of the page, as commands/view/facts.py writes them, and what is asked of them again and again. */
export class Model {
  /** @param {any} facts */
  constructor(facts) {
    this.facts = facts;
    this.graphs = facts.graphs.map((graph, number) => new Graph(this, graph, number));
    this.plan = facts.plan >= 0 ? this.graphs[facts.plan] : null;
    this.main = this.graphs[facts.main] ?? this.graphs[0];
  }

  /** The graph of a rank's program, else the main one. @param {number} rank */
  graphOfRank(rank) {
    const number = this.programOf(rank);
    return number < 0 ? this.main : this.graphs[this.facts.programs[number].graph];
  }

  /** The number of a rank's program, -1 where the dump has none. @param {number} rank */
  programOf(rank) {
    return this.facts.programs.findIndex(({ ranks }) =>
      ranks.some(([first, last, step]) => rank >= first && rank <= last && (rank - first) % step === 0),
    );
  }

  /** @param {number} number */
  string(number) {
    return number < 0 ? "" : this.facts.strings[number];
  }

  /** @param {number} number @returns {{text: string, tensors: {dtype: string, shape: number[], bytes: number}[]}} */
  type(number) {
    const [text, tensors] = this.facts.types[number];
    return { text, tensors: tensors.map(([dtype, shape, bytes]) => ({ dtype, shape, bytes })) };
  }

  /** The call stack of a number, the innermost line first. @param {number} number */
  stack(number) {
    if (number < 0) return [];
    return this.facts.stacks[number].map((frame) => {
      const [file, line, column, end, text] = this.facts.frames[frame];
      return { file: this.string(file), line, column, end, text: this.string(text) };
    });
  }

  /** The user's own line in a stack, else the innermost. @param {number} number */
  line(number) {
    const stack = this.stack(number);
    return stack.find((frame) => !frame.file.startsWith("mspc/")) ?? stack[0] ?? null;
  }

  /** The ranks that a graph is the program of, in words. @param {Graph} graph */
  ranksOf(graph) {
    const program = this.facts.programs.find((one) => one.graph === graph.number);
    if (!program) return "";
    const parts = program.ranks.map(([first, last, step]) =>
      first === last ? String(first) : last === first + step ? `${first}, ${last}` : `${first} to ${last}` + (step > 1 ? ` by ${step}` : ""),
    );
    return parts.length > MOST_PARTS ? `${parts.slice(0, MOST_PARTS / 2).join(", ")} and others, ${program.count} in all` : parts.join(", ");
  }

  /** The graph and node that a link names: `12` of the main graph, `plan.12`, `1.12` of graph 1. @param {string} text */
  linked(text) {
    const found = /^(?:(plan|\d+)\.)?(\d+)$/.exec(text);
    if (!found) return null;
    const graph = found[1] === undefined ? this.main : found[1] === "plan" ? this.plan : this.graphs[Number(found[1])];
    const index = Number(found[2]);
    return graph && index < graph.count ? { graph, index } : null;
  }

  /** What `linked` reads. @param {Graph} graph @param {number} index */
  link(graph, index) {
    if (graph === this.main) return String(index);
    return `${graph === this.plan ? "plan" : graph.number}.${index}`;
  }
}

/** One graph. A node is named by its index. */
export class Graph {
  /** @param {Model} model @param {any} facts @param {number} number */
  constructor(model, facts, number) {
    this.model = model;
    this.facts = facts;
    this.number = number;
    this.columns = facts.nodes;
    this.count = facts.nodes.op.length;
    this._tree = null;
    this._readers = null;
    this._texts = null;
    /** The nodes that are collectives, in run order. */
    this.collectives = Object.keys(facts.collectives).map(Number).sort((a, b) => a - b);
  }

  get title() {
    const { model, facts } = this;
    if (this.root !== this) return `@${facts.name} in ${facts.kind === "file" ? "" : "the "}${this.root.title}`;
    if (facts.kind === "plan") return "graph of all ranks";
    if (facts.kind === "file") return `@${facts.name}`;
    const ranks = model.ranksOf(this);
    const stage = this.stage < 0 ? "" : `stage ${this.stage}, `;
    return `program of ${stage}rank${/^\d+$/.test(ranks) ? "" : "s"} ${ranks}`;
  }

  /** The stage of a pipeline whose ranks run this program, -1 where there are none. */
  get stage() {
    return this.facts.kind === "rank" ? this.model.facts.stages?.of[this.root.number] ?? -1 : -1;
  }

  /** The other side of a message between stages, [graph, index], null where the page does not have it.
   * @param {number} index @param {number} rank */
  otherSide(index, rank) {
    const { message } = this.facts.collectives[index];
    const there = this.model.graphs[this.model.facts.programs[this.model.programOf(rank + message.away)]?.graph];
    const found = there?.collectives.find((at) => {
      const other = there.facts.collectives[at].message;
      return other && other.tag === message.tag && other.received !== message.received && other.away === -message.away;
    });
    return found === undefined ? null : [there, found];
  }

  /** The graph that runs first: itself, or the one whose nodes run it. */
  get root() {
    return this.facts.root === undefined ? this : this.model.graphs[this.facts.root];
  }

  /** The graph of all ranks, of a graph that nodes run its like in that one. */
  get plan() {
    if (this.root === this) return this.model.plan;
    return this.facts.planned >= 0 ? this.model.graphs[this.facts.planned] : null;
  }

  /** How often a step runs it, "" for once. */
  get runs() {
    return this.model.string(this.facts.runs ?? -1);
  }

  /** The graphs that a node runs. @param {number} index */
  regions(index) {
    return (this.facts.regions?.[index] ?? []).map((number) => this.model.graphs[number]);
  }

  /** All graphs that its nodes run, and theirs, each once. */
  get inside() {
    const found = new Set();
    const waiting = [this];
    for (const graph of waiting) {
      for (const index of Object.keys(graph.facts.regions ?? {})) {
        for (const region of graph.regions(Number(index))) if (!found.has(region) && found.add(region)) waiting.push(region);
      }
    }
    return [...found];
  }

  /** The nodes that run it, as [graph, index]. */
  get runners() {
    const { root, number } = this;
    if (root === this) return [];
    return [root, ...root.inside].flatMap((graph) =>
      Object.entries(graph.facts.regions ?? {}).filter(([, numbers]) => numbers.includes(number)).map(([index]) => [graph, Number(index)]),
    );
  }

  /** @param {string} column @param {number} index */
  text(column, index) {
    return this.model.string(this.columns[column][index]);
  }

  /** @param {number} index */
  label(index) {
    const instance = this.text("instance", index);
    return this.text("op", index) + (instance ? ` '${instance}'` : "");
  }

  /** forward, backward or update. @param {number} index */
  phase(index) {
    return this.facts.phases[this.columns.phase[index]];
  }

  /** @param {number} index */
  type(index) {
    return this.model.type(this.columns.type[index]);
  }

  /** The layouts of a node's results, from the graph of all ranks where this is a rank's. @param {number} index */
  layouts(index) {
    const own = this.columns.layout[index];
    const numbers = own.length ? own : this._planned(index, (plan, at) => plan.columns.layout[at]).flat();
    return numbers.map((number) => (number < 0 ? null : this.model.facts.layouts[number]));
  }

  /** The tensors of a node's result ahead of slicing, none where the dump does not say. @param {number} index */
  wholeTensors(index) {
    if (this.columns.layout[index].length) return this.type(index).tensors;
    return this._planned(index, (plan, at) => plan.type(at).tensors).flat();
  }

  /** What is read of the nodes in the graph of all ranks whose results a node's are; nothing where one is not known.
   * @template T @param {number} index @param {(plan: Graph, at: number) => T} read @returns {T[]} */
  _planned(index, read) {
    const { plan } = this;
    const origins = this.facts.origins?.[index] ?? [this.origin(index)];
    return plan && origins.every((at) => at >= 0) ? origins.map((at) => read(plan, at)) : [];
  }

  /** The node of the graph of all ranks that a rank's node was made of, -1 for none. @param {number} index */
  origin(index) {
    return this.facts.origin?.[index] ?? -1;
  }

  /** @param {number} index */
  collective(index) {
    return this.facts.collectives[index] ?? null;
  }

  /** Predicted seconds of a node, null for one that does not run or where nothing is predicted. @param {number} index */
  seconds(index) {
    return this.facts.schedule?.seconds[index] ?? null;
  }

  /** The stream that a node runs on. @param {number} index */
  stream(index) {
    return this.text("stream", index) || "compute";
  }

  /** An operand: a node, a parameter, or the text of a constant. @param {number} operand */
  operand(operand) {
    if (operand < 0) return { parameter: -1 - operand };
    if (operand < this.count) return { node: operand };
    return { constant: this.model.string(this.facts.constants[operand - this.count]) };
  }

  /** @param {number} number */
  parameter(number) {
    const { model } = this;
    const columns = this.facts.parameters;
    const layout = columns.layout[number][0];
    return {
      name: model.string(columns.name[number]),
      kind: model.string(columns.kind[number]),
      trainable: Boolean(columns.trainable[number]),
      type: model.type(columns.type[number]),
      whole: model.type(columns.whole[number]),
      layout: layout === undefined || layout < 0 ? null : model.facts.layouts[layout],
    };
  }

  /** The number of a parameter, -1 where there is none of the name. @param {string} name */
  parameterNamed(name) {
    return this.facts.parameters.name.findIndex((number) => this.model.string(number) === name);
  }

  /** Whether a rank runs this graph; of what is no rank's own program always. @param {number} rank */
  isRunBy(rank) {
    const program = this.model.programOf(rank);
    return this.facts.kind !== "rank" || program < 0 || this.model.facts.programs[program].graph === this.root.number;
  }

  get parameterCount() {
    return this.facts.parameters.name.length;
  }

  /** The nodes that read a node's result or a parameter (as an operand names them). @param {number} operand */
  readers(operand) {
    if (!this._readers) {
      this._readers = new Map();
      this.columns.inputs.forEach((inputs, index) => {
        for (const input of new Set(inputs)) {
          if (input >= this.count) continue;
          const found = this._readers.get(input);
          if (found) found.push(index);
          else this._readers.set(input, [index]);
        }
      });
    }
    return this._readers.get(operand) ?? [];
  }

  /** The scopes of the graph. */
  get tree() {
    this._tree ??= makeTree(this);
    return this._tree;
  }

  /** What a search looks through, a lower-case line a node. */
  get texts() {
    this._texts ??= Array.from({ length: this.count }, (_, index) => {
      const line = this.model.line(this.columns.stack[index]);
      const place = line ? `${line.file}:${line.line} ${line.text}` : "";
      const body = (this.facts.body[index] ?? []).map((n) => this.model.string(n)).join(" ");
      const names = ["op", "instance", "value", "scope"].map((column) => this.text(column, index)).join(" ");
      return `%${index} ${names} ${place} ${body}`.toLowerCase();
    });
    return this._texts;
  }

  /** Nodes and parameters with all words in them, at most so many of each. @param {string} words @param {number} most */
  search(words, most) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    if (!wanted.length) return { nodes: [], parameters: [], more: false };
    const nodes = [];
    const parameters = [];
    let more = false;
    for (let i = 0; i < this.parameterCount && !more; i++) {
      const name = this.model.string(this.facts.parameters.name[i]).toLowerCase();
      if (!wanted.every((word) => name.includes(word))) continue;
      if (parameters.length === most) more = true;
      else parameters.push(i);
    }
    const { texts } = this;
    for (let i = 0; i < this.count; i++) {
      if (!wanted.every((word) => texts[i].includes(word))) continue;
      if (nodes.length === most) {
        more = true;
        break;
      }
      nodes.push(i);
    }
    return { nodes, parameters, more };
  }
}
