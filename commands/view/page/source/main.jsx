// The page: reads the facts that stand in it and shows them. Nothing is fetched, nothing of a dump is run: all texts
// become text nodes.
import { Fragment, h, render } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Memory, Roofline, Steps } from "./charts.jsx";
import { counterpart } from "./alike.js";
import { NodeDetails, ParameterDetails } from "./details.jsx";
import { Drawing } from "./drawing.jsx";
import { HangPage } from "./hang.jsx";
import { CollectiveMark, Icon } from "./icons.jsx";
import { Lesson } from "./lesson.jsx";
import { Model } from "./model.js";
import { Overview } from "./overview.jsx";
import { Proof } from "./proof.jsx";
import { firstOpen, pathsTo, rowOf } from "./scopes.js";
import { StageMemory, Stages } from "./stages.jsx";
import { Collectives, Costs, Parameters, Ranks, Source } from "./tables.jsx";
import { Phase, Tree } from "./tree.jsx";
import { several } from "./units.js";

const TABS = ["network", "graph", "collectives", "step", "memory", "costs", "parameters", "source", "ranks"];
const LESSON = "lesson"; // after the others, as it explains them
const PROOF = "proof"; // the last, if there is one
const FOUND = 60; // rows of a search
const SIDE_BY_SIDE = 8; // programs whose steps are drawn below each other

/** @param {Model} model */
const tabsOf = (model) => [...TABS, LESSON, ...(model.facts.proof ? [PROOF] : [])];

/** What a link says: #node=12, #node=plan.3, #param=w, #tab=memory. */
function readLink(model) {
  const found = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const node = found.node === undefined ? null : model.linked(found.node);
  let param = null;
  if (found.param !== undefined) {
    for (let i = 0; i < model.main.parameterCount && param === null; i++) {
      if (model.string(model.main.facts.parameters.name[i]) === found.param) param = { graph: model.main, number: i };
    }
  }
  return { node, param, tab: tabsOf(model).includes(found.tab) ? found.tab : null };
}

const isField = (element) => /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName);
/** Whether keys are for an element that they are typed into. */
const isTyping = (element) => isField(element) && element.type !== "checkbox";

function writeLink(text) {
  try {
    history.pushState(null, "", `#${text}`);
  } catch {
    // Inside of a notebook's frame there is no address to write to.
  }
}

/** The address names nothing any more. */
function forgetLink() {
  if (/^#(node|param)=/.test(location.hash)) writeLink("");
}

/** Parameters of a graph with all words in them, and nodes as [graph, index], those of the graphs inside of the one that
 * runs first too; the graph's own first. */
function searchAll(graph, words) {
  const own = graph.search(words, FOUND);
  const nodes = own.nodes.map((index) => [graph, index]);
  let { more } = own;
  for (const other of [graph.root, ...graph.root.inside]) {
    if (other === graph || more) continue;
    const found = other.search(words, FOUND - nodes.length);
    nodes.push(...found.nodes.map((index) => [other, index]));
    more = found.more;
  }
  return { nodes, parameters: own.parameters, more };
}

function Search({ graph, go, show }) {
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  const [shown, setShown] = useState(false);
  const input = useRef(null);
  const found = useMemo(() => searchAll(graph, words), [graph, words]);
  const rows = [...found.parameters.map((number) => ({ number })), ...found.nodes.map(([own, index]) => ({ own, index }))];
  useEffect(() => setAt(0), [words]);
  useEffect(() => {
    const focus = (event) => {
      if (event.key !== "/" || isTyping(event.target)) return;
      event.preventDefault();
      input.current.focus();
    };
    addEventListener("keydown", focus);
    return () => removeEventListener("keydown", focus);
  }, []);
  const take = (row) => {
    setShown(false);
    if (row.index !== undefined) go(row.own, row.index);
    else show(row.number);
  };
  const onKeyDown = (event) => {
    if (event.key === "ArrowDown") setAt(Math.min(rows.length - 1, at + 1));
    else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
    else if (event.key === "Enter" && rows[at]) take(rows[at]);
    else if (event.key === "Escape") leave(event);
    else return;
    event.preventDefault();
  };
  const leave = (event) => {
    setShown(false);
    event.currentTarget.blur();
    event.stopPropagation(); // what is chosen stays
  };
  return (
    <div class="search" role="search">
      <input ref={input} type="search" placeholder="Search operator, parameter, file:line  ( / )" aria-label="search" value={words} onFocus={() => setShown(true)}
        onBlur={() => setTimeout(() => setShown(false), 150)} onInput={(event) => { setWords(event.currentTarget.value); setShown(true); }} onKeyDown={onKeyDown} />
      {shown && words.trim() && (
        <ul class="found" role="listbox">
          {rows.map((row, i) => (
            <li key={i} role="option" aria-selected={i === at} class={i === at ? "at" : ""} onMouseDown={(event) => event.preventDefault()} onClick={() => take(row)}>
              {row.index !== undefined ? <><Phase phase={row.own.phase(row.index)} /> {row.own.collective(row.index) && <><CollectiveMark /> </>}<b>{row.own.label(row.index)}</b> <span class="number">%{row.index}</span> <span class="scope-name">{row.own.text("scope", row.index)}</span></> : <><span class="kind">parameter</span> <b>{graph.parameter(row.number).name}</b></>}
            </li>
          ))}
          {!rows.length && <li class="none">Nothing has all of these words.</li>}
          {found.more && <li class="none">There are more; further words narrow them down.</li>}
        </ul>
      )}
    </div>
  );
}

function Page({ model }) {
  const first = useMemo(() => readLink(model), []);
  const [graph, setGraph] = useState(first.node?.graph ?? model.main);
  const [node, setNode] = useState(first.node?.index ?? -1);
  const [param, setParam] = useState(first.param?.number ?? -1);
  const [tab, setTab] = useState(first.tab ?? (model.facts.proof && !first.node && !first.param ? PROOF : "network"));
  const [rank, setRankNumber] = useState(() => model.facts.programs[0]?.ranks[0]?.[0] ?? 0);
  const [open, setOpen] = useState(() => new Map());
  const [hidden, setHidden] = useState(() => new Set());
  const [focus, setFocus] = useState("");
  const [theme, setTheme] = useState("");
  const { root } = graph;
  const opened = open.get(root) ?? firstOpenOf(root);

  const toggle = useCallback((path) => setOpen((old) => {
    const own = new Set(old.get(root) ?? firstOpenOf(root));
    if (!own.delete(path)) own.add(path);
    return new Map(old).set(root, own);
  }), [root]);
  const reveal = (there, index) => {
    setFocus(rowOf(there, index));
    setOpen((old) => new Map(old).set(there.root, new Set([...(old.get(there.root) ?? firstOpenOf(there.root)), ...pathsTo(there, index)])));
  };
  const select = (there, index, link = true) => {
    setGraph(there);
    setNode(index);
    setParam(-1);
    reveal(there, index);
    if (link) writeLink(`node=${model.link(there, index)}`);
  };
  const go = (there, index) => select(there, index);
  const visit = (there, index) => { // as a rank that runs it
    const program = model.facts.programs.find((one) => one.graph === there.root.number);
    if (program && !there.isRunBy(rank)) setRankNumber(program.ranks[0][0]);
    select(there, index);
  };
  const show = (number) => {
    setParam(number);
    setNode(-1);
    writeLink(`param=${encodeURIComponent(graph.parameter(number).name)}`);
  };
  const letGo = () => {
    setNode(-1);
    setParam(-1);
    forgetLink();
  };
  const setRank = (number) => {
    const { ranks, programs } = model.facts;
    if (!Number.isInteger(number) || number < 0 || number >= Math.max(1, ranks)) return;
    setRankNumber(number);
    const program = model.programOf(number);
    if (program < 0 || !programs.length || root === model.plan) return;
    const there = model.graphs[programs[program].graph];
    if (there === root) return;
    if (graph !== root) { // its like in the other program may have other nodes
      setGraph(there);
      letGo();
      return;
    }
    const name = param >= 0 ? graph.parameter(param).name : "";
    const [nextNode, nextParam] = [node >= 0 ? counterpart(graph, node, there) : -1, name ? there.parameterNamed(name) : -1];
    if ((node >= 0 && nextNode < 0) || (param >= 0 && nextParam < 0)) return; // the details say that the rank lacks it
    setGraph(there);
    setNode(nextNode);
    setParam(nextParam);
    if (nextNode >= 0) reveal(there, nextNode);
    if (nextNode >= 0) writeLink(`node=${model.link(there, nextNode)}`);
  };
  useEffect(() => {
    if (first.node) reveal(first.node.graph, first.node.index);
    const follow = () => {
      const link = readLink(model);
      if (link.node) select(link.node.graph, link.node.index, false);
      if (link.param) {
        setGraph(link.param.graph);
        setNode(-1);
        setParam(link.param.number);
      }
      if (link.tab) setTab(link.tab);
    };
    const keys = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape" && isField(event.target)) event.target.blur(); // keys are the page's again
      if (isTyping(event.target)) return;
      const tabKey = Number(event.key);
      if (tabKey >= 1 && tabKey <= TABS.length) setTab(TABS[tabKey - 1]);
      else if (event.key === "Escape") letGo();
    };
    addEventListener("hashchange", follow);
    addEventListener("popstate", follow);
    addEventListener("keydown", keys);
    return () => {
      removeEventListener("hashchange", follow);
      removeEventListener("popstate", follow);
      removeEventListener("keydown", keys);
    };
  }, []);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);

  const { facts } = model;
  const steps = model.graphs.filter((one) => one.facts.schedule);
  const shownGraph = root.facts.schedule ? root : model.graphOfRank(rank);
  const timed = Boolean(shownGraph.facts.schedule);
  const untimed = <p class="note">This dump does not hold a rank's own program of mspc, so nothing is predicted for it.</p>;
  const choices = (
    <>
      <label>graph <select value={graph.number} onChange={(event) => { setGraph(model.graphs[Number(event.currentTarget.value)]); letGo(); }}>{model.graphs.map((one) => <option value={one.number}>{one.title}</option>)}</select></label>
      <span class="phases">show {graph.facts.phases.map((phase) => <label><input type="checkbox" checked={!hidden.has(phase)} onChange={() => setHidden((old) => { const own = new Set(old); if (!own.delete(phase)) own.add(phase); return own; })} /><Phase phase={phase} /> {phase}</label>)}</span>
    </>
  );
  const panes = {
    network: () => (
      <div class="full">
        <div class="tools">{choices}<button onClick={() => setOpen((old) => new Map(old).set(root, new Set()))}>close all</button></div>
        <Tree graph={root} open={opened} hidden={hidden} chosen={graph} selected={node} focus={focus} setFocus={setFocus} toggle={toggle} select={select} />
      </div>
    ),
    graph: () => (
      <div class="full">
        <div class="tools">{choices}</div>
        <Drawing key={graph.number} graph={graph} hidden={hidden} selected={node} select={(index) => select(graph, index)} show={show} />
      </div>
    ),
    collectives: () => <Collectives graph={root} chosen={graph} selected={node} select={select} />,
    step: () => (timed ? <>{facts.stages && (facts.stages.rows ? <Stages model={model} chosen={graph} selected={node} select={visit} /> : <p class="note">{facts.stages.count} stages: when each works on what is not told, as the folder lacks a program of some, or they work on no micro-batches.</p>)}{(steps.length <= SIDE_BY_SIDE ? steps : [shownGraph]).map((one) => <Steps key={one.number} graph={one} rank={model.graphOfRank(rank) === one ? rank : facts.programs[one.number]?.ranks[0][0] ?? 0} selected={graph === one ? node : -1} select={select} />)}</> : untimed),
    memory: () => (timed ? <>{facts.stages && <StageMemory model={model} shown={shownGraph} choose={setRank} />}<Memory graph={shownGraph} title={`${shownGraph.title[0].toUpperCase()}${shownGraph.title.slice(1)}.`} select={(index) => select(shownGraph, index)} /></> : untimed),
    costs: () => (timed ? <><Roofline graph={shownGraph} selected={graph === shownGraph ? node : -1} select={select} /><Costs key={shownGraph.number} graph={shownGraph} rank={rank} selected={node} select={select} /></> : untimed),
    parameters: () => <Parameters graph={graph} selected={param} show={show} />,
    source: () => <Source graph={root} select={select} />,
    ranks: () => <Ranks model={model} rank={rank} setRank={setRank} setTab={setTab} select={select} />,
    lesson: () => (timed ? <Lesson graph={shownGraph} select={select} setTab={setTab} /> : untimed),
    proof: () => <Proof model={model} select={visit} />,
  };
  const shown = facts.dialect ? model.graphs : [root, ...root.inside]; // MindSpore's graphs call each other
  const nodes = shown.reduce((sum, one) => sum + one.count, 0);
  const collectives = shown.reduce((sum, one) => sum + one.collectives.length, 0);
  return (
    <>
      <header>
        <h1>{facts.title}</h1>
        <span class="what">{[facts.mode || (facts.dialect && `dump of ${facts.dialect}`), facts.ranks ? several(facts.ranks, "rank") : "", `${several(nodes, "node")}, ${several(collectives, "collective")}`, facts.compile_id && `compile ${facts.compile_id}`].filter(Boolean).join(" · ")}</span>
        <Search graph={graph} go={go} show={show} />
        {facts.ranks > 1 && <label class="rank-field">rank <input type="number" min="0" max={facts.ranks - 1} value={rank} onInput={(event) => setRank(Number(event.currentTarget.value))} /></label>}
        <button class="theme" onClick={() => setTheme(theme === "dark" || (!theme && matchMedia("(prefers-color-scheme: dark)").matches) ? "light" : "dark")} aria-label="dark or light"><Icon name="theme" /></button>
      </header>
      {facts.notes.map((note) => <p class="warning">{note}</p>)}
      <nav role="tablist" aria-label="views">{tabsOf(model).map((name, i) => <button role="tab" aria-selected={tab === name} title={i < TABS.length ? `key ${i + 1}` : name === LESSON ? "the plan, explained" : "of mspc verify --scale"} onClick={() => setTab(name)}>{name}</button>)}</nav>
      <main>
        <div class="pane" role="tabpanel" aria-label={tab}>{panes[tab]()}</div>
        <aside aria-label="details" aria-live="polite">
          {node >= 0 ? <NodeDetails graph={graph} index={node} rank={rank} setRank={setRank} go={go} show={show} /> : param >= 0 ? <ParameterDetails graph={graph} number={param} rank={rank} setRank={setRank} go={go} /> : <Hints model={model} graph={shownGraph} select={select} setTab={setTab} />}
        </aside>
      </main>
    </>
  );
}

const opens = new WeakMap();

/** The scopes of a graph that are open at the beginning, found once. */
function firstOpenOf(graph) {
  if (!opens.has(graph)) opens.set(graph, firstOpen(graph));
  return opens.get(graph);
}

function Hints({ model, graph, select, setTab }) {
  return (
    <article>
      <h2>Overview</h2>
      <Overview graph={graph} select={select} setTab={setTab} />
      <details class="hints">
      <summary>Legend and keys</summary>
      <p>Scopes of the network open and close. Choose an operator, a collective or a parameter to see here why it is there, its line, how ranks hold it, and its bytes and time.</p>
      <ul class="legend">
        {["forward", "backward", "update"].map((phase) => <li><Phase phase={phase} /> {phase}</li>)}
        <li><CollectiveMark /> collective, with the bytes that a rank sends</li>
        <li><span class="sharding">sharded 2 × 4</span> slices of every dimension</li>
      </ul>
      <p>Keys: <kbd>/</kbd> searches, <kbd>1</kbd> to <kbd>9</kbd> change the view, arrows walk through the network, <kbd>Enter</kbd> chooses, <kbd>Esc</kbd> lets go. The address of the page names what is chosen (<code>#node=…</code>).</p>
      <p class="note">Times are predicted for {model.facts.machine.name}. {model.facts.machine.source}</p>
      </details>
    </article>
  );
}

const began = performance.now();
const content = JSON.parse(document.getElementById("facts").textContent);
const page = document.getElementById("page");
page.textContent = "";
render(content.hang ? <HangPage hang={content.hang} /> : <Page model={new Model(content)} />, page);
// Read by tests and benchmarks: the page answers from here on.
document.documentElement.dataset.ready = String(Math.round(performance.now() - began));
