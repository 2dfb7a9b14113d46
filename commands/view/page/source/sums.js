// What is added up over a graph: memory over its nodes, and what the user's lines take.

/** Bytes alive after every node of a plan's blocks, and where the most are. @param {any} memory @param {number} count
 * @param {number} kind of the blocks that count, all by default */
export function memoryCurve(memory, count, kind = -1) {
  const change = new Float64Array(count + 2);
  memory.blocks.forEach(([, bytes, first, last], i) => {
    if (kind >= 0 && memory.kinds[i] !== kind) return;
    change[first] += bytes;
    change[Math.min(last, count) + 1] -= bytes;
  });
  const alive = new Float64Array(Math.max(1, count));
  let now = 0;
  let peak = 0;
  for (let i = 0; i < count; i++) {
    now += change[i];
    alive[i] = now;
    if (now > alive[peak]) peak = i;
  }
  return { alive, peak };
}

/** The blocks that stand in memory while a node runs, the largest first, each with its kind behind it.
 * @param {any} memory @param {number} index */
export function aliveAt(memory, index) {
  const found = memory.blocks.map((block, i) => [...block, memory.kinds?.[i]]);
  return found.filter(([, , first, last]) => first <= index && index <= last).sort((a, b) => b[1] - a[1]);
}

/** Lines without the indentation that all of them have. @param {{text: string}[]} lines */
function unindented(lines) {
  const depth = lines.reduce((least, { text }) => (text.trim() ? Math.min(least, text.search(/\S/)) : least), Infinity);
  return lines.map((line) => ({ ...line, text: line.text.slice(depth) }));
}

/** The user's lines that nodes come from, by file: what stands there, and how much it takes. Nodes are [graph, index],
 * those of the graphs that nodes run too. @param {Graph} graph */
export function sourceLines(graph) {
  const files = new Map();
  const nodes = [graph, ...graph.inside].flatMap((own) => Array.from({ length: own.count }, (_, index) => [own, index]));
  for (const [own, index] of nodes) {
    const line = own.model.line(own.columns.stack[index]);
    if (!line) continue;
    const lines = files.get(line.file) ?? files.set(line.file, new Map()).get(line.file);
    const row = lines.get(line.line) ?? { line: line.line, text: line.text, nodes: [], collectives: 0, bytes: 0, seconds: 0 };
    lines.set(line.line, row);
    row.nodes.push([own, index]);
    row.seconds += own.seconds(index) ?? 0;
    const collective = own.collective(index);
    if (collective) {
      row.collectives += 1;
      row.bytes += collective.bytes ?? 0;
    }
  }
  return [...files].map(([file, lines]) => ({ file, lines: unindented([...lines.values()].sort((a, b) => a.line - b.line)) }));
}

/** What runs on other streams while a node does, as [node, begin, end] of the time that both run, the longest first.
 * @param {import("./model.js").Graph} graph @param {number} index @returns {[number, number, number][]} */
export function overlapping(graph, index) {
  const { begin, seconds } = graph.facts.schedule;
  const [from, to] = [begin[index], begin[index] + seconds[index]];
  const stream = graph.stream(index);
  const shortest = 1e-4 * (to - from); // times are rounded
  const found = [];
  for (let i = 0; i < graph.count; i++) {
    if (!seconds[i] || graph.stream(i) === stream) continue;
    const both = [Math.max(from, begin[i]), Math.min(to, begin[i] + seconds[i])];
    if (both[1] - both[0] > shortest) found.push([i, ...both]);
  }
  return found.sort((a, b) => b[2] - b[1] - (a[2] - a[1]));
}

/** Seconds that spans cover together. @param {[number, number, number][]} spans */
export function coveredSeconds(spans) {
  let covered = 0;
  let until = -Infinity;
  for (const [, begin, end] of [...spans].sort((a, b) => a[1] - b[1])) {
    covered += Math.max(0, end - Math.max(begin, until));
    until = Math.max(until, end);
  }
  return covered;
}

const NUMBER = /(?<![^./])(?:\d+|\[\d+\.\.\d+\])(?=[./-]|$)/g;

/** A name or a sentence with `*` for the numbers of layers in the names of cells and parameters. @param {string} text */
export const layerKind = (text) => {
  const words = text.split(" ");
  return words.map((word) => (words.length === 1 || /[a-z]/i.test(word) ? word.replace(NUMBER, "*") : word)).join(" ");
};

/** Nodes that are equal but for the numbers of their layers, together, in the order in which they come first.
 * @param {[import("./model.js").Graph, number][]} nodes @param {(graph: import("./model.js").Graph, index: number) => unknown[]} more
 *   what else must be equal */
export function joinedLayers(nodes, more) {
  const found = new Map();
  for (const [own, index] of nodes) {
    const line = own.model.line(own.columns.stack[index]);
    const place = line && `${line.file}:${line.line}`;
    const key = JSON.stringify([own.text("op", index), own.phase(index), place, layerKind(own.text("scope", index)), ...more(own, index)]);
    (found.get(key) ?? found.set(key, []).get(key)).push([own, index]);
  }
  return [...found.values()];
}

/** The collectives of a graph, equal ones of repeated layers together, with what they take in all.
 * @param {import("./model.js").Graph} graph */
export function joinedCollectives(graph) {
  const all = [graph, ...graph.inside].flatMap((own) => own.collectives.map((index) => [own, index]));
  const rows = joinedLayers(all, (own, index) => {
    const { size, bytes, message } = own.collective(index);
    return [size, bytes, message, own.runs, layerKind(own.text("reason", index))];
  });
  return rows.map((nodes) => {
    const sum = (name) => nodes.reduce((total, [own, index]) => total + (own.collective(index)[name] ?? 0), 0);
    const [[own, index]] = nodes;
    const reasons = new Set(nodes.map(([one, i]) => one.text("reason", i)));
    const reason = reasons.size > 1 ? layerKind(own.text("reason", index)) : own.text("reason", index);
    return { nodes, bytes: sum("bytes"), seconds: sum("seconds"), reason };
  });
}
