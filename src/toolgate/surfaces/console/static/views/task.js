import { h, plain, put } from "../dom.js";
import { get, post } from "../api.js";
import { t } from "../lang.js";
import { badge, button, bytes, card, json, later, link, mono, moment, page, took } from "../ui.js";

const IMAGES = ["image/png", "image/jpeg", "image/webp"];

export async function show(context, id) {
  const box = h("div", { class: "stack" });
  const actions = h("div", { class: "actions" });
  let over = false;
  const load = async () => {
    const run = await get(`/tasks/${encodeURIComponent(id)}`);
    if (!context.isHere()) return;
    over = !["queued", "running"].includes(run.status);
    put(actions, badge(run.status), over ? null : button(t("Cancel"), async () => { await post(`/tasks/${encodeURIComponent(id)}/cancel`); await load(); }, { tone: "danger" }));
    const url = (one) => `/console/api/artifacts/${encodeURIComponent(one.id)}`;
    put(box, h("div", { class: "card" }, over ? null : h("progress", { value: run.progress.doneSteps, max: run.progress.totalSteps, "aria-label": t("Steps") }),
      h("dl", { class: "facts" }, h("dt", null, t("Template")), h("dd", null, plain(run.templateId)), h("dt", null, t("Steps")), h("dd", null, `${run.progress.doneSteps} / ${run.progress.totalSteps}`), h("dt", null, t("Started")), h("dd", null, moment(run.createdAt)), h("dt", null, t("Took")), h("dd", null, took(run.metrics.elapsedMs)))),
      run.message ? h("div", { class: "notice" }, h("p", null, plain(run.message)), h("p", null, link("/console/approvals", t("Approvals")))) : null,
      run.error ? h("div", { class: "notice bad" }, h("p", null, mono(run.error.errorCode), " ", plain(run.error.message)), h("p", null, plain(run.error.recoverHint))) : null,
      run.artifacts.length ? card(t("Artifacts"), h("div", { class: "shots" }, run.artifacts.map((one) => h("figure", null, IMAGES.includes(one.type) ? h("a", { href: url(one), target: "_blank", rel: "noreferrer" }, h("img", { src: url(one), alt: plain(one.name), loading: "lazy" })) : null,
        h("figcaption", null, h("a", { href: url(one), download: true }, plain(one.name)), h("span", { class: "soft" }, bytes(one.size))))))) : null,
      run.result ? card(t("Result"), json(run.result, t("Result"))) : null);
  };
  await load();
  const soon = later(() => load().catch(() => {}), 100);
  context.onTold((told) => told.touched?.includes("tasks") && soon());
  const every = setInterval(() => over || soon(), 1000);
  context.onLeave(() => clearInterval(every));
  return page(h("span", null, t("Browser task"), " ", mono(id)), actions, box);
}
