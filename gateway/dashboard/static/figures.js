// A few numbers that sum it up.

import { el } from "./dom.js";
import { count, counted, money, percent } from "./words.js";

export function drawFigures(place, state) {
  const saved = state.largest - state.spent;
  const prompt = sum(state.tiers, "prompt_tokens");
  const cached = sum(state.tiers, "cached_tokens");
  const made = sum(state.tiers, "completion_tokens");
  place.replaceChildren(
    ...figure("Saved by cascading", state.largest ? percent(saved / state.largest) : "–",
      `${money(saved)} of ${money(state.largest)} on the largest tier`),
    ...figure("Prompt cached", prompt ? percent(cached / prompt) : "–",
      `${count(cached)} of ${count(prompt)} tokens`),
    ...figure("Tokens made", count(made), `${count(sum(state.tiers, "tokens_per_second"))} per second now`),
    ...figure("Requests", count(state.requests),
      state.failures ? `${counted(state.failures, "failure")}` : "none failed"),
  );
}

function figure(name, value, remark) {
  return [el("div", {}, el("dt", {}, name), el("dd", { class: "big" }, value), el("dd", { class: "soft" }, remark))];
}

function sum(tiers, name) {
  return tiers.reduce((total, tier) => total + tier[name], 0);
}
