// The step as pictures: what runs when, what lives when, what bounds every operator.
import { h } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ticks } from "d3-array";
import { scaleLinear, scaleLog } from "d3-scale";
import { Icon } from "./icons.jsx";
import { aliveAt, memoryCurve } from "./sums.js";
import { bytesText, countText, several, shareText, timeText } from "./units.js";

const LANE = 30;
const LEFT = 110;
const WIDTH_OF_TEXT = 40; // pixels from which on a span is written into

/** The width of an element, as it is laid out. */
export function useWidth() {
  const box = useRef(null);
  const [width, setWidth] = useState(800);
  useEffect(() => {
    if (!box.current) return undefined; // nothing to draw
    const read = () => box.current && setWidth(Math.max(320, box.current.clientWidth));
    read();
    const watcher = new ResizeObserver(read);
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  return [box, width];
}

/** The lanes of a graph: a stream and its spans as [node, begin, seconds]. times: measured ones of a rank, by node. */
function lanesOf(graph, times) {
  const { schedule } = graph.facts;
  const streams = new Map(["compute", "communication", "reduction"].map((stream) => [stream, []]));
  for (let i = 0; i < graph.count; i++) {
    const [begin, seconds] = times ? times[i] ?? [] : [schedule.begin[i], schedule.seconds[i]];
    if (seconds === undefined || seconds === null) continue;
    const stream = graph.stream(i);
    (streams.get(stream) ?? streams.set(stream, []).get(stream)).push([i, begin, seconds]);
  }
  return [...streams].filter(([, spans]) => spans.length).map(([title, spans]) => ({ title, spans: spans.sort((a, b) => a[1] - b[1]) }));
}

/** The steps of a graph: as predicted, and as measured where there are times of the rank.
 * @param {{graph: import("./model.js").Graph, rank: number}} props */
export function Steps({ graph, rank, ...others }) {
  const { schedule } = graph.facts;
  const measured = graph.model.facts.measured[rank];
  const title = graph.title[0].toUpperCase() + graph.title.slice(1);
  return (
    <div>
      <Timeline graph={graph} times={null} {...others}><b>{title}, predicted.</b> {graph.stage < 0 ? "A step takes" : "Without waits for other stages a step takes"} {timeText(schedule.total)}: {timeText(schedule.compute)} are computed, {schedule.communication ? `${timeText(schedule.communication)} communicated, of which ${shareText(schedule.hidden)} run beside the computation.` : "nothing is communicated."}</Timeline>
      {measured && <Timeline graph={graph} times={measured.nodes} {...others}><b>Rank {rank}, measured.</b> The mean of {several(measured.steps, "step")}.</Timeline>}
    </div>
  );
}

/** The streams of a step. */
function Timeline({ graph, times, selected, select, children }) {
  const [box, width] = useWidth();
  const canvas = useRef(null);
  const lanes = useMemo(() => lanesOf(graph, times), [graph, times]);
  const end = useMemo(() => Math.max(1e-9, ...lanes.map(({ spans }) => spans.reduce((most, [, begin, seconds]) => Math.max(most, begin + seconds), 0))), [lanes]);
  const [view, setView] = useState([0, end]);
  useEffect(() => setView([0, end]), [end]);
  const [over, setOver] = useState(-1);
  const scale = scaleLinear(view, [LEFT, width - 8]);
  const height = lanes.length * LANE + 26;

  useEffect(() => {
    const element = canvas.current;
    const ratio = devicePixelRatio || 1;
    element.width = width * ratio;
    element.height = height * ratio;
    const style = getComputedStyle(element);
    const colour = (name) => style.getPropertyValue(name).trim();
    const pen = element.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    lanes.forEach(({ title: name, spans }, row) => {
      const top = row * LANE + 3;
      pen.fillStyle = colour("--text");
      pen.fillText(name, 4, top + 12, LEFT - 10);
      for (const [index, begin, seconds] of spans) {
        const x = scale(begin);
        const w = scale(begin + seconds) - x;
        if (x + w < LEFT || x > width) continue;
        const left = Math.max(LEFT, x);
        const wide = Math.max(0.7, Math.min(width, x + w) - left);
        const collective = graph.collective(index);
        pen.fillStyle = colour(collective ? "--collective" : `--${graph.phase(index)}`) || colour("--forward");
        pen.fillRect(left, top, wide, LANE - 8);
        if (collective && wide > 4) hatch(pen, left, top, wide, LANE - 8, colour("--page"));
        if (index === selected) {
          pen.strokeStyle = colour("--text");
          pen.lineWidth = 2.5;
          pen.strokeRect(left, top - 1, wide, LANE - 6);
        } else if (wide > 3) {
          pen.strokeStyle = colour("--page");
          pen.lineWidth = 0.5;
          pen.strokeRect(left, top, wide, LANE - 8);
        }
        if (wide > WIDTH_OF_TEXT) {
          pen.fillStyle = colour("--on-span");
          const name = graph.label(index);
          pen.save();
          pen.beginPath();
          pen.rect(left, top, wide, LANE - 8);
          pen.clip();
          if (collective) {
            pen.fillStyle = colour("--collective");
            pen.fillRect(left + 2, top + 4, pen.measureText(name).width + 6, LANE - 16);
            pen.fillStyle = colour("--on-span");
          }
          pen.fillText(name, left + 4, top + 11);
          pen.restore();
        }
      }
    });
    pen.fillStyle = colour("--quiet");
    for (const t of ticks(view[0], view[1], Math.max(2, Math.floor(width / 140)))) {
      pen.fillRect(scale(t), height - 22, 1, 6);
      const text = timeText(t);
      pen.fillText(text, Math.min(scale(t) + 3, width - pen.measureText(text).width), height - 10);
    }
  });

  const spanAt = (event) => {
    const { left, top } = canvas.current.getBoundingClientRect();
    const lane = lanes[Math.floor((event.clientY - top) / LANE)];
    const time = scale.invert(event.clientX - left);
    const near = ((view[1] - view[0]) / width) * 2;
    let best = -1;
    let distance = near;
    for (const [index, begin, seconds] of lane?.spans ?? []) {
      const off = time < begin ? begin - time : time > begin + seconds ? time - begin - seconds : 0;
      if (off < distance) [best, distance] = [index, off];
      if (off === 0) break;
    }
    return best;
  };
  const zoom = (factor, middle = (view[0] + view[1]) / 2) => {
    const size = Math.min(end, (view[1] - view[0]) * factor);
    const share = (middle - view[0]) / (view[1] - view[0]);
    const begin = Math.max(0, Math.min(end - size, middle - share * size));
    setView([begin, begin + size]);
  };
  const pan = (share) => {
    const size = view[1] - view[0];
    const begin = Math.max(0, Math.min(end - size, view[0] + share * size));
    setView([begin, begin + size]);
  };
  const onKeyDown = (event) => {
    if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "ArrowLeft") pan(-0.2);
    else if (event.key === "ArrowRight") pan(0.2);
    else if (event.key === "0") setView([0, end]);
    else return;
    event.preventDefault();
  };
  return (
    <figure class="chart" ref={box}>
      <figcaption>
        {children}
        <span class="tools">
          <button onClick={() => zoom(0.5)} aria-label="closer">+</button><button onClick={() => zoom(2)} aria-label="further away">−</button>
          <button onClick={() => pan(-0.5)} aria-label="earlier"><Icon name="left" /></button><button onClick={() => pan(0.5)} aria-label="later"><Icon name="right" /></button><button onClick={() => setView([0, end])}>all of the step</button>
        </span>
      </figcaption>
      <canvas ref={canvas} tabIndex={0} role="img" aria-label={`${lanes.length} streams of a step of ${timeText(end)}`} style={{ width: `${width}px`, height: `${height}px` }}
        onKeyDown={onKeyDown} onClick={(event) => { const found = spanAt(event); if (found >= 0) select(graph, found); }}
        onMouseMove={(event) => setOver(spanAt(event))} onMouseLeave={() => setOver(-1)}
        onWheel={(event) => { if (!event.ctrlKey && !event.metaKey) return; event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, scale.invert(event.clientX - canvas.current.getBoundingClientRect().left)); }} />
      <p class="over">{over >= 0 ? `%${over} ${graph.label(over)}: ${timeText(times ? times[over][1] : graph.seconds(over))}${times ? `, predicted ${timeText(graph.seconds(over) ?? 0)}` : ""}` : "Click a span for what it is; +, −, arrows and 0 move the view; collectives are hatched."}</p>
    </figure>
  );
}

function hatch(pen, left, top, width, height, colour) {
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  for (let x = left - height; x < Math.min(left + width, 4000); x += 6) {
    pen.beginPath();
    pen.moveTo(x, top + height);
    pen.lineTo(x + height, top);
    pen.stroke();
  }
  pen.restore();
}

/** An area between two curves, of so many points as are seen: of each span the node where most is alive in all. */
function areaOf(lower, upper, all, x, y, count) {
  const step = Math.max(1, Math.floor(count / 1500));
  let [there, back] = ["", ""];
  for (let i = 0; i < count; i += step) {
    const end = Math.min(count, i + step);
    let most = i;
    for (let j = i; j < end; j++) if (all[j] > all[most]) most = j;
    const [left, right] = [x(i).toFixed(1), x(end).toFixed(1)];
    there += `L${left},${y(upper[most]).toFixed(1)}L${right},${y(upper[most]).toFixed(1)}`;
    back = `L${right},${y(lower[most]).toFixed(1)}L${left},${y(lower[most]).toFixed(1)}${back}`;
  }
  return `M${there.slice(1)}${back}Z`;
}

const MEANINGS = {
  activations: "what the forward pass makes of the inputs, until its last reader",
  gradients: "of parameters, from the operator that makes them to the update",
  temporary: "gradients of activations, gathered or converted parameters, steps of updates",
};
const CLASS_NAMES = { activations: "activations", gradients: "gradients", temporary: "temporary buffers" };

/** Curves of a step's memory, one upon the other: of every class what is alive below it and with it. */
function layersOf(memory, count) {
  let below = new Float64Array(Math.max(1, count));
  return memory.classes.map((name, kind) => {
    const { alive } = memoryCurve(memory, count, kind);
    const layer = { name, alive, lower: below, upper: alive.map((bytes, i) => bytes + below[i]) };
    below = layer.upper;
    return layer;
  });
}

/** About five round numbers of bytes up to the most. */
function byteTicks(most) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(most) / Math.log(1024)));
  return ticks(0, most / unit, 5).map((t) => t * unit);
}

/** Memory over the step, and what lives at one place of it. */
export function Memory({ graph, select, title }) {
  const [box, width] = useWidth();
  const { memory } = graph.facts;
  const { alive, peak } = useMemo(() => memoryCurve(memory, graph.count), [graph]);
  const layers = useMemo(() => layersOf(memory, graph.count), [graph]);
  const [at, setAt] = useState(peak);
  useEffect(() => setAt(peak), [graph]);
  const { sizes } = memory;
  const kept = [["weights", sizes.weights], ["states of the optimizer", sizes.states], ["inputs", sizes.inputs], ["constants", sizes.constants]];
  const standing = kept.reduce((sum, [, bytes]) => sum + bytes, 0);
  const height = 260;
  const x = scaleLinear([0, graph.count], [70, width - 10]);
  const y = scaleLinear([0, (standing + sizes.arena) * 1.05 || 1], [height - 24, 8]);
  let below = 0;
  const living = aliveAt(memory, at);
  return (
    <div>
      <figure class="chart" ref={box}>
        <figcaption><b>{title}</b> {bytesText(sizes.peak)} at the peak, in %{peak} {graph.label(peak)}: {kept.map(([name, bytes]) => `${name} ${bytesText(bytes)}`).join(", ")}, and the step {bytesText(sizes.arena)}{sizes.on_host > 0 && `; on the host ${bytesText(sizes.on_host)}`}.</figcaption>
        <table class="sums classes">
          <thead><tr><th>of the step</th><th class="right">at the peak</th>{at !== peak && <th class="right">at %{at}</th>}<th class="right">at most, whenever</th><th>what it is</th></tr></thead>
          <tbody>{layers.map(({ name, alive: own }) => <tr><th><span class={`patch class-${name}`} /> {CLASS_NAMES[name]}</th><td class="right">{bytesText(own[peak] ?? 0)}</td>{at !== peak && <td class="right">{bytesText(own[at] ?? 0)}</td>}<td class="right">{bytesText(sizes[name])}</td><td class="type">{MEANINGS[name]}</td></tr>)}</tbody>
        </table>
        <svg width={width} height={height} role="img" aria-label={`memory over ${graph.count} nodes, ${bytesText(sizes.peak)} at the peak`}
          onClick={(event) => setAt(Math.max(0, Math.min(graph.count - 1, Math.floor(x.invert(event.clientX - event.currentTarget.getBoundingClientRect().left)))))}>
          {kept.map(([name, bytes], i) => {
            const from = below;
            below += bytes;
            const tall = y(from) - y(below);
            return <g><rect class={`kept-${i}`} x={x(0)} y={y(below)} width={x(graph.count) - x(0)} height={tall} />{tall > 13 && <text x={x(0) + 6} y={y(below) + tall / 2 + 4}>{name}, {bytesText(bytes)}</text>}</g>;
          })}
          {layers.map(({ name, lower, upper }) => <path class={`arena class-${name}`} d={areaOf(lower, upper, alive, x, (bytes) => y(standing + bytes), graph.count)}><title>{CLASS_NAMES[name]}</title></path>)}
          {byteTicks(y.domain()[1]).map((t) => <g class="tick"><line x1={66} x2={70} y1={y(t)} y2={y(t)} /><text x={62} y={y(t) + 4} text-anchor="end">{bytesText(t)}</text></g>)}
          <line class="peak" x1={x(peak + 0.5)} x2={x(peak + 0.5)} y1={8} y2={height - 24} />
          <text x={x(peak + 0.5) + (x(peak) > width - 120 ? -6 : 6)} y={18} text-anchor={x(peak) > width - 120 ? "end" : "start"}>peak, %{peak}</text>
          {at !== peak && <line class="here" x1={x(at + 0.5)} x2={x(at + 0.5)} y1={8} y2={height - 24} />}
          <text x={x(0)} y={height - 6}>begin of the step</text><text x={width - 10} y={height - 6} text-anchor="end">end, {several(graph.count, "node")}</text>
        </svg>
      </figure>
      <div class="tools">
        <label>Live at node <input type="number" min="0" max={graph.count - 1} value={at} onInput={(event) => { const n = Number(event.currentTarget.value); if (n >= 0 && n < graph.count) setAt(n); }} /></label>
        <button onClick={() => setAt(peak)}>peak</button> {bytesText(alive[at] ?? 0)} of the step in {several(living.length, "block")}
      </div>
      <table class="wide living">
        <thead><tr><th>bytes</th><th>share</th><th>for</th><th>made by</th><th>held from node to node</th></tr></thead>
        <tbody>
          {living.slice(0, 60).map(([, bytes, first, last, nodes, kind]) => (
            <tr class="choice" onClick={() => select(graph, nodes[nodes.length - 1])}>
              <td class="right">{bytesText(bytes)}</td><td class="right">{shareText(bytes / (alive[at] || 1))}</td>
              <td class="kind">{CLASS_NAMES[memory.classes[kind]]}</td><td>{nodes.filter((n) => n <= at).slice(-1).map((n) => `%${n} ${graph.label(n)}`)}{nodes.length > 1 && ` (${nodes.length} one after the other)`}</td><td>%{first} to {last >= graph.count ? "the end" : `%${last}`}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {living.length > 60 && <p class="note">{living.length - 60} smaller blocks.</p>}
    </div>
  );
}

/** Operators by work and memory traffic, beside what the machine can do. */
export function Roofline({ graph, selected, select }) {
  const [box, width] = useWidth();
  const { machine } = graph.model.facts;
  const { schedule } = graph.facts;
  const points = useMemo(() => {
    const found = [];
    for (let i = 0; i < graph.count; i++) {
      const work = schedule.operations[i];
      const seconds = schedule.seconds[i];
      if (work > 0 && seconds) found.push({ i, intensity: work / schedule.moved[i], rate: work / seconds });
    }
    const seen = new Map(); // alike points are drawn once
    for (const point of found) {
      const key = `${point.intensity.toPrecision(3)} ${point.rate.toPrecision(3)}`;
      const known = seen.get(key);
      if (known) known.times += 1;
      else seen.set(key, { ...point, times: 1 });
    }
    return [...seen.values()];
  }, [graph]);
  if (!points.length) return <p class="note">No products of matrices or convolutions in this graph.</p>;
  const best = Math.max(...Object.values(machine.rates), machine.other);
  const ridge = best / machine.memory;
  const height = 300;
  const low = points.reduce((least, p) => Math.min(least, p.intensity), ridge) / 3;
  const high = points.reduce((most, p) => Math.max(most, p.intensity), ridge) * 3;
  const bottom = points.reduce((least, p) => Math.min(least, p.rate), low * machine.memory) / 3;
  const x = scaleLog([low, high], [90, width - 20]);
  const y = scaleLog([bottom, best * 3], [height - 36, 10]);
  const few = (scale) => scale.ticks(5).filter((t) => /^1(e|$|0*$)/.test(t.toExponential().replace(".0", "")));
  const rates = Object.entries(machine.rates);
  return (
    <figure class="chart" ref={box}>
      <figcaption><b>Roofline</b> Products by what they compute for every byte that they read and write, and the rate at which they are predicted to do it, on {machine.name}. Left of a roof's corner memory bounds them, right of it arithmetic.</figcaption>
      <svg width={width} height={height} role="img" aria-label="roofline of products">
        {few(x).map((t) => <g class="tick"><line x1={x(t)} x2={x(t)} y1={10} y2={height - 36} /><text x={x(t)} y={height - 22} text-anchor="middle">{countText(t)}</text></g>)}
        {few(y).map((t) => <g class="tick"><line x1={90} x2={width - 20} y1={y(t)} y2={y(t)} /><text x={84} y={y(t) + 4} text-anchor="end">{countText(t)}FLOP/s</text></g>)}
        <text x={width - 20} y={height - 6} text-anchor="end">FLOP for every byte</text>
        <path class="roof" d={`M${x(low)},${y(Math.max(bottom, low * machine.memory))}L${x(ridge)},${y(best)}L${x(high)},${y(best)}`} />
        {rates.map(([name, rate]) => rate < best && <path class="roof" d={`M${x(Math.max(low, rate / machine.memory))},${y(rate)}L${x(high)},${y(rate)}`} />)}
        {[...new Set(rates.map(([, rate]) => rate))].map((rate) => <text class="roof-name" x={width - 24} y={y(rate) - 4} text-anchor="end">{rates.filter(([, r]) => r === rate).map(([n]) => n).join(", ")}</text>)}
        {points.slice(0, 2000).map((p) => (
          <circle class={`point ${graph.phase(p.i)} ${p.i === selected ? "selected" : ""}`} cx={x(p.intensity)} cy={y(p.rate)} r={4 + Math.min(6, Math.log2(p.times))} onClick={() => select(graph, p.i)}>
            <title>{`%${p.i} ${graph.label(p.i)}${p.times > 1 ? ` and ${p.times - 1} alike` : ""}: ${countText(p.intensity)} FLOP/byte, ${countText(p.rate)}FLOP/s`}</title>
          </circle>
        ))}
      </svg>
    </figure>
  );
}
