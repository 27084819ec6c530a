import { h, plain, put } from "../dom.js";
import { get, put as send, remove } from "../api.js";
import { t } from "../lang.js";
import { ago, badge, button, confirm, dialog, field, mono, page, table, tick, toast } from "../ui.js";

const LOCAL = "target_local_default";

function edit(target, done) {
  const isNew = !target;
  const isLocal = target?.targetId === LOCAL;
  const id = h("input", { value: target?.targetId || "", readonly: !isNew, required: true, pattern: "[A-Za-z0-9._\\-]{1,128}", spellcheck: "false" });
  const tenant = h("input", { value: target?.tenantId || "t_default", readonly: !isNew });
  const kind = h("select", null, ["docker-runner", "local-host"].map((name) => h("option", { value: name, selected: target?.kind === name }, name)));
  const endpoint = h("input", { type: "url", value: target?.endpoint || "", placeholder: "http://127.0.0.1:18081/execute" });
  const token = h("input", { type: "password", autocomplete: "new-password", placeholder: target?.hasAuthToken ? t("stays as it is") : "" });
  const timeout = h("input", { type: "number", min: 1, max: 180000, value: target?.config?.timeoutMs ?? "" });
  const enabled = tick("enabled", target ? target.enabled : true), standard = tick("default", target?.isDefault);
  const box = dialog(isNew ? t("New target") : target.targetId, h("form", { class: "form" }, field(t("Name"), id), isLocal ? null : [field(t("Tenant"), tenant), field(t("Kind"), kind), field(t("Address"), endpoint), field(t("Token"), token, t("Goes in and is never shown."))], field(t("Time limit (ms)"), timeout),
    h("label", { class: "check" }, enabled, t("Enabled")), isLocal ? null : h("label", { class: "check" }, standard, t("Default"))), [
    button(t("Cancel"), () => box.close(), { tone: "quiet" }),
    button(t("Save"), async () => {
      if (!box.querySelector("form").reportValidity()) return;
      const config = { ...(target?.config || {}) };
      if (timeout.value) config.timeoutMs = Number(timeout.value); else delete config.timeoutMs;
      const body = { enabled: enabled.checked, config };
      if (!isLocal) Object.assign(body, { tenantId: tenant.value, kind: kind.value, endpoint: endpoint.value, isDefault: standard.checked });
      if (!isLocal && token.value) body.authToken = token.value;
      await send(`/execution-targets/${encodeURIComponent(id.value)}`, body);
      box.close();
      toast(t("Saved"));
      done();
    }),
  ]);
}

export async function show(context) {
  const box = h("div");
  const load = async () => {
    const { items } = await get("/execution-targets");
    if (!context.isHere()) return;
    put(box, table([
      { name: t("Target"), class: "clip", show: (one) => [mono(one.targetId), one.isDefault ? [" ", h("span", { class: "badge good" }, t("default"))] : null] },
      { name: t("Kind"), class: "num", show: (one) => plain(one.kind) }, { name: t("Address"), class: "clip", show: (one) => (one.endpoint ? mono(one.endpoint) : one.kind === "local-host" ? t("this machine") : "–") },
      { name: t("Tenant"), show: (one) => plain(one.tenantId) || t("everyone") }, { name: t("Token"), show: (one) => (one.hasAuthToken ? "••••••" : "–") },
      { name: t("State"), show: (one) => badge(one.enabled ? "enabled" : "disabled") }, { name: t("Changed"), class: "num", show: (one) => ago(Date.parse(one.updatedAt)) },
      { name: "", class: "end", show: (one) => h("div", { class: "actions" }, button(t("Edit…"), () => edit(one, load), { tone: "quiet", small: true }), one.targetId === LOCAL ? null : button(t("Delete"), () => confirm(t("Delete {name}?", { name: one.targetId }), t("Calls that name it will be refused."), t("Delete"), async () => { await remove(`/execution-targets/${encodeURIComponent(one.targetId)}`); await load(); }), { tone: "danger", small: true })) },
    ], items, { label: t("Execution targets") }));
  };
  await load();
  context.follow(load, (told) => told.touched?.includes("audit"));
  return page(t("Execution targets"), button(t("New target…"), () => edit(null, load)), box);
}
