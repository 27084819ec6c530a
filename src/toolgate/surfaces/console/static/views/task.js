import { h, plain, put } from "../dom.js";
import { download, file, get, post } from "../api.js";
import { t } from "../lang.js";
import { badge, button, bytes, card, json, link, mono, moment, page, took } from "../ui.js";

export async function show(context, id) {
  const box = h("div", { class: "stack" });
  const actions = h("div", { class: "actions" });
  let over = false;
  const path = (one) => `/tasks/artifacts/${encodeURIComponent(one.artifactId)}`;
  const seen = new Map(); // images, each loaded once
  const forget = () => { seen.forEach((url) => URL.revokeObjectURL(url)); seen.clear(); };
  const load = async () => {
    const run = await get(`/tasks/${encodeURIComponent(id)}`);
    if (!context.isHere()) return;
    over = !["queued", "running"].includes(run.status);
    put(actions, badge(run.status), over ? null : button(t("Cancel"), async () => { await post(`/tasks/${encodeURIComponent(id)}/cancel`); await load(); }, { tone: "danger" }));
    for (const one of run.artifacts) if (/^image\/(png|jpeg|webp)$/.test(one.mimeType) && !seen.has(one.artifactId)) seen.set(one.artifactId, URL.createObjectURL(new Blob([await file(path(one))], { type: one.mimeType })));
    if (!context.isHere()) { forget(); return; }
    put(box, h("div", { class: "card" }, over ? null : h("progress", { value: run.progress.doneSteps, max: run.progress.totalSteps, "aria-label": t("Steps") }),
      h("dl", { class: "facts" }, h("dt", null, t("Template")), h("dd", null, plain(run.templateId)), h("dt", null, t("Steps")), h("dd", null, `${run.progress.doneSteps} / ${run.progress.totalSteps}`), h("dt", null, t("Started")), h("dd", null, moment(run.createdAt)), h("dt", null, t("Took")), h("dd", null, took(run.metrics.elapsedMs)))),
      run.message ? h("div", { class: "notice" }, h("p", null, plain(run.message)), h("p", null, link("/console/approvals", t("Approvals")))) : null,
      run.error ? h("div", { class: "notice bad" }, h("p", null, mono(run.error.errorCode), " ", plain(run.error.message)), h("p", null, plain(run.error.recoverHint))) : null,
      run.artifacts.length ? card(t("Artifacts"), h("div", { class: "shots" }, run.artifacts.map((one) => h("figure", null, seen.has(one.artifactId) ? h("a", { href: seen.get(one.artifactId), target: "_blank" }, h("img", { src: seen.get(one.artifactId), alt: plain(one.name) })) : null,
        h("figcaption", null, button(plain(one.name), download(path(one), one.name), { tone: "quiet", small: true }), h("span", { class: "soft" }, bytes(one.size))))))) : null,
      run.result ? card(t("Result"), json(run.result, t("Result"))) : null);
  };
  await load();
  context.follow(load, (told) => told.touched?.includes("tasks"));
  const every = setInterval(() => over || load().catch(() => {}), 1000);
  context.onLeave(() => { clearInterval(every); forget(); });
  return page(h("span", null, t("Browser task"), " ", mono(id)), actions, box);
}
