import { h, plain, put } from "../dom.js";
import { get } from "../api.js";
import { t } from "../lang.js";
import { badge, button, dialog, empty, json, link, mono, moment, page, pager, shortId, table } from "../ui.js";

const FIELDS = { action: "Action", deviceId: "Device", runId: "Run" };

export async function show(context) {
  const query = { limit: 50, ...Object.fromEntries(new URLSearchParams(location.search)) };
  const box = h("div", { class: "stack" });
  const trail = [], seen = new Set();
  const actions = h("datalist", { id: "actions" }); // those that were seen: the filter wants one exactly
  let asked = 0;
  const load = async () => {
    const mine = ++asked;
    const data = await get("/audit/query", query);
    if (mine !== asked || !context.isHere()) return; // another filter is in force by now
    for (const row of data.items) if (!seen.has(row.action)) { seen.add(row.action); actions.append(h("option", { value: row.action })); }
    put(box, data.items.length ? table([
      { name: "#", class: "num", show: (row) => String(row.id) }, { name: t("When"), class: "num", show: (row) => moment(Date.parse(row.createdAt)) },
      { name: t("Action"), show: (row) => mono(row.action) }, { name: t("Who"), class: "clip", show: (row) => plain(row.actor) },
      { name: t("What"), class: "clip", show: (row) => (row.resourceId ? mono(row.resourceId) : "–") },
      { name: t("Decision"), show: (row) => (row.metadata.decision ? badge(row.metadata.decision) : "–") },
      { name: t("Run"), show: (row) => (data.agentRuns?.includes(row.metadata.runId) ? link(`/console/runs/${row.metadata.runId}`, shortId(row.metadata.runId)) : "–") },
      { name: "", class: "end", show: (row) => button(t("Details"), () => { const shown = dialog(`${row.action} #${row.id}`, json(row), button(t("Close"), () => shown.close(), { tone: "quiet" })); }, { tone: "quiet", small: true }) },
    ], data.items, { label: t("Audit") }) : empty(t("No rows match."), t("Take a filter away, or widen the time.")),
    pager(query, trail, data.nextCursor, load));
  };
  const set = (name, value) => { query[name] = value; query.cursor = ""; trail.length = 0; load().catch((failed) => put(box, h("div", { class: "notice bad" }, plain(failed.message)))); };
  const time = (name, words) => h("label", { class: "when" }, words, h("input", { type: "datetime-local", on: { change: (event) => set(name, event.target.value ? new Date(event.target.value).toISOString() : "") } }));
  const filters = h("div", { class: "filters" },
    Object.entries(FIELDS).map(([name, words], n) => h("input", { type: n ? "text" : "search", placeholder: t(words), "aria-label": t(words), list: n ? null : "actions", value: query[name] || "", on: { change: (event) => set(name, event.target.value.trim()) } })),
    h("select", { "aria-label": t("Decision"), on: { change: (event) => set("decision", event.target.value) } }, [["", "Every decision"], ["allow", "Allow"], ["deny", "Deny"]].map(([value, words]) => h("option", { value }, t(words)))),
    time("from", t("From")), time("to", t("Until")));
  await load();
  context.follow(async () => query.cursor || load(), (told) => told.touched?.includes("audit"));
  return page(t("Audit"), null, filters, actions, box);
}
