import { h, plain, put } from "../dom.js";
import { get, post } from "../api.js";
import { t } from "../lang.js";
import { ago, badge, button, call, card, empty, everySecond, link, later, mono, now, page, setNow, shortId, table, took, toast } from "../ui.js";

const SETTLE_MS = 400; // a key pressed for one approval must not decide the next

function countdown(approval) {
  const left = h("span", { class: "left", role: "timer" }); // or else it is read out at every second
  const fuse = h("i");
  const whole = Math.max(1, approval.expires_at - approval.asked_at);
  everySecond(left, () => {
    const rest = approval.expires_at - now();
    left.textContent = rest > 0 ? t("expires in {time}", { time: took(Math.ceil(rest / 1000) * 1000) }) : t("expired");
    left.classList.toggle("soon", rest < 60_000);
    fuse.style.width = `${Math.max(0, Math.min(100, (100 * rest) / whole))}%`;
  });
  return [left, h("div", { class: "fuse", "aria-hidden": "true" }, fuse)];
}

export async function show(context) {
  const waiting = h("div", { class: "stack", "aria-live": "polite" });
  const more = h("p", { class: "hint", hidden: true });
  const recent = h("div");
  const cards = new Map();
  let selected = "", since = 0;
  let isHeld = false; // someone was writing about what went away: the words must not decide another

  const select = (id) => {
    isHeld = false;
    if (id === selected) return;
    selected = id;
    since = performance.now();
    for (const [other, one] of cards) { one.node.classList.toggle("selected", other === id); if (other === id) one.node.scrollIntoView({ block: "nearest" }); }
  };
  const decide = async (id, approve) => {
    const one = cards.get(id);
    if (!one || one.busy || (approve && one.isHidden)) return;
    one.busy = true;
    one.hasFocus = one.node.contains(document.activeElement); // a button loses it while it is at work
    try {
      await post(`~/approvals/${encodeURIComponent(id)}/decide`, { approve, reason: one.reason.value });
      toast(approve ? t("Approved: {tool}", { tool: one.tool }) : t("Rejected: {tool}", { tool: one.tool }));
      drop(id);
    } catch (failed) { toast(failed.message, "bad"); if (failed.status === 409 || failed.status === 404) drop(id); } finally { one.busy = false; }
    load().catch(() => {}); // the link says so
  };
  const reveal = async (id) => {
    const one = cards.get(id);
    if (!one || one.busy) return;
    one.busy = true;
    try { one.show(await post(`~/approvals/${encodeURIComponent(id)}/reveal`, {}), true); } catch (failed) { toast(failed.message, "bad"); } finally { one.busy = false; }
  };
  const drop = (id) => {
    const ids = [...cards.keys()], at = ids.indexOf(id), hasFocus = cards.get(id)?.hasFocus;
    if (cards.get(id)?.reason === document.activeElement) isHeld = true;
    cards.get(id)?.node.remove();
    cards.delete(id);
    if (selected === id) { selected = ""; const following = ids[at + 1] || ids[at - 1]; if (following && !isHeld) select(following); }
    blank();
    if (hasFocus && !isHeld) (cards.get(selected)?.node || document.querySelector("h1"))?.focus({ preventScroll: true }); // the keyboard goes on from there
  };
  const blank = () => { if (!cards.size && !waiting.querySelector(".empty")) put(waiting, empty(t("Nothing waits for you."), t("What the policy asks about arrives here by itself."))); };
  const make = (one) => {
    const reason = h("input", { placeholder: t("Reason (optional, goes on record)"), "aria-label": t("Reason"), maxlength: 500 });
    const [left, fuse] = countdown(one);
    const args = h("div"), hidden = h("div", { class: "row" }), yes = button(t("Approve"), () => decide(one.id, true), { key: "a" });
    const made = { reason, tool: one.tool, show: (seen, own = false) => {
      made.isHidden = seen.hidden > 0 && !seen.revealed;
      put(args, call(seen.args, seen.summary));
      yes.disabled = made.isHidden;
      put(hidden, seen.hidden ? [h("p", { class: "notice" }, made.isHidden ? t("{n} characters are hidden. Reveal them before you approve; this goes on record.", { n: seen.hidden }) : t("{n} characters of it may be secret; they have been revealed.", { n: seen.hidden })), !own ? button(t("Reveal"), () => reveal(one.id), { tone: "quiet" }) : null] : null);
    } };
    made.show(one);
    const node = h("article", { class: "card approval arrives", tabindex: "-1", "aria-label": `${one.tool}: ${t("Waiting for approval")}`, on: { pointerdown: () => select(one.id), focusin: () => select(one.id) } },
      h("div", { class: "call-head" }, mono(one.tool), badge("PENDING"), left), fuse,
      args, hidden,
      h("dl", { class: "facts" },
        h("dt", null, t("Asked by")), h("dd", null, mono(one.asked_by), one.user ? [" ", t("for"), " ", mono(one.user)] : null, one.run_id ? [" · ", link(`/console/runs/${one.run_id}`, t("the run"))] : null, " · ", ago(one.asked_at)),
        h("dt", null, t("Why")), h("dd", null, plain(one.reason), " ", h("span", { class: "soft" }, t("rule"), " ", mono(one.rule_id))),
        one.target ? [h("dt", null, t("Target")), h("dd", null, mono(one.target))] : null),
      h("div", { class: "row" }, reason, yes, button(t("Reject"), () => decide(one.id, false), { tone: "danger", key: "x" })));
    made.node = node;
    return made;
  };
  const load = async () => {
    const data = await get("~/approvals");
    if (!context.isHere()) return;
    setNow(data.now);
    const there = new Set(data.pending.map((one) => one.id));
    for (const id of [...cards.keys()]) if (!there.has(id)) drop(id);
    waiting.querySelector(".empty")?.remove();
    for (const one of data.pending) if (!cards.has(one.id)) { const made = make(one); cards.set(one.id, made); waiting.append(made.node); } else if (one.revealed && cards.get(one.id).isHidden) cards.get(one.id).show(one); // by another operator
    if (!selected && !isHeld && cards.size) select(cards.keys().next().value);
    blank();
    more.hidden = data.total <= data.pending.length;
    more.textContent = t("{n} more wait; they come up as these are decided.", { n: data.total - data.pending.length });
    put(recent, data.recent.length ? card(t("Decided lately"), table([
      { name: t("Tool"), show: (one) => mono(one.tool) }, { name: t("Decision"), show: (one) => badge(one.status) },
      { name: t("By"), show: (one) => (one.confirmation === "self" ? `${plain(one.decided_by)} (${t("own call")})` : plain(one.decided_by) || "–") }, { name: t("Reason"), class: "clip wide", show: (one) => plain(one.note) || "–" },
      { name: t("Run"), show: (one) => (one.run_id ? link(`/console/runs/${one.run_id}`, shortId(one.run_id)) : "–") },
      { name: t("When"), class: "end num", show: (one) => ago(one.decided_at || one.expires_at) },
    ], data.recent, { label: t("Decided lately") })) : null);
  };
  await load();
  const soon = later(() => load().catch(() => {}), 30);
  context.onTold((told) => told.approvals && soon());
  context.onLink((on) => on && soon());
  const every = setInterval(soon, 15_000);
  context.onLeave(() => clearInterval(every));
  context.onKey((event) => {
    const ids = [...cards.keys()], at = ids.indexOf(selected);
    if (event.key === "j" && at < ids.length - 1) select(ids[at + 1]);
    else if (event.key === "k" && at > 0) select(ids[at - 1]);
    else if ((event.key === "a" || event.key === "x") && !event.repeat && selected && performance.now() - since > SETTLE_MS) decide(selected, event.key === "a");
  });
  return page(t("Approvals"), null, waiting, more, recent);
}
