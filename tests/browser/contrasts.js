// Contrast ratios (WCAG 2) of texts on what is behind them, and of pairs of colours that the canvas draws.
const rgb = (text) => text.match(/[\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (element) => {
  for (; element; element = element.parentElement) {
    const colour = rgb(getComputedStyle(element).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const of = {};
for (const selector of ["h1", ".top .quiet", ".tiles span", "#words", "#side .quiet", "#keys .count", "#timeline-help", ".legend li",
    "#details dt", "#details dd", ".alarm", ".sign.invalid", ".sign.valid", "button", "kbd", "#before button"]) {
  const element = document.querySelector(selector), [a, b] = [light(rgb(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
  of[selector] = (a + 0.05) / (b + 0.05);
}
const root = getComputedStyle(document.documentElement), probe = document.createElement("i");
document.body.append(probe);
const value = (name) => { probe.style.color = root.getPropertyValue("--" + name); return rgb(getComputedStyle(probe).color); };
for (const [front, back] of [["ok-ink", "ok"], ["ink", "unknown-fill"], ["quiet", "paper"], ["bad", "paper"], ["fault", "paper"]]) {
  const [a, b] = [light(value(front)), light(value(back))].sort((x, y) => y - x);
  of[front + " on " + back] = (a + 0.05) / (b + 0.05);
}
return { of, paper: light(value("paper")) > 0.5 };
