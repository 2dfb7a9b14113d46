// What is added up over a graph: memory over its nodes, and what the user's lines take.

/** Bytes alive after every node of a plan's blocks, and where the most are. @param {any} memory @param {number} count */
export function memoryCurve(memory, count) {
  const change = new Float64Array(count + 2);
  for (const [, bytes, first, last] of memory.blocks) {
    change[first] += bytes;
    change[Math.min(last, count) + 1] -= bytes;
  }
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

/** The blocks that stand in memory while a node runs, the largest first. @param {any} memory @param {number} index */
export function aliveAt(memory, index) {
  return memory.blocks.filter(([, , first, last]) => first <= index && index <= last).sort((a, b) => b[1] - a[1]);
}

/** The user's lines that nodes come from, by file: what stands there, and how much it takes. @param {Graph} graph */
export function sourceLines(graph) {
  const files = new Map();
  for (let index = 0; index < graph.count; index++) {
    const line = graph.model.line(graph.columns.stack[index]);
    if (!line) continue;
    const lines = files.get(line.file) ?? files.set(line.file, new Map()).get(line.file);
    const row = lines.get(line.line) ?? { line: line.line, text: line.text, nodes: [], collectives: 0, bytes: 0, seconds: 0 };
    lines.set(line.line, row);
    row.nodes.push(index);
    row.seconds += graph.seconds(index) ?? 0;
    const collective = graph.collective(index);
    if (collective) {
      row.collectives += 1;
      row.bytes += collective.bytes ?? 0;
    }
  }
  return [...files].map(([file, lines]) => ({ file, lines: [...lines.values()].sort((a, b) => a.line - b.line) }));
}
