// Reading values off a chart, by pointer or with the arrow keys. Without this script the page lacks nothing but that.
"use strict";
for (const chart of document.querySelectorAll("svg.chart")) {
  const { at, lines } = JSON.parse(document.getElementById(chart.id + "-data").textContent);
  const readout = document.getElementById(chart.id + "-readout");
  const cursor = chart.querySelector(".cursor");
  const { left, right, end } = Object.fromEntries(Object.entries(chart.dataset).map(([k, v]) => [k, Number(v)]));
  const idle = readout.textContent;
  let index = -1;
  const show = (wanted) => {
    index = Math.max(0, Math.min(at.length - 1, wanted));
    const x = left + (at[index] / end) * (right - left);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.removeAttribute("hidden");
    const values = lines.map(({ name, unit, values }) =>
      `${name} ${values[index] === null ? "–" : values[index].toLocaleString("en") + unit}`);
    readout.textContent = `${at[index].toFixed(1)} s: ${values.join(" · ")}`;
  };
  const clear = () => {
    cursor.setAttribute("hidden", "hidden");
    readout.textContent = idle;
    index = -1;
  };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    const time = ((x - left) / (right - left)) * end;
    let nearest = 0;
    at.forEach((value, i) => { if (Math.abs(value - time) < Math.abs(at[nearest] - time)) nearest = i; });
    show(nearest);
  });
  chart.addEventListener("pointerleave", clear);
  chart.addEventListener("blur", clear);
  chart.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -at.length, End: at.length };
    if (!(event.key in steps)) return;
    event.preventDefault();
    show(index < 0 ? 0 : index + steps[event.key]);
  });
}
