// Owns: the flows with their consumers, all of them and one.
const DRAWN_MAX = 60, LISTED = 100;

const lagState = (consumer) => state(...trendOf(consumer));

function consumerTable(one) {
  const columns = ["consumer", "state", "cursor", "batches behind", "items", "bytes", "oldest waits for", "idle", "replays", "required"].map((name, at) => ({ name, number: at > 1 && at < 9 }));
  return table(`Consumers of ${one.flow}`, columns, consumersOf(one).map(([name, consumer]) => ({ cells: [
    h("b", {}, name), lagState(consumer), whole(consumer.cursor), whole(consumer.lag_batches), si(consumer.lag_items), bytes(consumer.lag_bytes),
    ms(consumer.lag_ms), ms(consumer.idle_ms), whole(consumer.replays), consumer.expired ? "no longer: it never moved" : consumer.required ? "yes" : "no"] })), { class: "cards" });
}

const batchesOf = (one) => one.first_batch <= one.last_batch ? `${whole(one.first_batch)} to ${whole(one.last_batch)}` : "none";

// Letters are in the store of a job: a node knows those of the store that it reads rows from.
const untold = (fault) => { if (fault.name === "AbortError") throw fault; return { fault }; };

function deadLetters(name, found) {
  const command = h("code", {}, `oncegate dead-letters list URL --flow ${name}`);
  if (found.fault) return note(`The store does not say: ${found.fault.message}`, "doubt");
  if (!found.store) return h("p", { class: "quiet" }, "This node reads no store (setting stream_store). Those in the store of a job: ", command, ".");
  if (!found.found) return h("p", { class: "quiet" }, `None in the store that this node reads${found.whole ? "" : ", as far as was looked"}. Those in another store: `, command, ".");
  const columns = ["commit", "job", "batch", "key", "error", "written"].map((column, at) => ({ name: column, number: at === 0 || at === 2 }));
  const rows = found.letters.map((one) => ({ cells: [whole(one.commit), one.job, whole(one.batch), h("code", {}, one.key), one.error, instant(one.time_ms)] }));
  return [
    h("p", {}, state("bad", `${found.whole ? "" : "at least "}${many(found.found, "item")} became no row`), found.found > rows.length ? `; the newest ${rows.length}:` : ":"),
    table(`Dead letters of ${name}`, columns, rows, { class: "cards" }),
  ];
}

async function drawFlow(main, name, context) {
  await shown(main, context, async (signal) => {
    const one = await ask(query(`v1/flows/${encodeURIComponent(name)}`, { consistency: "stale" }), { signal });
    return [
      h("div", { class: "bar" }, h("h2", {}, "Flow ", h("code", {}, name)), h("a", { href: link(["flows"]), "data-focus": "all" }, "all flows")),
      graph([one]),
      h("h3", {}, "Consumers"),
      Object.keys(one.consumers).length ? consumerTable(one) : note("No consumer has attached."),
      h("h3", {}, "Batches"),
      definitions([["retained", batchesOf(one)], ["size", bytes(one.retained_bytes)], ["items ever", whole(one.items)], ["items not sealed yet", whole(one.open_items)],
        ["what keeps the oldest", one.held || "nothing"], ["kept for", ms(one.retention_ms)], ["kept up to", one.retention_bytes ? bytes(one.retention_bytes) : "no bound of its own"],
        ["sealed at", `${whole(one.max_items)} items, ${bytes(one.max_bytes)} or ${ms(one.linger_ms)}`], ["left out (shed)", one.shed_items ? many(one.shed_items, "item") : ""], ["version", whole(one.version)]]),
      h("h3", {}, "Dead letters"),
      deadLetters(name, await ask(`v1/flows/${encodeURIComponent(name)}/dead-letters`, { signal }).catch(untold)),
    ];
  });
}

async function drawFlows(main, context) {
  const { names, params } = context;
  if (names.length) return drawFlow(main, names[0], context);
  await shown(main, context, async (signal) => {
    const all = (await ask("v1/flows?consistency=stale", { signal })).flows;
    const wanted = all.filter((one) => (!params.name || [one.flow, one.source, ...targetsOf(one)].some((name) => name.includes(params.name)))
      && (!params.state || kindOf(one) === params.state));
    const first = Math.max(0, Number(params.first) || 0), page = wanted.slice(first, first + LISTED);
    const columns = ["flow", "source", "writes", "state", "batches", "items not sealed", "retained", "most behind"].map((name, at) => ({ name, number: at > 4 }));
    const rows = page.map((one) => {
      const slowest = consumersOf(one).reduce((so, [name, consumer]) => !so || consumer.lag_ms > so[1].lag_ms ? [name, consumer] : so, null);
      const kind = kindOf(one);
      return { cells: [h("a", { href: link(["flows", one.flow]), "data-focus": one.flow }, one.flow), h("a", { href: link(["tables", one.source]) }, one.source),
        targetsOf(one).join(", ") || NONE, state(kind, { good: "keeps up", doubt: "falls behind", bad: "stalled or never attached", unknown: "not known yet", quiet: "no consumer" }[kind]),
        batchesOf(one), whole(one.open_items), bytes(one.retained_bytes), slowest ? `${slowest[0]}: ${whole(slowest[1].lag_batches)} batches, ${ms(slowest[1].lag_ms)}` : NONE] };
    });
    return [
      h("h2", { class: "hidden" }, "Flows"),
      h("div", { class: "filters", role: "search" },
        filter("name", "Name contains", params.name),
        choice("state", "State", params.state, { "": "any", bad: "stalled or never attached", doubt: "falls behind", unknown: "not known yet", good: "keeps up", quiet: "no consumer" }),
        h("span", { class: "quiet" }, `${whole(wanted.length)} of ${many(all.length, "flow")}`)),
      wanted.length ? graph(wanted.slice(0, DRAWN_MAX)) : note(all.length ? "No flow is so." : "There is no flow yet: PUT /v1/flows/NAME declares one, and each stream table has its own."),
      wanted.length > DRAWN_MAX ? note(`The picture has the first ${DRAWN_MAX}; filter for others.`) : null,
      wanted.length ? table("Flows", columns, rows, { class: "cards" }) : null,
      pager(first > 0 ? { first: undefined } : null, first + LISTED < wanted.length ? { first: first + LISTED } : null),
    ];
  });
}
