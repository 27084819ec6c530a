import { h, plain, put } from "../dom.js";
import { get, post } from "../api.js";
import { t } from "../lang.js";
import { ago, badge, button, dialog, empty, field, link, page, shortId, table, took } from "../ui.js";

const SAMPLE = "http://pages.toolgate.example"; // answered by Toolgate itself, so that a task can be tried anywhere
const PAGE = 50;
const EXAMPLES = { batch_extract_pages: { urls: [`${SAMPLE}/`, `${SAMPLE}/policy`] }, screenshot_page: { url: `${SAMPLE}/` }, pdf_page: { url: `${SAMPLE}/` } };

function start(templates, context) {
  const chosen = h("select", null, templates.map((one) => h("option", { value: one.templateId }, one.templateId)));
  const inputs = h("textarea", { rows: 8, spellcheck: "false" });
  const about = h("small");
  const pick = () => { const one = templates.find((each) => each.templateId === chosen.value); about.textContent = one.description; inputs.value = JSON.stringify(EXAMPLES[one.templateId] || Object.fromEntries((one.inputSchema?.required || []).map((name) => [name, ""])), null, 2); };
  chosen.addEventListener("change", pick);
  pick();
  const box = dialog(t("New browser task"), [field(t("Template"), chosen), about, field(t("Inputs (JSON)"), inputs)], [button(t("Cancel"), () => box.close(), { tone: "quiet" }), button(t("Start"), async () => { const made = await post("/tasks", { templateId: chosen.value, inputs: JSON.parse(inputs.value) }); box.close(); context.go(`/console/tasks/${made.runId}`); })]);
}

export async function show(context) {
  const box = h("div", { class: "stack" });
  let offset = 0;
  const load = async () => {
    const data = await get("/tasks", { offset, limit: PAGE });
    if (!context.isHere()) return;
    put(box, data.runs.length ? table([
      { name: t("Task"), show: (run) => link(`/console/tasks/${run.runId}`, shortId(run.runId)) }, { name: t("State"), show: (run) => badge(run.status) }, { name: t("Template"), show: (run) => plain(run.templateId) },
      { name: t("Steps"), class: "num", show: (run) => `${run.progress.doneSteps} / ${run.progress.totalSteps}` }, { name: t("Artifacts"), class: "num", show: (run) => String(run.artifactIds.length) },
      { name: t("Took"), class: "num", show: (run) => took(run.metrics.elapsedMs) }, { name: t("Started"), class: "end num", show: (run) => ago(run.createdAt) },
    ], data.runs, { label: t("Browser tasks"), onRow: (run) => context.go(`/console/tasks/${run.runId}`) }) : empty(t("No browser task has run."), t("Agents and MCP clients start them; so can you.")),
    h("div", { class: "pager" }, offset ? button(t("Newer"), () => { offset = Math.max(0, offset - PAGE); return load(); }, { tone: "quiet" }) : null, data.hasMore ? button(t("Older"), () => { offset += PAGE; return load(); }, { tone: "quiet" }) : null));
  };
  await load();
  context.follow(load, (told) => told.touched?.includes("tasks"));
  return page(t("Browser tasks"), button(t("New browser task…"), async () => start((await get("/tasks/templates")).templates, context)), box);
}
