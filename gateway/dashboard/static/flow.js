// The channel: what came in on the left, to which tier it was sent first on the right, as wide as its share.

import { el, svg } from "./dom.js";
import { count, percent } from "./words.js";

const HEIGHT = 250; // at least
const WATER = 130; // of the channel's height, all shares together
const GAP = 10;
const LABEL = 36; // the height of a tier's two lines
const LETTER = 11; // the width of one in a tier's name, about

export function drawFlow(place, list, tiers, routes) {
  const first = routes.filter((route) => !route.again);
  const total = first.reduce((sum, route) => sum + route.count, 0);
  const shares = tiers.map((tier) => ({
    name: tier.name,
    taken: first.filter((route) => route.tier === tier.name).reduce((sum, route) => sum + route.count, 0),
  }));
  place.replaceChildren(channel(place.clientWidth || 600, shares, total));
  list.replaceChildren(...tiers.flatMap((tier, number) => reasonsOf(tier, number, routes, total)));
}

function reasonsOf(tier, number, routes, total) {
  return routes
    .filter((route) => route.tier === tier.name)
    .sort((one, other) => other.count - one.count)
    .map((route) =>
      el("li", { class: `tier-${number % 6}` },
        el("span", { class: "dot" }),
        el("span", {}, `${route.tier}, ${because(route.reason)} `),
        el("b", {}, `${count(route.count)}`),
        el("span", { class: "soft" }, ` ${percent(route.count / total)}`)));
}

function because(reason) {
  return { classifier: "by the classifier", requested: "asked for by name", pinned: "kept for its tool calls", failover: "after a failure", escalation: "after a cheaper tier's answer" }[reason] ?? reason;
}

function channel(width, shares, total) {
  const labels = Math.min(170, width * 0.36);
  const left = Math.min(96, width * 0.2);
  const right = width - labels;
  const height = Math.max(HEIGHT, shares.length * (LABEL + GAP) + GAP);
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": inWords(shares, total),
  });
  const slots = (height - GAP * (shares.length + 1)) / shares.length;
  let from = (height - WATER) / 2;
  shares.forEach(({ name, taken }, number) => {
    const share = total ? taken / total : 0;
    const wide = share * WATER;
    const middle = GAP + number * (slots + GAP) + slots / 2;
    picture.append(
      svg("path", {
        class: `ribbon tier-${number % 6}${taken ? "" : " dry"}`,
        d: ribbon(left, from, right - 14, middle - wide / 2, wide),
      }),
      svg("rect", {
        class: `gate tier-${number % 6}`, x: right - 14, y: middle - Math.max(wide, 3) / 2, width: 5,
        height: Math.max(wide, 3), rx: 2,
      }),
      svg("text", { class: "name", x: right + 4, y: middle - 2 }, shortened(name, labels / LETTER)),
      svg("text", { class: "soft", x: right + 4, y: middle + 16 }, `${percent(share)}, ${count(taken)}`),
    );
    from += wide;
  });
  picture.append(
    svg("rect", { class: "source", x: left - 6, y: (height - WATER) / 2, width: 6, height: WATER, rx: 2 }),
    svg("text", { class: "name", x: left - 14, y: height / 2 - 2, "text-anchor": "end" }, count(total)),
    svg("text", { class: "soft", x: left - 14, y: height / 2 + 16, "text-anchor": "end" }, "routed"),
  );
  return picture;
}

function shortened(name, letters) {
  return name.length <= letters ? name : `${name.slice(0, letters - 1)}…`;
}

function ribbon(x1, y1, x2, y2, wide) {
  const bend = (x1 + x2) / 2;
  const w = Math.max(wide, 1);
  return `M${x1},${y1}C${bend},${y1} ${bend},${y2} ${x2},${y2}V${y2 + w}C${bend},${y2 + w} ${bend},${y1 + w} ${x1},${y1 + w}Z`;
}

function inWords(shares, total) {
  if (!total) return "Nothing was routed yet.";
  const parts = shares.map(({ name, taken }) => `${name} ${percent(taken / total)}`);
  return `${count(total)} routed: ${parts.join(", ")}.`;
}
