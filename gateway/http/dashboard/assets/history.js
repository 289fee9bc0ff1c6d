// Owns: the history of a row or a request, drawn: a lane for attempts, the log, batches and deliveries, a line an event.
const LANES = ["attempt", "log", "batch", "delivery"];
const LANE_NAMES = { attempt: "attempts", log: "log", batch: "batches", delivery: "deliveries" };
const ENDS = { applied: ["good", "applied"], refused: ["doubt", "refused, and remembered so"], acknowledged: ["good", "acknowledged"], sealed: ["doubt", "sealed: it never ran and never will"], never_seen: ["quiet", "never seen"], expired: ["doubt", "forgotten with its session"] };

const placeOf = (event) => [
  event.node, event.index ? `entry ${whole(event.index)}, term ${event.term}` : "",
  event.flow ? `${event.flow}${event.batch ? ` batch ${event.batch}` : ""}${event.consumer ? `, ${event.consumer}` : ""}` : "",
].filter(Boolean).join(", ");

const dayOf = (events) => instant(events.find((event) => event.at_ms)?.at_ms).slice(0, 10);

// Lanes from left to right, time from top to bottom; a thread joins what follows each other.
function drawn(events) {
  const width = 4 * 34, step = 10;
  let before = null, day = dayOf(events);
  // The date stands where it changes.
  const timeOf = (at) => { const full = instant(at), date = full.slice(0, 10), same = date === day; day = date; return same ? full.slice(11) : full; };
  return h("div", { class: "scrolled", tabindex: 0, role: "region", "aria-label": "Timeline", "data-scroll": "timeline", "data-focus": "timeline" }, h("table", { class: "timeline" },
    h("caption", { class: "hidden" }, "Events in order"),
    h("thead", {}, h("tr", {}, ["lanes", "time (UTC)", "after", "what", "where", "commit", "detail"].map((name) => h("th", { scope: "col", class: name === "after" ? "after" : null }, name)))),
    h("tbody", {}, events.map((event, at) => {
      const lane = LANES.indexOf(event.what), x = 17 + 34 * Math.max(0, lane), next = events[at + 1], next_x = next ? 17 + 34 * Math.max(0, LANES.indexOf(next.what)) : x;
      const since = event.at_ms !== undefined && before !== null ? event.at_ms - before : null;
      if (event.at_ms !== undefined && event.at_ms !== null) before = event.at_ms;
      const refused = /refused|given up|not yet|waits/.test(event.detail || "");
      return h("tr", {},
        h("td", { class: "lanes" }, s("svg", { viewBox: `0 0 ${width} 34`, width, height: 34, "aria-hidden": "true", preserveAspectRatio: "none" },
          LANES.map((_, i) => s("line", { class: "grid", x1: 17 + 34 * i, x2: 17 + 34 * i, y1: 0, y2: 34 })),
          next ? s("path", { class: "thread", d: `M${x} 17C${x} ${17 + step} ${next_x} ${34 - step} ${next_x} 34` }) : null,
          at ? s("path", { class: "thread", d: `M${x} 0V17` }) : null,
          s("circle", { class: `dot ${refused ? "doubt" : "good"}`, cx: x, cy: 17, r: 6 }))),
        h("th", { scope: "row", class: "number" }, h("code", {}, timeOf(event.at_ms))),
        h("td", { class: "number quiet after" }, since === null ? "" : `+${ms(Math.max(0, since))}`),
        h("td", {}, state(refused ? "doubt" : "good", event.what)),
        h("td", {}, placeOf(event)), h("td", { class: "number" }, event.commit ? whole(event.commit) : NONE),
        h("td", {}, event.detail || "", event.request ? [" ", event.request.split(", ").map((id) => id === "…" ? id : h("a", { class: "mono", href: link(["history"], { request: id.replace(" …", "") }) }, id, " "))] : ""));
    }))));
}

async function drawHistory(main, context) {
  const { params } = context;
  await shown(main, context, async (signal) => {
    const field = (name, label, more) => h("label", {}, `${label} `, h("input", { name, type: "search", value: params[name] || "", "data-focus": name, autocomplete: "off", spellcheck: "false", ...more }));
    const asked = (event, names) => { event.preventDefault(); go(["history"], Object.fromEntries(names.map((name) => [name, event.target.elements[name].value.trim()]))); };
    const forms = [
      h("h2", { class: "hidden" }, "History"),
      h("div", { class: "bar" },
        h("form", { class: "filters", "aria-label": "History of a row", onsubmit: (event) => asked(event, ["table", "key"]) }, field("table", "Table", { required: true, size: 14 }), field("key", "Key", { required: true, size: 18 }), h("button", { type: "submit", "data-focus": "ask row" }, "History of the row")),
        h("form", { class: "filters", "aria-label": "History of a request", onsubmit: (event) => asked(event, ["request"]) }, field("request", "Request", { required: true, size: 24, placeholder: "client id/sequence" }), h("button", { type: "submit", "data-focus": "ask request" }, "History of the request"))),
    ];
    if (!params.request && !(params.table && params.key)) return [...forms, note("What became of a row or a request: attempts at each node, log entries, suppressed duplicates, batches and deliveries.")];
    const found = await ask(query("v1/explain", params.request ? { request: params.request } : { table: params.table, key: params.key }), { signal });
    const events = found.events || [];
    const title = found.request ? h("h2", {}, "Request ", h("code", {}, found.request)) : h("h2", {}, "Row ", h("code", {}, `${found.table}/${found.key}`));
    const end = found.state ? state(...(ENDS[found.state.state] || ["unknown", found.state.state])) : found.version ? `version ${whole(found.version)}` : "no resident row";
    return [...forms, h("div", { class: "row" }, title, end),
      events.length ? h("p", { class: "quiet" }, `From ${dayOf(events)} on. Lanes: ${LANES.map((lane) => LANE_NAMES[lane]).join(", ")}.`) : note("Nothing is known of it any more."),
      events.length ? drawn(events) : null,
      found.truncated ? note("Older events are left out.") : null,
      found.silent?.length ? note(`No answer from ${found.silent.join(", ")}: attempts there are not shown.`, "bad") : null,
      h("p", { class: "quiet" }, `The log was searched from entry ${whole(found.log_from || 0)} on. Attempts are remembered since each node's start.`)];
  });
}

const VERDICTS = { ok: ["good", "ok: nothing is wrong"], anomaly: ["bad", "anomaly"], unknown: ["unknown", "unknown: nothing was checked yet"] };

async function drawCheck(main, context) {
  await shown(main, context, async (signal) => {
    let found;
    try {
      found = await ask("v1/check", { signal });
    } catch (fault) {
      if (fault.status !== 404) throw fault;
      return [h("h2", {}, "Live check"), note("It is off: live_check_share is 0, so nothing is sampled at this node.")];
    }
    const all = found.cluster;
    return [
      h("h2", {}, "Live check"),
      h("p", { class: "quiet" }, "A sample of what this cluster answers, held against what a linearizable store may answer."),
      h("h3", {}, "All members together, the newest operations"),
      h("p", {}, state(...VERDICTS[all.verdict])),
      definitions([["operations", whole(all.operations)], ["rows", whole(all.keys)], ["members", all.nodes.join(", ")], ["no answer from", all.silent.join(", ")], ["first anomaly", all.first_anomaly && h("span", { class: "bad" }, all.first_anomaly)]]),
      h("h3", {}, `Node ${found.node} since its start`),
      h("p", {}, state(...VERDICTS[found.verdict])),
      definitions([["operations", whole(found.operations)], ["share of all rows", percent(found.share)], ["windows", `${whole(found.windows)} of ${ms(found.window_ms)}`], ["last checked", found.last_unix_ms ? `${instant(found.last_unix_ms)} UTC` : "never"],
        ["rows in the last window", whole(found.keys)], ["not looked at, too many", whole(found.dropped)], ["sees all operations on its rows", found.complete ? "yes" : "no"], ["anomalies", whole(found.anomalies)], ["first anomaly", found.first_anomaly && h("span", { class: "bad" }, found.first_anomaly)]]),
    ];
  });
}
