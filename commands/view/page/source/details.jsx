// What is known of one node or parameter.
import { Fragment, h } from "preact";
import { GroupPicture, LayoutPicture } from "./picture.jsx";
import { because } from "./limits.js";
import { layoutText, members, ranksText } from "./places.js";
import { Phase } from "./tree.jsx";
import { coveredSeconds, overlapping } from "./sums.js";
import { bytesText, countText, several, shapeText, shareText, timeText } from "./units.js";

const READERS = 12;
const TENSORS = 12; // of a result
const PICTURES = 4; // layouts of results
const LINES = 60; // of a node that is several operators

function Term({ name, children }) {
  return <><dt>{name}</dt><dd>{children}</dd></>;
}

/** A link to a node. */
export function NodeLink({ graph, index, go }) {
  const { model } = graph;
  return <a href={`#node=${model.link(graph, index)}`} onClick={(event) => { event.preventDefault(); go(graph, index); }}><span class="number">%{index}</span> {graph.label(index)}</a>;
}

/** A link to the first node of a graph that a node runs. */
function GraphLink({ graph, go }) {
  const name = <code>@{graph.facts.name}</code>;
  if (!graph.count) return name;
  return <a href={`#node=${graph.model.link(graph, 0)}`} onClick={(event) => { event.preventDefault(); go(graph, 0); }}>{name}</a>;
}

function ParameterLink({ graph, number, show }) {
  const { name } = graph.parameter(number);
  return <a href={`#param=${encodeURIComponent(name)}`} onClick={(event) => { event.preventDefault(); show(number); }}>{name}</a>;
}

function Operand({ graph, operand, go, show }) {
  const what = graph.operand(operand);
  if (what.parameter !== undefined) {
    const { kind, type } = graph.parameter(what.parameter);
    return <li><ParameterLink graph={graph} number={what.parameter} show={show} /> <span class="type">{kind} {type.text}</span></li>;
  }
  if (what.node !== undefined) return <li><NodeLink graph={graph} index={what.node} go={go} /> <span class="type">{graph.type(what.node).text}</span></li>;
  const called = what.constant.startsWith("@") && graph.model.graphs.find((one) => one.facts.kind === "file" && `@${one.facts.name}` === what.constant);
  if (called && called.count) return <li><a href={`#node=${graph.model.link(called, 0)}`} onClick={(event) => { event.preventDefault(); go(called, 0); }}>{what.constant}</a></li>;
  return <li><code class="constant">{what.constant}</code></li>;
}

/** The source lines that a node comes from, the user's own first. */
function Source({ model, stack }) {
  const frames = model.stack(stack);
  if (!frames.length) return null;
  const own = frames.findIndex((frame) => !frame.file.startsWith("mspc/"));
  return (
    <section>
      <h3>Source</h3>
      <ol class="source">
        {frames.map((frame, i) => (
          <li class={i === (own < 0 ? 0 : own) ? "line users" : "line"}>
            <span class="place">{frame.file}:{frame.line}</span>
            <pre><Marked frame={frame} /></pre>
          </li>
        ))}
      </ol>
    </section>
  );
}

function Marked({ frame: { text, column, end } }) {
  if (!column || end <= column) return text.trimStart();
  const lead = text.length - text.trimStart().length;
  const from = Math.max(lead, column - 1);
  return <>{text.slice(lead, from)}<mark>{text.slice(from, end - 1)}</mark>{text.slice(end - 1)}</>;
}

/** What other layouts of the operators around a node would cost. */
function Ways({ model, about, go }) {
  const { plan } = model;
  const { ways } = model.facts;
  const told = about.filter((index) => ways[index]);
  if (!plan || !Object.keys(ways).length) return null;
  if (!told.length) return <section><h3>The next best layouts</h3><p class="note">There are none: these operators take the layouts of their operands, or the mesh has more axes than a search tries.</p></section>;
  return (
    <section>
      <h3>The next best layouts</h3>
      {told.map((index) => (
        <table class="ways">
          <caption><NodeLink graph={plan} index={index} go={go} />: layouts of its operands, if nothing else changes</caption>
          <tbody>
            {ways[index].map(([layouts, seconds], i) => (
              <tr class={i ? "" : "stands"}>
                <td>{i ? (Math.abs(seconds) < 1e-9 ? "the same" : `${timeText(Math.abs(seconds))} ${seconds > 0 ? "more" : "less"}`) : "as it is"}</td>
                <td>{layouts.map((n) => <code>{n < 0 ? "open" : layoutText(model.facts.layouts[n])}</code>)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ))}
      <p class="note">The times are those of collectives and memory traffic in a step on {model.facts.machine.name}. A layout that saves time here can cost more elsewhere: <code>mspc search</code> compares all operators together.</p>
    </section>
  );
}

/** Operators of the plan beside a node, on which layouts are decided: who makes what it reads, and who reads it. */
export function neighbours(model, index) {
  const { plan } = model;
  const { ways } = model.facts;
  if (!plan || index < 0) return [];
  const decided = (at) => (ways[at] ? at : plan.facts.gradient_of[at]?.[0]);
  if (ways[decided(index)]) return [decided(index)];
  const found = [];
  const look = (at, next, depth) => {
    for (const other of next(at)) {
      const own = decided(other);
      if (own !== undefined && ways[own]) found.push(own);
      else if (depth < 4) look(other, next, depth + 1);
      if (found.length > 3) return;
    }
  };
  look(index, (at) => plan.readers(at).slice(0, 8), 0);
  look(index, (at) => plan.columns.inputs[at].filter((input) => input >= 0 && input < plan.count), 0);
  return [...new Set(found)].slice(0, 3);
}

/** Who sends a message between stages, and to whom. */
function Message({ graph, index, rank, go }) {
  const { message } = graph.collective(index);
  const other = graph.otherSide(index, rank);
  return (
    <>
      <Term name={message.received ? "from" : "to"}>rank {rank + message.away} of stage {message.stage}</Term>
      {message.micro_batch >= 0 && <Term name="micro-batch">{message.micro_batch}</Term>}
      {message.received && <Term name="received by a rank">{bytesText(message.bytes)}</Term>}
      <Term name="other side">{other ? <><NodeLink graph={other[0]} index={other[1]} go={go} /> <span class="type">in the {other[0].title}</span></> : "not in the dump"}</Term>
    </>
  );
}

function Collective({ graph, index, rank: asked, go }) {
  const { model } = graph;
  const given = graph.collective(index);
  const reason = graph.text("reason", index);
  const rank = given.message && (graph.facts.kind === "file" || !graph.isRunBy(asked)) ? given.message.rank : asked;
  const collective = given.message ? { ...given, group: null, members: [rank, rank + given.message.away].sort((a, b) => a - b) } : given;
  const group = collective.group ? members(collective.group, rank) : collective.members;
  return (
    <section class="collective">
      <h3>Why it is here</h3>
      <p class="reason">{reason ? because(graph.text("op", index), reason) : "The dump gives no reason: the script calls it, or another compiler wrote the dump."}</p>
      <dl>
        {collective.message && <Message graph={graph} index={index} rank={rank} go={go} />}
        {collective.bytes !== undefined && !collective.message?.received && <Term name="sent by a rank">{bytesText(collective.bytes)} in a step</Term>}
        {collective.seconds !== undefined && <Term name="predicted">{timeText(collective.seconds)} {collective.link}, on {model.facts.machine.name}</Term>}
        <Term name={collective.message ? "ranks" : "group"}>{group.length ? ranksText(group) : "not in the dump"}</Term>
      </dl>
      {group.length > 0 && model.facts.ranks > 0 && <GroupPicture collective={collective} ranks={model.facts.ranks} rank={rank} stages={model.facts.stages?.count} />}
    </section>
  );
}

/** What runs on the other streams while a node does. */
function Beside({ graph, index, go }) {
  const own = graph.seconds(index);
  if (!own) return null;
  const found = overlapping(graph, index);
  const covered = coveredSeconds(found);
  return (
    <section class="beside">
      <h3>At the same time</h3>
      {found.length === 0 ? <p class="note">Nothing else runs: the other streams wait, or have nothing to do.</p> : (
        <>
          <p class="note">{shareText(Math.min(1, covered / own))} of its time something runs on another stream{found.length > READERS && `, ${found.length} nodes; those beside it longest`}:</p>
          <ul class="operands">{found.slice(0, READERS).map(([other, begin, end]) => <li><NodeLink graph={graph} index={other} go={go} /> <span class="type">{timeText(end - begin)}, stream {graph.stream(other)}</span></li>)}</ul>
        </>
      )}
    </section>
  );
}

function Times({ graph, index, rank }) {
  const { model } = graph;
  const seconds = graph.seconds(index);
  const { schedule } = graph.facts;
  const measured = model.facts.measured[rank]?.nodes[index];
  if (seconds === null && !measured) return null;
  const operations = schedule?.operations[index] ?? 0;
  return (
    <section>
      <h3>Time</h3>
      <dl>
        {seconds !== null && <Term name="predicted">{timeText(seconds)} from {timeText(schedule.begin[index])} on, stream {graph.stream(index)}</Term>}
        {measured && <Term name={`measured, rank ${rank}`}>{timeText(measured[1])} from {timeText(measured[0])} on, mean of {several(model.facts.measured[rank].steps, "step")}</Term>}
        {operations > 0 && <Term name="work">{countText(operations)}FLOP in products</Term>}
        {seconds !== null && <Term name="memory traffic">{bytesText(schedule.moved[index])}</Term>}
      </dl>
    </section>
  );
}

/** Results that are held in the same way, together. */
function sameLayouts(layouts, shapes) {
  const found = new Map();
  layouts.forEach((layout, i) => {
    if (!layout) return;
    const key = JSON.stringify([layout, shapes[i]]);
    const one = found.get(key) ?? { layout, shape: shapes[i], results: [] };
    found.set(key, one);
    one.results.push(i);
  });
  return [...found.values()];
}

/** What ranks with an equal program have of their own at a node. */
function Own({ graph, index }) {
  const program = graph.model.facts.programs.find((one) => one.graph === graph.root.number);
  const own = program?.own[graph.facts.name]?.[index];
  if (!own) return null;
  return (
    <section>
      <h3>Differs between ranks</h3>
      <table class="own"><tbody>{Object.entries(own).map(([rank, text]) => <tr><th>rank {rank}</th><td><code>{text}</code></td></tr>)}</tbody></table>
    </section>
  );
}

/** @param {{graph: import("./model.js").Graph, index: number, rank: number}} props */
export function NodeDetails({ graph, index, rank, setRank, go, show }) {
  const { model } = graph;
  const text = (column) => graph.text(column, index);
  const { tensors, text: type } = graph.type(index);
  const layouts = graph.layouts(index);
  const whole = graph.wholeTensors(index);
  const alike = sameLayouts(layouts, layouts.map((_, i) => whole[i]?.shape ?? tensors[i]?.shape ?? []));
  const readers = graph.readers(index);
  const origin = graph.origin(index);
  const about = graph === model.plan ? index : graph.root === graph ? origin : -1;
  const regions = graph.regions(index);
  const body = graph.facts.body[index];
  const gradient = graph.facts.gradient_of[index];
  const [maker, rewritten] = text("provenance").split("/");
  return (
    <article key={`${graph.number}.${index}`}>
      <h2><Phase phase={graph.phase(index)} /> {graph.label(index)} <span class="number">%{index}</span></h2>
      <p class="where">{graph.phase(index)}{text("scope") && <> in <code>{text("scope")}</code></>}</p>
      {!graph.isRunBy(rank) && <p class="note elsewhere">Rank {rank} runs another program, which lacks this node: the facts here are of the {graph.title}.</p>}
      {graph.collective(index) && <Collective graph={graph} index={index} rank={rank} go={go} />}
      {!graph.collective(index) && text("reason") && <section><h3>Why it is here</h3><p class="reason">{because(text("op"), text("reason"))}</p></section>}
      <Source model={model} stack={graph.columns.stack[index]} />
      <section>
        <h3>Result</h3>
        <dl>
          <Term name={{ plan: "global", rank: "on a rank", file: "type" }[graph.facts.kind]}>{tensors.length ? tensors.slice(0, TENSORS).map((t) => <div>{t.dtype} {shapeText(t.shape)}, {bytesText(t.bytes)}</div>) : type}{tensors.length > TENSORS && `and ${tensors.length - TENSORS} more`}</Term>
          {graph.facts.kind === "rank" && whole.length > 0 && <Term name="global">{whole.slice(0, TENSORS).map((t) => <div>{t.dtype} {shapeText(t.shape)}</div>)}</Term>}
          {text("value") && <Term name="in the program"><code>{text("value")}</code></Term>}
        </dl>
        {alike.slice(0, PICTURES).map(({ layout, shape, results }) => <><p class="text-form">layout <code>{layoutText(layout)}</code>{layouts.length > 1 && ` of ${several(results.length, "result")} (${ranksText(results)})`}</p><LayoutPicture layout={layout} shape={shape} rank={rank} setRank={setRank} /></>)}
        {alike.length > PICTURES && <p class="note">{alike.length - PICTURES} more layouts.</p>}
        {!layouts.length && <p class="note">The dump does not say how the ranks hold its global value.</p>}
      </section>
      <Ways model={model} about={neighbours(model, about)} go={go} />
      <Times graph={graph} index={index} rank={rank} />
      {graph.facts.schedule && <Beside graph={graph} index={index} go={go} />}
      {regions.length > 0 && <section><h3>Runs</h3><ul class="operands">{regions.map((region) => <li><GraphLink graph={region} go={go} /> <span class="type">{several(region.count, "node")}{region.runs && `, ${region.runs}`}</span></li>)}</ul></section>}
      {graph.root !== graph && <section><h3>Inside of</h3><p>@{graph.facts.name}{graph.runs && ` (${graph.runs})`}, which is run by</p><ul class="operands">{graph.runners.slice(0, READERS).map(([there, at]) => <li><NodeLink graph={there} index={at} go={go} /></li>)}</ul>{graph.runners.length > READERS && <p class="note">{graph.runners.length - READERS} more.</p>}</section>}
      {body && <section><h3>Fused operators</h3><ol class="body">{body.slice(0, LINES).map((line, i) => {
        const member = graph.facts.members?.[index]?.[i];
        return <li><code>{model.string(line)}</code>{member >= 0 && <> <NodeLink graph={graph.plan} index={member} go={go} /></>}</li>;
      })}</ol>{body.length > LINES && <p class="note">{body.length - LINES} more; the network shows all of them.</p>}</section>}
      <section>
        <h3>Reads</h3>
        <ol class="operands">{graph.columns.inputs[index].slice(0, 40).map((operand) => <Operand graph={graph} operand={operand} go={go} show={show} />)}</ol>
        {graph.columns.inputs[index].length > 40 && <p class="note">{graph.columns.inputs[index].length - 40} more.</p>}
        <h3>Read by</h3>
        {readers.length ? <ul class="operands">{readers.slice(0, READERS).map((reader) => <li><NodeLink graph={graph} index={reader} go={go} /></li>)}</ul> : <p class="note">No node.</p>}
        {readers.length > READERS && <p class="note">{readers.length - READERS} more.</p>}
      </section>
      <section>
        <h3>More</h3>
        <dl>
          {text("fields") && <Term name="attributes"><code>{text("fields")}</code></Term>}
          {text("facts") && <Term name="further facts"><code>{text("facts")}</code></Term>}
          {text("provenance") && <Term name="made by"><code>{maker}</code>{rewritten && <>, from <code>{rewritten}</code></>}</Term>}
          {gradient && <Term name="gradient of"><NodeLink graph={graph} index={gradient[0]} go={go} />{gradient[1] >= 0 && `, operand ${gradient[1]}`}</Term>}
          {origin >= 0 && graph.plan && <Term name="in the graph of all ranks"><NodeLink graph={graph.plan} index={origin} go={go} /></Term>}
        </dl>
      </section>
      <Own graph={graph} index={index} />
    </article>
  );
}

/** @param {{graph: import("./model.js").Graph, number: number, rank: number}} props */
export function ParameterDetails({ graph, number, rank, setRank, go }) {
  const { name, kind, trainable, type, whole, layout } = graph.parameter(number);
  const [slice] = type.tensors;
  const [all] = whole.tensors;
  const readers = graph.readers(-1 - number);
  return (
    <article key={`p${number}`}>
      <h2>{name}</h2>
      <p class="where">{kind}{trainable && ", trainable"}</p>
      {!graph.isRunBy(rank) && <p class="note elsewhere">Rank {rank} runs another program, which lacks this parameter: the facts here are of the {graph.title}.</p>}
      <section>
        <dl>
          {all && <Term name="global">{all.dtype} {shapeText(all.shape)}, {bytesText(all.bytes)}</Term>}
          <Term name="slice of a rank">{slice ? `${slice.dtype} ${shapeText(slice.shape)}, ${bytesText(slice.bytes)}` : type.text}</Term>
        </dl>
        {layout && all && <><p class="text-form">layout <code>{layoutText(layout)}</code></p><LayoutPicture layout={layout} shape={all.shape} rank={rank} setRank={setRank} /></>}
      </section>
      <section>
        <h3>Read by</h3>
        <ul class="operands">{readers.slice(0, 40).map((reader) => <li><NodeLink graph={graph} index={reader} go={go} /></li>)}</ul>
        {readers.length > 40 && <p class="note">{readers.length - 40} more.</p>}
      </section>
    </article>
  );
}
