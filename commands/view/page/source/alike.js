// Which nodes of two programs are the same step of the network, and what they do differently.

/** What a node is called wherever it stands: its operator, place and line. @param {import("./model.js").Graph} graph */
const nameOf = (graph, index) => {
  const origin = graph.origin(index);
  if (origin >= 0) return `= ${origin} ${graph.text("op", index)}`;
  const { stack } = graph.columns;
  return ["op", "instance", "scope", "value"].map((column) => graph.text(column, index)).join("\n") + `\n${graph.phase(index)} ${stack[index]}`;
};

/** The nodes of a graph by what they are called, each in run order. @returns {Map<string, number[]>} */
function named(graph) {
  if (graph.nodesByName) return graph.nodesByName;
  const found = new Map();
  for (let index = 0; index < graph.count; index++) {
    const name = nameOf(graph, index);
    const alike = found.get(name);
    if (alike) alike.push(index);
    else found.set(name, [index]);
  }
  graph.nodesByName = found;
  return found;
}

/** The node of another program that is a node of this one, -1 where that has none. @param {import("./model.js").Graph} graph
 * @param {number} index @param {import("./model.js").Graph} other */
export function counterpart(graph, index, other) {
  const name = nameOf(graph, index);
  return named(other).get(name)?.[named(graph).get(name).indexOf(index)] ?? -1;
}

/** The nodes of two programs beside each other, in run order of the first, those of the second alone behind what stands
 * before them there. A row has -1 where a program lacks the node. @returns {[number, number][]} */
export function sideBySide(first, second) {
  const there = new Map();
  const rows = [];
  for (let index = 0; index < first.count; index++) {
    const found = counterpart(first, index, second);
    if (found >= 0) there.set(found, index);
  }
  const behind = new Map(); // by node of the first, those of the second alone that follow it
  let last = -1;
  for (let index = 0; index < second.count; index++) {
    if (there.has(index)) last = there.get(index);
    else behind.set(last, [...(behind.get(last) ?? []), index]);
  }
  const back = new Map([...there].map(([theirs, ours]) => [ours, theirs]));
  for (let index = -1; index < first.count; index++) {
    if (index >= 0) rows.push([index, back.get(index) ?? -1]);
    for (const theirs of behind.get(index) ?? []) rows.push([-1, theirs]);
  }
  return rows;
}

/** What two nodes differ in: names of "type", "fields", "bytes", "seconds". */
export function differing(first, one, second, other) {
  const found = [];
  if (first.columns.type[one] !== second.columns.type[other]) found.push("type");
  if (first.columns.fields[one] !== second.columns.fields[other]) found.push("fields");
  if (first.collective(one)?.bytes !== second.collective(other)?.bytes) found.push("bytes");
  if (first.seconds(one) !== second.seconds(other)) found.push("seconds");
  return found;
}
