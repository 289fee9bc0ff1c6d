// Owns: the strip of the whole run: how many operations at which time, faults, failing windows, and the span in view.
const strip = document.getElementById("overview");
const stripX = (ns) => ((ns - WHOLE.from) / (WHOLE.to - WHOLE.from)) * strip.clientWidth;
const stripTime = (x) => WHOLE.from + (x / strip.clientWidth) * (WHOLE.to - WHOLE.from);
let counts = { of: null, bins: null };

function binned(width) {
  const of = [width, view.key, view.node, ...view.statuses].join();
  if (counts.of === of) return counts.bins;
  const bins = new Uint32Array(width);
  for (const shown of view.lanes) {
    for (const i of shown.rows) bins[Math.min(width - 1, Math.max(0, Math.floor(((ops.invoked[i] - WHOLE.from) / (WHOLE.to - WHOLE.from)) * width)))]++;
  }
  counts = { of, bins };
  return bins;
}

function overview() {
  const width = Math.max(1, strip.clientWidth), height = 44, g = sized(strip, width, height);
  for (const fault of view.faults) {
    g.fillStyle = ink["fault-fill"];
    g.fillRect(stripX(fault.start), 0, Math.max(1, stripX(fault.end ?? WHOLE.to) - stripX(fault.start)), height);
  }
  const cells = Math.ceil(width / 3), bins = binned(cells);
  let most = 1;
  for (const count of bins) most = Math.max(most, count);
  g.fillStyle = ink.ok;
  bins.forEach((count, cell) => { if (count) { const high = Math.max(1.5, (count / most) * (height - 14)); g.fillRect(cell * 3, height - high, 2, high); } });
  FAILURES.forEach((failure, number) => {
    if (view.key >= 0 && failure.key !== view.key) return;
    const span = failureSpan(failure), x = stripX((span.from + span.to) / 2);
    g.fillStyle = ink.bad;
    g.beginPath(); g.moveTo(x - 6, 0); g.lineTo(x + 6, 0); g.lineTo(x, 9); g.fill();
    if (number === view.failure) g.fillRect(x - 0.75, 0, 1.5, height);
  });
  const x0 = Math.max(0, stripX(view.from)), x1 = Math.min(width, stripX(view.to)), wide = Math.max(4, x1 - x0);
  g.globalAlpha = 0.55; g.fillStyle = ink.paper; g.fillRect(0, 0, x0, height); g.fillRect(x0 + wide, 0, width, height); g.globalAlpha = 1;
  g.strokeStyle = ink.accent; g.lineWidth = 2; g.strokeRect(x0 + 1, 1, Math.max(2, wide - 2), height - 2);
}
