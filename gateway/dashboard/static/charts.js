// Lines over the last ten minutes, one colour for each tier.

import { el, svg } from "./dom.js";
import { NOTHING, seconds } from "./words.js";

const HEIGHT = 190;
const TOP = 10;
const BOTTOM = 22;
const LEFT = 52;
const RIGHT = 8;
const BUCKETS = 120;

export function drawFirstTokens(place, tiers, step) {
  const lines = tiers.flatMap((tier, number) => [
    { number, faint: true, values: tier.series.first_p95 },
    { number, faint: false, values: tier.series.first_p50 },
  ]);
  const legend = tiers.map((tier, number) =>
    [number, tier.name, `median ${seconds(tier.first_p50)}, p95 ${seconds(tier.first_p95)}`]);
  draw(place, lines, step, legend, seconds, "Time to first token in the last ten minutes");
}

export function drawRates(place, tiers, step) {
  const lines = tiers.map((tier, number) => ({ number, faint: false, values: tier.series.tokens }));
  const legend = tiers.map((tier, number) => [number, tier.name, `${tier.tokens_per_second.toFixed(1)} now`]);
  draw(place, lines, step, legend, (value) => (value ? value.toFixed(value < 10 ? 1 : 0) : "0"),
    "Tokens per second in the last ten minutes");
}

function draw(place, lines, step, legend, word, title) {
  const label = `${title}. ${legend.map(([, name, told]) => `${name}: ${told}`).join("; ")}.`;
  place.replaceChildren(
    picture(place.clientWidth || 500, lines, step, word, label),
    el("ul", { class: "legend" }, ...legend.map(([number, name, told]) =>
      el("li", { class: `tier-${number % 6}` },
        el("span", { class: "dot" }), el("b", {}, name), el("span", { class: "soft" }, ` ${told}`)))));
}

function picture(width, lines, step, word, label) {
  const top = roundUp(Math.max(0, ...lines.flatMap((line) => line.values.filter((value) => value !== null))));
  const x = (age) => width - RIGHT - (age / (BUCKETS - 1)) * (width - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (top ? value / top : 0) * (HEIGHT - TOP - BOTTOM);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": label });
  for (const share of top ? [0, 0.5, 1] : [0]) {
    chart.append(
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(share * top), y2: y(share * top) }),
      svg("text", { class: "axis", x: LEFT - 8, y: y(share * top) + 4, "text-anchor": "end" }, share ? word(share * top) : "0"));
  }
  for (const minutes of [10, 5, 0]) {
    chart.append(svg("text", {
      class: "axis", x: x((minutes * 60) / step), y: HEIGHT - 4, "text-anchor": minutes ? "middle" : "end",
    }, minutes ? `−${minutes} min` : "now"));
  }
  for (const line of lines) chart.append(...strokes(line, x, y));
  if (!top) chart.append(svg("text", { class: "axis", x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, `nothing yet ${NOTHING} ask something`));
  return chart;
}

// Gaps stay gaps; a value alone between two of them is a dot.
function strokes({ values, number, faint }, x, y) {
  const runs = [];
  let run = null;
  values.forEach((value, at) => {
    if (value === null) run = null;
    else {
      if (run === null) runs.push((run = []));
      run.push(`${x(values.length - 1 - at).toFixed(1)},${y(value).toFixed(1)}`);
    }
  });
  const look = `tier-${number % 6}${faint ? " faint" : ""}`;
  return runs.map((points) => {
    if (points.length > 1) return svg("polyline", { class: `line ${look}`, points: points.join(" ") });
    const [cx, cy] = points[0].split(",");
    return svg("circle", { class: `point ${look}`, cx, cy, r: 2.5 });
  });
}

function roundUp(value) {
  if (value <= 0) return 0;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * unit).find((limit) => limit >= value);
}
