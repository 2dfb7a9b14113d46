// What flows through one scope, drawn: boxes are laid out from above to below by dagre.
import { graphlib, layout } from "@dagrejs/dagre";
import { Fragment, h } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { firstScope, flow, scopeAround, scopesOf } from "./flow.js";
import { Icon } from "./icons.jsx";
import { shardCounts } from "./places.js";
import { bytesText, several, shapeText, shortened, timeText } from "./units.js";

const MOST = 200; // boxes of a scope that are drawn
const LETTERS = [12, 10.5]; // pixels, as in the style of boxes
const HEIGHT = 38;
const READABLE = 0.92; // of the natural size: letters of 11 pixels
const SCALES = [0.25, 0.35, 0.5, 0.7, READABLE, 1, 1.4];
const GAP = 16;
const APART = 8; // pixels to the side of a box's middle
const PEN = document.createElement("canvas").getContext("2d");

const lastOf = (path) => path.split("/").slice(-1)[0] || "the network";

/** The pixels that a line of a box takes, in the letters that the style gives it. kind: of the box. */
function widthOf(text, line, kind) {
  const bold = kind.startsWith("scope") ? line === 0 || kind.includes("sends") : kind.includes("collective");
  PEN.font = `${bold ? 600 : 400} ${LETTERS[line]}px ${getComputedStyle(document.body).fontFamily}`;
  return PEN.measureText(text).width;
}

/** The two lines of a box, and of what kind it is. @param {import("./model.js").Graph} graph @param {import("./flow.js").Box} box */
function said(graph, box) {
  if (box.parameter !== undefined) {
    const { name, kind, type } = graph.parameter(box.parameter);
    return { kind: "parameter", lines: [name, `${kind} ${type.tensors.map((t) => shapeText(t.shape)).join(" ")}`] };
  }
  if (box.parameters) return { kind: "parameter", lines: [several(box.parameters, "parameter"), "and inputs"] };
  if (box.outside !== undefined) return { kind: "outside", lines: [scopesOf(graph).get(box.outside)?.scope.fold ? scopesOf(graph).get(box.outside).scope.name : lastOf(box.outside), box.id.startsWith("from") ? "from outside" : "continues outside"] };
  if (box.scope) {
    const { nodes, collectives, bytes, seconds } = box.scope;
    const sends = collectives ? `, ${several(collectives, "collective")}${bytes ? ` ${bytesText(bytes)}` : ""}` : "";
    return { kind: `scope ${collectives ? "sends" : ""} ${box.scope.fold ? "fold" : ""}`, lines: [box.scope.name, `${several(nodes, "node")}${sends}${seconds ? `, ${timeText(seconds)}` : ""}`] };
  }
  const collective = graph.collective(box.node);
  const { tensors, text } = graph.type(box.node);
  const [first] = graph.layouts(box.node);
  const shape = tensors.length === 1 ? shapeText(tensors[0].shape) : tensors.length ? several(tensors.length, "tensor") : text;
  const sharding = first && shardCounts(first).some((n) => n > 1) ? ` sharded ${shardCounts(first).join(" × ")}` : "";
  return {
    kind: `node ${graph.phase(box.node)} ${collective ? "collective" : ""}`,
    lines: [graph.label(box.node), collective && collective.bytes !== undefined ? `${shape}, ${bytesText(collective.bytes)} sent` : `${shape}${sharding}`],
  };
}

/** Breaks rows of boxes that are wider than the pane, which move what lies below them down. True where it broke one. */
function wrapped(nodes, most) {
  const rows = new Map();
  for (const node of nodes) rows.set(node.y, [...(rows.get(node.y) ?? []), node]);
  let down = 0;
  let broken = false;
  for (const y of [...rows.keys()].sort((a, b) => a - b)) {
    const row = rows.get(y).sort((a, b) => a.x - b.x);
    const lines = [[]];
    let used = 0;
    for (const node of row) {
      if (used > 0 && used + GAP + node.width > most) {
        lines.push([]);
        used = 0;
      }
      used += (used ? GAP : 0) + node.width;
      lines[lines.length - 1].push(node);
    }
    lines.forEach((line, i) => {
      let x = GAP;
      for (const node of line) {
        node.y = y + down + i * (HEIGHT + GAP);
        if (lines.length === 1) continue;
        node.x = x + node.width / 2;
        x += node.width + GAP;
      }
    });
    broken ||= lines.length > 1;
    down += (lines.length - 1) * (HEIGHT + GAP);
  }
  return broken;
}

/** The narrow ones of rows that were not broken, between the broken ones: pulled to the middle of what is left. */
function pulledIn(nodes, edges, most) {
  const wide = nodes.reduce((far, { x, width }) => Math.max(far, x + width / 2), 0);
  if (wide > most) {
    const rows = new Map();
    for (const node of nodes) rows.set(node.y, [...(rows.get(node.y) ?? []), node]);
    for (const row of rows.values()) {
      const far = row.reduce((found, { x, width }) => Math.max(found, x + width / 2), 0);
      const near = row.reduce((found, { x, width }) => Math.min(found, x - width / 2), Infinity);
      if (far <= most) continue;
      const total = row.reduce((sum, { width }) => sum + width + GAP, GAP);
      let at = Math.max(GAP, Math.min(near, most - total));
      for (const node of row) {
        node.x = at + node.width / 2;
        at += node.width + GAP;
      }
    }
  }
  const places = new Map(nodes.map((node) => [node.box.id, node]));
  for (const edge of edges) {
    const [from, to] = [places.get(edge.from), places.get(edge.to)];
    const side = from.y <= to.y ? 1 : -1;
    const beside = side * APART; // what flows back does not lie on what flows forth
    const begin = { x: from.x + beside, y: from.y + (side * HEIGHT) / 2 };
    const end = { x: to.x + beside, y: to.y - (side * HEIGHT) / 2 };
    edge.points = [begin, { x: begin.x, y: begin.y + side * 10 }, { x: end.x, y: end.y - side * 10 }, end];
    edge.back = false;
  }
}

/** Boxes with places and edges with points. room: pixels that there are from side to side. */
function laidOut(graph, path, hidden, room) {
  const { boxes, edges, left } = flow(graph, path, hidden, MOST);
  const drawn = new graphlib.Graph({ multigraph: true });
  drawn.setGraph({ rankdir: "TB", nodesep: 16, ranksep: 30, marginx: 10, marginy: 10 });
  drawn.setDefaultEdgeLabel(() => ({}));
  for (const box of boxes) {
    const told = said(graph, box);
    const lines = told.lines.map(shortened);
    drawn.setNode(box.id, { ...told, lines, full: told.lines.join("\n"), box, width: Math.max(60, ...lines.map((line, i) => widthOf(line, i, told.kind) + 16)), height: HEIGHT });
  }
  const own = new Set(boxes.filter((box) => box.node !== undefined || box.scope).map((box) => box.id));
  const order = new Map(boxes.map((box) => [box.id, box.order]));
  for (const edge of edges) {
    const back = order.get(edge.from) > order.get(edge.to); // what runs first stands above, gradients flow upwards
    const [from, to] = back ? [edge.to, edge.from] : [edge.from, edge.to];
    drawn.setEdge(from, to, { ...edge, back, weight: back ? 1 : own.has(from) && own.has(to) ? 6 : 2 }, `${edge.phase} ${back}`);
  }
  layout(drawn);
  const nodes = drawn.nodes().map((id) => drawn.node(id));
  const lines = drawn.edges().map((edge) => drawn.edge(edge));
  let { width, height } = drawn.graph();
  const most = Math.max(640, room / READABLE) - 2 * GAP;
  if (width > most && wrapped(nodes, most)) {
    pulledIn(nodes, lines, most);
    width = nodes.reduce((far, node) => Math.max(far, node.x + node.width / 2), 0) + GAP;
    height = nodes.reduce((far, node) => Math.max(far, node.y), 0) + HEIGHT;
  }
  return { nodes, edges: lines, width: width || 1, height: height || 1, left };
}

/** @param {{graph: import("./model.js").Graph, hidden: Set<string>, selected: number, select: (index: number) => void,
 *   show: (parameter: number) => void}} props */
export function Drawing({ graph, hidden, selected, select, show }) {
  const [path, setPath] = useState(() => (selected >= 0 ? scopeAround(graph, selected) : firstScope(graph)));
  const [scale, setScale] = useState(0);
  const pane = useRef(null);
  const [room, setRoom] = useState(900);
  useEffect(() => setRoom(pane.current?.clientWidth || 900), []);
  const known = scopesOf(graph);
  const here = known.has(path) ? path : firstScope(graph);
  const found = useMemo(() => laidOut(graph, here, hidden, room), [graph, here, hidden, room]);
  useEffect(() => {
    if (selected < 0 || found.nodes.some(({ box }) => box.node === selected)) return;
    setPath(scopeAround(graph, selected));
  }, [graph, selected]);
  const fitting = () => Math.min(1, Math.max(SCALES[0], (pane.current?.clientWidth ?? 900) / found.width));
  useEffect(() => {
    const size = Math.max(READABLE, fitting());
    setScale(size);
    const at = found.nodes.find(({ box }) => box.node === selected) ?? { x: found.width / 2, y: 0 };
    const { clientWidth, clientHeight } = pane.current;
    requestAnimationFrame(() => pane.current?.scrollTo({ top: Math.max(0, at.y * size - clientHeight / 2), left: Math.max(0, at.x * size - clientWidth / 2) }));
  }, [found]);
  const act = ({ box }) => {
    if (box.node !== undefined) select(box.node);
    else if (box.parameter !== undefined) show(box.parameter);
    else if (!box.parameters) setPath(box.scope ? box.scope.path : box.outside);
  };
  const around = [];
  for (let at = here; at !== null; at = known.get(at).around) around.unshift(at);
  const zoom = (step) => {
    const now = scale || fitting();
    const next = step > 0 ? SCALES.find((one) => one > now * 1.01) : [...SCALES].reverse().find((one) => one < now * 0.99);
    if (next) setScale(next);
  };
  return (
    <>
      <div class="tools">
        <nav class="path" aria-label="scopes around">{around.map((at, i) => <>{i > 0 && <Icon name="closed" />}<button aria-current={at === here} onClick={() => setPath(at)}>{known.get(at).scope.name || "all"}</button></>)}</nav>
        <button onClick={() => zoom(1)} aria-label="closer">+</button><button onClick={() => zoom(-1)} aria-label="further away">−</button>
        <button onClick={() => setScale(fitting())}>fit</button>
      </div>
      {found.left > 0 && <p class="note">{found.left} more boxes are left out here: open a scope, or hide a phase.</p>}
      <div class="drawing" ref={pane} tabIndex={0} aria-label={`what flows through ${lastOf(here)}`}>
        <svg width={found.width * (scale || 1)} height={found.height * (scale || 1)} viewBox={`0 0 ${found.width} ${found.height}`}>
          <defs>{["edge", "collective"].map((name) => <marker id={`head-${name}`} class={`head ${name}`} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 Z" /></marker>)}</defs>
          {found.edges.map((edge) => (
            <path class={`edge ${edge.phase} ${edge.collective ? "collective" : ""}`} marker-end={`url(#head-${edge.collective ? "collective" : "edge"})`}
              d={curve(edge.back ? [...edge.points].reverse() : edge.points)}><title>{several(edge.count, "tensor")}, {edge.phase}</title></path>
          ))}
          {found.nodes.map((one) => (
            <g key={one.box.id} class={`box ${one.kind} ${one.box.node === selected && selected >= 0 ? "selected" : ""}`} transform={`translate(${one.x - one.width / 2} ${one.y - HEIGHT / 2})`}
              data-box={one.box.id} role="button" tabIndex={0} onClick={() => act(one)} onKeyDown={(event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(one); } }}>
              <title>{one.full}</title>
              <rect width={one.width} height={HEIGHT} rx={one.box.node !== undefined ? 4 : 10} />
              {one.lines.map((line, i) => <text class={i ? "second" : "first"} x={one.width / 2} y={i ? 30 : 15} text-anchor="middle">{line}</text>)}
            </g>
          ))}
        </svg>
      </div>
    </>
  );
}

/** A smooth line through points. */
function curve(points) {
  const [first, ...rest] = points;
  const to = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  if (rest.length < 2) return `M${to(first)} L${rest.map(to).join(" ")}`;
  let text = `M${to(first)}`;
  for (let i = 0; i < rest.length - 1; i++) {
    const end = i === rest.length - 2 ? rest[i + 1] : { x: (rest[i].x + rest[i + 1].x) / 2, y: (rest[i].y + rest[i + 1].y) / 2 };
    text += ` Q${to(rest[i])} ${to(end)}`;
  }
  return text;
}
