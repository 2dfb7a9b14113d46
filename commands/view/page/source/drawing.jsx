// What flows through one scope, drawn: boxes are laid out from above to below by dagre.
import { graphlib, layout } from "@dagrejs/dagre";
import { Fragment, h } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { firstScope, flow, scopeAround, scopesOf } from "./flow.js";
import { Icon } from "./icons.jsx";
import { cuts } from "./places.js";
import { bytesText, several, shapeText, timeText } from "./units.js";

const MOST = 200; // boxes of a scope that are drawn
const LONGEST = 30; // characters of a line
const LETTER = 6.7; // pixels of one, about
const HEIGHT = 38;
const READABLE = 0.6; // of the natural size
const SCALES = [0.25, 0.35, 0.5, 0.7, 1, 1.4];

const short = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);
const lastOf = (path) => path.split("/").slice(-1)[0] || "the whole";

/** The two lines of a box, and of what kind it is. @param {import("./model.js").Graph} graph @param {import("./flow.js").Box} box */
function said(graph, box) {
  if (box.parameter !== undefined) {
    const { name, kind, type } = graph.parameter(box.parameter);
    return { kind: "parameter", lines: [name, `${kind} ${type.tensors.map((t) => shapeText(t.shape)).join(" ")}`] };
  }
  if (box.parameters) return { kind: "parameter", lines: [several(box.parameters, "parameter"), "and inputs"] };
  if (box.outside !== undefined) return { kind: "outside", lines: [lastOf(box.outside), box.id.startsWith("from") ? "from outside" : "goes on outside"] };
  if (box.scope) {
    const { nodes, collectives, bytes, seconds } = box.scope;
    const sends = collectives ? `, ${several(collectives, "collective")}${bytes ? ` ${bytesText(bytes)}` : ""}` : "";
    return { kind: `scope ${collectives ? "sends" : ""}`, lines: [box.scope.name, `${several(nodes, "node")}${sends}${seconds ? `, ${timeText(seconds)}` : ""}`] };
  }
  const collective = graph.collective(box.node);
  const { tensors } = graph.type(box.node);
  const [first] = graph.layouts(box.node);
  const shape = tensors.length === 1 ? shapeText(tensors[0].shape) : several(tensors.length, "tensor");
  const cut = first && cuts(first).some((n) => n > 1) ? ` cut ${cuts(first).join(" × ")}` : "";
  return {
    kind: `node ${graph.phase(box.node)} ${collective ? "collective" : ""}`,
    lines: [graph.label(box.node), collective && collective.bytes !== undefined ? `${shape}, ${bytesText(collective.bytes)} sent` : `${shape}${cut}`],
  };
}

/** Boxes with places and edges with points. */
function laidOut(graph, path, hidden) {
  const { boxes, edges, left } = flow(graph, path, hidden, MOST);
  const drawn = new graphlib.Graph({ multigraph: true });
  drawn.setGraph({ rankdir: "TB", nodesep: 16, ranksep: 30, marginx: 10, marginy: 10 });
  drawn.setDefaultEdgeLabel(() => ({}));
  for (const box of boxes) {
    const told = said(graph, box);
    const lines = told.lines.map(short);
    drawn.setNode(box.id, { ...told, lines, full: told.lines.join("\n"), box, width: Math.max(60, Math.max(...lines.map((line) => line.length)) * LETTER + 16), height: HEIGHT });
  }
  const order = new Map(boxes.map((box) => [box.id, box.order]));
  for (const edge of edges) {
    const back = order.get(edge.from) > order.get(edge.to); // what runs first stands above, gradients flow upwards
    const [from, to] = back ? [edge.to, edge.from] : [edge.from, edge.to];
    drawn.setEdge(from, to, { ...edge, back, weight: back ? 1 : 2 }, `${edge.phase} ${back}`);
  }
  layout(drawn);
  const { width, height } = drawn.graph();
  return { nodes: drawn.nodes().map((id) => drawn.node(id)), edges: drawn.edges().map((edge) => drawn.edge(edge)), width: width || 1, height: height || 1, left };
}

/** @param {{graph: import("./model.js").Graph, hidden: Set<string>, selected: number, select: (index: number) => void,
 *   show: (parameter: number) => void}} props */
export function Drawing({ graph, hidden, selected, select, show }) {
  const [path, setPath] = useState(() => (selected >= 0 ? scopeAround(graph, selected) : firstScope(graph)));
  const [scale, setScale] = useState(0);
  const pane = useRef(null);
  const known = scopesOf(graph);
  const here = known.has(path) ? path : firstScope(graph);
  const found = useMemo(() => laidOut(graph, here, hidden), [graph, here, hidden]);
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
