// Layouts and groups as pictures of the mesh: a square for every rank, alike squares for ranks that hold the same.
import { Fragment, h } from "preact";
import { coordinates, shardCounts, layoutWords, members, meshOfGroup, product, sliceIndex, slices } from "./places.js";
import { shapeText } from "./units.js";

const SHOWN = 8; // positions of an axis that are drawn
const SQUARES = 512; // ranks that are drawn at most
const COLOURS = 8;

/** The positions of an axis that are drawn; -1 stands for those left out. @param {number} size @param {number} most */
function positions(size, most = SHOWN) {
  if (size <= most) return Array.from({ length: size }, (_, i) => i);
  return most < SHOWN ? [0, -1] : [0, 1, 2, 3, 4, -1, size - 1];
}

/** How many positions of every axis are drawn: of the outer ones one where there would be too many squares.
 * @param {number[]} mesh */
function drawn(mesh) {
  const shown = mesh.map(() => SHOWN);
  for (let a = 0; a < mesh.length && product(mesh.map((size, i) => Math.min(size, shown[i]))) > SQUARES; a++) shown[a] = 1;
  return shown;
}

/**
 * Ranks as a table: the last axis of the mesh across, the one before it down, further ones as tables of tables.
 * @param {{mesh: number[], cell: (rank: number) => any, names?: string[]}} props
 */
function Mesh({ mesh, cell }) {
  const strides = mesh.map((_, a) => product(mesh.slice(a + 1)));
  const shown = drawn(mesh);
  const table = (axis, base) => {
    if (axis === mesh.length) return cell(base);
    if (axis === mesh.length - 1) {
      return <tr>{positions(mesh[axis], shown[axis]).map((i) => (i < 0 ? <td class="left-out">…</td> : cell(base + i * strides[axis])))}</tr>;
    }
    if (axis === mesh.length - 2) {
      const across = mesh[axis + 1];
      return (
        <table class="mesh">
          <tbody>{positions(mesh[axis], shown[axis]).map((i) => (i < 0 ? <tr><td class="left-out" colSpan={Math.min(across, SHOWN)}>…</td></tr> : table(axis + 1, base + i * strides[axis])))}</tbody>
        </table>
      );
    }
    return (
      <div class={`outer ${(mesh.length - axis) % 2 ? "across" : "down"}`}>
        {positions(mesh[axis], shown[axis]).map((i) => (
          <div class="inner">
            <span class="axis">{i < 0 ? "…" : `axis ${axis} at ${i}`}</span>
            {i >= 0 && table(axis + 1, base + i * strides[axis])}
          </div>
        ))}
      </div>
    );
  };
  if (mesh.length === 1) return <table class="mesh"><tbody>{table(0, 0)}</tbody></table>;
  return table(0, 0);
}

/** Which rank holds what of a tensor.
 * @param {{layout: import("./places.js").Layout, shape: number[], rank: number, setRank: (rank: number) => void}} props */
export function LayoutPicture({ layout, shape, rank, setRank }) {
  const [mesh, dims, partial, reduction] = layout;
  const numbers = shardCounts(layout);
  const shownIndex = (index) => index.filter((_, d) => numbers[d] > 1).join(",");
  const cell = (r) => {
    const index = sliceIndex(layout, r);
    const number = index.reduce((all, i, d) => all * numbers[d] + i, 0);
    const range = slices(layout, shape, r).map(([a, b]) => `${a}:${b}`).join(", ");
    const part = partial.length ? coordinates(mesh, r).filter((_, a) => partial.includes(a)).join(".") : "";
    return (
      <td class={`rank slice-${number % COLOURS} ${r === rank ? "own" : ""}`} title={`rank ${r} holds [${range}]${part && `, partial value ${part} of the ${reduction}`}`}>
        <button onClick={() => setRank(r)} aria-label={`rank ${r} holds ${range}`}>
          <b>{r}</b>
          <small>{shownIndex(index) || "all"}{part && ` p${part}`}</small>
        </button>
      </td>
    );
  };
  const own = rank < product(mesh) ? slices(layout, shape, rank) : null;
  return (
    <figure class="layout">
      <Mesh mesh={mesh} cell={cell} />
      <figcaption>
        {layoutWords(layout, shape)}.
        {own && <> Rank {rank} holds <code>[{own.map(([a, b], d) => (numbers[d] > 1 ? `${a}:${b}` : ":")).join(", ")}]</code> of {shapeText(shape)}.</>}
        {mesh.length > 1 && <> Mesh {mesh.join(" × ")}: {mesh.map((_, a) => {
          const d = dims.findIndex((axes) => axes.includes(a));
          return `axis ${a} ${d >= 0 ? `shards dimension ${d}` : partial.includes(a) ? "has partial values" : "has copies"}`;
        }).join(", ")}.</>}
      </figcaption>
      <TensorPicture layout={layout} shape={shape} rank={rank} />
    </figure>
  );
}

/** The tensor itself, sharded as the layout says, with the ranks that hold each slice: of its two dimensions that are
 * sharded into most slices. */
function TensorPicture({ layout, shape, rank }) {
  const [mesh, dims] = layout;
  const numbers = shardCounts(layout);
  const sharded = numbers.map((n, d) => [n, d]).filter(([n]) => n > 1);
  if (!sharded.length || sharded.length > 2 || product(mesh) > 4096) return null;
  const [down, across] = sharded.length === 2 ? [sharded[0][1], sharded[1][1]] : shape.length > 1 && sharded[0][1] === 0 ? [0, -1] : [-1, sharded[0][1]];
  const holders = new Map();
  for (let r = 0; r < product(mesh); r++) {
    const key = sliceIndex(layout, r).join(",");
    const found = holders.get(key);
    if (found) found.push(r);
    else holders.set(key, [r]);
  }
  const own = sliceIndex(layout, rank).join(",");
  const list = (d) => (d < 0 ? [0] : positions(numbers[d]));
  return (
    <table class="tensor" aria-label="slices and the ranks that hold them">
      <tbody>
        {list(down).map((i) => (
          <tr>
            {list(across).map((j) => {
              if (i < 0 || j < 0) return <td class="left-out">…</td>;
              const index = dims.map((_, d) => (d === down ? i : d === across ? j : 0));
              const key = index.join(",");
              const number = index.reduce((all, k, d) => all * numbers[d] + k, 0);
              const ranks = holders.get(key) ?? [];
              const shown = ranks.slice(0, 4).join(", ") + (ranks.length > 4 ? ", …" : "");
              return <td class={`slice-${number % COLOURS} ${key === own ? "own" : ""}`}><small>rank{ranks.length > 1 ? "s" : ""}</small> {shown}</td>;
            })}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** The group of a rank on the mesh of all ranks. @param {{collective: any, ranks: number, rank: number}} props */
/** stages: of a pipeline, into which ranks are divided where a message goes from one to the other. */
export function GroupPicture({ collective, ranks, rank, stages }) {
  const group = collective.group ? members(collective.group, rank) : collective.members;
  const { message } = collective;
  const mesh = collective.group ? meshOfGroup(collective.group, ranks) : message && stages ? [stages, ranks / stages] : [ranks];
  const set = new Set(group);
  const cell = (r) => (
    <td class={`rank ${set.has(r) ? "member" : "other"} ${r === rank ? "own" : ""}`} title={`rank ${r}${set.has(r) ? " takes part" : ""}`}>
      <b>{r}</b>{set.has(r) && <small class="dot" />}
    </td>
  );
  return (
    <figure class="group">
      <Mesh mesh={mesh} cell={cell} />
      <figcaption>{message ? `Rank ${rank} ${message.received ? "hears from" : "sends to"} rank ${rank + message.away}, and every other rank of its stage ${message.received ? "from" : "to"} the one that has its place in stage ${message.stage}.` : group.length === ranks ? `All ${ranks} ranks.` : `${group.length} of ${ranks} ranks (with a dot), the group of rank ${rank}; ${Math.round(ranks / Math.max(1, group.length))} such groups run at once.`}</figcaption>
    </figure>
  );
}

