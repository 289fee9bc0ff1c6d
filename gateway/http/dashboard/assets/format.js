// Owns: numbers, sizes and times in words; one form each, everywhere.
const NONE = "–";
const whole = (n) => n === null || n === undefined ? NONE : Math.round(n).toLocaleString("en");

function si(n) {
  if (n === null || n === undefined) return NONE;
  const size = Math.abs(n);
  if (size >= 1e9) return `${(n / 1e9).toFixed(1)} G`;
  if (size >= 1e6) return `${(n / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(n / 1e3).toFixed(1)} k`;
  return size >= 100 || Number.isInteger(n) ? whole(n) : n.toFixed(size >= 10 ? 1 : 2);
}

function bytes(n) {
  if (n === null || n === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at++; }
  return `${at && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
}

function ms(n) {
  if (n === null || n === undefined) return NONE;
  if (n === 0) return "0 ms";
  if (n < 1000) return `${n < 10 ? n.toFixed(1) : Math.round(n)} ms`;
  if (n < 120e3) return `${(n / 1000).toFixed(n < 10e3 ? 1 : 0)} s`;
  if (n < 7200e3) return `${Math.round(n / 60e3)} min`;
  return n < 172800e3 ? `${(n / 3600e3).toFixed(1)} h` : `${Math.round(n / 86400e3)} d`;
}

const percent = (share) => share === null || share === undefined ? NONE : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
const two = (n) => String(n).padStart(2, "0");
const clock = (at) => { const t = new Date(at); return `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`; };
const instant = (at) => at === null || at === undefined ? NONE : new Date(at).toISOString().replace("T", " ").replace("Z", "");
const many = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;
