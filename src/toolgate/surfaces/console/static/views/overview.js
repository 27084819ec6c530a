import { h, put, plain } from "../dom.js";
import { get } from "../api.js";
import { t } from "../lang.js";
import { ago, badge, card, empty, link, page, setNow, shortId, table, timer, took } from "../ui.js";
import { bars, split } from "../charts.js";

const stat = (value, words, tone = "", path = "") => {
  const inside = [h("strong", null, value), h("span", null, words)];
  return path ? h("a", { class: `card stat ${tone}`, href: path }, inside) : h("div", { class: `card stat ${tone}` }, inside);
};

function draw(box, data, context) {
  setNow(data.now);
  const { hour, decisions } = data;
  const running = data.running.filter(Boolean);
  put(box,
    data.policy.error ? h("div", { class: "notice bad" }, t("The policy file has a mistake; the last good one is in force."), " ", plain(data.policy.error)) : null,
    data.evidence.failure ? h("div", { class: "notice bad" }, t("Evidence is not being published:"), " ", plain(data.evidence.failure)) : null,
    h("div", { class: "grid five" },
      stat(data.running_total, t("running now"), "", "/console/runs?status=open"),
      stat(data.pending, t("waiting for approval"), data.pending ? "ask" : "", "/console/approvals"),
      stat(`${hour.runs.toLocaleString()}${hour.partial ? "+" : ""}`, t("runs in the last hour"), "", "/console/runs"),
      stat(hour.runs ? `${(100 * hour.failed / hour.runs).toFixed(hour.failed && hour.failed / hour.runs < .1 ? 1 : 0)} %` : "–", t("failed"), hour.failed ? "bad" : "", "/console/runs?status=failed"),
      stat(took(hour.p95_ms), t("p95 of a run"))),
    card(t("Runs per minute"), bars(data.minutes, t("Runs per minute in the last hour"))),
    h("div", { class: "grid wide" },
      card(t("Tool calls in the last hour"), split([{ name: t("allowed"), value: decisions.allowed, tone: "" }, { name: t("approved by a person"), value: decisions.approved, tone: "ask" }, { name: t("denied"), value: decisions.denied, tone: "bad" }], t("Tool calls in the last hour")),
        h("div", { class: "legend" }, h("span", null, h("i"), t("allowed"), " ", h("b", null, decisions.allowed)), h("span", null, h("i", { class: "ask" }), t("approved by a person"), " ", h("b", null, decisions.approved)), h("span", null, h("i", { class: "bad" }), t("denied"), " ", h("b", null, decisions.denied)))),
      card(t("What vouches for it"), h("dl", { class: "facts" },
        h("dt", null, t("Policy")), h("dd", null, link("/console/policy", t("{n} rules", { n: data.policy.rules })), " · ", h("code", null, data.policy.version.slice(0, 19))),
        h("dt", null, t("Evidence")), h("dd", null, link("/console/evidence", t("{n} records", { n: data.evidence.size.toLocaleString() })))))),
    card(t("Running now"), running.length ? table([
      { name: t("Run"), show: (run) => link(`/console/runs/${run.runId}`, shortId(run.runId)) },
      { name: t("State"), show: (run) => badge(run.status) },
      { name: t("Agent"), show: (run) => plain(run.agentId) },
      { name: t("Message"), class: "clip wide", show: (run) => plain(run.preview) },
      { name: t("Since"), class: "end num", show: (run) => timer(run.createdAt) },
    ], running, { label: t("Running now"), onRow: (run) => context.go(`/console/runs/${run.runId}`) }) : empty(t("Nothing runs at the moment."), t("Talk to an agent in the chat, or connect a client."))),
    data.failures.length ? card(t("Failed lately"), table([
      { name: t("Run"), show: (run) => link(`/console/runs/${run.runId}`, shortId(run.runId)) },
      { name: t("Agent"), show: (run) => plain(run.agentId) },
      { name: t("Why"), class: "clip wide", show: (run) => plain(run.message || run.code) },
      { name: t("When"), class: "end num", show: (run) => ago(run.createdAt) },
    ], data.failures, { label: t("Failed lately"), onRow: (run) => context.go(`/console/runs/${run.runId}`) })) : null);
}

export async function show(context) {
  const box = h("div", { class: "stack" });
  const refresh = async () => { try { const data = await get("~/overview"); if (context.isHere()) draw(box, data, context); } catch { /* the link says so */ } };
  draw(box, await get("~/overview"), context);
  context.follow(refresh, (told) => told.runs || told.approvals || told.touched?.includes("audit"), 80);
  const every = setInterval(refresh, 30_000);
  context.onLeave(() => clearInterval(every));
  return page(t("Overview"), null, box);
}
