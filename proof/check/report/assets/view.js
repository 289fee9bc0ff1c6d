// Owns: what is shown (filters, span of time, chosen operation) and where: from time to pixels and back, lanes to rows.
// Nothing is drawn here. All state of the page is in `view`; `changed()` asks for one frame.
let LANE = 40, BAR = 20, BAR_TOP = 5, LINE = 30;   // lower where there are many lanes
const GUTTER = 104, AXIS = 22, FAULT_ROW = 17, FAULT_ROWS_MAX = 4;
const WHOLE = { from: DATA.from, to: Math.max(DATA.to, DATA.from + 1) };
const SPAN_MIN = 200;

const view = {
  key: -1, node: -1, statuses: [true, true, true], order: true, failure: -1, chosen: -1,
  from: WHOLE.from, to: WHOLE.to, width: 900, height: 300,
  lanes: [],      // [{lane, rows: Uint32Array, longest}] of the operations that pass the filters
  place: new Map(), points: [], stuck: new Set(), window: new Set(), faults: [], faultRows: 1, count: 0,
};

const xOf = (ns) => GUTTER + ((ns - view.from) / (view.to - view.from)) * (view.width - GUTTER);
const timeOf = (x) => view.from + ((x - GUTTER) / (view.width - GUTTER)) * (view.to - view.from);
// Whether the order found belongs to what is shown.
const ordered = () => view.order && view.points.length > 0 && (view.key < 0 || view.key === FAILURES[view.failure].key);
const railY = () => AXIS + view.faultRows * FAULT_ROW + 2;
const top0 = () => railY() + (ordered() ? FAULT_ROW : 0) + 4;
const laneY = (row) => top0() + row * LANE;

// First position whose operation is invoked at or after `ns`.
function firstAt(rows, ns) {
  let low = 0, high = rows.length;
  while (low < high) { const mid = (low + high) >> 1; if (ops.invoked[rows[mid]] < ns) low = mid + 1; else high = mid; }
  return low;
}

function passes(i) {
  return (view.key < 0 || ops.key[i] === view.key) && (view.node < 0 || ops.node[i] === view.node) && view.statuses[ops.status[i]];
}

function filter() {
  const byLane = new Map();
  view.count = 0;
  for (let i = 0; i < ops.n; i++) {
    if (!passes(i)) continue;
    let lane = byLane.get(ops.lane[i]);
    if (!lane) byLane.set(ops.lane[i], (lane = { lane: ops.lane[i], rows: [], longest: 0 }));
    lane.rows.push(i);
    lane.longest = Math.max(lane.longest, ops.end[i] - ops.invoked[i]);
    view.count++;
  }
  view.lanes = [...byLane.values()].sort((a, b) => a.lane - b.lane);
  for (const lane of view.lanes) lane.rows = Uint32Array.from(lane.rows);
  view.faults = DATA.faults.filter((fault) => view.node < 0 || !fault.target.length || fault.target.includes(DATA.nodes[view.node]));
  [LANE, BAR, BAR_TOP, LINE] = view.lanes.length > 10 ? [31, 16, 3, 23] : [40, 20, 5, 30];
  const ends = [], before = [];
  for (const fault of view.faults) {
    let row = ends.findIndex((end) => end <= fault.start);
    if (row < 0) row = ends.length < FAULT_ROWS_MAX ? ends.length : FAULT_ROWS_MAX - 1;
    fault.row = row;
    fault.next = Infinity;
    if (before[row]) before[row].next = fault.start;
    before[row] = fault;
    ends[row] = Math.max(ends[row] || 0, fault.end ?? WHOLE.to);
  }
  view.faultRows = Math.max(1, ends.length);
}

// Points of the order: each inside its operation and not before the one that precedes it. The results allow any such
// points; these lie early, with room left for those that follow.
function setFailure(number) {
  view.failure = number;
  view.place = new Map(); view.points = []; view.stuck = new Set(); view.window = new Set();
  const failure = FAILURES[number];
  if (!failure) return;
  const rows = failure.prefix, early = new Float64Array(rows.length), late = new Float64Array(rows.length);
  let bound = WHOLE.from;
  for (let i = 0; i < rows.length; i++) bound = early[i] = Math.max(bound, ops.invoked[rows[i]]);
  // What cannot come next would have to come before its end: the order stops before that if it can.
  bound = failure.stuck.reduce((least, row) => (ops.status[row] === OK ? Math.min(least, ops.end[row]) : least), WHOLE.to);
  bound = Math.max(bound, early.at(-1) ?? bound);
  for (let i = rows.length - 1; i >= 0; i--) {
    bound = late[i] = Math.min(bound, ops.status[rows[i]] === OK ? ops.end[rows[i]] : WHOLE.to);
  }
  let at = WHOLE.from;
  for (let i = 0; i < rows.length; i++) {
    const low = Math.max(at, early[i]);
    const room = Math.min(late[i], Math.max(ops.end[rows[i]], low)) - low;
    at = low + Math.max(0, room) * 0.3;
    view.place.set(rows[i], failure.places ? failure.places[i] : i + 1);
    view.points.push({ row: rows[i], at });
  }
  for (const row of failure.stuck) view.stuck.add(row);
  for (const row of failure.window) view.window.add(row);
}

// The span to open a failure with: its shortest failing window, or what cannot come next and the last before it.
function failureSpan(failure) {
  const rows = [...failure.window, ...failure.stuck];
  if (!rows.length) rows.push(...failure.prefix.slice(-8));
  if (!rows.length) return WHOLE;
  let from = Infinity, to = -Infinity;
  for (const row of rows) { from = Math.min(from, ops.invoked[row]); to = Math.max(to, ops.end[row]); }
  // A little of what came before, as long as the window stays most of the picture.
  const least = to - from;
  for (const row of failure.prefix.slice(-6)) if (to - ops.invoked[row] < 2.2 * least) from = Math.min(from, ops.invoked[row]);
  const margin = Math.max((to - from) * 0.14, SPAN_MIN);
  return { from: from - margin, to: to + margin };
}

function setSpan(from, to) {
  const whole = WHOLE.to - WHOLE.from, margin = whole * 0.02;
  const span = Math.min(Math.max(to - from, SPAN_MIN), whole + 2 * margin);
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - span / 2, WHOLE.from - margin), WHOLE.to + margin - span);
  view.to = view.from + span;
}

function zoom(factor, around) {
  const at = around ?? (view.from + view.to) / 2;
  setSpan(at - (at - view.from) * factor, at + (view.to - at) * factor);
}

function visible(lane) {
  return [firstAt(lane.rows, view.from - lane.longest), firstAt(lane.rows, view.to)];
}
