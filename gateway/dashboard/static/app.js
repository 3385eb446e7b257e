// The page: one state a second from the gateway, given to each part.

import { byId, onChange } from "./dom.js";
import { drawFlow } from "./flow.js";
import { drawFigures } from "./figures.js";
import { listenToStates } from "./gateway.js";
import { drawFirstTokens, drawRates } from "./charts.js";
import { drawRequests } from "./requests.js";
import { drawTenants } from "./tenants.js";
import { drawTiers } from "./tiers.js";
import { offerTiers, startTrying } from "./try.js";
import { counted, duration } from "./words.js";

const THEMES = ["system", "light", "dark"];

// Each part is drawn again when what it shows has changed, or the room that it has.
const parts = [
  part(({ tiers, routes }) => [tiers, routes], (tiers, routes) => drawFlow(byId("flow"), byId("reasons"), tiers, routes)),
  part(figuresOf, (figures) => drawFigures(byId("figures"), figures)),
  part(({ tiers }) => [tiers], (tiers) => drawTiers(byId("tiers"), tiers)),
  part(({ tiers, step }) => [tiers, step], (tiers, step) => drawFirstTokens(byId("first"), tiers, step)),
  part(({ tiers, step }) => [tiers, step], (tiers, step) => drawRates(byId("rate"), tiers, step)),
  part(({ tenants, more_tenants }) => [tenants, more_tenants],
    (tenants, more) => drawTenants(byId("tenants"), tenants, more)),
  part(({ latest, tiers }) => [latest, tiers.map((tier) => tier.name)],
    (latest, names) => drawRequests(byId("requests"), byId("none-yet"), latest, names)),
];
let latest = null;
let paused = false;

function show(state) {
  latest = state;
  if (paused) return;
  offerTiers(state.tiers);
  for (const part of parts) part(state);
  say(healthOf(state), state.troubles.length > 0 || state.draining);
  byId("footer").textContent = `Headrace ${state.version}, up for ${duration(state.uptime)}. Totals since then.`;
}

function part(select, draw) {
  const drawChanged = onChange((width, ...slices) => draw(...slices));
  return (state) => drawChanged(innerWidth, ...select(state));
}

function figuresOf({ tiers, spent, largest, requests, failures }) {
  return [{ tiers, spent, largest, requests, failures }];
}

function healthOf(state) {
  if (state.draining) return "The gateway is leaving and takes no new requests.";
  if (state.troubles.length > 0) return state.troubles.join(" ");
  const tiers = state.tiers.length === 1 ? "The tier answers." : `All ${state.tiers.length} tiers answer.`;
  return `${tiers} ${state.running ? counted(state.running, "request runs", "requests run") : "Nothing runs"} now.`;
}

// A status is read aloud when it changes, so it is only touched then.
function say(words, trouble) {
  const health = byId("health");
  if (health.textContent !== words) health.textContent = words;
  health.classList.toggle("trouble", trouble);
}

function listen() {
  const events = listenToStates();
  events.onmessage = (event) => show(JSON.parse(event.data));
  events.onerror = () => {
    say("The gateway does not answer. Trying again.", true);
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

function startPausing() {
  const button = byId("pause");
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Paused" : "Pause";
    if (!paused && latest) show(latest);
  });
}

function startTheming() {
  const button = byId("theme");
  const set = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
    button.textContent = `Theme: ${theme}`;
  };
  const stored = localStorage.getItem("theme");
  let at = Math.max(0, THEMES.indexOf(stored));
  set(THEMES[at]);
  button.addEventListener("click", () => {
    at = (at + 1) % THEMES.length;
    set(THEMES[at]);
  });
}

startPausing();
startTheming();
startTrying();
addEventListener("resize", () => latest && show(latest));
listen();
