// What the page asks the gateway. Addresses are made from the origin, which has no user or key in it even where the
// page was opened with both in its address; the browser adds them by itself.

const PAGE = `${location.origin}/dashboard`;

export function listenToStates() {
  return new EventSource(`${PAGE}/events`);
}

// Everything that is kept of one request; null where that is nothing.
export async function recordOf(id) {
  const answer = await fetch(`${PAGE}/requests/${encodeURIComponent(id)}`);
  return answer.ok ? answer.json() : null;
}

// Fails with the gateway's own words.
export async function post(path, body, signal) {
  const answer = await fetch(`${PAGE}/${path}`, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal,
  });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  return answer;
}
