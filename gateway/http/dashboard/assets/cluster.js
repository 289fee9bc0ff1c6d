// Owns: the cluster now and in the last hour, as the members tell it. `hour` keeps what the stream has brought.
const hour = { told: null, at: 0, moments: new Map() };   // moments: by member, {life, rows}
const HOUR_MS = 3_600_000, STEP_MS = 5_000;
const SPANS = { "5 min": 300_000, "15 min": 900_000, "1 h": HOUR_MS };
const PLOTS = [
  ["Operations applied, per second", (m) => m.operations_per_s, si, 1],
  ["Requests answered, per second", (m) => m.requests_per_s, si, 1],
  ["Requests refused (4xx), per second", (m) => m.refused_per_s, si, 1],
  ["Requests failed (5xx), per second", (m) => m.failed_per_s, si, 1],
  ["Request, 99th percentile", (m) => m.request_p99_ms, ms, 1],
  ["Log entry to its result, 99th percentile (leader)", (m) => m.entry_p99_ms, ms, 1],
  ["Flush of the journal, 99th percentile", (m) => m.flush_p99_ms, ms, 1],
  ["Entries committed and not applied yet", (m) => m.lag, si, 1],
  ["Processors kept busy", (m) => m.cpu, (n) => n === null || n === undefined ? NONE : n.toFixed(2), 1],
  ["Resident memory", (m) => m.memory_bytes, bytes, 1 << 20],
  ["Log and state on disk", (m) => m.data_bytes, bytes, 1 << 20],
  ["Free disk", (m) => m.disk_free_bytes, bytes, 1 << 20],
];

function taken(told) {
  hour.told = told;
  hour.at = Date.now();
  const ids = new Set(told.members.map((member) => member.id));
  for (const id of hour.moments.keys()) if (!ids.has(id)) hour.moments.delete(id);
  for (const { id, figures } of told.members) {
    if (!figures) continue;
    const rows = figures.moments.map((row) => Object.fromEntries(told.columns.map((name, at) => [name, row[at]])));
    // A process that began anew numbers its moments anew; what the one before told stays, as the hour's beginning.
    const kept = hour.moments.get(id) || { life: figures.life, number: 0, rows: [] };
    if (kept.life !== figures.life) { kept.life = figures.life; kept.number = 0; }
    kept.rows.push(...rows.filter((row) => row.number > kept.number));
    kept.number = Math.max(kept.number, ...rows.map((row) => row.number));
    while (kept.rows.length && kept.rows[0].at_ms < told.at_ms - HOUR_MS) kept.rows.shift();
    hour.moments.set(id, kept);
  }
}

const newest = (id) => hour.moments.get(id)?.rows.at(-1) || {};

// One verdict on the cluster, and why: what an operator looks for first.
function health() {
  const told = hour.told;
  if (!told) return ["unknown", "asking…"];
  const voters = told.members.filter((member) => member.voter), well = voters.filter((member) => member.figures && !member.figures.damage);
  const leader = told.members.find((member) => member.figures?.role === "leader" && member.figures.term === Math.max(...told.members.map((one) => one.figures?.term || 0)));
  if (well.length <= voters.length / 2) return ["bad", `no majority: ${well.length} of ${many(voters.length, "voter")} answer${well.length === 1 ? "s" : ""} ${told.node}`];
  if (!leader) return ["bad", "nobody leads"];
  const faults = told.members.flatMap((member) => {
    const figures = member.figures;
    if (!figures) return [`${member.id} ${member.silent}`];
    return [figures.damage && `${member.id}: ${figures.damage}`, figures.stalled, figures.disk_full && `the disk of ${member.id} is full`].filter(Boolean);
  });
  if (faults.length) return ["doubt", `${leader.id} leads; ${faults.join("; ")}`];
  return ["good", `${leader.id} leads, ${well.length} of ${many(voters.length, "voter")} answer`];
}

function roleOf(member) {
  const figures = member.figures;
  if (!figures) return state("bad", member.silent);
  if (figures.damage) return state("bad", `${figures.role}, damaged`);
  if (figures.stalled) return state("bad", `${figures.role}, commits nothing`);
  if (figures.disk_full) return state("doubt", `${figures.role}, disk full`);
  if (!member.voter) return state("doubt", "learner");
  return figures.role === "leader" ? state("good", "leader") : figures.role === "follower" ? state("quiet", "follower") : state("doubt", figures.role);
}

function memberRow(member, commitIndex) {
  const figures = member.figures, now = newest(member.id);
  const behind = figures ? commitIndex - figures.applied_index : null;
  const free = now.disk_size_bytes ? now.disk_free_bytes / now.disk_size_bytes : null;
  const disk = free === null ? NONE : free < 0.1 ? state("doubt", `${bytes(now.disk_free_bytes)} free`) : `${bytes(now.disk_free_bytes)} free`;
  return { class: figures ? null : "gone", cells: [
    h("span", {}, h("b", {}, member.id), h("span", { class: "quiet block" }, member.http, figures ? `, ${figures.version}` : "")),
    roleOf(member), whole(figures?.term), whole(figures?.commit_index), whole(figures?.applied_index),
    behind === null ? NONE : behind > 1000 ? state("doubt", whole(behind)) : whole(behind),
    figures ? si(now.operations_per_s) : NONE, figures ? si(now.requests_per_s) : NONE, figures ? ms(now.request_p99_ms) : NONE,
    figures ? ms(now.flush_p99_ms) : NONE, figures ? disk : NONE, figures ? bytes(now.memory_bytes) : NONE] };
}

const MEMBER_COLUMNS = ["member", "role", "term", "committed", "applied", "behind", "ops/s", "requests/s", "request p99", "flush p99", "disk", "memory"];
const NUMBERS = new Set(["term", "committed", "applied", "behind", "ops/s", "requests/s", "request p99", "flush p99", "memory"]);
// What the reader may change is added by members.js.
let memberTools = () => null;

function drawCluster(main, { params }) {
  const told = hour.told;
  if (!told) return fill(main, note("Asking the members…"));
  const span = SPANS[params.span] || SPANS["15 min"], name = params.span in SPANS ? params.span : "15 min";
  const live = told.members.filter((member) => member.figures);
  const commitIndex = Math.max(0, ...live.map((member) => member.figures.commit_index));
  const leading = live.find((member) => member.id === told.leader) || live[0];
  const now = newest(leading?.id), term = Math.max(0, ...live.map((member) => member.figures.term));
  const sum = (pick) => live.reduce((so, member) => so + (pick(newest(member.id)) || 0), 0);
  const tiles = [
    [told.leader || "nobody", "leads"], [whole(term), "term"], [whole(leading?.figures?.commit), "commit number"],
    [si(now.operations_per_s), "operations/s"], [si(sum((m) => m.requests_per_s)), "requests/s, all members"],
    [si(sum((m) => m.failed_per_s)), "failed/s"], [ms(now.entry_p99_ms), "log entry p99"], [whole(now.sessions), "sessions"],
  ];
  const columns = MEMBER_COLUMNS.map((column) => ({ name: column, number: NUMBERS.has(column) }));
  const lines = (pick) => told.members.map((member) => ({
    name: member.id,
    points: (hour.moments.get(member.id)?.rows || []).filter((row) => row.at_ms >= told.at_ms - span).map((row) => [row.at_ms, pick(row)]),
  }));
  fill(main,
    h("h2", { class: "hidden" }, "Cluster"),
    h("ul", { class: "tiles", "aria-label": "The cluster now" }, tiles.map(([value, what]) => h("li", {}, h("b", {}, value), h("span", {}, what)))),
    table("Members", columns, told.members.map((member) => memberRow(member, commitIndex)), { class: "cards" }),
    memberTools(),
    h("div", { class: "bar" }, h("h2", {}, "The last hour"),
      h("span", { class: "group", role: "group", "aria-label": "Span of the plots" }, Object.keys(SPANS).map((one) =>
        h("button", { type: "button", "data-focus": `span ${one}`, "aria-pressed": String(one === name), onclick: () => alter({ span: one }) }, one)))),
    h("div", { class: "plots" }, PLOTS.map(([title, pick, shown, least], at) =>
      plot({ id: `plot-${at}`, title, lines: lines(pick), from: told.at_ms - span, to: told.at_ms, shown, least, gapMs: 3 * STEP_MS }))));
}
