import { h, plain, put } from "../dom.js";
import { get, post, remove } from "../api.js";
import { t } from "../lang.js";
import { ago, badge, button, confirm, dialog, empty, field, mono, page, table, toast, took } from "../ui.js";

const SERVERS = { "": "No server, or the one it has", command: "A program on this machine (stdio)", url: "An address (HTTP)" };
const ISOLATIONS = { sandbox: "In the sandbox", none: "None: as Toolgate's own user" };
const LEVELS = { read: "Read", write: "Write", sign: "Sign" };
const options = (names, chosen) => Object.entries(names).map(([value, words]) => h("option", { value, selected: value === chosen }, t(words)));
const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

// NAME=VALUE a line, as an environment is written.
function pairs(text) {
  return Object.fromEntries(lines(text).map((line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(t("{line}: write NAME=VALUE", { line }));
    return [line.slice(0, at), line.slice(at + 1)];
  }));
}

function edit(known, done) {
  const id = h("input", { value: known?.capabilityId || "mcp.", readonly: !!known, required: true, pattern: "[A-Za-z0-9._\\-]{1,128}", spellcheck: "false" });
  const scope = h("input", { value: known?.scope || "mcp", required: true });
  const level = h("select", null, options(LEVELS, known?.level || "write"));
  const rate = h("input", { type: "number", min: 1, max: 1000000, value: known?.rateLimit?.limit ?? "" });
  const kind = h("select", null, options(SERVERS, ""));
  const command = h("input", { spellcheck: "false", placeholder: "npx" });
  const args = h("textarea", { rows: 3, spellcheck: "false", placeholder: "-y\n@playwright/mcp" });
  const mounts = h("textarea", { rows: 2, spellcheck: "false", placeholder: "/srv/notes:/notes:ro" });
  const egress = h("textarea", { rows: 2, spellcheck: "false", placeholder: "api.example.com:443" });
  const isolation = h("select", null, options(ISOLATIONS, "sandbox"));
  const url = h("input", { type: "url", placeholder: "https://mcp.example.com/mcp" });
  const secrets = h("textarea", { rows: 2, spellcheck: "false", placeholder: "NAME=VALUE" });
  const parts = { command: [field(t("Program"), command), field(t("Arguments, one a line"), args), field(t("Isolation"), isolation), field(t("Mounts, HOST:INSIDE[:ro|rw] a line"), mounts), field(t("Hosts that it may reach, one a line"), egress)], url: [field(t("Address"), url)] };
  const server = h("div", { class: "stack" });
  const pick = () => put(server, parts[kind.value] || null, kind.value ? field(kind.value === "url" ? t("Headers, NAME=VALUE a line") : t("Environment, NAME=VALUE a line"), secrets, t("Goes in and is never shown.")) : null);
  kind.addEventListener("change", pick);
  const form = h("form", { class: "stack" }, h("div", { class: "form" }, field(t("Name"), id, t("Its tools are called {name}.TOOL", { name: "mcp.docs" })), field(t("Scope"), scope), field(t("Level"), level), field(t("Calls a minute"), rate)), field(t("Server"), kind), server);
  const save = async () => {
    if (!form.reportValidity()) return;
    const body = { ...(known && { version: known.version, owner: known.owner, expiresAt: known.expiresAt, status: known.registeredStatus }), capabilityId: id.value, level: level.value, scope: scope.value, rateLimit: rate.value ? { ...known?.rateLimit, limit: Number(rate.value) } : null };
    if (kind.value === "command") body.server = { command: command.value.trim(), args: lines(args.value), env: pairs(secrets.value), isolation: isolation.value, mounts: lines(mounts.value), egress: lines(egress.value) };
    if (kind.value === "url") body.server = { url: url.value.trim(), headers: pairs(secrets.value) };
    await post("/capabilities/register", body);
    box.close();
    toast(t("Saved"));
    done();
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  const box = dialog(known ? known.capabilityId : t("Register a capability"), form, [button(t("Cancel"), () => box.close(), { tone: "quiet" }), button(t("Save"), save)]);
}

export async function show(context) {
  const box = h("div");
  const load = async () => {
    const data = await get("/capabilities");
    if (!context.isHere()) return;
    const drop = (one) => confirm(t("Remove {name}?", { name: one.capabilityId }), t("Calls of its tools will be refused."), t("Remove"), async () => { await remove(`/capabilities/${encodeURIComponent(one.capabilityId)}`); await load(); });
    put(box, data.items.length ? table([
      { name: t("Capability"), class: "clip", show: (one) => mono(one.capabilityId) }, { name: t("Health"), show: (one) => h("span", { title: plain(one.reason) }, badge(one.status)) }, { name: t("Level"), show: (one) => badge(one.level) },
      { name: t("Scope"), show: (one) => plain(one.scope) }, { name: t("Server"), class: "clip wide", show: (one) => (one.server ? h("code", { title: plain(one.server) }, one.isolation === "none" ? t("Not isolated:") : "", " ", plain(one.server)) : "–") },
      { name: t("Rate"), class: "num", show: (one) => (one.rateLimit ? one.rateLimit.windowMs === 60_000 ? t("{n} a minute", { n: one.rateLimit.limit }) : `${one.rateLimit.limit} / ${took(one.rateLimit.windowMs)}` : "–") },
      { name: t("Changed"), class: "num", show: (one) => (one.updatedAt ? ago(one.updatedAt) : t("built in")) },
      { name: "", class: "end", show: (one) => h("div", { class: "actions" }, button(t("Edit…"), () => edit(one, load), { tone: "quiet", small: true }), one.updatedAt ? button(t("Remove"), () => drop(one), { tone: "danger", small: true }) : null) },
    ], data.items, { label: t("Capabilities") }) : empty(t("Nothing is registered."), t("Register an MCP server, and agents can call its tools under the policy.")));
  };
  await load();
  context.follow(load, (told) => told.touched?.includes("audit"));
  return page(t("Capabilities"), button(t("Register a capability…"), () => edit(null, load)), box);
}
