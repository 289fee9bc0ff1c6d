// Owns: where tables and flows stand in the picture, and the picture. A table leads to its flows, a flow to the tables
// that its consumers write. There is no cycle: the cluster refuses one.
const BOX = { table: 170, flow: 300, line: 19, head: 28, gapX: 56, gapY: 16 };
const TRENDS = { ok: ["good", "keeps up"], falling_behind: ["doubt", "falls behind"], stalled: ["bad", "stalled"], unknown: ["unknown", "not known yet"] };
const WORST = ["bad", "doubt", "unknown", "good", "quiet"];
const targetsOf = (one) => one.target === null || one.target === undefined ? [] : [].concat(one.target);
const consumersOf = (one) => Object.entries(one.consumers).sort(([a], [b]) => a < b ? -1 : 1);
const trendOf = (consumer) => !consumer.attached ? ["bad", "never attached"] : TRENDS[consumer.trend] || TRENDS.unknown;
const kindOf = (one) => WORST.find((kind) => consumersOf(one).some(([, consumer]) => trendOf(consumer)[0] === kind)) || "quiet";

// Boxes with their places: tables stand at even depths, flows at odd ones, each as far right as its longest way asks.
function laidOut(flows) {
  const boxes = new Map(), bySource = new Map(), tops = [];
  for (const one of flows) {
    if (!bySource.has(one.source)) bySource.set(one.source, []);
    bySource.get(one.source).push(one);
  }
  const box = (id, more) => { if (!boxes.has(id)) boxes.set(id, { id, depth: 0, ...more }); return boxes.get(id); };
  const deepen = (id, depth) => { const found = boxes.get(id); if (found.depth < depth) { found.depth = depth; return true; } return false; };
  for (const one of flows) {
    box(`table ${one.source}`, { kind: "table", name: one.source, width: BOX.table, height: BOX.head + 4 });
    box(`flow ${one.flow}`, { kind: "flow", name: one.flow, of: one, width: BOX.flow, height: BOX.head + BOX.line * Math.max(1, consumersOf(one).length) + 8 });
    for (const name of targetsOf(one)) box(`table ${name}`, { kind: "table", name, width: BOX.table, height: BOX.head + 4 });
  }
  // As often as there are flows at most, for the longest way; fewer as soon as nothing moves.
  for (let turn = 0, moved = true; moved && turn <= flows.length; turn++) {
    moved = false;
    for (const one of flows) {
      moved = deepen(`flow ${one.flow}`, boxes.get(`table ${one.source}`).depth + 1) || moved;
      for (const name of targetsOf(one)) moved = deepen(`table ${name}`, boxes.get(`flow ${one.flow}`).depth + 1) || moved;
    }
  }
  const placed = new Set();
  const place = (id, atLeast) => {
    if (placed.has(id)) return;
    placed.add(id);
    const found = boxes.get(id);
    found.y = Math.max(tops[found.depth] || 8, atLeast);
    tops[found.depth] = found.y + found.height + BOX.gapY;
    if (found.kind === "table") for (const one of bySource.get(found.name) || []) place(`flow ${one.flow}`, found.y);
    else for (const name of targetsOf(found.of)) place(`table ${name}`, found.y);
  };
  for (const found of [...boxes.values()].filter((one) => one.kind === "table").sort((a, b) => a.depth - b.depth || (a.name < b.name ? -1 : 1))) place(found.id, 8);
  for (const found of boxes.values()) {
    const before = Math.floor(found.depth / 2);
    found.x = 8 + before * (BOX.table + BOX.flow + 2 * BOX.gapX) + (found.depth % 2) * (BOX.table + BOX.gapX);
  }
  return boxes;
}

const cut = (text, chars) => text.length > chars ? `${text.slice(0, chars - 1)}…` : text;

function edge(from, to, kind) {
  const x1 = from.x + from.width, y1 = from.y + BOX.head / 2, x2 = to.x - 7, y2 = to.y + BOX.head / 2, bend = Math.max(20, (x2 - x1) / 2);
  return [s("path", { class: `edge ${kind}`, d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` }),
    s("path", { class: `tip ${kind}`, d: `M${x2 + 6} ${y2}l-8 -4v8z` })];
}

function flowBox(box) {
  const one = box.of, kind = kindOf(one), consumers = consumersOf(one);
  const lines = consumers.length ? consumers.map(([name, consumer]) => {
    const [sign, word] = trendOf(consumer);
    return [sign, `${SIGNS[sign]} ${cut(name, 15)}: ${word}, ${si(consumer.lag_batches)} behind`];
  }) : [["quiet", "no consumer"]];
  return s("a", { href: link(["flows", one.flow]), "data-focus": `graph ${one.flow}`, "aria-label": `flow ${one.flow}: ${lines.map(([, text]) => text).join("; ")}` },
    s("title", {}, one.flow),
    s("rect", { class: `box ${kind}`, x: box.x, y: box.y, width: box.width, height: box.height, rx: 8 }),
    s("text", { class: "name", x: box.x + 10, y: box.y + 19 }, cut(one.flow, 36)),
    lines.map(([sign, text], at) => s("text", { class: `says ${sign}`, x: box.x + 10, y: box.y + BOX.head + 12 + at * BOX.line }, text)));
}

const tableBox = (box) => s("a", { href: link(["tables", box.name]), "data-focus": `graph table ${box.name}`, "aria-label": `table ${box.name}` },
  s("title", {}, box.name),
  s("rect", { class: "box table", x: box.x, y: box.y, width: box.width, height: box.height, rx: 2 }),
  s("text", { class: "name", x: box.x + 10, y: box.y + 21 }, cut(box.name, 19)));

function graph(flows) {
  const boxes = laidOut(flows), all = [...boxes.values()];
  const width = Math.max(...all.map((box) => box.x + box.width)) + 8, height = Math.max(...all.map((box) => box.y + box.height)) + 8;
  const edges = flows.flatMap((one) => [
    edge(boxes.get(`table ${one.source}`), boxes.get(`flow ${one.flow}`), kindOf(one)),
    ...targetsOf(one).map((name) => edge(boxes.get(`flow ${one.flow}`), boxes.get(`table ${name}`), kindOf(one)))]);
  return h("div", { class: "scrolled graph", tabindex: 0, role: "region", "aria-label": "Graph of tables and flows", "data-scroll": "graph", "data-focus": "graph" },
    s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Tables lead to their flows, flows to the tables that they write" },
      edges, all.map((box) => box.kind === "flow" ? flowBox(box) : tableBox(box))));
}
