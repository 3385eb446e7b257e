// A prompt through the gateway's own front door: first where it would go, then the answer as it comes, then its course.

import { byId, el } from "./dom.js";
import { post, recordOf } from "./gateway.js";
import { waterfall } from "./requests.js";
import { meter } from "./tiers.js";
import { count, percent, seconds } from "./words.js";

let running = null;

export function offerTiers(tiers) {
  const select = byId("model");
  const names = ["auto", ...tiers.map((tier) => tier.name)];
  if ([...select.options].map((option) => option.value).join() !== names.join()) {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    select.value = names.includes(chosen) ? chosen : "auto";
  }
}

export function startTrying() {
  byId("try").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) running.abort();
    else ask();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("try").requestSubmit();
  });
}

async function ask() {
  const stop = (running = new AbortController());
  const body = { model: byId("model").value, messages: [{ role: "user", content: byId("prompt").value }] };
  byId("ask").textContent = "Stop";
  byId("answer").textContent = "";
  byId("answer").hidden = true;
  byId("decision").replaceChildren();
  byId("course").replaceChildren();
  tell("Deciding where it goes.");
  try {
    byId("decision").replaceChildren(decision(await decide(body, stop.signal)));
    tell("Waiting for the first token.");
    await answer({ ...body, max_tokens: byId("most").valueAsNumber || 128, stream: true }, stop.signal);
  } catch (error) {
    tell(error.name === "AbortError" ? "Stopped." : error.message, error.name !== "AbortError");
  } finally {
    running = null;
    byId("ask").textContent = "Ask";
  }
}

function tell(words, trouble = false) {
  byId("tried").textContent = words;
  byId("tried").classList.toggle("trouble", trouble);
}

async function decide(body, signal) {
  return (await post("route", body, signal)).json();
}

function decision(route) {
  const rows = Object.keys(route.prompt_tokens).map((tier) =>
    el("li", { class: tier === route.tier ? "taken" : "" },
      el("b", {}, tier),
      tier in route.good ? meter(`${tier} is good enough, estimated`, route.good[tier]) : el("span", {}),
      el("span", { class: "soft" }, tier in route.good ? percent(route.good[tier]) : "not judged"),
      el("span", { class: "soft" }, `${count(route.cached_tokens[tier])} of ${count(route.prompt_tokens[tier])} cached`)));
  const task = route.task === null ? "" : ` It reads as ${route.task}.`;
  return el("div", { class: "decision" },
    el("p", {}, `To ${route.reason}.${task}`), el("ul", {}, ...rows));
}

async function answer(body, signal) {
  const began = performance.now();
  const response = await post("chat/completions", body, signal);
  const place = byId("answer");
  place.hidden = false;
  let first = null;
  let tier = response.headers.get("x-headrace-tier"); // while it is not known yet, the last chunk names it
  for await (const chunk of events(response.body)) {
    if (chunk.error) throw new Error(`The answer broke off: ${chunk.error.message}`);
    tier = chunk.model ?? tier;
    const text = chunk.choices[0]?.delta.content ?? "";
    if (text && first === null) first = (performance.now() - began) / 1000;
    place.append(text);
  }
  const whole = (performance.now() - began) / 1000;
  tell(`${tier} answered: first text after ${seconds(first)}, all after ${seconds(whole)}.`);
  const record = await recordOf(response.headers.get("x-request-id"));
  if (record !== null) byId("course").replaceChildren(waterfall(record));
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const data = frame.startsWith("data: ") ? frame.slice(6) : "";
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
