// Owns: how elements are made. Text becomes text nodes only: nothing that a user wrote is ever read as HTML.
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

function furnished(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}
const h = (tag, attributes, ...children) => furnished(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => furnished(document.createElementNS(SVG, tag), attributes, children);

// Replace what an element holds; the focus stays on what has the same `data-focus`, and so does the text typed there.
function fill(element, ...children) {
  const before = document.activeElement, focused = element.contains(before) ? before.dataset.focus : undefined;
  const tops = [...element.querySelectorAll("[data-scroll]")].map((one) => [one.dataset.scroll, one.scrollLeft, one.scrollTop]);
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  for (const [name, left, top] of tops) {
    const again = element.querySelector(`[data-scroll="${CSS.escape(name)}"]`);
    if (again) { again.scrollLeft = left; again.scrollTop = top; }
  }
  const after = focused === undefined ? null : element.querySelector(`[data-focus="${CSS.escape(focused)}"]`);
  if (!after) return;
  after.focus({ preventScroll: true });
  if (before.matches("input") && after.matches("input")) {
    after.value = before.value;
    after.setSelectionRange(before.selectionStart, before.selectionEnd);
  }
}

// A table that narrow screens show as a list of cards: each cell says by itself what it is.
function table(caption, columns, rows, attributes) {
  const head = h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : null }, column.name)));
  const body = rows.map((row) => h("tr", { class: row.class }, row.cells.map((cell, at) =>
    at === 0 ? h("th", { scope: "row" }, cell) : h("td", { "data-label": columns[at].name, class: columns[at].number ? "number" : null }, cell))));
  return h("div", { class: "scrolled", tabindex: 0, role: "region", "aria-label": caption, "data-scroll": caption, "data-focus": `table ${caption}` },
    h("table", attributes, h("caption", { class: "hidden" }, caption), h("thead", {}, head), h("tbody", {}, body)));
}

// A state that is told by sign, word and colour, never by colour alone.
const SIGNS = { good: "✓", doubt: "!", bad: "✗", unknown: "?", quiet: "·" };
const state = (kind, word) => h("span", { class: `state ${kind}` }, h("span", { "aria-hidden": "true" }, SIGNS[kind]), " ", word);
const note = (text, kind = "quiet") => h("p", { class: kind, role: kind === "bad" ? "alert" : null }, text);
const definitions = (pairs) => h("dl", { class: "pairs" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
