import { h, plain, put } from "../dom.js";
import { get, post, remove } from "../api.js";
import { t } from "../lang.js";
import { ago, badge, block, button, card, confirm, dialog, empty, field, mono, page, table, tick, toast } from "../ui.js";

const RIGHTS = { agent: "Talk to agents", system: "System commands", mcp: "MCP servers", approve: "Approve calls" };

const scopeOf = (scope) => h("span", { class: "scope" }, badge(scope.tools), Object.keys(RIGHTS).filter((name) => scope[name]).map((name) => h("span", { class: "badge calm" }, t(RIGHTS[name]))));

// Asks what someone may do, hands it to `make`, and shows the token that comes of it, once.
function grant(title, scope, { yes, make, done, isNew = false }) {
  const name = h("input", { required: true, pattern: "[A-Za-z0-9._\\-]{1,128}", spellcheck: "false", placeholder: "ci" });
  const level = h("select", { name: "tools" }, ["read", "write", "sign"].map((name) => h("option", { value: name, selected: scope.tools === name }, t({ read: "Read", write: "Write", sign: "Sign" }[name]))));
  const rights = Object.entries(RIGHTS).map(([name, words]) => h("label", { class: "check" }, tick(name, scope[name]), t(words)));
  const form = h("form", { class: "stack", on: { submit: (event) => event.preventDefault() } }, isNew ? field(t("Name"), name) : null, field(t("Tools up to"), level), h("div", { class: "checks" }, rights));
  const box = dialog(title, form, [
    button(t("Cancel"), () => box.close(), { tone: "quiet" }),
    button(yes, async () => {
      if (!form.reportValidity()) return;
      const wanted = { tools: level.value, ...Object.fromEntries(Object.keys(RIGHTS).map((name) => [name, box.querySelector(`[name=${name}]`).checked])) };
      const { token, words } = await make(wanted, name.value);
      box.close();
      done();
      const copy = navigator.clipboard && button(t("Copy"), async () => { await navigator.clipboard.writeText(token); toast(t("Copied")); }, { tone: "quiet" });
      const shown = dialog(words, [h("p", null, t("Its token, shown this once:")), block(token)], [copy, button(t("Done"), () => shown.close())]);
    }),
  ]);
}

const pair = (device, scope, done) => grant(t("What may {device} do?", { device: device.deviceId }), scope, { yes: t("Pair"), done, make: async (scope) => ({ token: (await post("/pairing/approve", { deviceId: device.deviceId, scope })).deviceToken, words: t("{device} is paired", { device: device.deviceId }) }) });

const script = (known, done) => grant(known ? t("Another token for {name}?", { name: known.name }) : t("A token for a script"), known?.scope || { tools: "read" }, { yes: t("Make it"), done, isNew: !known, make: async (scope, given) => {
  const name = known?.name || given;
  return { ...await post("/tokens", { name, scope }), words: t("{name} has a token", { name }) };
} });

export async function show(context) {
  const box = h("div", { class: "stack" });
  const load = async () => {
    const [{ pending }, { devices }, { items: services }] = await Promise.all([get("/pairing/pending"), get("/status"), get("/tokens")]);
    if (!context.isHere()) return;
    const end = (words, title, then, act) => button(words, () => confirm(title, then, words, async () => { await act(); await load(); }), { tone: "danger", small: true });
    put(box,
      card(t("Waiting to be paired"), pending.length ? table([
        { name: t("Code"), show: (one) => h("span", { class: "code" }, one.code) }, { name: t("Device"), class: "clip", show: (one) => mono(one.deviceId) },
        { name: t("From"), class: "clip", show: (one) => [h("div", null, plain(one.ip)), h("small", { title: plain(one.userAgent) }, plain(one.userAgent))] }, { name: t("Asked"), class: "num", show: (one) => ago(one.requestedAt) },
        { name: "", class: "end", show: (one) => h("div", { class: "actions" }, button(t("Pair…"), () => pair(one, { tools: "read" }, load), { small: true }), end(t("Turn away"), t("Turn {device} away?", { device: one.deviceId }), devices.some(({ deviceId }) => deviceId === one.deviceId) ? t("A device of this name is paired, and stays so.") : t("It may ask again."), () => post("/pairing/reject", { deviceId: one.deviceId }))) },
      ], pending, { label: t("Waiting to be paired") }) : empty(t("No device waits."), t("A device that calls the gateway without a token appears here with a code."))),
      card(t("Paired devices"), devices.length ? table([
        { name: t("Device"), class: "clip", show: (one) => mono(one.deviceId) }, { name: t("May"), show: (one) => scopeOf(one.scope) }, { name: t("Paired"), class: "num", show: (one) => ago(one.pairedAt) },
        { name: t("Last seen"), class: "num", show: (one) => ago(one.lastSeenAt) },
        { name: "", class: "end", show: (one) => h("div", { class: "actions" }, button(t("New token…"), () => pair(one, one.scope, load), { tone: "quiet", small: true }), end(t("Revoke"), t("Shut {device} out?", { device: one.deviceId }), t("Its token stops working at once; its commands that wait are refused, and the runs of its agents cancelled."), () => post("/pairing/revoke", { deviceId: one.deviceId }))) },
      ], devices, { label: t("Paired devices") }) : empty(t("No device is paired."), t("One that waits above can be let in with Pair…"))),
      card([t("Scripts with a token"), button(t("New token for a script…"), () => script(null, load), { small: true, tone: "quiet" })], services.length ? table([
        { name: t("Name"), class: "clip", show: (one) => mono(one.name) }, { name: t("May"), show: (one) => scopeOf(one.scope) }, { name: t("Made"), class: "num", show: (one) => ago(one.madeAt) },
        { name: "", class: "end", show: (one) => h("div", { class: "actions" }, button(t("New token…"), () => script(one, load), { tone: "quiet", small: true }), end(t("End"), t("End the token of {name}?", { name: one.name }), t("It stops working at once; its commands that wait are refused, and the runs of its agents cancelled."), () => remove(`/tokens/${encodeURIComponent(one.name)}`))) },
      ], services, { label: t("Scripts with a token") }) : empty(t("No script has a token."), t("A script sends its token as Authorization: Bearer, and needs no pairing."))));
  };
  await load();
  context.follow(load, (told) => told.touched);
  return page(t("Devices and pairing"), null, box);
}
