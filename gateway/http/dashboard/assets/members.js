// Owns: changes of the cluster by those who may: each is confirmed, sent to the route that commands use, and audited there.
const act = { busy: "", said: "", kind: "quiet" };

// Ask for a word that cannot be typed by accident; resolves to whether the reader did.
function confirmed(title, text, word) {
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("confirm-text").textContent = text;
  $("confirm-label").textContent = `Type ${word} to go on`;
  $("confirm-word").value = "";
  $("confirm-yes").disabled = true;
  $("confirm-word").oninput = () => { $("confirm-yes").disabled = $("confirm-word").value.trim() !== word; };
  dialog.returnValue = "no";
  dialog.showModal();
  $("confirm-word").focus();
  // A dialog tells later that it was closed: when it is open again by then, for another change, it was not this one.
  return new Promise((done) => { dialog.onclose = () => { if (!dialog.open) done(dialog.returnValue === "yes" && $("confirm-word").value.trim() === word); }; });
}

async function carryOut(what, method, path, body) {
  Object.assign(act, { busy: what, said: `${what}…`, kind: "quiet" });
  draw();
  try {
    await ask(path, { method, body });
    Object.assign(act, { said: `Done: ${what}.`, kind: "quiet" });
  } catch (fault) {
    if (fault.status === 401) return failed($("main"), fault);
    const unsure = fault.outcome === "unknown" || fault.status === 0 ? " Whether it took effect is not known: look at the members." : "";
    Object.assign(act, { said: `Not done: ${what}. ${fault.message}${unsure}`, kind: "bad" });
  } finally {
    act.busy = "";
    draw();
  }
}

async function moveLeader(id) {
  if (await confirmed(`Let ${id} lead`, "Leadership is handed over; writes wait for milliseconds.", id)) await carryOut(`let ${id} lead`, "POST", "v1/cluster/leader", { to: id });
}
async function removeMember(id) {
  const text = "It votes and stores no more. Its data directory is of no use to the cluster afterwards: to come back it begins anew, with an empty one.";
  if (await confirmed(`Remove ${id}`, text, id)) await carryOut(`remove ${id}`, "DELETE", `v1/cluster/members/${encodeURIComponent(id)}`);
}
async function repairMember(id) {
  if (await confirmed(`Repair ${id}`, "Its damaged state is replaced by a fresh copy from the leader. Look at its disk first.", id)) await carryOut(`repair ${id}`, "POST", `v1/cluster/members/${encodeURIComponent(id)}/repair`);
}
async function addMember(event) {
  event.preventDefault();
  const given = Object.fromEntries(["id", "host", "http_port", "peer_port"].map((name) => [name, event.target.elements[name].value.trim()]));
  const body = { ...given, http_port: Number(given.http_port), peer_port: Number(given.peer_port) };
  const text = `${given.id} at ${given.host}, HTTP ${given.http_port}, peers ${given.peer_port}. It receives the log first, and votes once it has caught up. Start it with --join before, or within a minute.`;
  if (await confirmed(`Add ${given.id}`, text, given.id)) await carryOut(`add ${given.id}`, "POST", "v1/cluster/members", body);
}

// The panel and its form are made once: neither is drawn again beneath whoever uses it.
let tools = null;
function changes(member) {
  const button = (what, name, danger, run) => h("button", { type: "button", class: danger ? "danger" : null, disabled: !!act.busy, "data-focus": `${what} ${member.id}`, "aria-label": `${name} ${member.id}`, onclick: () => run(member.id) }, name);
  return h("li", { class: "row" }, h("b", {}, member.id), roleOf(member),
    member.figures && member.voter && member.figures.role !== "leader" ? button("lead", "Let lead", false, moveLeader) : null,
    member.figures?.damage ? button("repair", "Repair", false, repairMember) : null,
    button("remove", "Remove", true, removeMember));
}
memberTools = () => {
  if (!may("admin")) return null;
  const field = (name, label, size, more) => h("label", {}, `${label} `, h("input", { name, size, required: true, autocomplete: "off", spellcheck: "false", "data-focus": `add ${name}`, ...more }));
  tools ||= h("details", { class: "panel wide", id: "changes" }, h("summary", { "data-focus": "changes" }, "Change members or leader"),
    h("ul", { class: "changes" }),
    h("form", { class: "filters", "aria-label": "Add a member", onsubmit: addMember },
      field("id", "Id", 6, { pattern: "[a-z0-9][a-z0-9_\\-]{0,31}" }), field("host", "Host", 16), field("http_port", "HTTP port", 6, { inputmode: "numeric", pattern: "[0-9]{1,5}", value: "7400" }), field("peer_port", "Peer port", 6, { inputmode: "numeric", pattern: "[0-9]{1,5}", value: "7401" }),
      h("button", { type: "submit", "data-focus": "add" }, "Add…")),
    h("p", { class: "quiet" }, "Each change is confirmed first, and stands in the audit log of the node that was asked."));
  fill(tools.querySelector("ul"), hour.told.members.map(changes));
  return [h("p", { class: act.kind, role: "status", id: "act" }, act.said), tools];
};
