import { h, plain, put } from "../dom.js";
import { get, post } from "../api.js";
import { t } from "../lang.js";
import { ago, badge, block, button, card, confirm, dialog, empty, field, later, mono, page, setNow, table, tick } from "../ui.js";

const RIGHTS = { agent: "Talk to agents", system: "System commands", mcp: "MCP servers", approve: "Approve calls" };

const scopeOf = (scope) => h("span", { class: "scope" }, badge(scope.tools), Object.keys(RIGHTS).filter((name) => scope[name]).map((name) => h("span", { class: "badge calm" }, t(RIGHTS[name]))));

function grant(device, scope, done) {
  const level = h("select", { name: "tools" }, ["read", "write", "sign"].map((name) => h("option", { value: name, selected: scope.tools === name }, t({ read: "Read", write: "Write", sign: "Sign" }[name]))));
  const rights = Object.entries(RIGHTS).map(([name, words]) => h("label", { class: "check" }, tick(name, scope[name]), t(words)));
  const box = dialog(t("What may {device} do?", { device: device.id }), h("div", { class: "form" }, field(t("Tools up to"), level), h("div", { class: "scope" }, rights)), [
    button(t("Cancel"), () => box.close(), { tone: "quiet" }),
    button(t("Pair"), async () => {
      const wanted = { tools: level.value, ...Object.fromEntries(Object.keys(RIGHTS).map((name) => [name, box.querySelector(`[name=${name}]`).checked])) };
      const { token } = await post(`/devices/${encodeURIComponent(device.id)}/pair`, wanted);
      box.close();
      done();
      const shown = dialog(t("{device} is paired", { device: device.id }), [h("p", null, t("Its token, shown this once:")), block(token)], button(t("Done"), () => shown.close()));
    }),
  ]);
}

export async function show(context) {
  const box = h("div", { class: "stack" });
  const load = async () => {
    const data = await get("/devices");
    if (!context.isHere()) return;
    setNow(data.now);
    const revoke = (id, words) => button(words, () => confirm(t("Shut {device} out?", { device: id }), t("Its token stops working at once."), words, async () => { await post(`/devices/${encodeURIComponent(id)}/revoke`); await load(); }), { tone: "danger", small: true });
    put(box,
      card(t("Waiting to be paired"), data.pending.length ? table([
        { name: t("Code"), show: (one) => h("span", { class: "code" }, one.code) }, { name: t("Device"), show: (one) => mono(one.id) },
        { name: t("From"), show: (one) => [h("div", null, plain(one.ip)), h("small", null, plain(one.user_agent))] }, { name: t("Asked"), class: "num", show: (one) => ago(one.requested_at) },
        { name: "", class: "end", show: (one) => h("div", { class: "actions" }, button(t("Pair…"), () => grant(one, { tools: "read" }, load), { small: true }), revoke(one.id, t("Turn away"))) },
      ], data.pending, { label: t("Waiting to be paired") }) : empty(t("No device waits."), t("A device that calls the gateway without a token appears here with a code."))),
      card(t("Paired devices"), data.devices.length ? table([
        { name: t("Device"), show: (one) => mono(one.id) }, { name: t("May"), show: (one) => scopeOf(one.scope) }, { name: t("Paired"), class: "num", show: (one) => ago(one.paired_at) },
        { name: t("Last seen"), class: "num", show: (one) => ago(one.last_seen) },
        { name: "", class: "end", show: (one) => h("div", { class: "actions" }, button(t("New token…"), () => grant(one, one.scope, load), { tone: "quiet", small: true }), revoke(one.id, t("Revoke"))) },
      ], data.devices, { label: t("Paired devices") }) : empty(t("No device is paired."))),
      data.services.length ? card(t("Scripts with a token"), table([{ name: t("Name"), show: (one) => mono(one.name) }, { name: t("May"), show: (one) => scopeOf(one.scope) }, { name: t("Made"), class: "end num", show: (one) => ago(one.made_at) }], data.services)) : null);
  };
  await load();
  const soon = later(() => load().catch(() => {}));
  context.onTold((told) => told.touched && soon());
  context.onLink((on) => on && soon());
  return page(t("Devices and pairing"), null, box);
}
