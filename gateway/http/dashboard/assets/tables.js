// Owns: the tables, and the rows of one. Values stay hidden until the reader asks for them: somebody may look on.
const PAGE = 50;

async function drawTables(main, context) {
  const { names, params } = context;
  if (names.length) return drawRows(main, names[0], context);
  await shown(main, context, async (signal) => {
    const found = await ask(query("v1/tables", { prefix: params.prefix, kind: params.kind, after: params.after, limit: PAGE, consistency: "stale" }), { signal });
    const columns = ["table", "kind", "rows", "size", "of its quota"].map((name, at) => ({ name, number: at > 1 && at < 4 }));
    const rows = found.tables.map((one) => {
      const used = one.bytes / one.quota_bytes;
      return { cells: [h("a", { href: link(["tables", one.name]), "data-focus": one.name }, one.name), one.kind, one.kind === "stream" ? NONE : whole(one.rows), bytes(one.bytes),
        h("span", { class: "row" }, h("meter", { min: 0, max: 1, high: 0.8, value: String(used), "aria-label": `used of the quota of ${one.name}` }),
          used > 0.8 ? state("doubt", percent(used)) : percent(used), h("span", { class: "quiet" }, `of ${bytes(one.quota_bytes)}`))] };
    });
    return [
      h("h2", { class: "hidden" }, "Tables"),
      h("div", { class: "filters", role: "search" },
        filter("prefix", "Name begins with", params.prefix),
        choice("kind", "Kind", params.kind, { "": "any", resident: "resident", stream: "stream" })),
      rows.length ? table("Tables", columns, rows, { class: "cards" }) : note(params.prefix || params.kind || params.after ? "No table that this token may read is so." : "There is no table that this token may read."),
      pager(params.after ? { after: undefined } : null, found.next ? { after: found.next } : null),
    ];
  });
}

function valueOf(row, open) {
  const text = row.encoding ? row.value : JSON.stringify(row.value), size = `${row.encoding ? "bytes, " : ""}${many(text.length, "character")}`;
  if (!open) return h("span", { class: "quiet" }, `hidden, ${size}`);
  return text.length > 240 ? h("details", {}, h("summary", {}, h("code", {}, `${text.slice(0, 200)}…`)), h("code", { class: "block" }, text)) : h("code", {}, text);
}

async function drawRows(main, name, context) {
  const { params } = context;
  await shown(main, context, async (signal) => {
    const path = `v1/tables/${encodeURIComponent(name)}`;
    const about = await ask(query(path, { consistency: "stale" }), { signal });
    const head = [
      h("div", { class: "bar" }, h("h2", {}, "Table ", h("code", {}, name)), h("a", { href: link(["tables"]), "data-focus": "all" }, "all tables")),
      definitions([["kind", about.kind], ["rows", about.kind === "stream" ? "" : whole(about.rows)], ["size", bytes(about.bytes)], ["quota", bytes(about.quota_bytes)], ["incarnation", whole(about.incarnation)]]),
    ];
    if (about.kind === "stream") return [...head, h("p", {}, "The rows of a stream table are in its store; its writes are in the batches of its flow ", h("a", { href: link(["flows", name]) }, name), ".")];
    const found = await ask(query(`${path}/rows`, { prefix: params.prefix, after: params.after, reverse: params.reverse ? "true" : "", limit: PAGE, consistency: "stale" }), { signal });
    const columns = ["key", "value", "version", "ends", "owner", "history"].map((column, at) => ({ name: column, number: at === 2 }));
    const rows = found.rows.map((row) => ({ cells: [
      h("code", {}, row.key), valueOf(row, !!params.values), whole(row.version), row.ends_ms ? `at cluster time ${whole(row.ends_ms)}` : NONE,
      row.owner ? h("a", { href: link(["sessions", row.owner]) }, h("code", {}, row.owner)) : NONE,
      h("a", { href: link(["history"], { table: name, key: row.key }), "data-focus": `history ${row.key}`, "aria-label": `history of ${row.key}` }, "history")] }));
    return [...head,
      h("div", { class: "filters", role: "search" }, filter("prefix", "Key begins with", params.prefix), pressed("reverse", "Backwards", params), pressed("values", params.values ? "Hide values" : "Show values", params)),
      rows.length ? table(`Rows of ${name}`, columns, rows, { class: "cards" }) : note("No row is so."),
      pager(params.after ? { after: undefined } : null, found.next ? { after: found.next } : null),
    ];
  });
}
