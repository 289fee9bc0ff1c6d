// Owns: what keys, pointer and controls do. Every act of the pointer has a key.
let frame = 0, settled = 0;
function changed() {
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; draw(); showSpan(); });
  clearTimeout(settled);
  settled = setTimeout(() => { showTable(); remember(); }, 120);
}

function refilter() { filter(); changed(); }

const still = window.matchMedia("(prefers-reduced-motion: reduce)");
let moving = 0, aim = null;

// End a motion at once: what comes next starts from where it was going.
function land() {
  cancelAnimationFrame(moving);
  if (aim) [view.from, view.to] = aim;
  aim = null;
}

function go(from, to) {
  land();
  const start = [view.from, view.to], begun = performance.now();
  setSpan(from, to);
  if (still.matches) { changed(); return; }
  aim = [view.from, view.to];
  [view.from, view.to] = start;
  const step = () => {
    const share = Math.min(1, (performance.now() - begun) / 160), eased = 1 - (1 - share) ** 3;
    if (share === 1) { land(); changed(); return; }
    view.from = start[0] + (aim[0] - start[0]) * eased; view.to = start[1] + (aim[1] - start[1]) * eased;
    changed();
    moving = requestAnimationFrame(step);
  };
  step();
}

function chooseKey(key) {
  view.key = key;
  const failure = FAILURES.findIndex((one) => one.key === key);
  if (failure >= 0 && FAILURES[view.failure]?.key !== key) setFailure(failure);
  if (view.chosen >= 0 && !passes(view.chosen)) view.chosen = -1;
  refilter(); showKeys(); showFailure(); showDetails();
  scroller.scrollTop = 0;
  if (failure >= 0) toFailure();
  say(`${key < 0 ? "all keys" : "key " + DATA.keys[key].name}: ${counted(view.count, "operation")}`);
}

function openFailure(number) {
  const wrapped = (number + FAILURES.length) % FAILURES.length;
  setFailure(wrapped);
  if (FAILURES[wrapped].key >= 0) view.key = FAILURES[wrapped].key;
  view.chosen = FAILURES[wrapped].stuck[0] ?? -1;
  refilter(); showKeys(); showFailure(); showDetails(); toFailure();
}

function toFailure() {
  const failure = FAILURES[view.failure];
  if (!failure) return;
  if (failure.key >= 0 && view.key >= 0 && view.key !== failure.key) { view.key = failure.key; refilter(); showKeys(); showFailure(); }
  const span = failureSpan(failure);
  go(span.from, span.to);
  const row = failure.stuck.length ? rowOf(failure.stuck[0]) : -1;
  if (row >= 0) reveal(row);
}

function reveal(row) {
  const y = row * LANE, room = Math.max(LANE, scroller.clientHeight - top0());
  if (y < scroller.scrollTop) scroller.scrollTop = y; else if (y + LANE > scroller.scrollTop + room) scroller.scrollTop = y + LANE - room;
}

function choose(i, center = false) {
  land();
  if (i >= 0 && !passes(i)) { view.key = view.key < 0 ? -1 : ops.key[i]; view.node = -1; at("node").value = ""; filter(); showKeys(); showFailure(); }
  view.chosen = i;
  if (i >= 0) {
    const length = ops.end[i] - ops.invoked[i], span = view.to - view.from;
    if (ops.invoked[i] < view.from || ops.end[i] > view.to || center) {
      const wide = center ? Math.min(span, Math.max(length * 12, SPAN_MIN * 10)) : Math.max(span, length * 1.3), middle = ops.invoked[i] + length / 2;
      if (ops.invoked[i] < view.from || ops.end[i] > view.to || length < span / 400) go(middle - wide / 2, middle + wide / 2);
    }
    reveal(rowOf(i));
    announce(i);
  }
  showDetails(); changed();
}

function nearest(lane, ns) {
  const rows = lane.rows, p = firstAt(rows, ns);
  const before = rows[p - 1], after = rows[p];
  if (before === undefined) return after;
  if (after === undefined || ops.end[before] >= ns) return before;
  return ns - ops.end[before] < ops.invoked[after] - ns ? before : after;
}

function start() {
  const middle = (view.from + view.to) / 2;
  const stuck = [...view.stuck].find(passes);
  if (stuck !== undefined) return stuck;
  return view.lanes.length ? nearest(view.lanes[0], middle) : -1;
}

function step(along, across) {
  land();
  if (view.chosen < 0 || !passes(view.chosen)) { choose(start()); return; }
  const row = rowOf(view.chosen);
  if (along) {
    const rows = view.lanes[row].rows, next = rows[rows.indexOf(view.chosen) + along];
    if (next !== undefined) choose(next);
  } else {
    const lane = view.lanes[row + across];
    if (lane) choose(nearest(lane, (Math.max(view.from, ops.invoked[view.chosen]) + Math.min(view.to, ops.end[view.chosen])) / 2));
  }
}

// Next in the order found; after its end the operations that cannot come next.
function along(way) {
  const failure = FAILURES[view.failure];
  if (!failure) return;
  const way_ = [...view.points.map((point) => point.row), ...failure.stuck];
  const here = way_.indexOf(view.chosen);
  const next = here < 0 ? (way > 0 ? Math.max(0, failure.prefix.length - 1) : failure.prefix.length - 1) : here + way;
  if (way_[next] !== undefined) choose(way_[next]);
}

function breaking() {
  const failure = FAILURES[view.failure];
  if (!failure?.stuck.length) return;
  choose(failure.stuck[(failure.stuck.indexOf(view.chosen) + 1) % failure.stuck.length]);
}

const around = () => {
  const i = view.chosen;
  if (i < 0) return undefined;
  const middle = (ops.invoked[i] + ops.end[i]) / 2;
  return middle > view.from && middle < view.to ? middle : undefined;
};
function zoomed(factor) { land(); const kept = [view.from, view.to]; zoom(factor, around()); const to = [view.from, view.to]; [view.from, view.to] = kept; go(...to); }
function panned(share) { land(); const by = (view.to - view.from) * share; go(view.from + by, view.to + by); }
function ends(last) { const lane = view.lanes[Math.max(0, rowOf(view.chosen))]; if (lane) choose(lane.rows[last ? lane.rows.length - 1 : 0]); }

const KEYS = {
  ArrowLeft: (event) => (event.shiftKey ? panned(-0.25) : step(-1, 0)), ArrowRight: (event) => (event.shiftKey ? panned(0.25) : step(1, 0)),
  ArrowUp: () => step(0, -1), ArrowDown: () => step(0, 1), Home: () => ends(false), End: () => ends(true),
  n: () => along(1), p: () => along(-1), b: breaking, "+": () => zoomed(0.5), "=": () => zoomed(0.5), "-": () => zoomed(2),
  "[": () => panned(-0.25), "]": () => panned(0.25), f: toFailure, 0: () => go(WHOLE.from, WHOLE.to),
  a: () => chooseKey(view.key >= 0 || view.chosen < 0 ? -1 : ops.key[view.chosen]),
  Escape: () => choose(-1), t: () => { at("table").open = !at("table").open; if (at("table").open) at("table").scrollIntoView({ block: "nearest" }); },
};
scroller.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key](event);
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (event.ctrlKey || event.metaKey || event.altKey || typing) return;
  if (event.key === "?") { event.preventDefault(); at("help").showModal(); }
  if (event.key === "/") { event.preventDefault(); at("search").focus(); }
});
at("keys").addEventListener("keydown", (event) => {
  const item = event.target.closest("li"), to = event.key === "ArrowDown" ? item?.nextElementSibling : event.key === "ArrowUp" ? item?.previousElementSibling : null;
  if (to) { event.preventDefault(); to.firstElementChild.focus(); }
});

function hit(event) {
  const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const row = Math.floor((y - top0() + scroller.scrollTop) / LANE);
  if (x < GUTTER || y < top0() || !view.lanes[row]) return -1;
  const i = nearest(view.lanes[row], timeOf(x));
  return i !== undefined && xOf(ops.invoked[i]) - 4 <= x && xOf(ops.end[i]) + 4 >= x ? i : -1;
}
let drag = null;
canvas.addEventListener("pointerdown", (event) => {
  if (event.button) return;
  land();
  drag = { x: event.clientX, y: event.clientY, from: view.from, to: view.to, scroll: scroller.scrollTop, moved: false };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  if (!drag) { const i = hit(event); canvas.style.cursor = i < 0 ? "" : "pointer"; canvas.title = i < 0 ? "" : label(i); return; }
  const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
  if (!drag.moved && Math.abs(dx) + Math.abs(dy) < 4) return;
  drag.moved = true; scroller.classList.add("dragging");
  const by = (dx / (view.width - GUTTER)) * (drag.to - drag.from);
  setSpan(drag.from - by, drag.to - by);
  scroller.scrollTop = drag.scroll - dy;
  changed();
});
const dropped = (event) => {
  if (drag && !drag.moved && event.type === "pointerup") { const i = hit(event); if (i !== view.chosen) choose(i); }
  drag = null; scroller.classList.remove("dragging");
};
canvas.addEventListener("pointerup", dropped);
canvas.addEventListener("pointercancel", dropped);
canvas.addEventListener("dblclick", (event) => {
  const ns = timeOf(event.clientX - canvas.getBoundingClientRect().left), span = (view.to - view.from) * 0.35;
  go(ns - span / 2, ns + span / 2);
});
scroller.addEventListener("wheel", (event) => {
  land();
  const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  if (event.ctrlKey || event.metaKey) zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.008), timeOf(event.clientX - canvas.getBoundingClientRect().left));
  else if (sideways && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) { const by = (sideways / view.width) * (view.to - view.from); setSpan(view.from + by, view.to + by); }
  else return;
  event.preventDefault();
  changed();
}, { passive: false });
scroller.addEventListener("scroll", changed);

let brush = null;
strip.addEventListener("pointerdown", (event) => { land(); brush = stripTime(event.offsetX); strip.setPointerCapture(event.pointerId); });
strip.addEventListener("pointermove", (event) => {
  if (brush === null) return;
  const to = stripTime(event.offsetX);
  if (Math.abs(stripX(to) - stripX(brush)) > 4) { setSpan(Math.min(brush, to), Math.max(brush, to)); changed(); }
});
strip.addEventListener("pointerup", (event) => {
  const to = stripTime(event.offsetX), half = (view.to - view.from) / 2;
  if (brush !== null && Math.abs(stripX(to) - stripX(brush)) <= 4) go(to - half, to + half);
  brush = null;
});
for (const plot of document.querySelectorAll("svg.plot")) {
  plot.addEventListener("click", (event) => {
    const box = plot.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * plot.viewBox.baseVal.width;
    const ns = DATA.from + ((x - plot.dataset.left) / (plot.dataset.right - plot.dataset.left)) * (DATA.to - DATA.from);
    const half = Math.min(view.to - view.from, (WHOLE.to - WHOLE.from) / 10) / 2;
    go(ns - half, ns + half);
  });
}
