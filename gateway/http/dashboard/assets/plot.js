// Owns: one small plot of lines over the last minutes, a line a member. Told apart by dashes and names, not by colour alone.
const DASHES = ["", "6 3", "2 2", "8 3 2 3", "1 3", "10 4", "4 1 1 1"];
const PLOT = { width: 420, height: 130, left: 58, right: 12, top: 8, bottom: 20 };

function nice(top) {
  if (!(top > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(top));
  return [1, 2, 2.5, 5, 10].map((n) => n * unit).find((n) => n >= top);
}

// A gap in time, or a step in which nothing was timed, is a gap in the line.
function pathOf(points, x, y, gapMs) {
  let text = "", before = null;
  for (const [at, value] of points) {
    if (value === null || value === undefined) { before = null; continue; }
    text += `${before !== null && at - before <= gapMs ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    if (before === null || at - before > gapMs) text += "h0.01";
    before = at;
  }
  return text;
}

// lines: [{name, points: [[at_ms, value], …]}], newest last; from, to: times that the plot spans.
function plot({ id, title, lines, from, to, shown, gapMs, least = 0 }) {
  const { width, height, left, right, top, bottom } = PLOT;
  let most = least;
  for (const line of lines) for (const [, value] of line.points) if (value > most) most = value;
  const peak = nice(most);
  const x = (at) => left + (width - left - right) * (at - from) / Math.max(1, to - from);
  const y = (value) => height - bottom - (height - top - bottom) * Math.min(1, value / peak);
  const lastOf = (line) => line.points.length ? line.points[line.points.length - 1][1] : null;
  const peakOf = (line) => line.points.reduce((so, [, value]) => value === null || value === undefined ? so : Math.max(so ?? value, value), null);
  const words = lines.map((line) => `${line.name}: now ${shown(lastOf(line))}, at most ${shown(peakOf(line))}`).join("; ");
  const grid = [0, 0.5, 1].map((share) => [
    s("line", { class: "grid", x1: left, x2: width - right, y1: y(share * peak), y2: y(share * peak) }),
    s("text", { class: "axis", x: left - 6, y: y(share * peak) + 4, "text-anchor": "end" }, shown(share * peak))]);
  const times = [0, 0.5, 1].map((share) => s("text", {
    class: "axis", x: x(from + share * (to - from)), y: height - 4, "text-anchor": ["start", "middle", "end"][2 * share],
  }, clock(from + share * (to - from)).slice(0, share === 1 ? 8 : 5)));
  return h("figure", { class: "plot", id },
    h("figcaption", {}, title),
    s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${words || "nothing yet"}` },
      grid, times, lines.map((line, at) => s("path", {
        class: `line line-${at % 7}`, d: pathOf(line.points, x, y, gapMs), "stroke-dasharray": DASHES[at % 7] || null,
      }))),
    h("ul", { class: "key" }, lines.map((line, at) => h("li", {},
      s("svg", { viewBox: "0 0 26 8", width: 26, height: 8, "aria-hidden": "true" }, s("path", { class: `line line-${at % 7}`, d: "M0 4H26", "stroke-dasharray": DASHES[at % 7] || null })),
      ` ${line.name} `, h("b", {}, shown(lastOf(line)))))));
}
