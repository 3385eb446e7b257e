// The last requests. Each opens into its course: a waterfall of what was done for it, and its ledger.

import { el } from "./dom.js";
import { recordOf } from "./gateway.js";
import { count, money, NOTHING, percent, seconds, timeOfDay } from "./words.js";

const shown = new Map(); // by id and time, the list items

export function drawRequests(list, none, latest, names) {
  none.hidden = latest.length > 0;
  const keys = new Set(latest.map(key));
  for (const [name, item] of shown) {
    // One that somebody reads stays where it is.
    if (!keys.has(name) && item.querySelector("button").getAttribute("aria-expanded") === "false") {
      item.remove();
      shown.delete(name);
    }
  }
  for (const brief of [...latest].reverse()) {
    if (!shown.has(key(brief))) {
      const item = line(brief, names.indexOf(brief.tier));
      shown.set(key(brief), item);
      list.prepend(item);
    }
  }
}

function key(brief) {
  return `${brief.id} ${brief.at}`;
}

function line(brief, number) {
  const bad = brief.status >= 400 || brief.code !== null;
  const tier = number < 0 ? "" : ` tier-${number % 6}`;
  const button = el("button", { type: "button", class: "brief", "aria-expanded": "false" },
    el("time", {}, timeOfDay(brief.at + brief.seconds)),
    el("span", { class: `tier${tier}` }, tier ? el("span", { class: "dot" }) : null, brief.tier ?? "no tier"),
    el("span", { class: "why" }, brief.reason ?? brief.code ?? NOTHING),
    el("span", { class: "count" }, `${count(brief.completion_tokens)} tokens`),
    el("span", { class: "first" }, `first ${seconds(brief.first_text)}`),
    el("span", { class: "whole" }, seconds(brief.seconds)),
    el("span", { class: bad ? "state trouble" : "state" }, bad ? brief.code ?? String(brief.status) : "answered"));
  const panel = el("div", { class: "panel", hidden: true });
  button.addEventListener("click", () => toggle(button, panel, brief));
  return el("li", {}, button, panel);
}

async function toggle(button, panel, brief) {
  const open = button.getAttribute("aria-expanded") === "false";
  button.setAttribute("aria-expanded", String(open));
  panel.hidden = !open;
  if (open && !panel.firstChild) panel.replaceChildren(await courseOf(brief.id));
}

// Everything that the gateway keeps of one request.
async function courseOf(id) {
  const record = await recordOf(id);
  if (record === null) return el("p", { class: "note" }, "The gateway does not keep this request any more.");
  return el("div", { class: "course" }, facts(record), waterfall(record), ledger(record));
}

function facts(record) {
  const good = Object.entries(record.good).map(([tier, p]) => `${tier} ${percent(p)}`).join(", ");
  const rows = [
    ["Request", record.id], ["Tenant", record.tenant ?? NOTHING], ["Endpoint", record.endpoint],
    ["Task", record.task ?? NOTHING], ["Good enough, estimated", good || NOTHING],
    ["Prompt", `${count(record.prompt_tokens)} tokens, ${count(record.cached_tokens)} cached`],
    ["Cost", `${money(record.cost)}, ${money(record.largest)} on the largest tier`],
  ];
  return el("dl", { class: "facts" },
    ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

export function waterfall(record) {
  const bars = record.steps.map((step) => {
    const bar = el("span", { class: step.within === null ? "bar" : "bar inner" });
    bar.style.left = `${(100 * step.begin) / record.seconds}%`;
    bar.style.width = `${(100 * (step.end - step.begin)) / record.seconds}%`;
    return el("li", { class: step.within === null ? "" : "inner" },
      el("span", { class: "step" }, step.name),
      el("span", { class: "track", "aria-hidden": "true" }, bar),
      el("span", { class: "took" }, seconds(step.end - step.begin), el("span", { class: "unseen" }, ` from ${seconds(step.begin)}`)));
  });
  return el("div", {}, el("h4", {}, `Its ${seconds(record.seconds)}`), el("ol", { class: "waterfall" }, ...bars));
}

function ledger(record) {
  const heads = ["Attempt", "Outcome", "First token", "Prompt", "Cached", "Answer", "P(good)", "Cost"];
  const rows = record.attempts.map((attempt) =>
    el("tr", {},
      el("th", { scope: "row" }, attempt.replica),
      el("td", {}, attempt.outcome),
      el("td", {}, attempt.first === null ? NOTHING : seconds(attempt.first - attempt.begin)),
      el("td", {}, count(attempt.prompt_tokens)),
      el("td", {}, count(attempt.cached_tokens)),
      el("td", {}, count(attempt.completion_tokens)),
      el("td", {}, attempt.confidence === null ? NOTHING : percent(attempt.confidence)),
      el("td", {}, money(attempt.cost))));
  if (rows.length === 0) return el("p", { class: "soft" }, "No attempt was made.");
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Ledger of ${record.id}` },
    el("table", {}, el("caption", { class: "soft" }, "The ledger: every attempt, and what it came to."),
      el("thead", {}, el("tr", {}, ...heads.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...rows)));
}
