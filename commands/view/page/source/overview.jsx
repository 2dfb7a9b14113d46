// The page opens with this: the figures of a step, and the collectives that take the most of it.
import { h } from "preact";
import { CollectiveMark } from "./icons.jsx";
import { joinedCollectives } from "./sums.js";
import { bytesText, several, timeText } from "./units.js";

const MOST = 3; // collectives that are named

/** @param {{graph: import("./model.js").Graph, select: (graph: any, index: number) => void, setTab: (tab: string) => void}} props */
export function Overview({ graph, select, setTab }) {
  const { schedule, memory } = graph.facts;
  const joined = joinedCollectives(graph);
  const cost = ({ seconds, bytes }) => seconds || bytes;
  const most = [...joined].sort((a, b) => cost(b) - cost(a)).slice(0, MOST);
  const sent = joined.reduce((sum, row) => sum + row.bytes, 0);
  const count = joined.reduce((sum, row) => sum + row.nodes.length, 0);
  const figures = [
    schedule && ["step", "predicted step", timeText(schedule.total)],
    count && ["collectives", "sent per rank", bytesText(sent)],
    count && ["collectives", "collectives", String(count)],
    memory?.sizes && ["memory", "peak memory", bytesText(memory.sizes.peak)],
  ].filter(Boolean);
  if (!figures.length) return null;
  return (
    <section class="overview" aria-label="overview">
      <p class="where">A step of {graph.title}.</p>
      <div class="figures">{figures.map(([tab, name, text]) => <button onClick={() => setTab(tab)}><b>{text}</b> <span>{name}</span></button>)}</div>
      {most.length > 0 && <h3>Most expensive collectives</h3>}
      <ol>
        {most.map(({ nodes, bytes, seconds, reason }) => {
          const [own, index] = nodes[0];
          const line = own.model.line(own.columns.stack[index]);
          return (
            <li><button onClick={() => select(own, index)}>
              <CollectiveMark /> <b>{own.text("op", index)}</b>{nodes.length > 1 && ` × ${nodes.length}`}, {bytesText(bytes)}{seconds > 0 && `, ${timeText(seconds)}`} <span class="place">{line ? `${line.file}:${line.line}` : ""}</span>
              <span class="reason">{reason}</span>
            </button></li>
          );
        })}
      </ol>
      {joined.length > MOST && <p class="note">{several(joined.length - MOST, "kind")} more in the view <button class="link" onClick={() => setTab("collectives")}>collectives</button>.</p>}
    </section>
  );
}
