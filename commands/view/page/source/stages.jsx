// The stages of a pipeline: when each works on which micro-batch, how long it is idle, what it holds in memory.
import { Fragment, h } from "preact";
import { useState } from "preact/hooks";
import { ticks } from "d3-array";
import { scaleLinear } from "d3-scale";
import { useWidth } from "./charts.jsx";
import { bytesText, several, shareText, timeText } from "./units.js";

const [LEFT, RIGHT, ROW, GAP] = [76, 150, 26, 6];
const [DIGIT, SPACE] = [7, 5]; // pixels of a number in a block, and around it
const THINNEST = 0.5; // pixels of what is drawn at least
const CLOSEST = 64; // times as wide as the page
const LATER = 2; // shades of chunks behind a stage's first
const KINDS = { F: "forward", B: "backward", I: "gradient for inputs", W: "gradient for weights" };

/** A text of the compiler with the page's sign for microseconds. @param {string} text */
const withSign = (text) => text.replace(/(?<=\d) us\b/g, " µs");

const COLUMNS = { weights: "weights", states: "states", gradients: "gradients at most", activations: "activations at most", temporary: "temporary at most", arena: "the step", peak: "peak" };

/** Where every chunk is among those of its stage: 0 for the first. @param {any[]} rows */
function shadesOf(rows) {
  const found = new Map();
  for (const { spans } of rows) {
    const chunks = [...new Set(spans.flatMap(([, , blocks]) => blocks.map(([, chunk]) => chunk)))].sort((a, b) => a - b);
    chunks.forEach((chunk, place) => found.set(chunk, Math.min(LATER, place)));
  }
  return found;
}

/** A step of all stages, a row for each. select: shows the node that does the work of a block.
 * @param {{model: import("./model.js").Model, chosen: import("./model.js").Graph, selected: number, select: (graph: any, index: number) => void}} props */
export function Stages({ model, chosen, selected, select }) {
  const [box, width] = useWidth();
  const [closer, setCloser] = useState(1);
  const [over, setOver] = useState("");
  const { total, rows } = model.facts.stages;
  const heading = withSign(model.facts.stages.heading);
  const wide = Math.max(200, width - LEFT - RIGHT) * closer;
  const x = scaleLinear([0, total || 1], [LEFT, LEFT + wide]);
  const shades = shadesOf(rows);
  const there = Object.keys(KINDS).filter((kind) => rows.some(({ spans }) => spans.some(([, , blocks]) => blocks.some(([own]) => own === kind))));
  const later = [...shades.values()].some((shade) => shade > 0);
  const below = rows.length * (ROW + GAP);
  const block = (row, y, [begin, end], [kind, chunk, number, node], place, parts) => {
    const graph = model.graphs[row.program];
    const tall = ROW / parts;
    const [left, size] = [x(begin), x(end) - x(begin)];
    if (node < 0 && end === begin) return null; // nothing is left of it
    const text = `stage ${rows.indexOf(row)}: ${KINDS[kind]} of micro-batch ${number}${later ? ` on chunk ${chunk}` : ""}, ${timeText(begin)} to ${timeText(end)}`;
    return (
      <g class={`work work-${kind} later-${shades.get(chunk)} ${graph === chosen && node === selected ? "selected" : ""}`} onClick={() => graph && node >= 0 && select(graph, node)} onMouseEnter={() => setOver(text)}>
        <title>{text}</title>
        <rect x={left + 0.5} y={y + place * tall} width={Math.max(THINNEST, size - 1)} height={tall} rx="2" />
        {size >= DIGIT * String(number).length + SPACE && <text x={left + size / 2} y={y + place * tall + tall / 2 + 4} text-anchor="middle">{number}</text>}
      </g>
    );
  };
  const tail = (stage, y, since, [begin, end, waited, what]) => {
    const [wait, text] = [waited < 0 ? "" : `stage ${stage} ${withSign(model.string(waited))}`, `stage ${stage}: ${withSign(model.string(what))}`];
    return (
      <>
        {wait && x(begin) - x(since) >= THINNEST && <rect class="waits" x={x(since)} y={y} width={x(begin) - x(since)} height={ROW} fill="url(#waits)" onMouseEnter={() => setOver(wait)}><title>{wait}</title></rect>}
        <rect class="tail" x={x(begin) + 0.5} y={y} width={Math.max(THINNEST, x(end) - x(begin) - 1)} height={ROW} rx="2" onMouseEnter={() => setOver(text)}><title>{text}</title></rect>
      </>
    );
  };
  return (
    <figure class="chart stages">
      <figcaption>
        <b>{heading}</b>
        <span class="tools">
          <button onClick={() => setCloser(Math.min(CLOSEST, closer * 2))} aria-label="closer">+</button><button onClick={() => setCloser(Math.max(1, closer / 2))} aria-label="further away">−</button><button onClick={() => setCloser(1)}>all of the step</button>
          {there.map((kind) => <span class="key"><svg width="14" height="14" class={`work work-${kind} later-0`}><rect width="14" height="14" rx="2" /></svg> {KINDS[kind]}</span>)}
          <span class="key"><svg width="14" height="14"><rect class="row-of-stage" width="14" height="14" /><rect width="14" height="14" fill="url(#waits)" /></svg> waits</span>
          {rows.some((row) => row.tail) && <span class="key"><svg width="14" height="14"><rect class="tail" width="14" height="14" rx="2" /></svg> updates</span>}
          {later && <span class="key">lighter: later chunks of a stage</span>}
        </span>
      </figcaption>
      <div class="scrolls" ref={box} tabIndex={0} role="group" aria-label="stages">
        <svg width={LEFT + wide + RIGHT} height={below + 26} role="img" aria-label={heading} onMouseLeave={() => setOver("")}>
          <defs><pattern id="waits" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="hatch" d="M0 0V6" stroke-width="2" /></pattern></defs>
          {rows.map((row, stage) => {
            const y = stage * (ROW + GAP);
            let ended = 0;
            return (
              <g>
                <text x="4" y={y + ROW / 2 + 4}>stage {stage}</text>
                <rect class="row-of-stage" x={LEFT} y={y} width={wide} height={ROW} />
                {row.spans.map((span, i) => {
                  const [begin, end, blocks, waited] = span;
                  const since = ended;
                  ended = end;
                  const text = i > 0 && waited >= 0 && x(begin) - x(since) >= THINNEST ? `stage ${stage} ${withSign(model.string(waited))}` : "";
                  return (
                    <>
                      {text && <rect class="waits" x={x(since)} y={y} width={x(begin) - x(since)} height={ROW} fill="url(#waits)" onMouseEnter={() => setOver(text)}><title>{text}</title></rect>}
                      {blocks.map((one, place) => block(row, y, span, one, place, blocks.length))}
                    </>
                  );
                })}
                {row.tail && tail(stage, y, ended, row.tail)}
                <text class="quiet" x={LEFT + wide + 10} y={y + ROW / 2 + 4}>idle {shareText(row.idle)}, keeps {row.keeps}</text>
              </g>
            );
          })}
          {ticks(0, total, Math.max(2, Math.floor(wide / 140))).map((t) => <g class="tick"><line x1={x(t)} x2={x(t)} y1={below} y2={below + 5} /><text class="quiet" x={x(t)} y={below + 18} text-anchor={t ? "middle" : "start"}>{timeText(t)}</text></g>)}
        </svg>
      </div>
      <p class="over">{over || "Click a block to see its operators; its number is the micro-batch. “keeps” is the largest number of micro-batches that a stage stores."}</p>
    </figure>
  );
}

/** Programs of a stage whose ranks hold as much, as [stage, graph, number of ranks], the first program of each. */
function memoryRows(model) {
  const { programs, stages } = model.facts;
  const found = new Map();
  for (const { graph, count } of programs) {
    const key = JSON.stringify([stages.of[graph], Object.keys(COLUMNS).map((name) => model.graphs[graph].facts.memory.sizes[name])]);
    const row = found.get(key) ?? { stage: stages.of[graph], sizes: model.graphs[graph].facts.memory.sizes, graph: model.graphs[graph], count: 0, all: [] };
    row.count += count;
    row.all.push(model.graphs[graph]);
    found.set(key, row);
  }
  for (const [stage, { program, sizes }] of (stages.rows ?? []).entries()) {
    if (program < 0) found.set(stage, { stage, sizes, graph: null, count: model.facts.ranks / stages.count, all: [] });
  }
  return [...found.values()].sort((a, b) => a.stage - b.stage);
}

/** What the ranks of every stage hold. choose: shows that of one. @param {{model: import("./model.js").Model, shown: any, choose: (rank: number) => void}} props */
export function StageMemory({ model, shown, choose }) {
  const { programs, ranks, stages } = model.facts;
  const rows = memoryRows(model);
  const most = Math.max(...rows.map(({ sizes }) => sizes.peak), 1);
  return (
    <div class="scrolls"><table class="wide stage-memory">
      <caption>Memory of a rank, by stages</caption>
      <thead><tr><th>stage</th><th>ranks</th>{stages.rows && <th class="right">micro-batches kept</th>}{Object.values(COLUMNS).map((name) => <th class="right">{name}</th>)}<th /></tr></thead>
      <tbody>
        {rows.map(({ stage, sizes, graph, count, all }) => {
          const act = () => graph && choose(programs.find((one) => one.graph === graph.number).ranks[0][0]);
          return (
            <tr class={`choice ${all.includes(shown) ? "selected" : ""}`} tabIndex={0} onClick={act} onKeyDown={(event) => event.key === "Enter" && act()}>
              <td>{stage}</td><td>{count < ranks / stages.count ? several(count, "rank") : `${(stage * ranks) / stages.count} to ${((stage + 1) * ranks) / stages.count - 1}`}</td>{stages.rows && <td class="right">{stages.rows[stage].keeps}</td>}
              {Object.keys(COLUMNS).map((name) => <td class="right">{bytesText(sizes[name])}</td>)}
              <td><span class="bar"><span style={{ width: `${(100 * sizes.peak) / most}%` }} /></span></td>
            </tr>
          );
        })}
      </tbody>
    </table></div>
  );
}
