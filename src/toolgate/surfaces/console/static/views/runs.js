import { h, plain, put } from "../dom.js";
import { get } from "../api.js";
import { t } from "../lang.js";
import { ago, badge, empty, link, page, pager, shortId, table, tableRow, timer, took } from "../ui.js";

const STATES = { "": "All", open: "Open", waiting: "Waiting for approval", done: "Done", failed: "Failed", cancelled: "Cancelled" };
const PAGE = 50;

// As the server filters them, for runs that come by the stream.
const GROUPS = { open: ["CREATED", "RUNNING", "PAUSED_WAITING_TOOL", "PAUSED_WAITING_APPROVAL"], waiting: ["PAUSED_WAITING_APPROVAL"], done: ["DONE"], failed: ["FAILED"], cancelled: ["CANCELLED"] };
const wordsOf = (run) => `${run.runId} ${run.userId} ${run.sessionId} ${run.preview} ${run.code}`.toLowerCase();
const matches = (run, query) => !query.cursor && (!query.status || !!GROUPS[query.status]?.includes(run.status)) && (!query.agent || query.agent === run.agentId) && (!query.q || wordsOf(run).includes(query.q.toLowerCase()));

export async function show(context) {
  const query = { ...Object.fromEntries(new URLSearchParams(location.search)), limit: PAGE };
  const trail = [];
  let items = [], next = null, asked = 0;
  const box = h("div", { class: "stack" });
  const open = (run) => context.go(`/console/runs/${run.runId}`);
  const columns = [
    { name: t("Run"), show: (run) => link(`/console/runs/${run.runId}`, shortId(run.runId)) },
    { name: t("State"), show: (run) => badge(run.status) },
    { name: t("Agent"), show: (run) => plain(run.agentId) },
    { name: t("User"), class: "clip narrow", show: (run) => plain(run.userId) },
    { name: t("Message"), class: "clip wide", show: (run) => h("span", { title: plain(run.preview) }, plain(run.preview)) },
    { name: t("Took"), class: "end num", show: (run) => (run.endedAt ? took(run.endedAt - run.createdAt) : timer(run.createdAt)) },
    { name: t("Started"), class: "end num", show: (run) => ago(run.createdAt) },
  ];
  const foot = h("div");
  const drawPager = () => put(foot, pager(query, trail, next, load));
  const draw = () => { drawPager(); put(box,
    items.length ? table(columns, items, { label: t("Runs"), onRow: open }) : (query.q || query.agent || query.status ? empty(t("No runs match."), next ? t("Older runs have not been searched yet.") : "") : empty(t("Nothing has run yet."), link("/console/chat", t("Talk to an agent in the chat, or connect a client.")))),
    foot); };
  const load = async () => {
    const mine = ++asked;
    const found = await get("/runs", query);
    if (mine !== asked || !context.isHere()) return; // another filter is in force by now
    ({ items, nextCursor: next } = found);
    draw();
  };
  const again = () => { trail.length = 0; query.cursor = ""; load().catch((failed) => { items = []; next = null; put(box, h("div", { class: "notice bad" }, plain(failed.message))); }); };
  const change = (name) => (event) => {
    query[name] = event.target.value;
    const kept = new URLSearchParams(Object.entries(query).filter(([key, value]) => value && !["limit", "cursor"].includes(key))).toString();
    history.replaceState(null, "", kept ? `?${kept}` : location.pathname);
    again();
  };
  const filters = h("div", { class: "filters" },
    h("input", { type: "search", placeholder: t("Search ids, users and messages"), "aria-label": t("Search"), value: query.q || "", on: { change: change("q") } }),
    h("select", { "aria-label": t("State"), on: { change: change("status") } }, Object.entries(STATES).map(([name, words]) => h("option", { value: name, selected: (query.status || "") === name }, t(words)))),
    h("select", { "aria-label": t("Agent"), on: { change: change("agent") } }, h("option", { value: "" }, t("Every agent")), context.me.chat.agents.map((name) => h("option", { value: name, selected: query.agent === name }, plain(name)))));
  await load();
  // Only the rows that changed are made anew: there may be many a second.
  const renew = (run, body) => {
    const at = items.findIndex((one) => one.runId === run.runId);
    if (at >= 0) { items[at] = run; body.children[at].replaceWith(tableRow(columns, run, open)); return; }
    if (!matches(run, query)) return;
    const older = items.findIndex((one) => one.runId < run.runId);
    if (older < 0 && next) return; // its place is on a later page
    const place = older < 0 ? items.length : older;
    items.splice(place, 0, run);
    body.insertBefore(tableRow(columns, run, open), body.children[place] || null);
    if (items.length > PAGE * 2) { items.pop(); body.lastElementChild.remove(); next = items.at(-1).runId; drawPager(); }
  };
  context.onTold((told) => {
    if (!told.runs) return;
    const body = box.querySelector("tbody");
    if (body) for (const run of told.runs) renew(run, body); else if (told.runs.some((run) => matches(run, query))) load().catch(() => {});
  });
  context.onLink((on) => on && !query.cursor && load().catch(() => {}));
  return page(t("Runs"), null, filters, box);
}
