"""The scripts that work a page, and look at it while it is worked; what reads it is in `page_looks.py`."""

from importlib.resources import files
from typing import Final

BLANK: Final = """(secrets) => {
  const known = secrets.map((secret) => secret.toLowerCase());
  const says = (text) => known.some((secret) => text.toLowerCase().includes(secret));
  const blank = (root) => {
    root.querySelectorAll("*").forEach((element) => {
      if (element.matches("input,textarea")) element.value = "";
      else if (element.matches("[contenteditable]:not([contenteditable=false])")) element.textContent = "";
      if (element.shadowRoot) blank(element.shadowRoot);
    });
    const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) if (says(texts.currentNode.data)) texts.currentNode.data = "[redacted]";
  };
  blank(document);
}"""
# How many answers it waits for, and what a page at rest shows again.
SEEN: Final = """[(window[Symbol.for("toolgate.pending")] || {}).pending || 0,
  location.href, document.title, document.body ? document.body.innerText.length : 0]"""
# Where it leads is opened here: another tab would be a pop-up, and closed.
HERE: Final = """element => {
  element.removeAttribute("formtarget");
  for (const one of [element.closest("a,area"), element.closest("form"), element.form]) {
    if (one instanceof Element) one.setAttribute("target", "_self");
  }
}"""
# How a field is filled in: as a select, by the type of an input, or as text.
KIND: Final = """element => element.tagName === "SELECT" ? "select"
  : element.tagName === "INPUT" ? element.type : "text" """
# The box of a group, or the radio button, that a value means, and whether it is to be ticked: by
# its own value or label, else by a word for yes or no to the one that was named.
CHOICE: Final = """(element, value) => {
  const tidy = (text) => String(text || "").replace(/\\s+/g, " ").trim().toLowerCase();
  const wanted = tidy(value);
  const alike = element.name
    ? [...element.getRootNode().querySelectorAll("input")].filter((one) =>
        one.type === element.type && one.name === element.name && one.form === element.form)
    : [element];
  const labelled = (one) => [...(one.labels || [])].some((label) => tidy(label.innerText) === wanted);
  const target = alike.find((one) => one.hasAttribute("value") && one.value === value)
    || alike.find((one) => wanted && labelled(one));
  if (target) return { target, ticked: true };
  if (["true", "on", "yes", "1", "checked"].includes(wanted)) return { target: element, ticked: true };
  const no = ["", "false", "off", "no", "0", "unchecked"].includes(wanted);
  return { target: no && element.type === "checkbox" ? element : null, ticked: false };
}"""
# As long as the extractor has it, and without half letters, which no JSON can hold.
TITLE: Final = (
    "Object.getOwnPropertyDescriptor(Document.prototype, 'title').get.call(document)"
    ".slice(0, 500).toWellFormed()"
)
FINDER: Final = files("toolgate.browser").joinpath("page_finder.js").read_text("utf-8")
