() => {
  // Every text that is seen whose contrast with what lies below it is less than 4.5 (WCAG 2.2, 1.4.3), as "text: ratio".
  const colour = (text) => {
    const found = /rgba?\(([^)]+)\)/.exec(text);
    if (!found) return null;
    const [r, g, b, a = 1] = found[1].split(/[ ,/]+/).map(Number);
    return [r, g, b, a];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const chain = (element) => (element ? [...chain(element.parentElement), element] : []);
  const below = (element) => chain(element).reduce((found, one) => over(colour(getComputedStyle(one).backgroundColor) ?? [0, 0, 0, 0], found), [255, 255, 255, 1]);
  const wrong = new Set();
  const judge = (text, style, property, grounds, opacity = 1) => {
    const own = colour(style[property]);
    for (const ground of grounds) {
      const found = ratio(over([own[0], own[1], own[2], own[3] * opacity], ground), ground);
      if (found < 4.5) wrong.add(`${text.trim().slice(0, 40)}: ${found.toFixed(2)}`);
    }
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent;
    const element = walker.currentNode.parentElement;
    const box = element.getBoundingClientRect();
    if (!text.trim() || !box.width || !box.height || element.closest("script, style, title, option")) continue;
    seen += 1;
    const opacity = chain(element).reduce((all, one) => all * Number(getComputedStyle(one).opacity), 1);
    const drawing = element.closest("svg");
    let grounds = [below(drawing ? drawing.parentElement : element)];
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    for (const shape of drawing ? drawing.querySelectorAll("rect, path.arena") : []) {
      const around = shape.getBoundingClientRect();
      const under = shape.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING;
      if (!under || x < around.left || x > around.right || y < around.top || y > around.bottom) continue;
      const fill = colour(getComputedStyle(shape).fill);
      if (fill) grounds = shape.tagName === "rect" ? [over(fill, grounds[0])] : [...grounds, over(fill, grounds[0])];
    }
    judge(text, getComputedStyle(element), drawing ? "fill" : "color", grounds, opacity);
  }
  for (const field of document.querySelectorAll("input[placeholder]")) judge("placeholder", getComputedStyle(field, "::placeholder"), "color", [below(field)]);
  return { seen, wrong: [...wrong] };
}
