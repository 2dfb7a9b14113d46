// Small pictures, so that no font has to have them.
import { h } from "preact";

const PATHS = {
  open: "M2 4 L10 4 L6 9.5 Z",
  closed: "M4 2 L9.5 6 L4 10 Z",
  exchange: "M0.5 3.3 L8 3.3 L8 0.8 L12 4.2 L8 7.4 L8 5 L0.5 5 Z M11.5 8.7 L4 8.7 L4 11.2 L0 7.8 L2.6 5.7 L4 6.9 L11.5 7 Z",
  theme: "M6 1 A5 5 0 0 0 6 11 A5 5 0 0 0 6 1 Z M6 2 A4 4 0 0 1 6 10 Z",
  left: "M8 1.5 L3 6 L8 10.5 Z",
  right: "M4 1.5 L9 6 L4 10.5 Z",
};

/** @param {{name: keyof typeof PATHS}} props */
export function Icon({ name }) {
  return <svg class={`icon ${name}`} viewBox="0 0 12 12" aria-hidden="true"><path fill-rule="evenodd" d={PATHS[name]} /></svg>;
}

/** What marks a collective. */
export function CollectiveMark() {
  return <span class="mark" title="collective"><Icon name="exchange" /></span>;
}
