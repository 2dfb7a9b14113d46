// The network as scopes that open and close.
import { h } from "preact";
import { useMemo } from "preact/hooks";
import { CollectiveMark, Icon } from "./icons.jsx";
import { LongList } from "./list.jsx";
import { openRows } from "./scopes.js";
import { shardCounts } from "./places.js";
import { bytesText, several, shapeText, timeText } from "./units.js";

const ROW = 26;
export const PHASE_MARKS = { forward: "F", backward: "B", update: "U" };

/** @param {{phase: string}} props */
export function Phase({ phase }) {
  return <span class={`phase ${phase in PHASE_MARKS ? phase : ""}`} title={phase}>{PHASE_MARKS[phase] ?? phase}</span>;
}

/** What a scope holds, in few words. */
function ScopeFacts({ graph, scope }) {
  const phases = graph.facts.phases;
  return (
    <span class="facts">
      {scope.phases.map((count, phase) => count > 0 && <span class="count"><Phase phase={phases[phase]} />{count}</span>)}
      {scope.collectives > 0 && <span class="sends"><Icon name="exchange" /> {several(scope.collectives, "collective")}{scope.bytes > 0 && `, ${bytesText(scope.bytes)}`}</span>}
      <span class="time">{scope.seconds > 0 && timeText(scope.seconds)}</span>
    </span>
  );
}

function NodeFacts({ graph, index }) {
  const collective = graph.collective(index);
  const seconds = graph.seconds(index);
  const [layout] = graph.layouts(index);
  const { tensors, text } = graph.type(index);
  const shape = tensors.length === 1 ? shapeText(tensors[0].shape) : tensors.length ? `${tensors.length} tensors` : text;
  return (
    <span class="facts">
      <span class="shape">{shape}</span>
      {layout && <span class="sharding" title="slices of every dimension">{shardCounts(layout).some((n) => n > 1) ? `sharded ${shardCounts(layout).join(" × ")}` : "replicated"}{layout[2].length > 0 && ", partial"}</span>}
      {collective?.bytes !== undefined && <span class="sends">{bytesText(collective.bytes)}</span>}
      <span class="time">{seconds !== null && timeText(seconds)}</span>
    </span>
  );
}

/** The key of a row of the tree. */
function keyOf(row) {
  if (row === undefined) return "";
  const [, what] = row;
  if (typeof what === "number") return `%${what}`;
  if (what.region) return `${what.at}@${what.region.number}`;
  return what.path ?? `${what.at}:${what.line}`;
}

/** @param {{graph: import("./model.js").Graph, open: Set<string>, hidden: Set<string>, chosen: import("./model.js").Graph,
 *   selected: number, toggle: (path: string) => void, select: (graph: any, index: number) => void}} props
 * chosen: the graph of the node that is selected. */
export function Tree({ graph, open, hidden, chosen, selected, focus, setFocus, toggle, select }) {
  const rows = useMemo(() => openRows(graph, open, hidden), [graph, open, hidden]);
  const at = useMemo(() => rows.findIndex((row) => keyOf(row) === focus), [rows, focus]);
  const hasInside = (own, index) => Boolean(own.facts.body[index]) || own.regions(index).length > 0;
  const opens = (what) => {
    if (typeof what === "number") return hasInside(graph, what);
    return what.index !== undefined ? hasInside(what.graph, what.index) : what.path !== undefined;
  };

  const onKeyDown = (event) => {
    const [depth, what] = rows[at] ?? [];
    const path = at >= 0 ? keyOf(rows[at]) : "";
    const move = (to) => rows[to] && setFocus(keyOf(rows[to]));
    const page = Math.max(1, Math.floor(event.currentTarget.clientHeight / ROW) - 1);
    if (event.key === "ArrowDown") move(at + 1);
    else if (event.key === "ArrowUp") move(Math.max(0, at - 1));
    else if (event.key === "PageDown") move(Math.min(rows.length - 1, at + page));
    else if (event.key === "PageUp") move(Math.max(0, at - page));
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(rows.length - 1);
    else if (event.key === "ArrowRight" && what !== undefined && opens(what) && !open.has(path)) toggle(path);
    else if (event.key === "ArrowLeft" && what !== undefined) {
      if (open.has(path)) toggle(path);
      else for (let i = at - 1; i >= 0; i--) if (rows[i][0] < depth) { move(i); break; }
    } else if ((event.key === "Enter" || event.key === " ") && what !== undefined) {
      if (typeof what === "number") select(graph, what);
      else if (what.index !== undefined) select(what.graph, what.index);
      else if (what.path !== undefined) toggle(path);
      else if (!what.region) select(what.graph, what.node);
    } else return;
    event.preventDefault();
  };

  const row = (i) => {
    const [depth, what] = rows[i];
    const path = keyOf(rows[i]);
    const common = {
      key: path, id: `row-${i}`, role: "treeitem", "aria-level": depth + 1, style: { paddingLeft: `${8 + 16 * depth}px` },
      "data-path": path,
    };
    const focused = path === focus ? " focused" : "";
    if (typeof what === "number" || what.index !== undefined) {
      const [own, index] = typeof what === "number" ? [graph, what] : [what.graph, what.index];
      const inside = hasInside(own, index);
      const phase = own.phase(index);
      const isChosen = own === chosen && index === selected;
      return (
        <div {...common} class={`row node ${isChosen ? "selected" : ""}${focused}`} aria-selected={isChosen}
          aria-expanded={inside ? open.has(path) : undefined} onClick={() => select(own, index)}>
          {inside ? <button class="open" tabIndex={-1} aria-label="what it consists of" onClick={(event) => { event.stopPropagation(); toggle(path); }}><Icon name={open.has(path) ? "open" : "closed"} /></button> : <span class="open" />}
          <Phase phase={phase} />
          {own.collective(index) && <CollectiveMark />}
          <span class="name">{own.text("op", index)}</span>
          {own.text("instance", index) && <span class="instance">{own.text("instance", index)}</span>}
          <span class="number">%{index}</span>
          <NodeFacts graph={own} index={index} />
        </div>
      );
    }
    if (what.region) {
      const { region } = what;
      return <div {...common} class={`row region${focused}`}><span class="open" /><code>@{region.facts.name}</code><span class="facts">{several(region.count, "node")}{region.runs && `, ${region.runs}`}</span></div>;
    }
    if (what.path === undefined) {
      const line = what.graph.model.string(what.graph.facts.body[what.node][what.line]);
      return <div {...common} class={`row line${focused}`} onClick={() => select(what.graph, what.node)}><span class="open" /><code>{line}</code></div>;
    }
    return (
      <div {...common} class={`row scope${focused}`} aria-expanded={open.has(path)} onClick={() => { setFocus(path); toggle(path); }}>
        <span class="open"><Icon name={open.has(path) ? "open" : "closed"} /></span>
        <span class="name">{what.name}</span>
        <ScopeFacts graph={graph} scope={what} />
      </div>
    );
  };
  return <LongList count={rows.length} height={ROW} row={row} at={at} label="the network" role="tree" onKeyDown={onKeyDown} active={at >= 0 ? `row-${at}` : undefined} />;
}
