// Talking to the server: JSON over HTTP, and what happens by server-sent events.

import { t } from "./lang.js";

// `~` is the console's own API; other paths are the gateway's.
const at = (path) => path.replace(/^~/, "/console/api");

export class Failed extends Error {
  constructor(status, error) {
    super(error?.message || `HTTP ${status}`);
    this.status = status;
    this.code = error?.code || "";
    this.problems = error?.problems || [];
  }
}

let signedOut = () => {};
export const onSignedOut = (act) => { signedOut = act; };

async function ask(method, path, body, read = (answer) => answer.json().catch(() => ({}))) {
  const headers = { "X-Toolgate-Console": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(at(path), {
      method, headers, credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Failed(0, { code: "offline", message: t("The server does not answer.") });
  }
  if (answer.ok) { const told = await read(answer); return told.traceId ? told.data : told; }
  if (answer.status === 401) signedOut();
  const told = await answer.json().catch(() => ({}));
  throw new Failed(answer.status, { ...told.error, ...told.data });
}

// Wait for a press or a selection to end before redrawing: the click would be lost.
const LONGEST_PRESS_MS = 2000;
let released = Promise.resolve(), letGo = () => {};
addEventListener("pointerdown", () => { letGo(); released = new Promise((done) => { letGo = done; setTimeout(done, LONGEST_PRESS_MS); }); }, true);
for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => setTimeout(letGo), true); // after the click

export const get = async (path, query) => {
  const given = Object.entries(query || {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  const found = await ask("GET", text ? `${path}?${text}` : path);
  await released;
  return found;
};
export const post = (path, body = {}) => ask("POST", path, body);
export const put = (path, body) => ask("PUT", path, body);
export const remove = (path) => ask("DELETE", path);
export const file = (path) => ask("GET", path, undefined, (answer) => answer.blob());

// Saves a file: a plain link could not say that it comes from this page.
export const download = (path, name) => async () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await file(path));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
};

// One stream for the page, reopened to watch another run; the browser reconnects by itself. A hidden tab
// has none: a browser opens six connections to a host, and six tabs would hold them all.
class Live extends EventTarget {
  #source = null;
  #wanted = false;
  #run = "";
  #last = "";
  connected = false;

  constructor() {
    super();
    document.addEventListener("visibilitychange", () => { if (this.#wanted) { if (document.hidden) this.#pause(); else this.open(); } });
  }

  open(run = this.#run) {
    this.#wanted = true;
    if (document.hidden) { this.#run = run; return; }
    if (this.#source && this.#source.readyState !== EventSource.CLOSED && run === this.#run) return;
    this.#source?.close();
    this.#run = run;
    const query = new URLSearchParams();
    if (run) query.set("run", run);
    if (this.#last) query.set("after", this.#last);
    this.#source = new EventSource(`${at("~/live")}?${query}`);
    this.#source.onopen = () => this.#is(true);
    this.#source.onerror = () => {
      this.#is(false);
      if (this.#source?.readyState === EventSource.CLOSED) setTimeout(() => this.#again(), 2000);
    };
    this.#source.onmessage = (event) => {
      this.#last = event.lastEventId;
      this.dispatchEvent(new CustomEvent("told", { detail: JSON.parse(event.data) }));
    };
  }

  async #again() {
    if (!this.#source) return;
    try { await get("~/me"); this.open(this.#run); } catch (failed) { if (failed.status !== 401) setTimeout(() => this.#again(), 2000); }
  }

  close() {
    this.#wanted = false;
    this.#pause();
  }

  #pause() {
    this.#source?.close();
    this.#source = null;
    this.#last = ""; // it may be hours: pages ask anew when the link is back, rather than hear all of it
    this.#is(false);
  }

  #is(connected) {
    if (connected === this.connected) return;
    this.connected = connected;
    this.dispatchEvent(new CustomEvent("link", { detail: connected }));
  }
}

export const live = new Live();
