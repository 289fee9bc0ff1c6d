// Owns: which view is drawn and when, the stream of figures, the log-in, and the keys of the whole page.
// Name in the address, title, what draws it, and after how many milliseconds it is drawn again while it is looked at.
const VIEWS = [
  ["cluster", "Cluster", drawCluster, 0],
  ["flows", "Flows", drawFlows, 4000],
  ["tables", "Tables", drawTables, Infinity],
  ["sessions", "Sessions", drawSessions, Infinity],
  ["history", "History", drawHistory, Infinity],
  ["check", "Live check", drawCheck, 10000],
];
const me = { known: false, tokens: false, scopes: [], within: {} };
const stream = { paused: false, abort: null, fault: "", waitS: 1 };
const may = (scope) => me.scopes.includes(scope) && !(scope in me.within);

function drawTop() {
  const [kind, why] = health();
  $("mark").className = `mark ${kind}`;
  $("mark").textContent = SIGNS[kind];
  const name = hour.told ? hour.told.cluster : "oncegate";
  $("title").textContent = name;
  document.title = `${SIGNS[kind]} ${name}: oncegate`;
  if ($("about").textContent !== why) $("about").textContent = why;
  const as = me.known && me.tokens ? `, as ${me.name}` : "";
  const live = stream.paused ? "paused" : stream.fault || (hour.told ? `live from ${hour.told.node}${as}` : "connecting…");
  if ($("live").textContent !== live) $("live").textContent = live;
  $("pause").setAttribute("aria-pressed", String(stream.paused));
  $("forget").hidden = !token.get();
}

let drawing = null, drawnAt = 0;
function draw({ anew = false } = {}) {
  const at = where(), found = VIEWS.find(([id]) => id === at.view) || VIEWS[0];
  for (const a of $("views").children) {
    if (a.dataset.view === found[0]) a.setAttribute("aria-current", "page"); else a.removeAttribute("aria-current");
  }
  drawTop();
  if ($("login").hidden === false) return;
  if (anew) { drawing?.abort(); drawing = new AbortController(); $("main").dataset.view = found[0]; $("main").setAttribute("aria-label", found[1]); }
  drawnAt = Date.now();
  found[2]($("main"), { ...at, anew, signal: drawing?.signal });
}

// What a view shows of a fault; a token that is missing or has ended is asked for.
function failed(main, fault) {
  if (fault.name === "AbortError") return;
  if (fault.status === 401) return askForToken(token.get() ? "The node does not know this token, or it has ended." : "");
  const why = fault.status === 403 ? `Not with this token: ${fault.message}` : fault.message;
  fill(main, note(why, "bad"));
}

function askForToken(why) {
  token.set("");
  me.known = false;
  stream.abort?.abort();
  Object.assign(hour, { told: null, moments: new Map() });
  $("login-refused").textContent = why;
  $("login").hidden = false;
  fill($("main"));
  drawTop();
  $("token").focus();
}

async function begin() {
  try {
    Object.assign(me, await ask("v1/token"), { known: true });
  } catch (fault) {
    if (fault.status === 401 || fault.status === 403) return askForToken(token.get() ? fault.message : "");
    stream.fault = fault.message;
    drawTop();
    return setTimeout(begin, 2000);
  }
  $("login").hidden = true;
  draw({ anew: true });
  follow();
}

// Follow the figures for as long as the page is looked at; every fault is tried again, later each time.
async function follow() {
  stream.abort?.abort();
  if (stream.paused || document.hidden || !me.known) return drawTop();
  const abort = stream.abort = new AbortController();
  let why = "the stream has ended";
  try {
    await events("v1/cluster/figures/watch", (name, data) => {
      if (abort.signal.aborted) return;
      if (name === "end") { why = "ended"; return askForToken(data.detail || ""); }
      stream.fault = ""; stream.waitS = 1;
      taken(data);
      const everyMs = VIEWS.find(([id]) => id === $("main").dataset.view)?.[3] ?? Infinity;
      if (Date.now() - drawnAt >= Math.max(everyMs, everyMs && 20 * tookMs)) draw(); else drawTop();
    }, abort.signal);
  } catch (fault) {
    if (abort.signal.aborted) return;
    if (fault.status === 401) return askForToken("The node does not know this token, or it has ended.");
    why = fault instanceof Refused ? fault.message : "this node does not answer";
  }
  if (abort.signal.aborted || why === "ended") return;
  stream.fault = `not live: ${why}; asking again`;
  drawTop();
  setTimeout(() => { if (stream.abort === abort) follow(); }, 1000 * stream.waitS);
  stream.waitS = Math.min(10, 2 * stream.waitS);
}

const KEYS = {
  p: ["pause and go on", () => { stream.paused = !stream.paused; follow(); drawTop(); }],
  r: ["read again what is shown", () => draw({ anew: true })],
  "/": ["to the first filter", () => $("main").querySelector("input, select")?.focus()],
  "?": ["this list", () => $("help").showModal()],
};
VIEWS.forEach(([id, name], at) => { KEYS[at + 1] = [`view ${name}`, () => go([id])]; });

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog[open]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key][1]();
});
$("pause").addEventListener("click", () => KEYS.p[1]());
$("help-open").addEventListener("click", () => KEYS["?"][1]());
$("forget").addEventListener("click", () => askForToken(""));
$("skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
$("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set($("token").value.trim());
  $("token").value = "";
  begin();
});
window.addEventListener("hashchange", () => draw({ anew: true }));
document.addEventListener("visibilitychange", follow);

$("views").append(...VIEWS.map(([id, name], at) => h("a", { href: link([id]), "data-view": id }, name, " ", h("kbd", { "aria-hidden": "true" }, String(at + 1)))));
$("help-keys").append(...Object.entries(KEYS).flatMap(([key, [what]]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]));
window.dashboard = { hour, me, stream };
drawTop();
begin();
