import { h, plain, put } from "../dom.js";
import { get, post, put as send } from "../api.js";
import { t } from "../lang.js";
import { badge, button, card, confirm, mono, page, table, toast } from "../ui.js";

const DRAFT = "toolgate.policy";

export async function show(context) {
  let data = await get("/policy");
  const text = h("textarea", { class: "code-text", rows: 30, spellcheck: "false", "aria-label": t("The policy"), value: data.text });
  const found = h("div", { "aria-live": "polite" });
  // The draft outlives the page and the session.
  const draft = JSON.parse(sessionStorage.getItem(DRAFT) || "{}");
  const isDraft = draft.text && draft.text !== data.text;
  if (isDraft) text.value = draft.text;
  let over = isDraft ? draft.over : data.version; // what it was written over: nobody's change since then is lost
  const restored = h("div", { class: "notice", role: "status" });
  const drawDraft = () => {
    restored.hidden = text.value === data.text;
    put(restored, t("This is your draft; another text is in force."), " ", over === data.version ? null : [t("That was changed after you began: compare the rules in force."), " ", button(t("I have compared them"), () => { over = data.version; keep(); drawDraft(); }, { tone: "quiet", small: true }), " "],
      button(t("Discard it"), () => { text.value = data.text; drop(); }, { tone: "quiet", small: true }));
  };
  const drop = () => { sessionStorage.removeItem(DRAFT); restored.hidden = true; over = data.version; };
  const keep = () => { try { sessionStorage.setItem(DRAFT, JSON.stringify({ text: text.value, over })); } catch { /* there is no room: it is on the page */ } };
  drawDraft();
  text.addEventListener("input", keep);
  const rules = h("div", { class: "rules", tabindex: "0", role: "region", "aria-label": t("Rules in force") });
  const about = h("p", { class: "hint" });
  const draw = () => {
    put(about, t("{rules} rules, {tests} tests, version {version}", { rules: data.rules.length, tests: data.testCount, version: data.version.slice(0, 19) }));
    put(rules, table([{ name: t("Rule"), class: "wrap", show: (rule) => [mono(rule.id), h("div", { class: "hint" }, plain(rule.reason))] }, { name: t("Decides"), show: (rule) => badge(rule.effect) }, { name: t("Tools"), class: "wrap", show: (rule) => h("code", null, plain(rule.tools.join(", "))) }], data.rules, { label: t("Rules") }));
  };
  const refused = (problems) => put(found, h("div", { class: "notice bad", role: "alert" }, h("strong", null, t("It cannot become active:")), h("ul", null, problems.map((problem) => h("li", null, plain(problem))))));
  const check = async () => {
    const answer = await post("/policy/check", { text: text.value });
    if (answer.problems.length) { refused(answer.problems); return false; }
    put(found, h("div", { class: "notice good" }, t("Well formed; {tests} tests pass, {rules} rules.", { tests: answer.testCount, rules: answer.ruleCount })));
    return true;
  };
  const simulate = async () => {
    if (!(await check())) return;
    const { checked: seen, changed: changes } = await post("/policy/simulate", { text: text.value, limit: 1000 });
    put(found, h("div", { class: changes.some((one) => one.loosens) ? "notice" : "notice good" }, t("Of the last {seen} calls, {n} would have been decided otherwise; {m} of them more freely.", { seen, n: changes.length, m: changes.filter((one) => one.loosens).length })),
      changes.length ? table([{ name: t("Tool"), show: (one) => mono(one.tool) }, { name: t("Arguments"), class: "clip", show: (one) => plain(JSON.stringify(one.args)) }, { name: t("Was"), show: (one) => [badge(one.was), " ", mono(one.wasRuleId)] }, { name: t("Would be"), show: (one) => [badge(one.wouldBe), " ", mono(one.ruleId)] }], changes, { label: t("Changes") }) : null);
  };
  const activate = async () => {
    if (!(await check())) return;
    confirm(t("Put this policy in force?"), t("It decides every call from now on. What waits for approval was asked under the old one and must be asked again."), t("Activate"), async () => {
      try { await send("/policy", { text: text.value, over }); } catch (failed) {
        if (failed.problems.length) refused(failed.problems);
        else { data = await get("/policy"); draw(); drawDraft(); }
        throw failed;
      }
      data = await get("/policy");
      drop();
      draw();
      toast(t("The policy is in force."));
    }, "");
  };
  draw();
  return page(t("Policy"), [button(t("Check"), check, { tone: "quiet" }), button(t("Simulate"), simulate, { tone: "quiet" }), button(t("Activate…"), activate)],
    data.error ? h("div", { class: "notice bad" }, plain(data.error)) : null, about, restored, found, h("div", { class: "two" }, text, card(t("Rules in force"), rules)));
}
