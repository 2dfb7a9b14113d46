// Tables: collectives, costs, parameters, ranks, source lines.
import { Fragment, h } from "preact";
import { useMemo, useState } from "preact/hooks";
import { CollectiveMark, Icon } from "./icons.jsx";
import { LongList } from "./list.jsx";
import { partnerText } from "./model.js";
import { joinedCollectives, joinedLayers, layerKind, sourceLines } from "./sums.js";
import { shardCounts, layoutText } from "./places.js";
import { Phase } from "./tree.jsx";
import { Beside } from "./beside.jsx";
import { bytesText, several, shapeText, shareText, timeText, toldApart } from "./units.js";

const ROW = 44;

const place = (line) => (line ? `${line.file}:${line.line}` : "");

/** chosen: the graph of the node that is selected.
 * @param {{graph: import("./model.js").Graph, chosen: import("./model.js").Graph, selected: number, select: (graph: any, index: number) => void}} props */
export function Collectives({ graph, chosen, selected, select }) {
  const [by, setBy] = useState("order");
  const all = useMemo(() => [graph, ...graph.inside].flatMap((one) => one.collectives.map((index) => [one, index])), [graph]);
  const sums = useMemo(() => {
    const found = new Map();
    for (const [own, index] of all) {
      const { bytes = 0, seconds = 0 } = own.collective(index);
      const name = own.text("op", index);
      const row = found.get(name) ?? found.set(name, { name, count: 0, bytes: 0, seconds: 0 }).get(name);
      row.count += 1;
      row.bytes += bytes;
      row.seconds += seconds;
    }
    return [...found.values()].sort((a, b) => b.bytes - a.bytes);
  }, [all]);
  // As they run each has a row; the most expensive ones are those of repeated layers together.
  const rows = useMemo(() => (by === "order" ? all.map((node) => ({ nodes: [node] })) : joinedCollectives(graph).sort((a, b) => b[by] - a[by])), [all, by]);
  if (!all.length) return <p class="note">No collectives in this graph.</p>;
  const row = (i) => {
    const { nodes } = rows[i];
    const [own, index] = nodes[0];
    const { size, message } = own.collective(index);
    const { bytes, seconds, reason = own.text("reason", index) } = nodes.length > 1 ? rows[i] : own.collective(index);
    const sent = message?.received ? `, ${bytesText(message.bytes)} received` : bytes !== undefined && `, ${bytesText(bytes)}`;
    const among = message ? partnerText(message) : size ? `of ${several(size, "rank")}` : "";
    return (
      <div key={`${own.number}.${index}`} class={`entry ${nodes.some(([one, each]) => one === chosen && each === selected) ? "selected" : ""}`} role="listitem" {...pressed(() => select(own, index))}>
        <div><Phase phase={own.phase(index)} /> <b>{own.text("op", index)}</b>{nodes.length > 1 ? ` × ${nodes.length}` : <> <span class="number">%{index}</span></>}{own.root !== own && ` in @${own.facts.name}`}{own.runs && `, ${own.runs},`} {among}{sent}{seconds !== undefined && `, ${timeText(seconds)}`} <span class="place">{place(own.model.line(own.columns.stack[index]))}</span></div>
        <div class="reason">{reason}</div>
      </div>
    );
  };
  return (
    <div class="full">
      <table class="sums">
        <caption>{several(all.length, "collective")} of {graph.title}{sums.some((s) => s.bytes) && `: a rank sends ${bytesText(sums.reduce((n, s) => n + s.bytes, 0))} in a step`}</caption>
        <tbody>{sums.map(({ name, count, bytes, seconds }) => <tr><th>{name}</th><td class="right">{count}</td><td class="right">{bytes ? bytesText(bytes) : ""}</td><td class="right">{seconds ? timeText(seconds) : ""}</td></tr>)}</tbody>
      </table>
      <div class="tools">order: {["order", "bytes", "seconds"].map((name) => <button aria-pressed={by === name} onClick={() => setBy(name)}>{{ order: "as they run", bytes: "bytes", seconds: "time" }[name]}</button>)}</div>
      <LongList count={rows.length} height={ROW} row={row} label="collectives" />
    </div>
  );
}

/** What makes a row act, by a click or by Enter. */
const pressed = (act) => ({ tabIndex: 0, onClick: act, onKeyDown: (event) => event.key === "Enter" && act() });

/** The shapes of a result in few words. */
function resultText({ tensors, text }) {
  if (!tensors.length) return text.slice(0, 60);
  return tensors.slice(0, 2).map((t) => shapeText(t.shape)).join(" ") + (tensors.length > 2 ? ` and ${tensors.length - 2} more` : "");
}

/** The nodes that take most. */
export function Costs({ graph, rank, selected, select }) {
  const { schedule } = graph.facts;
  const measured = graph.model.facts.measured[rank]?.nodes;
  const [by, setBy] = useState(measured ? "measured" : "predicted");
  const secondsOf = (which, i) => (which === "measured" ? measured?.[i]?.[1] : schedule.seconds[i]) ?? 0;
  const sumOf = (which, alike) => alike.reduce((sum, i) => sum + secondsOf(which, i), 0);
  const rows = useMemo(() => {
    const nodes = [];
    for (let i = 0; i < graph.count; i++) if (secondsOf(by, i)) nodes.push([graph, i]);
    const found = joinedLayers(nodes, (own, i) => [layerKind(own.label(i)), own.type(i).text]).map((alike) => alike.map(([, i]) => i));
    return found.map((alike) => [alike, sumOf(by, alike)]).sort((a, b) => b[1] - a[1]);
  }, [graph, by, rank]);
  const total = rows.reduce((sum, [, seconds]) => sum + seconds, 0);
  const other = by === "measured" ? "predicted" : "measured";
  return (
    <div>
      {measured && <div class="tools">by: {["measured", "predicted"].map((name) => <button aria-pressed={by === name} onClick={() => setBy(name)}>{name}</button>)}</div>}
      <table class="wide">
        <caption>The most expensive nodes of {graph.title}, {by}; equal ones of repeated layers in one row</caption>
        <thead><tr><th>time</th><th>share</th>{measured && <th>{other}</th>}<th>node</th><th>result</th><th>line</th></tr></thead>
        <tbody>
          {rows.slice(0, 100).map(([alike, seconds]) => [alike[0], alike, seconds]).map(([i, alike, seconds]) => (
            <tr class={`choice ${alike.includes(selected) ? "selected" : ""}`} {...pressed(() => select(graph, i))}>
              <td class="right">{timeText(seconds)}</td><td class="right">{shareText(seconds / total)}</td>
              {measured && <td class="right">{timeText(sumOf(other, alike))}</td>}
              <td><Phase phase={graph.phase(i)} /> {graph.collective(i) && <><CollectiveMark /> </>}{graph.label(i)} {alike.length > 1 ? `× ${alike.length}` : <span class="number">%{i}</span>}</td><td class="type">{resultText(graph.type(i))}</td>
              <td class="place">{place(graph.model.line(graph.columns.stack[i]))}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > 100 && <p class="note">{several(rows.slice(100).reduce((n, [alike]) => n + alike.length, 0), "node")} more take {shareText(rows.slice(100).reduce((sum, [, s]) => sum + s, 0) / total)}.</p>}
    </div>
  );
}

export function Parameters({ graph, selected, show }) {
  const row = (i) => {
    const { name, kind, trainable, type, whole, layout } = graph.parameter(i);
    const [slice] = type.tensors;
    const [all] = whole.tensors;
    return (
      <div key={i} class={`entry ${i === selected ? "selected" : ""}`} role="listitem" {...pressed(() => show(i))}>
        <div><b>{name}</b> <span class="kind">{kind}{trainable && ", trainable"}</span></div>
        <div>{all ? `${all.dtype} ${shapeText(all.shape)}` : type.text}{slice && `, a rank holds ${shapeText(slice.shape)}, ${bytesText(slice.bytes)}`}{layout && <> <span class="sharding">{shardCounts(layout).some((n) => n > 1) ? `sharded ${shardCounts(layout).join(" × ")}` : "replicated"}</span> <code>{layoutText(layout)}</code></>}</div>
      </div>
    );
  };
  return (
    <div class="full">
      <h2 class="first">{several(graph.parameterCount, "input and parameter", "inputs and parameters")}</h2>
      <LongList count={graph.parameterCount} height={ROW} row={row} label="inputs and parameters" />
    </div>
  );
}

/** Ranks side by side: which have equal programs, what each takes. */
export function Ranks({ model, rank, setRank, setTab, select }) {
  const { programs, ranks, graphs, stages } = model.facts;
  if (!programs.length) return <p class="note">This page shows one file, which has no programs of other ranks. Open the folder of a compile to see them.</p>;
  const own = programs.flatMap((program) => Object.entries(program.own).map(([index, values]) => [program, Number(index), values]));
  const facts = programs.map(({ graph }) => graphs[graph]);
  const line = (name, of, text = String) => {
    const numbers = facts.map(of).map((number) => (Number.isInteger(number) ? number : Number(number.toPrecision(9)))); // sums of times are rounded
    return <tr><th>{name}</th>{toldApart(numbers, text).map((told, i) => <td class={`right ${numbers[i] === numbers[0] ? "" : "differs"}`}>{told}</td>)}</tr>;
  };
  const bytes = (name, of) => line(name, of, bytesText);
  const time = (name, of) => line(name, of, timeText);
  const sent = (f) => Object.values(f.collectives).reduce((sum, one) => sum + (one.bytes ?? 0), 0);
  return (
    <div>
      <div class="scrolls"><table class="wide ranks">
        <caption>{several(ranks, "rank")}, {several(programs.length, "program", "different programs")}: ranks of a column run equal programs, except for groups{own.length > 0 && " and the attributes below"}</caption>
        <thead><tr><th />{programs.map(({ graph }) => <th>{several(programs.find((p) => p.graph === graph).count, "rank")}: {model.ranksOf(model.graphs[graph])} <button onClick={() => { setRank(programs.find((p) => p.graph === graph).ranks[0][0]); setTab("network"); }}>show</button></th>)}</tr></thead>
        <tbody>
          {stages && <tr><th>stage</th>{programs.map(({ graph }) => <td class="right">{stages.of[graph]}</td>)}</tr>}
          {stages?.rows && line("idle", (f) => stages.rows[stages.of[facts.indexOf(f)]].idle, shareText)}
          {stages?.rows && line("micro-batches kept at most", (f) => stages.rows[stages.of[facts.indexOf(f)]].keeps)}
          {line("nodes", (f) => f.nodes.op.length)}
          {line("collectives", (f) => Object.keys(f.collectives).length)}
          {bytes("bytes sent in a step", sent)}
          {time(stages ? "predicted step, without waits" : "predicted step", (f) => f.schedule.total)}
          {time("computed", (f) => f.schedule.compute)}
          {time("communicated", (f) => f.schedule.communication)}
          {facts.some((f) => f.schedule.communication) && line("of which hidden", (f) => (f.schedule.communication ? f.schedule.hidden : 0), shareText)}
          {bytes("weights", (f) => f.memory.sizes.weights)}
          {bytes("states of the optimizer", (f) => f.memory.sizes.states)}
          {bytes("gradients at most", (f) => f.memory.sizes.gradients)}
          {bytes("activations at most", (f) => f.memory.sizes.activations)}
          {bytes("temporary buffers at most", (f) => f.memory.sizes.temporary)}
          {bytes("memory of the step", (f) => f.memory.sizes.arena)}
          {bytes("peak", (f) => f.memory.sizes.peak)}
          {facts.some((f) => f.memory?.sizes.on_host) && bytes("on the host", (f) => f.memory.sizes.on_host)}
          {Object.keys(model.facts.measured).length > 0 && line("measured ranks", (f) => Object.keys(model.facts.measured).filter((r) => facts.indexOf(f) === model.programOf(Number(r))).length)}
        </tbody>
      </table></div>
      <div class="tools"><label>Look as rank <input type="number" min="0" max={ranks - 1} value={rank} onInput={(event) => setRank(Number(event.currentTarget.value))} /></label> pictures mark what it holds, groups are its own.</div>
      {programs.length > 1 && <Beside model={model} select={select} />}
      {own.length > 0 && (
        <table class="wide">
          <caption>Attributes that differ between ranks</caption>
          <tbody>{own.slice(0, 200).map(([program, index, values]) => <tr><th>%{index} {model.graphs[program.graph].label(index)}</th><td>{Object.entries(values).slice(0, 16).map(([r, text]) => <div>rank {r}: <code>{text}</code></div>)}</td></tr>)}</tbody>
        </table>
      )}
    </div>
  );
}

/** The user's lines, with what each is turned into. */
export function Source({ graph, select }) {
  const files = useMemo(() => {
    const found = sourceLines(graph);
    const own = (file) => (file.startsWith("mspc/") ? 1 : 0);
    return found.sort((a, b) => own(a.file) - own(b.file));
  }, [graph]);
  const [chosen, setChosen] = useState("");
  const file = files.find((one) => one.file === chosen) ?? files[0];
  const [line, setLine] = useState(0);
  if (!file) return <p class="note">The dump names no source lines.</p>;
  const most = file.lines.reduce((found, row) => Math.max(found, row.seconds), 1e-12);
  const open = file.lines.find((row) => row.line === line);
  return (
    <div>
      <div class="tools">{files.slice(0, 30).map((one) => <button aria-pressed={one === file} onClick={() => { setChosen(one.file); setLine(0); }}>{one.file}</button>)}</div>
      <table class="wide code">
        <colgroup>{["number", "text", "few", "sends", "times"].map((name) => <col class={name} />)}</colgroup>
        <thead><tr><th class="right">line</th><th>source, as far as the dump quotes it</th><th class="right">nodes</th><th>collectives</th><th class="right">time</th></tr></thead>
        <tbody>
          {file.lines.slice(0, 2000).map((row) => [
            <tr class={`choice ${row.line === line ? "selected" : ""}`} aria-expanded={row === open} {...pressed(() => setLine(row.line === line ? 0 : row.line))}>
              <td class="right">{row.line}</td><td><pre>{row.text}</pre></td><td class="right">{row.nodes.length}</td>
              <td>{row.collectives > 0 && <><Icon name="exchange" /> {`${row.collectives}${row.bytes ? `, ${bytesText(row.bytes)}` : ""}`}</>}</td>
              <td class="right">{row.seconds > 0 && <><span class="bar"><span style={{ width: `${(100 * row.seconds) / most}%` }} /></span> <span class="beside">{timeText(row.seconds)}</span></>}</td>
            </tr>,
            row === open && (
              <tr class="made"><td /><td colSpan={4}>{row.nodes.slice(0, 60).map(([own, index]) => <button class={`chip ${own.collective(index) ? "sends" : ""}`} onClick={() => select(own, index)}><Phase phase={own.phase(index)} /> {own.collective(index) && <><CollectiveMark /> </>}{own.label(index)} %{index}</button>)}{row.nodes.length > 60 && ` and ${row.nodes.length - 60} more`}</td></tr>
            ),
          ])}
        </tbody>
      </table>
    </div>
  );
}
