// Owns: the operations as columns, and the words for one of them. Everything here is text from users: it is only
// ever written with textContent and fillText.
const DATA = JSON.parse(document.getElementById("data").textContent);
const OK = 0, UNKNOWN = 1, FAILED = 2;
const STATUS_WORDS = ["ok", "unknown", "fail"];

const ops = (() => {
  const c = DATA.operations, n = c.invoked.length;
  const invoked = new Float64Array(n), end = new Float64Array(n), index = new Float64Array(n);
  let at = 0, number = 0;
  for (let i = 0; i < n; i++) {
    at += c.invoked[i]; number += c.index[i];
    invoked[i] = at; end[i] = at + c.length[i]; index[i] = number;
  }
  return {
    n, invoked, end, index, status: Uint8Array.from(c.status), lane: Uint32Array.from(c.lane), key: Uint32Array.from(c.key),
    process: c.process, f: c.f, argument: c.argument, result: c.result, node: c.node, request: c.request, error: c.error,
  };
})();

const FAILURES = DATA.checks.flatMap((check) => check.failures.map((failure) => ({ ...failure, check: check.name })));
const text = (number) => (number < 0 ? "" : DATA.texts[number]);
const signOf = { valid: "✓", invalid: "✗", unknown: "?" };

function label(i) {
  const argument = text(ops.argument[i]), result = text(ops.result[i]);
  return text(ops.f[i]) + (argument ? " " + argument : "") + (result ? " → " + result : "");
}

function spell(ns) {
  const size = Math.abs(ns);
  if (!size) return "0 s";
  if (size >= 1e9) return (ns / 1e9).toFixed(size >= 1e11 ? 1 : 3) + " s";
  if (size >= 1e6) return (ns / 1e6).toFixed(size >= 1e8 ? 1 : 3) + " ms";
  if (size >= 1e3) return (ns / 1e3).toFixed(1) + " µs";
  return Math.round(ns) + " ns";
}

function moment(ns, step) {
  const digits = Math.max(0, Math.min(9, 9 - Math.floor(Math.log10(Math.max(1, step)) + 1e-9)));
  return (ns / 1e9).toFixed(digits) + " s";
}

const counted = (n, word) => n.toLocaleString("en") + " " + word + (n === 1 ? "" : "s");
