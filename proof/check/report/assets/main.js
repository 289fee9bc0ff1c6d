// Owns: what the page opens with, and the address, which keeps what is shown.
function remember() {
  const said = new URLSearchParams({ from: Math.round(view.from), to: Math.round(view.to) });
  if (view.key >= 0) said.set("key", view.key);
  if (view.node >= 0) said.set("node", view.node);
  if (view.chosen >= 0) said.set("op", ops.index[view.chosen]);
  try { history.replaceState(null, "", "#" + said); } catch { /* a browser that forbids it for files */ }
}

function recall() {
  const said = new URLSearchParams(location.hash.slice(1)), number = (name) => (said.has(name) ? Number(said.get(name)) : NaN);
  if (!(number("to") > number("from"))) return false;
  const key = number("key"), node = number("node"), chosen = ops.index.indexOf(number("op"));
  view.key = DATA.keys[key] ? key : -1;
  view.node = DATA.nodes[node] !== undefined ? node : -1;
  at("node").value = view.node < 0 ? "" : String(view.node);
  const failure = FAILURES.findIndex((one) => one.key === view.key);
  if (failure >= 0) setFailure(failure);
  filter();
  view.chosen = chosen >= 0 && passes(chosen) ? chosen : -1;
  setSpan(number("from"), number("to"));
  return true;
}

DATA.nodes.forEach((name, node) => at("node").append(make("option", { value: node }, name)));
at("node").addEventListener("change", () => { view.node = at("node").value === "" ? -1 : Number(at("node").value); refilter(); say(counted(view.count, "operation")); });
at("statuses").addEventListener("change", (event) => { view.statuses[Number(event.target.value)] = event.target.checked; refilter(); });
at("order").addEventListener("change", () => { view.order = at("order").checked; changed(); });
at("closer").addEventListener("click", () => zoomed(0.5));
at("wider").addEventListener("click", () => zoomed(2));
at("to-all").addEventListener("click", () => go(WHOLE.from, WHOLE.to));
at("to-failure").addEventListener("click", toFailure);
at("failure-before").addEventListener("click", () => openFailure(view.failure - 1));
at("failure-after").addEventListener("click", () => openFailure(view.failure + 1));
at("help-open").addEventListener("click", () => at("help").showModal());
at("search").addEventListener("input", showKeys);
at("table").addEventListener("toggle", showTable);
new ResizeObserver(changed).observe(scroller);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readInk(); changed(); });

readInk();
if (FAILURES.length) {
  setFailure(0);
  view.key = FAILURES[0].key;
}
filter();
if (!recall() && FAILURES.length) {
  const span = failureSpan(FAILURES[0]);
  setSpan(span.from, span.to);
  view.chosen = FAILURES[0].stuck[0] ?? -1;
}
showKeys(); showFailure(); showDetails();
draw(); showSpan();
if (view.chosen >= 0) { reveal(rowOf(view.chosen)); draw(); }
// For whoever drives the page: what is in view, in numbers.
Object.defineProperty(window, "report", { value: { view, failures: FAILURES, whole: WHOLE, ops, data: DATA, visible: () => inView().length, drawn: () => drawn, label, xOf, laneY, rowOf } });
