// Owns: everything beside the canvas: words of the proof, keys, details, where it breaks, the table. Text from users
// enters through textContent only.
const at = (id) => document.getElementById(id);
const LONG = new Set(["status", "time", "argument", "result", "faults", "error"]);
const TABLE_ROWS = 200, KEY_ROWS = 300;

function make(tag, options = {}, ...children) {
  const { on, ...rest } = options, element = document.createElement(tag);
  for (const [name, value] of Object.entries(rest)) {
    if (name === "class") element.className = value; else element.setAttribute(name, value);
  }
  for (const [name, act] of Object.entries(on || {})) element.addEventListener(name, act);
  element.append(...children);
  return element;
}

const sign = (verdict) => make("span", { class: "sign " + verdict, "aria-hidden": "true" }, signOf[verdict]);
const say = (words) => { at("live").textContent = words; };

function showKeys() {
  const wanted = at("search").value.toLowerCase(), list = at("keys");
  const found = [];
  for (let key = 0; key < DATA.keys.length; key++) if (!wanted || DATA.keys[key].name.toLowerCase().includes(wanted)) found.push(key);
  const entry = (key, name, verdict, count) => make("li", {}, make("button", {
    type: "button", "aria-pressed": String(view.key === key), "data-key": key, title: name,
    on: { click: () => chooseKey(key) },
  }, sign(verdict), make("span", { class: "hidden" }, verdict + ":"), make("span", { class: "name" }, name), make("span", { class: "count" }, count.toLocaleString("en"))));
  const focused = document.activeElement?.dataset?.key;
  list.replaceChildren(
    ...(DATA.keys.length > 1 && !wanted ? [entry(-1, "all keys", DATA.verdict, ops.n)] : []),
    ...found.slice(0, KEY_ROWS).map((key) => entry(key, DATA.keys[key].name, DATA.keys[key].verdict, DATA.keys[key].count)),
  );
  if (focused !== undefined) list.querySelector(`[data-key="${focused}"]`)?.focus();
  const more = found.length - KEY_ROWS;
  at("keys-more").hidden = more <= 0 && found.length > 0;
  at("keys-more").textContent = found.length ? counted(more, "more key") + ": search for them" : "no such key";
}

function showFailure() {
  const failure = FAILURES[view.failure], on = failure && (view.key < 0 || view.key === failure.key);
  for (const element of document.querySelectorAll(".of-failure")) element.hidden = !on;
  at("to-failure").hidden = !FAILURES.length;
  at("failures").hidden = FAILURES.length < 2;
  if (!failure) return;
  at("failure-at").textContent = ` ${view.failure + 1} of ${FAILURES.length} `;
  at("proof-title").textContent = `Why: ${failure.check}` + (DATA.keys.length > 1 && failure.key >= 0 ? `, key ${DATA.keys[failure.key].name}` : "");
  const words = failure.words.length ? failure.words : ["The check gives no words for this failure."];
  at("words").replaceChildren(...words.map((word) => make("li", {}, word)));
  const body = at("before-body"), button = (i, words) => make("li", {}, make("button", { type: "button", on: { click: () => choose(i, true) } }, words));
  const placed = failure.prefix.length + (failure.left_out || 0), last = failure.prefix.at(-1);
  body.replaceChildren(make("p", {}, placed
    ? `The longest order found places ${counted(placed, "operation")}` + (last === undefined ? "." : `; the last of them is ${label(last)}.`)
    : failure.stuck.length ? "No operation can come first." : "Not at an operation: see the words above."));
  if (failure.states.length) {
    body.append(make("p", { class: "quiet" }, failure.states.length === 1 ? "When the failing window begins, the state is" : "When the failing window begins, the state is one of"),
      make("ul", {}, ...failure.states.map((state) => make("li", {}, make("code", {}, state)))));
  }
  if (failure.stuck.length) {
    body.append(make("p", { class: "alarm" }, "✗ None of these can come next"), make("ul", {}, ...failure.stuck.map((i) => button(i, `${label(i)}  (process ${ops.process[i]})`))));
  }
}

function showDetails() {
  const i = view.chosen, body = at("details-body");
  if (i < 0) { body.replaceChildren(make("p", { class: "quiet" }, "Choose one with the arrow keys or the pointer.")); return; }
  const facts = [
    ["status", STATUS_WORDS[ops.status[i]] + (ops.status[i] === UNKNOWN ? ": may have been applied, or not, or later" : ops.status[i] === FAILED ? ": certainly not applied" : "")],
    ["argument", text(ops.argument[i])], ["result", text(ops.result[i])], ["error", text(ops.error[i])],
    ["time", `${spell(ops.invoked[i])} to ${spell(ops.end[i])}` + (ops.status[i] === UNKNOWN ? ", when it was given up" : "")],
    ["took", spell(ops.end[i] - ops.invoked[i])], ["key", DATA.keys[ops.key[i]].name],
    ["process", String(ops.process[i])], ["node", ops.node[i] < 0 ? "" : DATA.nodes[ops.node[i]]],
    ["request", text(ops.request[i])], ["number", String(ops.index[i])],
  ];
  if (view.place.has(i)) facts.push(["place", `${view.place.get(i)} in the order found`]);
  const during = DATA.faults.filter((fault) => fault.start <= ops.end[i] && (fault.end ?? WHOLE.to) >= ops.invoked[i]).slice(0, 8);
  if (during.length) facts.push(["faults", during.map((fault) => [fault.name, ...fault.target].join(" ")).join(", ")]);
  body.replaceChildren(
    make("p", { class: "what" }, label(i)),
    ...(view.stuck.has(i) ? [make("p", { class: "alarm" }, "✗ Cannot come next after the longest order found.")] : []),
    make("dl", { class: "facts" }, ...facts.filter(([, value]) => value).flatMap(([name, value]) => [make("dt", {}, name), make("dd", LONG.has(name) ? { class: "long" } : {}, value)])),
  );
}

function announce(i) {
  say(`${label(i)}, ${STATUS_WORDS[ops.status[i]]}, process ${ops.process[i]}, ${spell(ops.invoked[i])}, took ${spell(ops.end[i] - ops.invoked[i])}` +
    (view.place.has(i) ? `, place ${view.place.get(i)} in the order` : "") + (view.stuck.has(i) ? ", cannot come next" : ""));
}

function inView() {
  const rows = [];
  for (const shown of view.lanes) {
    const [first, last] = visible(shown);
    for (let at = first; at < last; at++) if (ops.end[shown.rows[at]] >= view.from) rows.push(shown.rows[at]);
  }
  return rows.sort((a, b) => a - b);
}

function showTable() {
  if (!at("table").open) return;
  const rows = inView(), head = ["number", "process", "node", "key", "operation", "status", "from", "took", "place"];
  const numbers = new Set(["number", "process", "from", "took", "place"]);
  const cell = (name, ...content) => make("td", numbers.has(name) ? { class: "number" } : {}, ...content);
  at("table-body").replaceChildren(
    make("p", { class: "quiet" }, rows.length > TABLE_ROWS ? `The first ${TABLE_ROWS} of ${rows.length.toLocaleString("en")} in view; zoom in for the others.` : counted(rows.length, "operation") + " in view."),
    make("table", {}, make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col", ...(numbers.has(name) ? { class: "number" } : {}) }, name)))),
      make("tbody", {}, ...rows.slice(0, TABLE_ROWS).map((i) => make("tr", i === view.chosen ? { "aria-current": "true" } : {},
        cell("number", String(ops.index[i])), cell("process", String(ops.process[i])), cell("node", ops.node[i] < 0 ? "" : DATA.nodes[ops.node[i]]),
        cell("key", DATA.keys[ops.key[i]].name), cell("operation", make("button", { type: "button", on: { click: () => choose(i, true) } }, label(i))),
        cell("status", (view.stuck.has(i) ? "✗ cannot come next, " : "") + STATUS_WORDS[ops.status[i]]), cell("from", spell(ops.invoked[i])),
        cell("took", spell(ops.end[i] - ops.invoked[i])), cell("place", view.place.has(i) ? String(view.place.get(i)) : ""))))));
}

// The span in view, in the plots.
function showSpan() {
  for (const plot of document.querySelectorAll("svg.plot")) {
    const left = +plot.dataset.left, right = +plot.dataset.right, box = plot.querySelector(".view");
    const x = (ns) => left + (right - left) * Math.min(1, Math.max(0, (ns - DATA.from) / Math.max(1, DATA.to - DATA.from)));
    box.setAttribute("x", x(view.from)); box.setAttribute("width", Math.max(2, x(view.to) - x(view.from)));
  }
  at("in-view").textContent = `In view: ${spell(view.from)} to ${spell(view.to)}, ${counted(view.count, "operation")} pass the filters.`;
}
