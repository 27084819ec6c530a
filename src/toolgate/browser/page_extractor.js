// One look at a page: waits until it is quiet, then says what is on it, as one JSON text.
async (options) => {
  const watch = window[Symbol.for("toolgate.pending")] || { pending: 0 };
  // A form of that name would stand in for the document's own.
  const its = (name) => Object.getOwnPropertyDescriptor(Document.prototype, name).get.call(document);
  const READ_EVERY_MS = 25;
  const STILL_READS = 2;
  const LOAD_GRACE_MS = 1500; // a load event that a slow sub-resource holds up is not waited for

  const parsed = async () => {
    if (document.readyState !== "loading") return;
    await new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
  };
  // A script can take itself out of the page, and what it began goes on.
  const scripted = () => document.scripts.length > 0 || watch.framed || watch.pending > 0;
  const quiet = async () => {
    // Without a script or a frame nothing changes after the parser is done.
    const lively = scripted() || document.querySelector("iframe,frame") !== null;
    if (!options.quietMs || (!lively && document.readyState !== "loading")) return;
    let changes = 0;
    const observer = new MutationObserver((records) => { changes += records.length; });
    observer.observe(document, { childList: true, subtree: true, characterData: true });
    const begun = performance.now();
    let seen = -1;
    let still = 0;
    while (performance.now() - begun < options.quietMs) {
      const loaded = document.readyState === "complete" || performance.now() - begun > LOAD_GRACE_MS;
      if (loaded && watch.pending === 0 && changes === seen) {
        if (++still >= STILL_READS) break;
      } else {
        still = 0;
        seen = changes;
      }
      await new Promise((done) => setTimeout(done, READ_EVERY_MS));
    }
    observer.disconnect();
  };

  const WORST = 20000; // nodes looked at, so that a page of any size costs a bounded time
  const HIDDEN = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "SVG", "svg", "IFRAME", "OBJECT", "CANVAS"]);
  const INLINE = new Set(["A", "ABBR", "B", "BDI", "BDO", "CITE", "CODE", "DATA", "DFN", "EM", "I", "KBD", "LABEL",
    "MARK", "Q", "S", "SAMP", "SMALL", "SPAN", "STRONG", "SUB", "SUP", "TIME", "U", "VAR", "FONT", "INS", "DEL", "WBR"]);
  const HEADING = /^H[1-6]$/;
  const tidy = (text) => text.replace(/\s+/g, " ").trim();
  const cut = (text, length) => {
    if (text.length <= length) return text;
    const shorter = text.slice(0, length);
    const last = shorter.charCodeAt(length - 1);
    return last >= 0xd800 && last <= 0xdbff ? shorter.slice(0, -1) : shorter;
  };
  const whole = (text) => (text.toWellFormed ? text.toWellFormed() : text);
  const shown = (element) => !element.checkVisibility || element.checkVisibility({ visibilityProperty: true });

  // Text by the nearest block, in reading order, open shadow roots included.
  let cutShort = false; // whether the last sections were not all
  const sections = (limit) => {
    const found = [];
    let left = limit;
    let looked = 0;
    let heading = "";
    let tag = "body";
    let parts = [];
    const flush = () => {
      const text = tidy(parts.join(""));
      parts = [];
      if (!text || left <= 0) return;
      const kept = whole(cut(text, left));
      left -= kept.length;
      const section = { tag, text: kept };
      if (HEADING.test(tag.toUpperCase())) heading = whole(cut(kept, 200));
      else if (heading) section.heading = heading;
      found.push(section);
    };
    const walk = (node) => {
      for (let child = node.firstChild; child && left > 0 && looked < WORST; child = child.nextSibling) {
        looked++;
        if (child.nodeType === 3) {
          parts.push(child.data.length > left * 4 + 4000 ? child.data.slice(0, left * 4 + 4000) : child.data);
        } else if (child.nodeType === 1 && !HIDDEN.has(child.tagName)) {
          if (child.tagName === "BR") { parts.push(" "); continue; }
          if (!shown(child) && getComputedStyle(child).display !== "contents") continue;
          if (INLINE.has(child.tagName) && !child.shadowRoot) { walk(child); continue; }
          flush();
          const outer = tag;
          tag = whole(cut(child.tagName.toLowerCase(), 100));
          if (child.shadowRoot) walk(child.shadowRoot);
          walk(child);
          flush();
          tag = outer;
        }
      }
    };
    const root = its("body") || its("documentElement");
    if (root) walk(root);
    flush();
    cutShort = left <= 0 || looked >= WORST;
    return found;
  };

  const INTERACTIVE = "a[href],button,input:not([type=hidden]),select,textarea,summary,option[selected],h1,h2,h3,h4,h5,h6," +
    "[role]:not([role=none]):not([role=presentation]),[onclick],[contenteditable=''],[contenteditable=true],[tabindex]:not([tabindex='-1'])";
  const LARGE = 30000; // elements; beyond, no layout is asked for
  const large = document.getElementsByTagName("*").length > LARGE;
  // Role and name by the rules of ARIA in HTML: asking the browser's own tree costs it 8 ms an element.
  const IMPLICIT = { A: "link", BUTTON: "button", TEXTAREA: "textbox", SUMMARY: "DisclosureTriangle", OPTION: "option",
    H1: "heading", H2: "heading", H3: "heading", H4: "heading", H5: "heading", H6: "heading" };
  const INPUTS = { checkbox: "checkbox", radio: "radio", button: "button", submit: "button", reset: "button", image: "button",
    range: "slider", number: "spinbutton", search: "searchbox" };
  const roleOf = (element) => {
    const given = (element.getAttribute("role") || "").trim().split(/\s+/)[0];
    if (given) return whole(cut(given, 100));
    if (element.tagName === "SELECT") return element.multiple || element.size > 1 ? "listbox" : "combobox";
    if (element.tagName === "INPUT") return element.list ? "combobox" : INPUTS[element.type] || "textbox";
    return IMPLICIT[element.tagName] || (element.isContentEditable ? "textbox" : "generic");
  };
  // The text of an element as a name has it: pictures by their alt, form fields left out.
  const said = (node, depth = 0) => {
    if (node.nodeType === 3) return node.data;
    if (node.nodeType !== 1 || depth > 20 || HIDDEN.has(node.tagName) || node.getAttribute("aria-hidden") === "true") return "";
    if (node.getAttribute("aria-label")) return node.getAttribute("aria-label");
    if (node.tagName === "IMG") return node.alt || "";
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(node.tagName) || (depth > 0 && !shown(node))) return "";
    let text = "";
    for (const child of node.childNodes) {
      if (text.length > 400) break;
      const part = said(child, depth + 1);
      text += child.nodeType === 1 && !INLINE.has(child.tagName) ? ` ${part} ` : part;
    }
    return text;
  };
  const NAMED_BY_TEXT = new Set(["link", "button", "heading", "option", "tab", "menuitem", "checkbox", "radio", "switch", "treeitem", "DisclosureTriangle"]);
  const nameOf = (element, role) => {
    const by = element.getAttribute("aria-labelledby");
    if (by) {
      const text = by.split(/\s+/).map((id) => document.getElementById(id)).filter(Boolean).map((one) => said(one)).join(" ");
      if (tidy(text)) return text;
    }
    const label = element.getAttribute("aria-label");
    if (label && tidy(label)) return label;
    if (element.labels && element.labels.length) {
      const text = [...element.labels].map((one) => said(one)).join(" ");
      if (tidy(text)) return text;
    }
    if (element.tagName === "INPUT" && /^(submit|reset|button)$/.test(element.type)) {
      return element.value || { submit: "Submit", reset: "Reset" }[element.type] || "";
    }
    if (element.tagName === "INPUT" && element.type === "image") return element.alt || element.title || "Submit";
    if (NAMED_BY_TEXT.has(role) && element.tagName !== "INPUT") {
      const text = said(element);
      if (tidy(text)) return text;
    }
    return element.getAttribute("title") || element.getAttribute("placeholder") || "";
  };
  const ACTIONS = { link: ["click"], button: ["click"], textbox: ["fill", "press"], searchbox: ["fill", "press"],
    combobox: ["select"], listbox: ["select"], checkbox: ["check", "uncheck"], radio: ["check"], switch: ["check", "uncheck"],
    slider: ["fill"], spinbutton: ["fill", "press"], DisclosureTriangle: ["click"], tab: ["click"], menuitem: ["click"], option: ["select"] };
  const stateOf = (element) => {
    const state = {};
    if (element.disabled || element.getAttribute("aria-disabled") === "true") state.disabled = true;
    if (typeof element.checked === "boolean" && /^(checkbox|radio)$/.test(element.type)) state.checked = element.checked;
    if (element.required) state.required = true;
    if (element.readOnly) state.readonly = true;
    const expanded = element.getAttribute("aria-expanded");
    if (expanded !== null) state.expanded = expanded === "true";
    const selected = element.getAttribute("aria-selected");
    if (selected !== null) state.selected = selected === "true";
    if (element === document.activeElement) state.focused = true;
    return state;
  };

  const elements = (limit) => {
    const all = document.querySelectorAll(INTERACTIVE);
    const found = [];
    let total = 0;
    const looked = Math.min(all.length, WORST);
    for (let i = 0; i < looked; i++) {
      const element = all[i];
      if (!shown(element)) continue;
      total++;
      if (found.length >= limit) continue;
      const role = roleOf(element);
      const box = large ? null : element.getBoundingClientRect();
      found.push({
        id: "e" + total,
        role,
        label: whole(cut(tidy(nameOf(element, role)), 200)),
        actions: ACTIONS[role] || [],
        state: stateOf(element),
        bounds: box && { x: Math.round(box.x), y: Math.round(box.y), width: Math.round(box.width), height: Math.round(box.height) },
      });
    }
    return { found, total: total + all.length - looked };
  };

  const pageType = () => {
    if (document.querySelector("input[type=password]")) return "login";
    if (document.querySelector("input[type=search],[role=search],form[action*=search]")) return "search";
    if (document.querySelector("article,[itemtype*=Article]")) return "article";
    if (document.querySelector("form input:not([type=hidden]),form textarea,form select")) return "form";
    if (document.querySelectorAll("table tr").length > 3) return "table";
    if (document.querySelectorAll("main li, ul li, ol li").length > 10) return "list";
    return "page";
  };
  const meta = (name) => {
    const found = document.querySelector(`meta[name="${name}"],meta[property="${name}"]`);
    return found ? whole(cut(tidy(found.content || ""), 500)) : "";
  };

  // An old library teaches arrays to say themselves in another way: JSON.stringify would listen to it.
  const written = (value) => {
    const taught = [Object, Array, String, Number, Boolean].map((kind) => kind.prototype)
      .filter((kind) => Object.hasOwn(kind, "toJSON")).map((kind) => [kind, Object.getOwnPropertyDescriptor(kind, "toJSON")]);
    try {
      for (const [kind] of taught) delete kind.toJSON;
      return JSON.stringify(value);
    } finally {
      for (const [kind, as] of taught) Object.defineProperty(kind, "toJSON", as);
    }
  };

  if (options.quietMs) await parsed();
  await quiet();
  // A picture or a drawing never has a body; else, this is between two documents.
  if (!its("body") && (its("contentType") === "text/html" || document.readyState !== "complete")) return "";
  const title = whole(cut(tidy(its("title") || ""), 500));
  const type = pageType();
  const text = options.content || options.pageInfo || options.sections ? sections(options.content ? options.maxContentLength : 1000) : [];
  const truncated = cutShort;
  const digest = (words) => {
    let [one, other] = [0x811c9dc5, 0x41c6ce57];
    for (let at = 0; at < words.length; at++) {
      one = Math.imul(one ^ words.charCodeAt(at), 0x01000193);
      other = Math.imul(other ^ words.charCodeAt(at), 0x5f356495);
    }
    return `${words.length}-${one >>> 0}-${other >>> 0}`;
  };
  const SHOWS = "img,svg,canvas,video,audio,embed,object,iframe,frame,input:not([type=hidden]),button,select,textarea";
  const root = its("body") || its("documentElement");
  const isEmpty = text.length === 0 && (!root || !(root.matches("svg,math") || root.querySelector(SHOWS)));
  const ROBOT_SIGNS = { challenge: "#challenge-form,#cf-challenge-running,#challenge-error-text,#px-captcha,#sec-if-cpt-container",
    captcha: "iframe[src*='captcha'],.g-recaptcha,.h-captcha,.cf-turnstile,[id*='captcha' i] img" };
  const signs = Object.keys(ROBOT_SIGNS).filter((sign) => document.querySelector(ROBOT_SIGNS[sign]));
  const SOME_TEXT = 2000;
  const MOST_TEXT = 2e6; // characters; of a larger document no copy is made
  const MOST_NODES = 60000;
  // Counted as far as it is bounded: of a larger document it is too small.
  const textLength = (most) => {
    if (!its("documentElement")) return 0;
    const texts = document.createTreeWalker(its("documentElement"), NodeFilter.SHOW_TEXT);
    let size = 0;
    for (let nodes = 0; size <= most && nodes < MOST_NODES && texts.nextNode(); nodes++) {
      if (!HIDDEN.has(texts.currentNode.parentNode.nodeName)) size += tidy(texts.currentNode.data.slice(0, most)).length;
    }
    return size;
  };
  const copied = () => {
    if (!its("documentElement") || document.getElementsByTagName("*").length > MOST_NODES || textLength(MOST_TEXT) > MOST_TEXT) return "";
    const copy = document.implementation.createHTMLDocument("").importNode(its("documentElement"), true);
    for (const one of copy.querySelectorAll("script:not([type='application/ld+json']),style,svg,link[rel=stylesheet]")) one.remove();
    const html = copy.outerHTML;
    return html.length > 2 * MOST_TEXT ? "" : whole(html);
  };
  // Whether this page could go elsewhere by itself.
  const restless = scripted() || document.querySelector("meta[http-equiv=refresh i]") !== null;
  const navigation = performance.getEntriesByType("navigation")[0];
  const answer = { restless, isEmpty, signs, said: textLength(SOME_TEXT), status: (navigation && navigation.responseStatus) || 0, url: location.href, title, pageType: type, topSections: text.slice(0, 50).map((section) => whole(cut(section.text, 200))) };
  if (options.digest) answer.digest = digest(sections(1e6).map((section) => section.text).join("\n"));
  if (options.html) {
    answer.html = copied();
    // Of its own site; another site's frames say nothing here.
    answer.frames = [...document.querySelectorAll("iframe,frame")].slice(0, 20).map((frame) => {
      let inner = null;
      try { inner = frame.contentDocument; } catch (_) { /* another site's */ }
      const url = whole(cut(String((inner && inner.URL) || frame.src || ""), 1000));
      if (!inner) return { url, isRead: false, text: "" };
      const text = (inner.body && shown(frame) && inner.body.innerText) || "";
      return { url, isRead: true, text: whole(cut(text, 50000)) };
    }).filter((frame) => frame.text || !frame.isRead);
  }
  const some = elements(options.pageInfo ? options.maxElements : 0);
  answer.elementCount = some.total;
  if (options.pageInfo) {
    answer.pageInfo = {
      page: {
        url: location.href, title, type,
        summary: meta("description") || whole(cut(text.filter((s) => !HEADING.test(s.tag.toUpperCase())).map((s) => s.text).join(" "), 300)),
      },
      elements: some.found,
      totalElements: some.total,
    };
  }
  if (options.content) {
    const metadata = {};
    for (const name of ["description", "author", "keywords", "og:title", "og:type", "article:published_time"]) {
      const value = meta(name);
      if (value) metadata[name] = value;
    }
    if (document.documentElement && document.documentElement.lang) metadata.lang = whole(cut(document.documentElement.lang, 100));
    const canonical = document.querySelector("link[rel=canonical]");
    if (canonical) metadata.canonical = whole(cut(String(canonical.href), 1000));
    const links = [];
    for (const link of document.links) {
      if (links.length >= 100) break;
      const href = String(link.href);
      if (/^https?:/.test(href)) links.push({ text: whole(cut(tidy(link.textContent || ""), 100)), href: whole(cut(href, 1000)) });
    }
    const images = [];
    for (const image of document.images) {
      if (images.length >= 50) break;
      const src = image.currentSrc || image.src;
      if (/^https?:/.test(src)) images.push({ alt: whole(cut(tidy(image.alt || ""), 100)), src: whole(cut(src, 1000)) });
    }
    answer.content = { title, sections: text, links, images, metadata, truncated };
    const length = text.reduce((sum, section) => sum + section.text.length, 0);
    answer.content.totalLength = truncated ? Math.max(length, textLength(MOST_TEXT)) : length;
  }
  return written(answer);
}
