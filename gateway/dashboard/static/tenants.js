// Tenants against their limits.

import { el } from "./dom.js";
import { meter } from "./tiers.js";
import { count, money } from "./words.js";

export function drawTenants(place, tenants, more) {
  place.replaceChildren(
    el("table", {},
      el("caption", { class: "soft" }, "The last minute through this gateway, beside what is allowed."),
      el("thead", {}, el("tr", {},
        ...["Tenant", "Requests", "Tokens", "Running", "Refused", "Budget", "Cost"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...tenants.map(row))),
    more > 0 ? el("p", { class: "soft small" }, `${count(more)} more, less busy.`) : "");
}

function row(tenant) {
  return el("tr", {},
    el("th", { scope: "row" }, tenant.name),
    against(tenant.name, "requests", tenant.requests, tenant.requests_per_minute),
    tokens(tenant),
    against(tenant.name, "running", tenant.running, tenant.parallel),
    el("td", { class: tenant.refused ? "trouble" : "" }, count(tenant.refused)),
    budget(tenant),
    el("td", {}, money(tenant.cost)));
}

function budget(tenant) {
  const parts = [
    ["a day", tenant.spent_of_day, tenant.per_day],
    ["a month", tenant.spent_of_month, tenant.per_month],
  ].filter(([, , limit]) => limit !== null);
  if (!parts.length) return el("td", { class: "soft" }, "no limit");
  return el("td", {}, ...parts.map(([period, spent, limit]) => el("div", {},
    money(spent), el("span", { class: "soft" }, ` of ${money(limit)} ${period}`),
    meter(`budget of ${tenant.name} for ${period}`, spent / limit))));
}

function tokens(tenant) {
  const limits = [
    ["tokens", "", tenant.tokens, tenant.tokens_per_minute],
    ["input tokens", " in", tenant.input_tokens, tenant.input_tokens_per_minute],
    ["output tokens", " out", tenant.output_tokens, tenant.output_tokens_per_minute],
  ].filter(([, , , limit]) => limit !== null);
  if (!limits.length) return against(tenant.name, "tokens", tenant.tokens, null);
  return el("td", {}, ...limits.map(([what, kind, used, limit]) => el("div", {}, ...beside(tenant.name, what, used, limit, kind))));
}

function against(tenant, what, used, limit) {
  if (limit === null) return el("td", {}, count(used), el("span", { class: "soft" }, " no limit"));
  return el("td", {}, ...beside(tenant, what, used, limit));
}

function beside(tenant, what, used, limit, kind = "") {
  return [count(used), el("span", { class: "soft" }, ` of ${count(limit)}${kind}`),
    meter(`${what} of ${tenant} against the limit`, used / limit)];
}
