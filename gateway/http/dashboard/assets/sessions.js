// Owns: the sessions of the token's tenant, and what one of them has not acknowledged: its completion records.
const STATES = { executed: ["good", "executed"], sealed: ["doubt", "sealed: never executed"], never_seen: ["quiet", "never seen"] };
const CLIENT = /^[0-9a-f]{16}$/;

async function drawSessions(main, context) {
  const { names, params } = context;
  if (names.length) return drawSession(main, names[0], context);
  await shown(main, context, async (signal) => {
    const found = await ask(query("v1/sessions", { after: params.after, records_min: params.records, limit: PAGE }), { signal });
    const columns = ["client id", "epoch", "lease left", "of", "acknowledged below", "highest sequence", "records", "window"].map((name, at) => ({ name, number: at > 0 }));
    const rows = found.sessions.map((one) => ({ cells: [
      h("a", { href: link(["sessions", one.client_id]), "data-focus": one.client_id }, h("code", {}, one.client_id)), whole(one.epoch),
      one.lease_ms_left < one.lease_ms / 5 ? state("doubt", ms(one.lease_ms_left)) : ms(one.lease_ms_left), ms(one.lease_ms), whole(one.first_incomplete),
      whole(one.highest_sequence), one.records >= one.window ? state("doubt", whole(one.records)) : whole(one.records), whole(one.window)] }));
    const jump = (event) => { const id = event.target.value.trim(); if (CLIENT.test(id)) go(["sessions", id]); };
    return [
      h("h2", { class: "hidden" }, "Sessions"),
      h("div", { class: "filters", role: "search" },
        h("label", {}, "Client id ", h("input", { type: "search", "data-focus": "jump", placeholder: "16 hex digits", maxlength: 16, size: 18, spellcheck: "false", autocomplete: "off", oninput: jump })),
        filter("records", "Records at least", params.records, { inputmode: "numeric", size: 6 })),
      rows.length ? table("Sessions", columns, rows, { class: "cards" }) : note(found.next ? "None on this page; the next one may have some." : "No session of this token's tenant is so."),
      pager(params.after ? { after: undefined } : null, found.next ? { after: found.next } : null),
    ];
  });
}

async function drawSession(main, id, context) {
  const { params } = context;
  await shown(main, context, async (signal) => {
    const path = `v1/sessions/${encodeURIComponent(id)}`;
    const one = await ask(path, { signal });
    const found = await ask(query(`${path}/requests`, { after: params.after, limit: PAGE }), { signal });
    const columns = ["sequence", "state", "commit", "trace", "history"].map((name, at) => ({ name, number: at === 2 }));
    const rows = found.requests.map((run) => ({ cells: [
      h("code", {}, run.first === run.last ? whole(run.first) : `${whole(run.first)} to ${whole(run.last)}`), state(...(STATES[run.state] || ["unknown", run.state])),
      whole(run.commit), run.traceparent ? h("code", {}, run.traceparent) : NONE,
      h("a", { href: link(["history"], { request: `${id}/${run.first}` }), "data-focus": `history ${run.first}`, "aria-label": `history of ${id}/${run.first}` }, "history")] }));
    return [
      h("div", { class: "bar" }, h("h2", {}, "Session ", h("code", {}, id)), h("a", { href: link(["sessions"]), "data-focus": "all" }, "all sessions")),
      definitions([["epoch", whole(one.epoch)], ["lease left", ms(one.lease_ms_left)], ["acknowledged below", whole(one.first_incomplete)], ["highest sequence", whole(one.highest_sequence)], ["records", whole(one.records)]]),
      h("h3", {}, "Completion records: what is not acknowledged"),
      rows.length ? table(`Requests of ${id}`, columns, rows, { class: "cards" }) : note("Everything that was seen is acknowledged."),
      pager(params.after ? { after: undefined } : null, found.next ? { after: found.next } : null),
    ];
  });
}
