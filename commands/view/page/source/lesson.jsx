// The plan at hand, explained: what bounds a step of this machine, part by part, and what would change it.
import { Fragment, h } from "preact";
import { because, boundOf, LIMITS, partsOf, total } from "./limits.js";
import { joinedCollectives } from "./sums.js";
import { bytesText, countText, shareText, timeText } from "./units.js";

const MOST = 16; // cells in the table
const FAR = 0.5; // share of a step above its limits from which on they do not explain it
const REMEDIES = {
  compute: "A lower precision, or more ranks that divide the matmuls, shorten it.",
  memory: "Fused operators, a lower precision, and more rows for each reading of a weight (a larger batch on a rank) shorten it.",
  network: "Layouts that exchange fewer bytes, larger batches between exchanges, and computation beside them shorten it.",
};

/** Three bars: the times at the limits, of the longest time in the table. */
function Bars({ part, longest }) {
  return <span class="limits">{Object.keys(LIMITS).map((name) => <span class={`limit ${name}`} style={{ width: `${Math.max(1, (100 * part[name]) / longest)}%` }} title={`${LIMITS[name]}: ${timeText(part[name])}`} />)}</span>;
}

function Row({ part, longest, name }) {
  const bound = boundOf(part);
  return (
    <tr>
      <th scope="row">{name}</th>
      {Object.keys(LIMITS).map((limit) => <td class={limit === bound ? "number bound" : "number"}>{timeText(part[limit])}</td>)}
      <td class="number">{timeText(part.predicted)}</td>
      <td><Bars part={part} longest={longest} /></td>
    </tr>
  );
}

function Table({ caption, parts, name }) {
  const longest = Math.max(1e-12, ...parts.flatMap((part) => Object.keys(LIMITS).map((limit) => part[limit])));
  return (
    <div class="scrolls"><table class="wide lesson">
      <caption>{caption}</caption>
      <thead><tr><th>part</th>{Object.values(LIMITS).map((words) => <th class="right">{words}</th>)}<th class="right">predicted</th><th>at the limits</th></tr></thead>
      <tbody>{parts.map((part) => <Row part={part} longest={longest} name={name(part)} />)}</tbody>
    </table></div>
  );
}

/** @param {{graph: import("./model.js").Graph, select: (graph: any, index: number) => void, setTab: (tab: string) => void}} props */
export function Lesson({ graph, select, setTab }) {
  const { machine } = graph.model.facts;
  const { schedule, memory } = graph.facts;
  const { phases, cells } = partsOf(graph);
  const step = total(phases);
  const bound = boundOf(step);
  const rate = machine.rates.Float32 ?? machine.other;
  const intensity = step.moved ? step.operations / step.moved : 0;
  const [most] = joinedCollectives(graph).sort((a, b) => b.seconds - a.seconds);
  const overhead = Math.max(0, 1 - Math.max(step.compute, step.memory, step.network) / schedule.total);
  return (
    <article class="lesson">
      <h2>Limits of a step</h2>
      <p>A step of the {graph.title} takes {timeText(schedule.total)} on {machine.name}, as predicted. A machine has three limits: how fast it multiplies, how fast it reads and writes memory, and how fast ranks send to each other. No plan with this work is faster than the slowest of the three.</p>
      <ul>
        <li><b>Arithmetic:</b> matmuls and convolutions have {countText(step.operations)}FLOP, which take at least {timeText(step.compute)}.</li>
        <li><b>Memory traffic:</b> operators read and write {bytesText(step.moved)}, which takes at least {timeText(step.memory)}. That is {countText(intensity)} FLOP for every byte; this machine needs {countText(rate / machine.memory)} to be busy with arithmetic (in Float32).</li>
        <li><b>Communication:</b> {step.sent ? `the rank sends ${bytesText(step.sent)}, which takes at least ${timeText(step.network)}.` : "the rank sends nothing."} {schedule.communication > 0 && `${shareText(schedule.hidden, 0)} of it runs beside the computation.`}</li>
      </ul>
      <p>{overhead > FAR ? `This step is far from all limits: ${shareText(overhead)} of its time is above the largest, ${LIMITS[bound]}. Operators and messages are too small to reach the machine's rates, or wait for each other: larger batches on a rank, and fewer collectives and operators shorten it.` : `The largest limit is ${LIMITS[bound]}: ${shareText(1 - overhead)} of the step. ${REMEDIES[bound]}`}</p>
      <Table caption="Times of the phases at each limit, with the largest in bold" parts={phases} name={(part) => part.phase} />
      <Table caption={`Times of the cells${cells.length > MOST ? `, the ${MOST} longest of ${cells.length}` : ""}`} parts={cells.slice(0, MOST)} name={(part) => <><span title={part.name}>{part.name.split("/").at(-1)}</span> <span class="type">{part.phase}</span></>} />
      {most && most.seconds > 0 && (
        <>
          <h2>The most expensive collective</h2>
          <p>{because(most.nodes[0][0].text("op", most.nodes[0][1]), most.reason || "the script calls it")} It sends {bytesText(most.bytes)} in a step and takes {timeText(most.seconds)}. <button class="link" onClick={() => select(...most.nodes[0])}>Its details</button> show the line that needs it and the next best layouts.</p>
        </>
      )}
      <h2>Memory</h2>
      {memory?.sizes && <p>The rank needs {bytesText(memory.sizes.peak)} at most: the view <button class="link" onClick={() => setTab("memory")}>memory</button> shows when. Recomputation and offload lower the part of activations, a sharded optimizer the part of its states.</p>}
      <p class="note">The predicted times are those of the cost model that <code>mspc search</code> uses; see the view <button class="link" onClick={() => setTab("costs")}>costs</button> for every operator.</p>
    </article>
  );
}
