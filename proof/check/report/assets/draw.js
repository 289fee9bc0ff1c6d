// Owns: pixels of the timeline. Only what is in view is drawn; of operations narrower than a pixel one a pixel and
// status. No meaning rests on colour: ok is solid, unknown hatched with an open end, fail hollow and struck through,
// what cannot come next has a thick edge and a cross, places in the order are numbers.
const canvas = document.getElementById("lanes"), scroller = document.getElementById("timeline");
const spacer = document.getElementById("spacer");
const TEXT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
let ink = {}, drawn = 0;

function readInk() {
  const style = getComputedStyle(document.documentElement);
  ink = {};
  for (const name of ["paper", "panel", "ink", "quiet", "rule", "accent", "ok", "ok-ink", "ok-edge", "unknown", "unknown-fill",
    "fail", "bad", "bad-fill", "fault", "fault-fill", "order", "place", "lane"]) ink[name] = style.getPropertyValue("--" + name).trim();
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const g = tile.getContext("2d");
  g.fillStyle = ink["unknown-fill"]; g.fillRect(0, 0, 8, 8);
  g.strokeStyle = ink.unknown; g.lineWidth = 1.4;
  g.beginPath(); g.moveTo(-2, 10); g.lineTo(10, -2); g.moveTo(-2, 2); g.lineTo(2, -2); g.moveTo(6, 10); g.lineTo(10, 6); g.stroke();
  ink.hatch = tile;
}

function sized(target, width, height) {
  const ratio = window.devicePixelRatio || 1, g = target.getContext("2d");
  if (target.width !== Math.round(width * ratio) || target.height !== Math.round(height * ratio)) {
    target.width = Math.round(width * ratio); target.height = Math.round(height * ratio);
  }
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

function draw() {
  drawn = 0;
  view.width = scroller.clientWidth;
  const whole = laneY(view.lanes.length) + 8;
  spacer.style.height = whole + "px";
  view.height = Math.min(whole, Math.max(scroller.clientHeight, 120));
  canvas.style.height = view.height + "px";
  const g = sized(canvas, view.width, view.height), scroll = scroller.scrollTop;
  const firstRow = Math.max(0, Math.floor(scroll / LANE) - 1);
  const lastRow = Math.min(view.lanes.length, Math.ceil((scroll + view.height - top0()) / LANE) + 1);
  g.save();
  g.beginPath(); g.rect(0, top0() - 4, view.width, view.height); g.clip();
  for (let row = firstRow; row < lastRow; row++) {
    if (row % 2) { g.fillStyle = ink.lane; g.fillRect(0, laneY(row) - scroll, view.width, LANE); }
  }
  g.restore();
  ticks(g);
  faults(g);
  if (ordered()) rail(g);
  g.save();
  g.beginPath(); g.rect(GUTTER, top0() - 4, view.width - GUTTER, view.height); g.clip();
  for (let row = firstRow; row < lastRow; row++) lane(g, view.lanes[row], laneY(row) - scroll);
  marked(g, scroll, firstRow, lastRow);
  if (ordered()) order(g, scroll);
  crossed(g, scroll, firstRow, lastRow);
  g.restore();
  names(g, firstRow, lastRow, scroll);
  overview();
}

function niceStep(span, room) {
  const least = span / Math.max(1, room / 110), power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= least);
}

function ticks(g) {
  const step = niceStep(view.to - view.from, view.width - GUTTER);
  g.font = "12px " + TEXT; g.textAlign = "center"; g.textBaseline = "middle"; g.lineWidth = 1;
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    const x = Math.round(xOf(at)) + 0.5;
    if (x < GUTTER) continue;
    g.strokeStyle = ink.rule; g.beginPath(); g.moveTo(x, AXIS - 3); g.lineTo(x, view.height); g.stroke();
    const said = moment(at, step), half = g.measureText(said).width / 2;
    g.fillStyle = ink.quiet; g.fillText(said, Math.min(Math.max(x, GUTTER + half), view.width - half - 2), AXIS / 2);
  }
}

function faults(g) {
  g.save();
  g.beginPath(); g.rect(GUTTER, 0, view.width - GUTTER, view.height); g.clip();
  g.textAlign = "left"; g.textBaseline = "middle"; g.font = "600 11.5px " + TEXT;
  for (const fault of view.faults) {
    const x0 = Math.max(xOf(fault.start), GUTTER - 2), x1 = Math.min(Math.max(xOf(fault.end ?? WHOLE.to), x0 + 2), view.width + 2);
    if (x1 < GUTTER || x0 > view.width) continue;
    g.fillStyle = ink["fault-fill"]; g.fillRect(x0, AXIS, x1 - x0, view.height);
    g.strokeStyle = ink.fault; g.lineWidth = 1; g.setLineDash([3, 3]);
    g.beginPath(); g.moveTo(x0 + 0.5, AXIS); g.lineTo(x0 + 0.5, view.height); g.moveTo(x1 - 0.5, AXIS); g.lineTo(x1 - 0.5, view.height); g.stroke();
    g.setLineDash([]);
    const y = AXIS + fault.row * FAULT_ROW;
    g.fillStyle = ink.paper; g.fillRect(x0, y + 1, x1 - x0, FAULT_ROW - 3);
    g.fillStyle = ink["fault-fill"]; g.fillRect(x0, y + 1, x1 - x0, FAULT_ROW - 3);
    g.strokeRect(x0 + 0.5, y + 1.5, x1 - x0 - 1, FAULT_ROW - 4);
    const said = fault.name + (fault.target.length ? " " + fault.target.join(" ") : "");
    if (g.measureText(said).width + 8 <= Math.min(xOf(fault.next), view.width) - x0) { g.fillStyle = ink.ink; g.fillText(said, Math.max(x0, GUTTER) + 4, y + FAULT_ROW / 2); }
  }
  g.restore();
}

// Corners of an operation's bar.
function box(i, y) {
  const x0 = xOf(ops.invoked[i]), x1 = xOf(ops.end[i]);
  return [x0, y + BAR_TOP, Math.max(x1 - x0, 1.5), BAR];
}

function lane(g, shown, y) {
  const [first, last] = visible(shown), until = [-Infinity, -Infinity, -Infinity];
  const broken = FAILURES[view.failure] && view.key === FAILURES[view.failure].key && view.order;
  for (let at = first; at < last; at++) {
    const i = shown.rows[at], status = ops.status[i], right = xOf(ops.end[i]);
    if (right < GUTTER || (right < until[status] && i !== view.chosen && !view.stuck.has(i))) continue;
    until[status] = Math.max(until[status], Math.floor(right) + 1);
    const outside = broken && !view.place.has(i) && !view.stuck.has(i);
    bar(g, i, y, outside);
  }
}

function bar(g, i, y, faint) {
  drawn++;
  const [x, top, wide, high] = box(i, y), status = ops.status[i];
  g.globalAlpha = faint ? 0.5 : 1;
  g.lineWidth = 1;
  if (status === OK) {
    g.fillStyle = ink.ok; g.fillRect(x, top, wide, high);
    if (wide > 4) { g.strokeStyle = ink["ok-edge"]; g.strokeRect(x + 0.5, top + 0.5, wide - 1, high - 1); }
  } else if (status === UNKNOWN) {
    const width = Math.max(wide, 4), pattern = g.createPattern(ink.hatch, "repeat");
    pattern.setTransform(new DOMMatrix().translate(x, top));
    g.fillStyle = pattern; g.fillRect(x, top, width, high);
    g.strokeStyle = ink.unknown; g.lineWidth = 1.5;
    g.beginPath(); g.moveTo(x + width, top + 0.5); g.lineTo(x + 0.5, top + 0.5); g.lineTo(x + 0.5, top + high - 0.5); g.lineTo(x + width, top + high - 0.5); g.stroke();
    g.fillStyle = ink.unknown;
    if (wide > 6) for (let dot = 0; dot < 3; dot++) g.fillRect(x + width + 3 + dot * 5, top + high / 2 - 1, 2.5, 2.5);
  } else {
    g.fillStyle = ink.paper; g.fillRect(x, top, wide, high);
    g.strokeStyle = ink.fail; g.lineWidth = 1.3; g.strokeRect(x + 0.5, top + 0.5, Math.max(wide - 1, 1), high - 1);
  }
  const shownLeft = Math.max(x, GUTTER), room = Math.min(x + wide, view.width) - shownLeft - 8;
  if (room > 18) caption(g, i, shownLeft + 4, top, room, status);
  else if (status === FAILED && wide > 3) { g.beginPath(); g.moveTo(x, top + high / 2); g.lineTo(x + wide, top + high / 2); g.stroke(); }
  g.globalAlpha = 1;
}

function caption(g, i, x, top, room, status) {
  g.font = "12px " + TEXT; g.textAlign = "left"; g.textBaseline = "middle";
  let said = label(i);
  if (view.key < 0 && DATA.keys.length > 1) said = DATA.keys[ops.key[i]].name + ": " + said;
  const wide = g.measureText(said).width;
  if (wide > room) {
    const most = Math.floor((said.length * room) / wide) - 1;
    if (most < 2) said = ""; else said = said.slice(0, most) + "…";
  }
  const used = g.measureText(said).width;
  if (status === UNKNOWN && said) { g.fillStyle = ink["unknown-fill"]; g.fillRect(x - 2, top + 2, used + 4, BAR - 4); }
  g.fillStyle = status === OK ? ink["ok-ink"] : ink.ink;
  g.fillText(said, x, top + BAR / 2 + 0.5);
  if (status === FAILED) {
    g.strokeStyle = ink.fail; g.lineWidth = 1.2; g.beginPath(); g.moveTo(x - 3, top + BAR / 2 + 0.5); g.lineTo(x + room + 3, top + BAR / 2 + 0.5); g.stroke();
  }
}

function rowOf(i) { return view.lanes.findIndex((shown) => shown.lane === ops.lane[i]); }

// How far the order goes: a line above the lanes that ends where it breaks.
function rail(g) {
  const y = railY() + FAULT_ROW / 2, end = xOf(view.points.at(-1).at), x0 = Math.max(GUTTER, xOf(view.points[0].at)), x1 = Math.min(end, view.width + 5);
  g.save();
  g.beginPath(); g.rect(GUTTER, 0, view.width - GUTTER, view.height); g.clip();
  if (end >= GUTTER) {
    g.strokeStyle = ink.order; g.lineWidth = 2; g.beginPath(); g.moveTo(x0, y); g.lineTo(x1, y); g.stroke();
  }
  let first = null, last = null;
  for (const point of view.points) if (point.at >= view.from && point.at <= view.to) { first ??= point; last = point; }
  const said = first ? `places ${view.place.get(first.row).toLocaleString("en")} to ${view.place.get(last.row).toLocaleString("en")}` : "";
  g.font = "600 11.5px " + TEXT; g.textBaseline = "middle"; g.textAlign = "left";
  const wide = g.measureText(said).width;
  if (said && x1 - x0 > wide + 30) {
    g.fillStyle = ink.paper; g.fillRect(x0 + 10, y - 8, wide + 8, 16);
    g.fillStyle = ink.order; g.fillText(said, x0 + 14, y + 0.5);
  }
  if (end >= GUTTER && end <= view.width) {
    g.strokeStyle = ink.bad; g.lineWidth = 1.5; g.setLineDash([2, 4]); g.beginPath(); g.moveTo(end, y); g.lineTo(end, view.height); g.stroke(); g.setLineDash([]);
    g.lineWidth = 2.5; g.beginPath(); g.moveTo(end - 4, y - 4); g.lineTo(end + 4, y + 4); g.moveTo(end + 4, y - 4); g.lineTo(end - 4, y + 4); g.stroke();
    const words = "breaks here", room = g.measureText(words).width;
    g.fillStyle = ink.bad;
    if (end + room + 12 < view.width) g.fillText(words, end + 9, y + 0.5);
  }
  g.restore();
}

// The line through the points of the order, each with its number, and what cannot come after its end.
function order(g, scroll) {
  const rows = new Map(view.lanes.map((shown, row) => [shown.lane, row]));
  const points = [];
  let low = 0, high = view.points.length;
  while (low < high) { const mid = (low + high) >> 1; if (view.points[mid].at < view.from) low = mid + 1; else high = mid; }
  for (let p = Math.max(0, low - 1); p < view.points.length; p++) {
    const { row: i, at } = view.points[p], row = rows.get(ops.lane[i]);
    if (row === undefined) continue;
    points.push({ i, x: xOf(at), y: laneY(row) + LINE - scroll });
    if (at > view.to) break;
  }
  // Too close to each other for a line that says anything: the rail above tells how far the order goes.
  const inside = points.filter((point) => point.x >= GUTTER && point.x <= view.width).length;
  const clear = inside < 3 || (view.width - GUTTER) / inside >= 9;
  const end = view.points.at(-1);
  if (clear) for (const [width, colour] of [[5, ink.paper], [2, ink.order]]) {
    g.lineWidth = width; g.strokeStyle = colour; g.globalAlpha = width === 5 ? 0.7 : 1; g.lineJoin = "round";
    g.beginPath();
    points.forEach((point, p) => (p ? g.lineTo(point.x, point.y) : g.moveTo(point.x, point.y)));
    g.stroke();
  }
  g.globalAlpha = 1;
  if (!clear) return;
  if (rows.has(ops.lane[end.row])) branches(g, xOf(end.at), laneY(rows.get(ops.lane[end.row])) + LINE - scroll, rows, scroll);
  const taken = new Map();
  g.font = "700 11px " + TEXT; g.textAlign = "center"; g.textBaseline = "middle";
  for (const point of points) {
    const said = String(view.place.get(point.i)), half = Math.max(8.5, g.measureText(said).width / 2 + 4);
    const right = taken.get(point.y) ?? -Infinity;
    if (point.x - 3 < right && point.i !== view.chosen) continue;
    const numbered = point.x - half > right;
    g.beginPath();
    if (numbered) g.roundRect(point.x - half, point.y - 8.5, 2 * half, 17, 8.5); else g.arc(point.x, point.y, 3, 0, 7);
    g.fillStyle = numbered ? ink.place : ink.order; g.fill(); g.lineWidth = 1.6; g.strokeStyle = ink.order; g.stroke();
    if (numbered) { g.fillStyle = ink.order; g.fillText(said, point.x, point.y + 0.5); }
    taken.set(point.y, point.x + (numbered ? half : 3));
  }
}

// Dashed from the end of the order to every operation that cannot come next.
function branches(g, x, y, rows, scroll) {
  g.strokeStyle = ink.bad; g.lineWidth = 2; g.setLineDash([6, 4]);
  for (const i of view.stuck) {
    const row = rows.get(ops.lane[i]);
    if (row === undefined) continue;
    const [left, , wide] = box(i, 0), to = Math.min(Math.max(x + 22, left + Math.min(12, wide / 2)), left + wide);
    g.beginPath(); g.moveTo(x, y); g.lineTo(to, laneY(row) + BAR_TOP + BAR - scroll); g.stroke();
  }
  g.setLineDash([]);
}

// The chosen operation and those of the proof, above all bars.
function marked(g, scroll, firstRow, lastRow) {
  for (let row = firstRow; row < lastRow; row++) {
    const shown = view.lanes[row], y = laneY(row) - scroll;
    if (view.chosen >= 0 && ops.lane[view.chosen] === shown.lane && passes(view.chosen)) {
      const [x, top, wide, high] = box(view.chosen, y);
      g.strokeStyle = ink.paper; g.lineWidth = 5; g.strokeRect(x - 5, top - 5, wide + 10, high + 10);
      g.strokeStyle = ink.accent; g.lineWidth = 2.5; g.strokeRect(x - 5, top - 5, wide + 10, high + 10);
    }
    for (const i of view.window) {
      if (ops.lane[i] !== shown.lane || view.stuck.has(i) || !passes(i)) continue;
      const [x, top, wide, high] = box(i, y);
      if (x > view.width || x + wide < GUTTER) continue;
      g.strokeStyle = ink.paper; g.lineWidth = 5; g.strokeRect(x - 0.5, top - 0.5, wide + 1, high + 1);
      g.strokeStyle = ink.bad; g.lineWidth = 2.5; g.setLineDash([7, 3]); g.strokeRect(x - 0.5, top - 0.5, wide + 1, high + 1); g.setLineDash([]);
    }
  }
}

// What cannot come next, above everything.
function crossed(g, scroll, firstRow, lastRow) {
  for (let row = firstRow; row < lastRow; row++) {
    const shown = view.lanes[row], y = laneY(row) - scroll;
    for (const i of view.stuck) {
      if (ops.lane[i] !== shown.lane || !passes(i)) continue;
      const [x, top, wide, high] = box(i, y);
      if (x > view.width || x + wide < GUTTER) continue;
      g.strokeStyle = ink.paper; g.lineWidth = 6; g.strokeRect(x - 1, top - 1, wide + 2, high + 2);
      g.strokeStyle = ink.bad; g.lineWidth = 3; g.strokeRect(x - 1, top - 1, wide + 2, high + 2);
      const cx = Math.min(x + wide, view.width - 12), cy = top;
      g.beginPath(); g.arc(cx, cy, 8, 0, 7); g.fillStyle = ink.bad; g.fill(); g.strokeStyle = ink.paper; g.lineWidth = 1.5; g.stroke();
      g.lineWidth = 2; g.beginPath(); g.moveTo(cx - 3.2, cy - 3.2); g.lineTo(cx + 3.2, cy + 3.2); g.moveTo(cx + 3.2, cy - 3.2); g.lineTo(cx - 3.2, cy + 3.2); g.stroke();
    }
  }
}

function names(g, firstRow, lastRow, scroll) {
  g.fillStyle = ink.paper; g.fillRect(0, 0, GUTTER, view.height);
  g.textAlign = "right"; g.textBaseline = "middle"; g.font = "12px " + TEXT; g.fillStyle = ink.quiet;
  g.fillText("faults", GUTTER - 8, AXIS + FAULT_ROW / 2);
  if (ordered()) g.fillText("order found", GUTTER - 8, railY() + FAULT_ROW / 2);
  g.save();
  g.beginPath(); g.rect(0, top0() - 4, GUTTER, view.height); g.clip();
  for (let row = firstRow; row < lastRow; row++) {
    const said = "process " + DATA.lanes[view.lanes[row].lane], chosen = view.chosen >= 0 && ops.lane[view.chosen] === view.lanes[row].lane;
    g.font = (chosen ? "700 " : "") + "12px " + TEXT; g.fillStyle = chosen ? ink.ink : ink.quiet;
    g.fillText(said, GUTTER - 8, laneY(row) + BAR_TOP + BAR / 2 - scroll, GUTTER - 12);
  }
  g.restore();
  g.strokeStyle = ink.rule; g.lineWidth = 1;
  g.beginPath(); g.moveTo(GUTTER - 0.5, 0); g.lineTo(GUTTER - 0.5, view.height); g.moveTo(0, top0() - 3.5); g.lineTo(view.width, top0() - 3.5); g.stroke();
}
