import { h, plain, put } from "../dom.js";
import { download, get, post } from "../api.js";
import { t } from "../lang.js";
import { badge, block, button, card, dialog, empty, json, mono, moment, page, pager, table, toast } from "../ui.js";
import { checkProof } from "../proof.js";

const VERDICTS = { deny: "deny", allow: "allow", ask: "ask", PENDING: "PENDING", APPROVED: "APPROVED", REJECTED: "REJECTED", EXPIRED: "EXPIRED" };

async function look(item, key) {
  const proof = `/evidence/${item.index}/proof`;
  const verdict = h("div", { class: "notice", role: "status" }, t("Checking…"));
  const box = dialog(t("Record {n}", { n: item.index }), [verdict, json(item.record)], [
    button(t("Download the proof"), download(proof, `toolgate-record-${item.index}.json`), { tone: "quiet" }), button(t("Close"), () => box.close(), { tone: "quiet" })]);
  try {
    if (!crypto.subtle) { put(verdict, t("A browser checks nothing on a page that came over plain HTTP from another machine. Download the proof; toolgate evidence verify checks it.")); return; }
    const found = await checkProof(await get(proof), key);
    verdict.className = "notice good";
    put(verdict, t("Checked in this browser: record {n} is in the signed log of {size}, with {artifacts} artifacts.", { n: found.index, size: found.size, artifacts: found.artifacts }), found.signed ? "" : ` ${t("This browser cannot check the signature itself.")}`);
  } catch (wrong) { verdict.className = "notice bad"; put(verdict, t("It does not fit:"), " ", plain(wrong.message)); }
}

export async function show(context) {
  const query = { limit: 50, ...Object.fromEntries(new URLSearchParams(location.search)) };
  const trail = [];
  const box = h("div", { class: "stack" }), head = h("div", { class: "card" }), verdict = h("div", { "aria-live": "polite" });
  let data = null, asked = 0;
  const load = async () => {
    const mine = ++asked;
    const found = await get("/evidence", query);
    if (mine !== asked || !context.isHere()) return; // another search is in force by now
    data = found;
    const isOpen = head.querySelector("details")?.open;
    put(head, h("dl", { class: "facts" }, h("dt", null, t("Records")), h("dd", null, data.size.toLocaleString()), h("dt", null, t("Key")), h("dd", null, mono(data.key))),
      h("details", { open: isOpen }, h("summary", { class: "hint" }, t("The signed checkpoint")), block(data.checkpoint)));
    put(box, data.items.length ? table([
      { name: "#", class: "num", show: (one) => String(one.index) }, { name: t("When"), class: "num", show: (one) => moment(one.record.at) }, { name: t("Kind"), show: (one) => plain(one.record.kind) },
      { name: t("Tool"), show: (one) => (one.record.fields.tool ? mono(one.record.fields.tool) : "–") },
      { name: t("Says"), show: (one) => { const f = one.record.fields, word = f.decision || f.status; return VERDICTS[word] ? badge(word) : f.exit_code !== undefined ? t("exit {n}", { n: f.exit_code }) : "–"; } },
      { name: t("About"), class: "clip", show: (one) => mono(one.record.subject) },
      { name: "", class: "end", show: (one) => button(t("Verify"), () => look(one, data.key), { tone: "quiet", small: true }) },
    ], data.items, { label: t("Evidence") }) : (query.subject ? empty(t("There is no record about that."), t("Look for a request's whole id, as it stands under Details of a call.")) : empty(t("No records."), t("Every decision and every result of a tool call becomes one."))),
    pager(query, trail, data.nextCursor, load));
  };
  const verify = async () => {
    put(verdict, h("div", { class: "notice" }, t("Checking every record, tile and artifact…")));
    const found = await post("/evidence/verify");
    put(verdict, found.problems.length
      ? h("div", { class: "notice bad", role: "alert" }, h("strong", null, t("{n} things are not as they were recorded:", { n: found.problems.length })), h("ul", null, found.problems.slice(0, 50).map((one) => h("li", null, plain(one)))))
      : h("div", { class: "notice good" }, t("Verified: {n} records and {m} artifacts are exactly as they were recorded, in {ms} ms.", { n: found.size, m: found.artifacts, ms: found.tookMs })));
    if (found.problems.length) toast(t("The log does not fit."), "bad");
  };
  await load();
  context.follow(async () => query.cursor || load(), (told) => told.touched?.includes("evidence"));
  const search = h("input", { type: "search", placeholder: t("A request, such as tc_…"), "aria-label": t("Request"), value: query.subject || "", on: { change: (event) => { query.subject = event.target.value.trim(); query.cursor = ""; trail.length = 0; load().catch((failed) => put(box, h("div", { class: "notice bad" }, plain(failed.message)))); } } });
  return page(t("Evidence"), button(t("Verify everything"), verify), verdict, head, h("div", { class: "filters" }, search), box);
}
