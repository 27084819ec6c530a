// English is what stands in the code; another language is a table from it.

const KEPT = "toolgate.lang";
let table = {};
let current = "en";

export const missing = new Set(); // what the table does not have: a test asks for it

export const languages = { en: "English", zh: "简体中文" };
export const language = () => current;

function preferred() {
  const kept = localStorage.getItem(KEPT);
  if (kept in languages) return kept;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export async function loadLanguage(name = preferred()) {
  current = name;
  table = name === "zh" ? (await import("./lang-zh.js")).default : {};
  document.documentElement.lang = name === "zh" ? "zh-CN" : "en";
}

export async function setLanguage(name) {
  localStorage.setItem(KEPT, name);
  await loadLanguage(name);
}

export function t(text, values) {
  const found = table[text] ?? text;
  if (current !== "en" && !(text in table)) missing.add(text);
  return values ? found.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? values[name] : whole)) : found;
}
