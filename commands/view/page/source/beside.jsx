// Two programs node by node: what only one of them has, and what both have and do differently.
import { Fragment, h } from "preact";
import { useMemo, useState } from "preact/hooks";
import { differing, sideBySide } from "./alike.js";
import { LongList } from "./list.jsx";
import { Phase } from "./tree.jsx";
import { bytesText, several, shapeText, timeText, toldApart } from "./units.js";

const ROW = 44;

/** What a node of one program is, with figures that are told apart from those of the other. */
function Side({ graph, index, select, figures }) {
  if (index < 0) return <span class="lacks">has no such node</span>;
  return <button class="link" onClick={() => select(graph, index)}><Phase phase={graph.phase(index)} /> {graph.label(index)} <span class="number">%{index}</span> <span class="type">{figures.filter(Boolean).join(", ")}</span></button>;
}

/** Of two lists of fields those that are not in both. @param {string[]} texts */
function ownFields(texts) {
  const fields = texts.map((text) => text.split(/, (?=\w+: )/));
  return fields.map((own, side) => own.filter((field) => !fields[1 - side].includes(field)).join(", "));
}

/** @param {{model: import("./model.js").Model, select: (graph: any, index: number) => void}} props */
export function Beside({ model, select }) {
  const { programs } = model.facts;
  const [pair, setPair] = useState([0, 1]);
  const [all, setAll] = useState(false);
  const [first, second] = pair.map((number) => model.graphs[programs[number].graph]);
  const rows = useMemo(() => sideBySide(first, second).map(([one, other]) => [one, other, one < 0 || other < 0 ? ["only"] : differing(first, one, second, other)]), [first, second]);
  const different = rows.filter(([, , found]) => found.length);
  const shown = all ? rows : different;
  const count = (side) => rows.filter((row) => row[1 - side] < 0).length;
  const choose = (side) => (
    <select aria-label={`program ${side + 1}`} value={pair[side]} onChange={(event) => { const next = [...pair]; next[side] = Number(event.currentTarget.value); setPair(next); }}>
      {programs.map(({ graph }, number) => <option value={number}>{model.graphs[graph].title}</option>)}
    </select>
  );
  const row = (i) => {
    const [one, other, found] = shown[i];
    const both = [[first, one], [second, other]];
    const figures = both.map(() => []);
    const add = (texts) => texts.forEach((text, side) => figures[side].push(text));
    if (one >= 0 && other >= 0) {
      if (found.includes("type")) add(both.map(([graph, index]) => graph.type(index).tensors.map((t) => `${t.dtype} ${shapeText(t.shape)}`).join(" ")));
      if (found.includes("fields")) add(ownFields(both.map(([graph, index]) => graph.text("fields", index))));
      if (found.includes("bytes")) add(toldApart(both.map(([graph, index]) => graph.collective(index)?.bytes ?? 0), bytesText));
      if (found.includes("seconds")) add(toldApart(both.map(([graph, index]) => graph.seconds(index) ?? 0), timeText));
    }
    return <div key={i} class={`pair ${found.length ? "" : "same"}`} role="listitem">{both.map(([graph, index], side) => <div><Side graph={graph} index={index} select={select} figures={figures[side]} /></div>)}</div>;
  };
  return (
    <section class="beside-each-other">
      <h3>Node by node</h3>
      <div class="tools">{choose(0)} beside {choose(1)} <label><input type="checkbox" checked={all} onChange={() => setAll(!all)} /> equal ones, too</label></div>
      <p class="note">{several(rows.filter(([one, other]) => one >= 0 && other >= 0).length, "node")} of both, {different.filter(([one, other]) => one >= 0 && other >= 0).length} of them different; {count(0)} of the first alone, {count(1)} of the second alone. Nodes are the same by what they were made of: operator, cell, line.</p>
      {shown.length > 0 && <div class="pairs"><LongList count={shown.length} height={ROW} row={row} label="nodes of two programs" /></div>}
    </section>
  );
}
