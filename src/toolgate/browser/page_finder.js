// Finds an element by what a person would call it. `kind`: field, target (something to click), any.
({ query, kind }) => {
  const FIELDS = "input:not([type=hidden]):not([type=submit]):not([type=button]):not([type=image]):not([type=reset]),textarea,select,[contenteditable='']," +
    "[contenteditable=true],[role=textbox],[role=searchbox],[role=combobox]";
  const TARGETS = "button,a[href],input[type=submit],input[type=button],input[type=image],summary,[role=button],[role=link],[role=tab],[role=menuitem],[onclick]";
  const tidy = (text) => String(text || "").replace(/\s+/g, " ").trim().toLowerCase();
  const wanted = tidy(query);
  if (!wanted) return null;
  const words = wanted.split(" ");
  const shown = (element) => !element.checkVisibility || element.checkVisibility({ visibilityProperty: true });
  const score = (element) => {
    const by = element.getAttribute("aria-labelledby");
    const named = by ? by.split(/\s+/).map((id) => document.getElementById(id)).filter(Boolean).map((one) => one.innerText).join(" ") : "";
    const names = [named, element.getAttribute("aria-label"), element.labels && element.labels[0] && element.labels[0].innerText,
      kind === "field" ? "" : element.innerText, element.getAttribute("placeholder"), element.getAttribute("title"),
      element.tagName === "INPUT" && kind !== "field" ? element.value : ""].map(tidy);
    const hints = [element.name, element.id, element.getAttribute("autocomplete"), element.getAttribute("rel"), element.type, element.getAttribute("data-testid")].map(tidy);
    let best = 0;
    for (const name of names) {
      if (!name) continue;
      if (name === wanted) best = Math.max(best, 100);
      else if (name.startsWith(wanted)) best = Math.max(best, 80);
      else if (name.includes(wanted)) best = Math.max(best, 60);
      else if (words.every((word) => name.includes(word))) best = Math.max(best, 50);
    }
    for (const hint of hints) {
      if (!hint) continue;
      if (hint === wanted) best = Math.max(best, 70);
      else if (hint.includes(wanted.replace(/ /g, ""))) best = Math.max(best, 40);
    }
    return best;
  };
  let found = null;
  let best = 0;
  const within = kind === "field" ? FIELDS : kind === "target" ? TARGETS : FIELDS + "," + TARGETS;
  for (const element of document.querySelectorAll(within)) {
    if (!shown(element) || element.disabled || element.getAttribute("aria-disabled") === "true") continue;
    const points = score(element);
    if (points > best) { best = points; found = element; }
  }
  return found;
}
