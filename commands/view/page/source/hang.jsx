// Page of `mspc explain-hang`: the explanations, the calls of every rank around the fault, and who waits for whom.
import { h } from "preact";
import { useState } from "preact/hooks";
import { several, shareText } from "./units.js";

const NAMES = { all_reduce: "AR", all_gather: "AG", reduce_scatter: "RS", all_to_all: "A2A", broadcast: "BC", barrier: "bar", send: "→", recv: "←" };

/** A few letters for a kind of call, as `all_reduce` or `send 0->1`. @param {string} kind */
function shortName(kind) {
  const lower = kind.replace(/([a-z])([A-Z])/g, "$1_$2").toLowerCase();
  const known = Object.keys(NAMES).find((name) => lower.includes(name));
  return known ? NAMES[known] : lower.slice(0, 3);
}

const numbered = (ranks) => (ranks.length > 8 ? `${ranks.slice(0, 8).join(", ")} and ${ranks.length - 8} more` : ranks.join(", "));

/** Calls around the fault. Each column is the number of a call since the start of the job. */
function Calls({ calls, culprit }) {
  const [over, setOver] = useState("");
  const { begin, fault, more, rows } = calls;
  const columns = Math.max(...rows.map((row) => row.cells.length), fault - begin + 1);
  const cell = (row, i) => {
    const isFault = row.rank === culprit && begin + i === fault;
    const found = row.cells[i];
    const [kind, group, number, place, isOpen] = found ?? ["no call", "", 0, "", false];
    const text = `rank ${row.rank}: ${kind}${group && ` ${number} of group ${group}`}${place && ` at ${place}`}${isOpen ? ", not completed" : ""}`;
    return <td title={text} onMouseEnter={() => setOver(text)} class={`${found ? "" : "no-call"} ${isOpen ? "open-call" : ""} ${isFault ? "fault" : ""}`}>{found && shortName(kind)}{found && <small>{place.split(":").pop()}</small>}</td>;
  };
  return (
    <figure class="hang">
      <figcaption>Calls since the start of the job, a row for each rank: <span class="key open-call">not completed</span> <span class="key fault">the fault</span></figcaption>
      <div class="scrolls" tabIndex={0} role="group" aria-label="calls of the ranks">
        <table>
          <thead><tr><th>rank</th>{Array.from({ length: columns }, (_, i) => <th class={begin + i === fault ? "at-fault" : ""}>{(begin + i) % 5 && begin + i !== fault ? "" : begin + i + 1}</th>)}</tr></thead>
          <tbody>{rows.map((row) => <tr class={row.rank === culprit ? "culprit" : ""}><th>{row.rank}</th>{Array.from({ length: columns }, (_, i) => cell(row, i))}</tr>)}</tbody>
        </table>
      </div>
      <p class="over" aria-live="polite">{over || "Point at a call to see its group and line."}</p>
      {more > 0 && <p class="note">{several(more, "more rank")} have records.</p>}
    </figure>
  );
}

/** @param {{hang: any}} props the report of `mspc explain-hang --json`, with `calls` */
export function HangPage({ hang }) {
  const { records, missing, explanations, waits, late, wrong_from: wrong, calls } = hang;
  return (
    <div class="hang-page">
      <header><h1>explain-hang</h1><span class="what">{several(records, "record")}{missing.length > 0 && `, no record of rank ${numbered(missing)}`}</span></header>
      <main class="alone"><div class="pane">
        {explanations.length ? (
          <ol class="explanations">{explanations.map(({ said, certain, line }) => <li><b>{said}</b>{certain < 1 && ` (${shareText(certain, 0)} of the evidence)`}{line && !said.includes(line) && <div class="place">{line}</div>}</li>)}</ol>
        ) : <h2>The records show no fault: all ranks issued the same calls, and none waits for another.</h2>}
        {wrong && <p>Numbers can be wrong from {wrong.step ? `step ${wrong.step}` : "then"} on: {wrong.collective} {wrong.line && `at ${wrong.line}`} met another collective of its group.</p>}
        {calls.rows.length > 0 && <Calls calls={calls} culprit={explanations[0]?.rank} />}
        {waits.length > 0 && (
          <div class="scrolls"><table class="wide">
            <caption>Who waits for whom</caption>
            <thead><tr><th>rank</th><th>waits in</th><th>group</th><th>for rank</th><th>line</th></tr></thead>
            <tbody>{waits.slice(0, 200).map((wait) => <tr><td>{wait.rank}</td><td>{wait.collective} {wait.number}</td><td>{wait.group}</td><td>{numbered(wait.for)}</td><td class="place">{wait.line}</td></tr>)}</tbody>
          </table></div>
        )}
        {late.length > 0 && <p>Slow ranks, and how long others waited for them: {late.slice(0, 12).map(({ rank, seconds }) => `rank ${rank} ${seconds.toFixed(1)} s`).join(", ")}.</p>}
      </div></main>
    </div>
  );
}
