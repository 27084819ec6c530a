// The frame around the views: who is signed in, where we are, and the keys that work everywhere.

import { h, s, put } from "./dom.js";
import { get, post, live, onSignedOut } from "./api.js";
import { t, language, languages, loadLanguage, setLanguage } from "./lang.js";
import { button, dialog, empty, guarded, later, page, setNow, toast } from "./ui.js";

const ICONS = {
  overview: "M4 13h6V4H4zM14 20h6V4h-6zM4 20h6v-3H4z", runs: "M5 6h14M5 12h14M5 18h9", approvals: "M12 3l7 3v6c0 4.5-3 7.5-7 9-4-1.5-7-4.5-7-9V6zM9 12l2.2 2.2L15.5 10",
  chat: "M4 5h16v11H9l-5 4z", devices: "M7 3h10v18H7zM11 18h2", capabilities: "M12 3v4M12 17v4M3 12h4M17 12h4M8 8h8v8H8z",
  targets: "M4 5h16v6H4zM4 13h16v6H4zM8 8h.01M8 16h.01", policy: "M6 3h9l4 4v14H6zM15 3v4h4M9 12h6M9 16h6", audit: "M12 7v5l3 2M21 12a9 9 0 1 1-18 0 9 9 0 0 1 18 0z",
  evidence: "M7 11V8a5 5 0 0 1 10 0v3M5 11h14v10H5zM12 15v2", tasks: "M3 5h18v14H3zM3 9h18M6 7h.01M9 7h.01",
};
const NAV = [
  ["overview", "Overview", "", "o"], ["runs", "Runs", "/runs", "r"], ["approvals", "Approvals", "/approvals", "a"], ["chat", "Chat", "/chat", "c"], null,
  ["devices", "Devices", "/devices", "d"], ["capabilities", "Capabilities", "/capabilities", "b"], ["targets", "Targets", "/targets", "t"], ["policy", "Policy", "/policy", "p"], null,
  ["audit", "Audit", "/audit", "u"], ["evidence", "Evidence", "/evidence", "e"], ["tasks", "Browser tasks", "/tasks", "w"],
];
const ROUTES = [
  [/^\/console\/?$/, "overview"], [/^\/console\/runs\/([^/]+)$/, "run"], [/^\/console\/tasks\/([^/]+)$/, "task"],
  [/^\/console\/(runs|approvals|chat|devices|capabilities|targets|policy|audit|evidence|tasks)\/?$/, null],
];
const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };

const root = document.getElementById("app");
const main = h("main", { id: "main" });
let leave = [];
let me = null;
let waiting = 0;
let visit = 0;

function theme(name) {
  if (name) localStorage.setItem("toolgate.theme", name);
  const chosen = localStorage.getItem("toolgate.theme") || "auto";
  document.documentElement.dataset.theme = chosen;
  return chosen;
}

const icon = (name) => s("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));

function frame() {
  const linked = h("span", { class: "linked", role: "status" });
  const showLink = () => { linked.className = live.connected ? "linked on" : "linked"; linked.textContent = live.connected ? t("Live") : t("Connecting…"); };
  live.addEventListener("link", showLink);
  showLink();
  const chooseTheme = h("select", { "aria-label": t("Colours"), on: { change: (event) => theme(event.target.value) } },
    Object.entries(THEMES).map(([name, words]) => h("option", { value: name, selected: theme() === name }, t(words))));
  const chooseLanguage = h("select", { "aria-label": "Language", on: { change: async (event) => { await setLanguage(event.target.value); start(); } } },
    Object.entries(languages).map(([name, words]) => h("option", { value: name, selected: language() === name }, words)));
  const menu = h("button", { class: "menu quiet", "aria-expanded": "false", "aria-controls": "nav", on: { click: () => open(!root.classList.contains("open")) } },
    s("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, s("path", { d: "M4 6h16M4 12h16M4 18h16" })), h("span", { class: "hidden" }, t("Menu")));
  const open = (is) => { root.classList.toggle("open", is); menu.setAttribute("aria-expanded", String(is)); };
  const nav = h("nav", { id: "nav", "aria-label": t("Console") }, NAV.map((entry) => {
    if (!entry) return h("hr");
    const [name, words, path] = entry;
    return h("a", { href: `/console${path}`, "data-view": name }, icon(name), h("span", null, t(words)), name === "approvals" ? h("span", { class: "count", id: "waiting", hidden: true }) : null);
  }));
  nav.addEventListener("click", () => open(false));
  put(root, h("a", { class: "skip", href: "#main" }, t("Skip to content")),
    h("header", { class: "top" }, menu, h("a", { class: "brand", href: "/console" }, h("img", { src: "/console/static/icon.svg", alt: "", width: 24, height: 24 }), h("span", null, "Toolgate")),
      h("div", { class: "spacer" }), linked, h("button", { class: "quiet keys", title: t("Keys"), "aria-label": t("Keys"), on: { click: keysHelp } }, "?")),
    h("aside", { class: "side" }, nav, h("div", { class: "foot" }, chooseTheme, chooseLanguage, button(t("Sign out"), signOut, { tone: "quiet" }), h("small", null, `Toolgate ${me.version}`))), main);
  showWaiting();
}

let here = "";
function showWaiting() {
  const node = document.getElementById("waiting");
  if (node) { node.hidden = !waiting; node.textContent = String(waiting); node.setAttribute("aria-label", t("{n} waiting", { n: waiting })); }
  document.title = `${waiting ? `(${waiting}) ` : ""}${here ? `${here} · ` : ""}Toolgate`;
}

let counts = 0;
const countWaiting = later(async () => {
  const mine = ++counts;
  try { const { total } = await get("~/waiting"); if (mine === counts) { waiting = total; showWaiting(); } } catch { /* the page says so itself */ }
}, 100);

async function signOut() { await post("~/sign-out"); live.close(); me = null; signIn(); }

// Browsers remember a failed import: ask again under another name.
let missed = 0;
async function viewOf(name) {
  try { return await import(`./views/${name}.js${missed ? `?${missed}` : ""}`); } catch (failed) { missed += 1; await get("~/me"); throw failed; }
}

async function show() {
  let path = location.pathname;
  try { decodeURIComponent(path); } catch { path = ""; } // no text, and so no page
  const [match, name] = ROUTES.map(([pattern, view]) => { const found = path.match(pattern); return found && [found, view || found[1]]; }).find(Boolean) || [null, null];
  const mine = ++visit;
  leave.forEach((act) => act());
  leave = [];
  for (const node of document.querySelectorAll("nav a")) {
    const here = node.dataset.view === name || (name === "run" && node.dataset.view === "runs") || (name === "task" && node.dataset.view === "tasks");
    if (here) node.setAttribute("aria-current", "page"); else node.removeAttribute("aria-current");
  }
  live.open(name === "run" ? match[1] : "");
  if (!name) { put(main, page(t("There is no such page"), null, empty(t("The address may be mistyped."), h("a", { href: "/console" }, t("Overview"))))); return; }
  const early = []; // what is told while the view loads
  const hearEarly = (event) => early.push(event.detail);
  live.addEventListener("told", hearEarly);
  leave.push(() => live.removeEventListener("told", hearEarly));
  const context = {
    me, go,
    isHere: () => mine === visit,
    onLeave: (act) => leave.push(act),
    onTold: (act) => { const hear = (event) => act(event.detail); early.forEach(act); live.addEventListener("told", hear); leave.push(() => live.removeEventListener("told", hear)); },
    onLink: (act) => { const hear = (event) => act(event.detail); live.addEventListener("link", hear); leave.push(() => live.removeEventListener("link", hear)); },
    follow: (load, concerns, ms = 150) => { const soon = later(() => load().catch(() => {}), ms); context.onTold((told) => concerns(told) && soon()); context.onLink((on) => on && soon()); },
    onKey: (act) => { const hear = (event) => { if (!isTyping(event)) act(event); }; document.addEventListener("keydown", hear); leave.push(() => document.removeEventListener("keydown", hear)); },
  };
  const id = match[1] && name !== match[1] ? decodeURIComponent(match[1]) : "";
  await guarded(main, async () => (await viewOf(name)).show(context, id), context.isHere);
  live.removeEventListener("told", hearEarly);
  if (!context.isHere()) return;
  here = main.querySelector("h1")?.textContent || "";
  showWaiting();
}

function go(path) { history.pushState(null, "", path); scrollTo(0, 0); show().then(() => main.querySelector("h1")?.focus()); }

const isTyping = (event) => event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.target.closest?.("input,textarea,select,dialog,[contenteditable]");

function keysHelp() {
  const rows = [...NAV.filter(Boolean).map(([, words, , key]) => [["g", key], t(words)]), [["j"], t("Next")], [["k"], t("Previous")], [["a"], t("Approve what is selected")], [["x"], t("Reject what is selected")], [["/"], t("Search")], [["?"], t("Keys")]];
  const box = dialog(t("Keys"), h("dl", { class: "keys" }, rows.map(([keys, words]) => [h("dt", null, keys.map((key) => h("kbd", null, key))), h("dd", null, words)])), button(t("Close"), () => box.close(), { tone: "quiet" }));
}

let before = "";
document.addEventListener("keydown", (event) => {
  if (!me || isTyping(event)) { before = ""; return; }
  const target = before === "g" && NAV.find((entry) => entry && entry[3] === event.key);
  before = event.key;
  if (target) { before = ""; event.stopImmediatePropagation(); go(`/console${target[2]}`); }
  else if (event.key === "?") keysHelp();
  else if (event.key === "/") { const search = main.querySelector("input[type=search]"); if (search) { event.preventDefault(); search.focus(); } }
}, true);

document.addEventListener("click", (event) => {
  const node = event.target.closest("a");
  if (!node || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || node.target || node.hasAttribute("download")) return;
  if (node.className === "skip") { event.preventDefault(); main.querySelector("h1")?.focus(); return; } // no other address: the page would be made anew
  const url = new URL(node.href);
  if (url.origin !== location.origin || !url.pathname.startsWith("/console") || url.hash) return;
  event.preventDefault();
  go(url.pathname + url.search);
});
addEventListener("popstate", () => { if (me) show(); });
live.addEventListener("told", (event) => { if (event.detail.approvals) countWaiting(); });
live.addEventListener("link", (event) => { if (event.detail && me) { countWaiting(); if (main.querySelector(".problem")) show(); } });
setInterval(() => { if (me && document.hidden) countWaiting(); }, 15_000); // the title is seen, and no news come
onSignedOut(() => { if (me) { me = null; live.close(); signIn(); } });

async function signIn(problem = "") {
  leave.forEach((act) => act());
  leave = [];
  for (const box of document.querySelectorAll("dialog")) box.close(); // nobody could reach what is behind
  const view = await import("./views/sign_in.js");
  root.classList.remove("open");
  put(root, view.show(start, problem));
  document.title = "Toolgate";
  root.querySelector("input")?.focus();
}

async function start() {
  try { me = await get("~/me"); } catch (failed) { return signIn(failed.status === 401 ? "" : failed.message); }
  setNow(me.now);
  frame();
  await show();
}

async function useCode() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return "";
  history.replaceState(null, "", location.pathname);
  try { await post("~/sign-in", { code }); return ""; } catch (failed) { return failed.status === 403 ? t("This link was used already, or is too old.") : failed.message; }
}

theme();
await loadLanguage();
async function begin() {
  const problem = await useCode();
  if (problem) { try { await get("~/me"); await start(); toast(problem, "bad"); } catch { await signIn(problem); } } else await start();
}
addEventListener("hashchange", () => { if (location.hash.startsWith("#code=")) begin(); });
await begin();
