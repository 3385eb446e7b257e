// Tenants against their limits.

import { el } from "./dom.js";
import { meter } from "./tiers.js";
import { count, money } from "./words.js";

export function drawTenants(place, tenants, more) {
  place.replaceChildren(
    el("table", {},
      el("caption", { class: "soft" }, "The last minute through this gateway, beside what is allowed."),
      el("thead", {}, el("tr", {},
        ...["Tenant", "Requests", "Tokens", "Running", "Refused", "Cost"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...tenants.map(row))),
    more > 0 ? el("p", { class: "soft small" }, `${count(more)} more, less busy.`) : "");
}

function row(tenant) {
  return el("tr", {},
    el("th", { scope: "row" }, tenant.name),
    against(tenant.name, "requests", tenant.requests, tenant.requests_per_minute),
    against(tenant.name, "tokens", tenant.tokens, tenant.tokens_per_minute),
    against(tenant.name, "running", tenant.running, tenant.parallel),
    el("td", { class: tenant.refused ? "trouble" : "" }, count(tenant.refused)),
    el("td", {}, money(tenant.cost)));
}

function against(tenant, what, used, limit) {
  if (limit === null) return el("td", {}, count(used), el("span", { class: "soft" }, " no limit"));
  return el("td", {}, count(used), el("span", { class: "soft" }, ` of ${count(limit)}`),
    meter(`${what} of ${tenant} against the limit`, used / limit));
}
