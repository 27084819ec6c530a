import { h, plain, put } from "../dom.js";
import { get, post } from "../api.js";
import { t } from "../lang.js";
import { badge, block, button, card, clock, confirm, json, link, mono, moment, now, page, timer, took } from "../ui.js";

const TONE = { SUCCEEDED: "good", BLOCKED: "bad", REJECTED: "bad", FAILED: "bad", TIMEOUT: "bad", WAITING_APPROVAL: "ask" };

function step(at, began, tone, ...content) {
  const since = Math.max(0, at - began);
  return h("li", { class: tone || null }, h("time", { datetime: new Date(at).toISOString(), title: moment(at) }, since ? `+${took(since)}` : clock(at)), h("div", null, content));
}

const said = (item) => {
  const text = plain(item.content.text);
  return h("div", { class: item.partial ? "said partial" : "said", tabindex: text.length > 2000 ? "0" : null }, text, item.content.length > item.content.text.length ? ` … (${item.content.length.toLocaleString()})` : "");
};

const LIVE = 20000; // characters of a running call's output that the page keeps
const soFar = (text) => h("pre", { class: "block so-far", tabindex: "0", "aria-live": "off", "aria-label": t("Output so far") }, plain(text).slice(-LIVE));

function call(item) {
  const { decision, approval, result } = item;
  const ended = item.moves.at(-1);
  const output = result ? [[t("Output"), result.stdout], [t("Errors"), result.stderr]] : [[t("Output"), item.output]];
  return h("div", { class: "card call" },
    h("div", { class: "call-head" }, mono(item.tool), badge(item.status), item.onDevice ? h("span", { class: "badge calm" }, t("on the device")) : null, item.errorCode ? h("code", null, plain(item.errorCode)) : null),
    decision ? h("div", { class: "why" }, badge(decision.decision), h("span", null, plain(decision.reason)), h("span", { class: "soft" }, t("rule"), " ", mono(decision.rule_id)), decision.detail ? h("small", null, plain(decision.detail)) : null) : null,
    approval ? h("div", { class: "why" }, badge(approval.status), h("span", null, t("by {name}", { name: plain(approval.decided_by) || t("nobody") }), approval.note ? `: ${plain(approval.note)}` : "")) : null,
    item.status === "WAITING_APPROVAL" ? h("p", { class: "notice" }, t("A person is asked."), " ", link("/console/approvals", t("Decide"))) : null,
    item.args && Object.keys(item.args).length ? json(item.args, t("Arguments")) : null,
    output.filter(([, text]) => text.text).map(([name, text]) => h("div", null, h("div", { class: "who" }, name), block(text.text, { length: text.length, label: name }))),
    item.soFar ? h("div", null, h("div", { class: "who" }, t("Output so far")), soFar(item.soFar.text)) : null,
    h("details", null, h("summary", null, t("Details")),
      h("dl", { class: "facts" },
        h("dt", null, t("Took")), h("dd", null, took(ended.at - item.at)),
        result ? [h("dt", null, t("Exit code")), h("dd", null, String(result.exitCode)), h("dt", null, t("Isolation")), h("dd", null, plain(result.isolation)), h("dt", null, t("Side effects")), h("dd", null, plain(result.outcome))] : null,
        decision ? [h("dt", null, t("Policy")), h("dd", null, mono(decision.policy_version.slice(0, 26)))] : null,
        h("dt", null, t("States")), h("dd", null, item.moves.map((move) => `${move.to} +${took(move.at - item.at)}`).join(" → ")),
        h("dt", null, t("Evidence")), h("dd", null, item.evidence.length ? link(`/console/evidence?subject=${encodeURIComponent(item.callId)}`, t("records {list}", { list: item.evidence.join(", ") })) : "–"),
        h("dt", null, t("Request")), h("dd", null, mono(item.callId)))));
}

function draw(list, data, id) {
  const began = data.items[0]?.at || 0;
  const open = new Set([...list.querySelectorAll("details[open]")].map((node) => node.closest("li").dataset.call));
  put(list, data.items.map((item) => {
    if (item.kind === "message") return step(item.at, began, "", h("div", { class: "who" }, plain(item.role)), said(item));
    if (item.kind === "text") return step(item.at, began, item.partial ? "busy" : "", h("div", { class: "who" }, plain(data.run.agentId)), said(item));
    if (item.kind === "end") return step(item.at, began, item.status === "DONE" ? "good" : item.status === "FAILED" ? "bad" : "", h("div", { class: "call-head" }, badge(item.status), item.code ? h("code", null, plain(item.code)) : null, h("span", null, plain(item.message))));
    const node = step(item.at, began, TONE[item.status] || "busy", call(item));
    node.dataset.call = item.callId;
    if (open.has(item.callId)) node.querySelector("details").open = true;
    return node;
  }));
  list.dataset.run = id;
}

export async function show(context, id) {
  const list = h("ol", { class: "timeline", "aria-label": t("Timeline"), "aria-live": "polite", "aria-relevant": "additions" });
  const facts = h("div", { class: "card" });
  const actions = h("div", { class: "actions" });
  let data = null, heard = []; // words that may be newer than what a load under way brings
  const print = ({ call: id, text }) => {
    const card = list.querySelector(`li[data-call="${CSS.escape(id)}"] .card`);
    const area = card?.querySelector(".so-far");
    if (area) area.textContent = (area.textContent + plain(text)).slice(-LIVE);
    else card?.querySelector("details").before(h("div", null, h("div", { class: "who" }, t("Output so far")), soFar(text)));
  };
  const append = (news) => {
    news.filter((one) => one.call).forEach(print);
    const words = news.filter((one) => !one.call);
    if (!words.length) return;
    const text = plain(words.map((one) => one.text).join(""));
    const last = list.querySelector(".said.partial");
    if (last) last.append(text);
    else list.append(step(now(), data.items[0].at, "busy", h("div", { class: "who" }, plain(data.run.agentId)), h("div", { class: "said partial" }, text)));
  };
  const load = async () => {
    const fresh = await get(`/runs/${encodeURIComponent(id)}/timeline`);
    if (!context.isHere()) return;
    data = fresh;
    const { run } = data;
    draw(list, data, id);
    heard = heard.filter((one) => one.position > data.position);
    append(heard);
    put(facts, h("dl", { class: "facts" },
      h("dt", null, t("Agent")), h("dd", null, plain(run.agentId)), h("dt", null, t("User")), h("dd", null, plain(run.userId)), h("dt", null, t("Session")), h("dd", null, mono(run.sessionId)),
      h("dt", null, t("Started")), h("dd", null, moment(run.createdAt)), h("dt", null, t("Took")), h("dd", null, run.endedAt ? took(run.endedAt - run.createdAt) : timer(run.createdAt)),
      data.promptTokens + data.completionTokens ? [h("dt", null, t("Tokens")), h("dd", null, `${data.promptTokens} + ${data.completionTokens}`)] : null));
    put(actions, badge(run.status), run.endedAt ? null : button(t("Cancel the run"), () => confirm(t("Cancel this run?"), t("What a tool has already done stays done."), t("Cancel the run"), async () => { await post(`/runs/${encodeURIComponent(id)}/cancel`); await load(); }), { tone: "danger" }));
  };
  await load();
  const isOurs = (told) => told.runs?.some((run) => run.runId === id);
  context.follow(load, isOurs, 40);
  context.onTold((told) => {
    if (isOurs(told)) return;
    const known = heard.at(-1)?.position || data.position;
    const fresh = (told.said || []).filter((one) => one.position > known);
    heard.push(...fresh);
    append(fresh);
  });
  return page(h("span", null, t("Run"), " ", mono(id)), actions, facts, list);
}
