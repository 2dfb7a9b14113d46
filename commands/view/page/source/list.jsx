// A list of any length of which only what is in view is drawn.
import { h } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const PRINTED = 3000; // rows that go on paper at most
const AROUND = 8; // rows drawn above and below what is in view

/** Whether the page is being printed: then all rows are drawn. */
function usePrinting() {
  const [printing, setPrinting] = useState(false);
  useEffect(() => {
    const begin = () => setPrinting(true);
    const end = () => setPrinting(false);
    addEventListener("beforeprint", begin);
    addEventListener("afterprint", end);
    return () => {
      removeEventListener("beforeprint", begin);
      removeEventListener("afterprint", end);
    };
  }, []);
  return printing;
}

/**
 * @param {{count: number, height: number, row: (index: number) => any, at?: number, label: string, role?: string,
 *   onKeyDown?: (event: KeyboardEvent) => void, active?: string}} props
 *   height: of a row in pixels. at: a row that is brought into view when it changes.
 */
export function LongList({ count, height, row, at, label, role = "list", onKeyDown, active }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, size: 800 });
  const printing = usePrinting();
  const read = () => box.current && setView({ top: box.current.scrollTop, size: box.current.clientHeight });
  useEffect(() => {
    read();
    const watcher = new ResizeObserver(read);
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  useLayoutEffect(() => {
    const element = box.current;
    if (at === undefined || at < 0 || !element) return;
    const top = at * height;
    if (top < element.scrollTop || top + height > element.scrollTop + element.clientHeight) {
      element.scrollTop = Math.max(0, top - element.clientHeight / 3);
    }
    read();
  }, [at]);
  const first = printing ? 0 : Math.max(0, Math.floor(view.top / height) - AROUND);
  const last = printing ? Math.min(count, PRINTED) : Math.min(count, Math.ceil((view.top + view.size) / height) + AROUND);
  const rows = [];
  for (let i = first; i < last; i++) rows.push(row(i));
  return (
    <div class="long" ref={box} onScroll={read} role={role} aria-label={label} tabIndex={0} onKeyDown={onKeyDown} aria-activedescendant={active}>
      <div class="all" style={{ height: printing ? "auto" : `${count * height}px` }}>
        <div class="seen" style={{ transform: printing ? "none" : `translateY(${first * height}px)` }}>{rows}</div>
      </div>
    </div>
  );
}
