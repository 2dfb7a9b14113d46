// What `mspc verify --scale` has found: what was compared, how much, how long, and the first failure.
import { h } from "preact";
import { LongList } from "./list.jsx";
import { several, shapeText } from "./units.js";

const ROW = 26;
const NAMED = 3; // tensors of one size that are named
const SAID = { result: "result", parameter: "parameter or state" };

/** @param {number | null} number */
const distance = (number) => (number === null ? "∞" : number === 0 ? "0" : number.toExponential(1));

/** model: has a proof. select: shows a node.
 * @param {{model: import("./model.js").Model, select: (graph: any, index: number) => void}} props */
export function Proof({ model, select }) {
  const { equal, said, place, node, sizes, values, compared, placed, ranks, kinds, steps, seed, seconds } = model.facts.proof;
  const wrong = values.filter(([, , , , , same]) => !same).length;
  const graph = node && model.graphs[node[0]];
  const row = (i) => {
    const [what, name, count, difference, allowed, same, [step, rank, element] = []] = values[i];
    return (
      <div key={i} class="row" role="listitem">
        <span class="kind">{SAID[what] ?? what}</span> <b class="name">{name}</b>
        {!same && <span class="sends">differs in step {step}{rank >= 0 && ` on rank ${rank}`}{element.length > 0 && ` at ${shapeText(element)}`}</span>}
        <span class="facts"><span>{several(count, "rank")}</span><span>apart {distance(difference)}</span><span>of {distance(allowed)} allowed</span></span>
      </div>
    );
  };
  return (
    <div class="full proof">
      <h2>{equal ? "Equal: all ranks compute what one device does" : "Not equal to one device"}</h2>
      <p class="compared">{several(compared, "value")} of {several(ranks, "rank")} of {several(kinds, "kind")} were compared in {seconds} s: {several(steps, "step")} in Float64 at small sizes, numbers from seed {seed}.{placed > 0 && ` The places of ${several(placed, "value")} in planned memory were looked at for real sizes.`}</p>
      {!equal && (
        <section class="warning failure" aria-label="the first failure">
          {said.map((text) => <div>{text}</div>)}
          {(place || graph) && <div class="where">{place} {graph && <button onClick={() => select(graph, node[1])}>{graph.label(node[1])} %{node[1]}</button>}</div>}
        </section>
      )}
      {sizes.length > 0 && (
        <details>
          <summary>{several(sizes.length, "size")} of inputs and parameters, as they are and as they were computed</summary>
          <table class="sums">
            <thead><tr><th>tensors</th><th>real</th><th>small</th></tr></thead>
            <tbody>{sizes.map(([names, real, small]) => <tr><th>{names.slice(0, NAMED).join(", ")}{names.length > NAMED && ` and ${names.length - NAMED} more`}</th><td class="right">{shapeText(real)}</td><td class="right">{shapeText(small)}</td></tr>)}</tbody>
          </table>
        </details>
      )}
      <h3>{several(values.length, "value")} by name{wrong > 0 && `, ${wrong} differ`}; the largest difference of each</h3>
      <LongList count={values.length} height={ROW} row={row} label="values that were compared" />
    </div>
  );
}
