import { plain } from "../dom.js";
import { get } from "../api.js";
import { t } from "../lang.js";
import { ago, badge, empty, mono, page, table } from "../ui.js";

export async function show() {
  const data = await get("/capabilities");
  return page(t("Capabilities"), null, data.items.length ? table([
    { name: t("Capability"), show: (one) => mono(one.id) }, { name: t("Health"), show: (one) => badge(one.status) }, { name: t("Level"), show: (one) => badge(one.level) },
    { name: t("Scope"), show: (one) => plain(one.scope) }, { name: t("Server"), class: "clip", show: (one) => (one.server ? mono(one.server) : "–") },
    { name: t("Rate"), class: "num", show: (one) => (one.rate ? t("{n} a minute", { n: one.rate }) : "–") },
    { name: t("Changed"), class: "end num", show: (one) => (one.updated_at ? ago(one.updated_at) : t("built in")) },
  ], data.items, { label: t("Capabilities") }) : empty(t("Nothing is registered.")));
}
