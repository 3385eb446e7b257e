// One card for each tier, and in it a line for each replica.

import { el } from "./dom.js";
import { count, counted, money, NOTHING, percent, price, seconds } from "./words.js";

const CONDITIONS = {
  up: "up", busy: "full", starting: "starting again", resting: "left alone after failures", down: "down",
};

const WHY_NOT = {
  probing: "finding out", pays: "finding out", unprofitable: "they do not pay", crowded: "too many at once",
};

export function drawTiers(place, tiers) {
  place.replaceChildren(...tiers.map(card));
}

function card(tier, number) {
  const { input, cached, output } = tier.price;
  return el("article", { class: `card tier-${number % 6}`, "aria-label": `Tier ${tier.name}` },
    el("h3", {}, el("span", { class: "dot" }), tier.name,
      el("span", { class: tier.ready ? "state" : "state trouble" }, tier.ready ? "answers" : "does not answer")),
    el("dl", { class: "numbers" },
      ...pair("First token", `${seconds(tier.first_p50)} `, `p95 ${seconds(tier.first_p95)}`),
      ...pair("Tokens/s", tier.tokens_per_second.toFixed(1), `${count(tier.completion_tokens)} made`),
      ...pair("Answers", count(tier.answers), `cost ${money(tier.cost)}`)),
    el("ul", { class: "replicas" }, ...tier.replicas.map(replica)),
    el("p", { class: "soft small" },
      `Per million tokens: ${price(input)} prompt, ${price(cached)} cached, ${price(output)} answer. Context ${count(tier.context_length)}.`));
}

function pair(name, value, remark) {
  return [el("div", {}, el("dt", {}, name), el("dd", {}, value, el("span", { class: "soft" }, remark)))];
}

function replica(one) {
  const calm = one.condition === "up" || one.condition === "busy";
  return el("li", {},
    el("p", { class: "who" },
      el("b", {}, one.name), el("span", { class: "soft model" }, one.model),
      el("span", { class: calm ? "state" : "state trouble" }, CONDITIONS[one.condition])),
    el("p", { class: "soft small" }, detail(one)),
    ...drafting(one.gates),
    one.kv_used === null ? null : meter(`KV cache of ${one.name} in use`, one.kv_used));
}

function detail(one) {
  const parts = [`${count(one.in_flight)} running`];
  if (one.waiting !== null) parts.push(`${count(one.waiting)} waiting`);
  if (one.kind === "engine") parts.push(`prefix hits ${percent(one.hit_share)}`);
  if (one.kv_used !== null) parts.push(`KV ${percent(one.kv_used)}`);
  if (one.restarts) parts.push(`${count(one.restarts)} restarts`);
  return parts.join(" · ") || NOTHING;
}

// What its speculation has found out: for which kinds of task drafts pay.
export function drafting(gates) {
  if (!gates.length) return [];
  const open = gates.filter((gate) => gate.tokens).map((gate) =>
    `${gate.task} ${counted(gate.tokens, "token")} at a time, ${percent(gate.acceptance)} accepted, ` +
    `${gate.gain.toFixed(1)} times as fast (${gate.method})`);
  const closed = gates.filter((gate) => !gate.tokens).map((gate) => `${gate.task} (${WHY_NOT[gate.reason]})`);
  const lines = [["Drafts for", open], ["No drafts for", closed]].filter(([, kinds]) => kinds.length);
  return lines.map(([words, kinds]) => el("p", { class: "soft small" }, `${words} ${kinds.join("; ")}`));
}

// A bar that says its share. `limit` words go beside it, not into it.
export function meter(label, share) {
  const bar = el("span", { class: share > 0.9 ? "fill high" : "fill" });
  bar.style.width = `${Math.min(100, share * 100)}%`;
  return el("span", {
    class: "meter", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100,
    "aria-valuenow": Math.round(Math.min(1, share) * 100),
  }, bar);
}
