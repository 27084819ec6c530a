// Elements and text. Nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "value") node.value = value;
    else if (value === true) node.setAttribute(name, "");
    else node.setAttribute(name, value);
  }
  add(node, children);
  return node;
}

export function add(node, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

// A redraw keeps the keyboard's focus on the control of the same name in the same row.
const FOCUSABLE = "a[href],button,input,select,textarea,summary,[tabindex]";
const nameOf = (one) => JSON.stringify([one.closest("tr")?.cells[0].textContent, one.closest("[data-call]")?.dataset.call, one.tagName, one.getAttribute("href"), one.getAttribute("aria-label"), one.firstChild?.textContent]);

export function put(node, ...children) {
  const focused = node.contains(document.activeElement) && node !== document.activeElement ? nameOf(document.activeElement) : null;
  node.replaceChildren();
  add(node, children);
  if (focused) [...node.querySelectorAll(FOCUSABLE)].find((one) => nameOf(one) === focused)?.focus({ preventScroll: true });
  return node;
}

// Foreign text made harmless: without escape sequences, control and direction characters by name.
const ANSI = /\u001b(?:\[[0-9;:?<=>]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\^_])/g;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

export function plain(text) {
  return String(text ?? "")
    .replace(/\r\n/g, "\n")
    .replace(ANSI, "")
    .replace(HIDDEN, (c) => (c < " " ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`));
}
