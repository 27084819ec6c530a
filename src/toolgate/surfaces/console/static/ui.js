// The parts that views are made of.

import { h, s, put, plain } from "./dom.js";
import { t, language } from "./lang.js";

const STATUS = {
  CREATED: ["Created", "calm"], RUNNING: ["Running", "busy"],
  PAUSED_WAITING_TOOL: ["Waiting for a tool", "busy"], PAUSED_WAITING_APPROVAL: ["Waiting for approval", "ask"],
  DONE: ["Done", "good"], FAILED: ["Failed", "bad"], CANCELLED: ["Cancelled", "calm"],
  POLICY_CHECKED: ["Policy checked", "calm"], BLOCKED: ["Blocked", "bad"], WAITING_APPROVAL: ["Waiting for approval", "ask"],
  REJECTED: ["Rejected", "bad"], DISPATCHED: ["Dispatched", "busy"], SUCCEEDED: ["Succeeded", "good"],
  TIMEOUT: ["Timed out", "bad"], PENDING: ["Waiting", "ask"], APPROVED: ["Approved", "good"], EXPIRED: ["Expired", "calm"],
  allow: ["Allow", "good"], ask: ["Ask", "ask"], deny: ["Deny", "bad"],
  healthy: ["Healthy", "good"], degraded: ["Degraded", "ask"], offline: ["Offline", "bad"],
  queued: ["Queued", "calm"], running: ["Running", "busy"], succeeded: ["Succeeded", "good"],
  partial_success: ["Partly succeeded", "ask"], failed: ["Failed", "bad"], canceled: ["Cancelled", "calm"],
  enabled: ["Enabled", "good"], disabled: ["Disabled", "calm"],
  read: ["Read", "calm"], write: ["Write", "ask"], sign: ["Sign", "bad"],
};

export function badge(status) {
  const [words, tone] = STATUS[status] || [status, "calm"];
  return h("span", { class: `badge ${tone}` }, t(words));
}

// Times: one clock for the page, corrected to the server's.
let skew = 0;
export const setNow = (server) => { skew = server - Date.now(); };
export const now = () => Date.now() + skew;

export function clock(at, seconds = true) {
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (seconds) options.second = "2-digit";
  return new Date(at).toLocaleTimeString(language() === "zh" ? "zh-CN" : "en-GB", options);
}

export function moment(at) {
  const day = new Date(at).toLocaleDateString(language() === "zh" ? "zh-CN" : "en-GB", { year: "numeric", month: "short", day: "numeric" });
  return `${day} ${clock(at)}`;
}

export function took(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return t("{n} ms", { n: Math.round(ms) });
  if (ms < 60_000) return t("{n} s", { n: (ms / 1000).toFixed(ms < 10_000 ? 1 : 0) });
  if (ms < 3_600_000) return t("{n} min {m} s", { n: Math.floor(ms / 60_000), m: Math.floor(ms / 1000) % 60 });
  return t("{n} h {m} min", { n: Math.floor(ms / 3_600_000), m: Math.floor(ms / 60_000) % 60 });
}

export function bytes(n) {
  return n < 1024 ? `${n} B` : n < 1048576 ? `${(n / 1024).toFixed(1)} KB` : `${(n / 1048576).toFixed(1)} MB`;
}

function agoText(at) {
  const past = Math.max(0, now() - at);
  if (past < 5000) return t("just now");
  if (past < 60_000) return t("{n} s ago", { n: Math.floor(past / 1000) });
  if (past < 3_600_000) return t("{n} min ago", { n: Math.floor(past / 60_000) });
  if (past < 86_400_000) return t("{n} h ago", { n: Math.floor(past / 3_600_000) });
  return moment(at);
}

const ticking = new Set();
setInterval(() => {
  for (const tick of ticking) if (!tick()) ticking.delete(tick);
}, 1000);
export function everySecond(node, act) {
  let away = 0; // ticks: it may not have been put on the page yet, or be off it again already
  act();
  ticking.add(() => {
    away = node.isConnected ? 0 : away + 1;
    if (away > 10) return false;
    act();
    return true;
  });
  return node;
}

export function ago(at) {
  if (!at) return h("span", null, "–");
  const node = h("time", { datetime: new Date(at).toISOString(), title: moment(at) });
  return everySecond(node, () => { const text = agoText(at); if (node.textContent !== text) node.textContent = text; });
}

export function timer(from) {
  const node = h("span", { class: "num" });
  return everySecond(node, () => { const past = Math.max(0, Math.floor((now() - from) / 1000) * 1000); node.textContent = took(Math.max(past, 1000)); });
}

export const mono = (text) => h("code", { title: String(text ?? "").length > 20 ? plain(text) : null }, plain(text));
export const shortId = (id) => h("code", { class: "id", title: plain(id) }, plain(id.length > 20 ? `${id.slice(0, 8)}…${id.slice(-6)}` : id));

const AT_FIRST = 4000;
export function block(text, { length = null, label = "", whole = false } = {}) {
  const clean = plain(text);
  const area = h("pre", { class: "block", tabindex: "0", "aria-label": label || null });
  const total = length ?? clean.length;
  area.classList.toggle("whole", whole);
  area.textContent = whole ? clean : clean.slice(0, AT_FIRST);
  if ((whole || clean.length <= AT_FIRST) && total <= clean.length) return area;
  const more = h("button", { class: "quiet small", on: { click: () => { area.textContent = clean; more.remove(); } } },
    t("Show all {n} characters", { n: clean.length.toLocaleString() }));
  const note = total > clean.length ? h("p", { class: "hint" }, t("The rest of {n} characters is in the evidence.", { n: total.toLocaleString() })) : null;
  return h("div", null, area, clean.length > AT_FIRST ? more : null, note);
}

export const json = (value, label) => block(JSON.stringify(value, null, 2), { label });

// A call that waits for a person: all of it, as the gateway shows it to whoever decides.
export const call = (args, summary) => block(args ? JSON.stringify(args, null, 2) : summary, { label: t("Exactly what would be done"), whole: true });

export function page(title, actions, ...content) {
  return h("div", { class: "page" },
    h("header", { class: "page-head" }, h("h1", { tabindex: "-1" }, title), h("div", { class: "actions" }, actions)), content);
}

export function card(title, ...content) {
  return h("section", { class: "card" }, title ? h("h2", null, title) : null, content);
}

export function empty(words, hint) {
  return h("div", { class: "empty" },
    s("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, s("path", { d: "M5 21V10a7 7 0 0 1 14 0v11M9.5 21V8.5M14.5 21V8.5M5 15h14" })),
    h("p", null, words), hint ? h("p", { class: "hint" }, hint) : null);
}

export function tableRow(columns, row, onRow = null) {
  return h("tr", { class: onRow ? "link-row" : null, on: onRow ? { click: (event) => { if (!event.target.closest("a,button,input") && !getSelection().toString()) onRow(row); } } : null },
    columns.map((column) => h("td", { class: column.class || null, "data-label": column.name }, column.show(row))));
}

// A table that becomes a list of cards where there is no room for columns.
export function table(columns, rows, { label = "", onRow = null } = {}) {
  const body = h("tbody", null, rows.map((row) => tableRow(columns, row, onRow)));
  const head = h("thead", null, h("tr", null, columns.map((column) => h("th", { scope: "col", class: column.class || null }, column.name || h("span", { class: "hidden" }, t("Actions"))))));
  return h("div", { class: "table-box" }, h("table", { "aria-label": label || null }, head, body));
}

// Pages of a list: `trail` holds the cursors of the newer ones.
export const pager = (query, trail, next, load) => h("div", { class: "pager" },
  trail.length ? button(t("Newer"), () => { query.cursor = trail.pop(); return load(); }, { tone: "quiet" }) : null,
  next ? button(t("Older"), () => { trail.push(query.cursor || ""); query.cursor = next; return load(); }, { tone: "quiet" }) : null);

export const link = (path, ...content) => h("a", { href: path }, content);

export function button(words, act, { tone = "", key = "", small = false, type = "button" } = {}) {
  const node = h("button", { type, class: [tone, small ? "small" : ""].join(" ").trim() || null, on: act ? { click: async () => {
    if (node.disabled) return;
    const hadFocus = document.activeElement === node; // which goes where nobody is as it is disabled
    node.disabled = true;
    try { await act(); } catch (failed) { toast(failed.message, "bad"); } finally {
      node.disabled = false;
      if (hadFocus && document.activeElement === document.body) node.focus({ preventScroll: true });
    }
  } } : null }, words, key ? h("kbd", { "aria-hidden": "true" }, key) : null);
  return node;
}

export function toast(words, tone = "good") {
  const node = h("div", { class: `toast ${tone}` }, plain(words)), toasts = document.getElementById("toasts");
  ([...document.querySelectorAll("dialog[open]")].at(-1) || document.body).append(toasts); // or else it is behind, and dim
  toasts.append(node);
  setTimeout(() => node.remove(), tone === "bad" ? 8000 : 4000);
}

export function dialog(title, content, actions) {
  const box = h("dialog", { "aria-label": title }, h("h2", null, title), h("div", { class: "dialog-body" }, content), h("div", { class: "actions end" }, actions));
  document.body.append(box);
  box.addEventListener("close", () => { document.body.append(document.getElementById("toasts")); box.remove(); });
  box.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.isComposing && event.target.matches("input:not([type=checkbox])")) { event.preventDefault(); box.querySelector(".actions.end > :last-child").click(); } });
  box.showModal();
  return box;
}

export function confirm(title, words, yes, act, tone = "danger") {
  const box = dialog(title, h("p", null, words), [
    button(t("Keep it"), () => box.close(), { tone: "quiet" }),
    button(yes, async () => { await act(); box.close(); }, { tone }),
  ]);
}

export function field(name, control, hint) {
  return h("label", { class: "field" }, h("span", null, name), control, hint ? h("small", null, hint) : null);
}

export const tick = (name, checked = false) => h("input", { type: "checkbox", name, checked });

export async function guarded(node, load, isHere = () => true) {
  try { const made = await load(); if (isHere()) put(node, made); } catch (failed) {
    if (isHere()) put(node, page(t("This cannot be shown"), null, h("div", { class: "card problem", role: "alert" }, h("p", null, plain(failed.message)), button(t("Try again"), () => guarded(node, load, isHere), { tone: "quiet" }))));
  }
}

export function later(act, ms = 60) {
  let waiting = 0;
  return () => { waiting ||= setTimeout(() => { waiting = 0; act(); }, ms); };
}
