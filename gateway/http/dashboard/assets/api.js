// Owns: how this node is asked, as any client asks it, and the token: in this tab's session storage at most.
const KEPT = "oncegate-token";
const token = {
  get: () => { try { return sessionStorage.getItem(KEPT) || ""; } catch { return ""; } },
  set: (text) => { try { if (text) sessionStorage.setItem(KEPT, text); else sessionStorage.removeItem(KEPT); } catch { /* it is asked for again */ } },
};

class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `status ${status}`);
    this.status = status;
    this.code = problem.code || "";
    this.outcome = problem.outcome || "unknown";
  }
}

const headers = (more) => token.get() ? { Authorization: `Bearer ${token.get()}`, ...more } : { ...more };

async function refusal(answer) {
  let problem = {};
  try { problem = await answer.json(); } catch { /* not from a node */ }
  return new Refused(answer.status, problem);
}

async function ask(path, { method = "GET", body, signal } = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      method, signal, cache: "no-store", credentials: "omit", redirect: "error",
      headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    throw new Refused(0, { detail: "this node does not answer" });
  }
  if (!answer.ok) throw await refusal(answer);
  return answer.status === 204 ? null : answer.json();
}

const query = (path, params) => {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
};

// Server-sent events, read by fetch, which sends a header where EventSource could not.
async function events(path, tell, signal) {
  const answer = await fetch(path, { headers: headers({ Accept: "text/event-stream" }), signal, cache: "no-store", credentials: "omit", redirect: "error" });
  if (!answer.ok) throw await refusal(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = { name: "message", data: "" };
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) event.name = line.slice(7);
        else if (line.startsWith("data: ")) event.data += line.slice(6);
      }
      if (event.data) tell(event.name, JSON.parse(event.data));
    }
  }
}
