// A client like any other: it speaks the ingress contract over a WebSocket, and comes back with the
// number of the last event it saw.

import { add, h, plain, put } from "../dom.js";
import { t } from "../lang.js";
import { button, call, mono } from "../ui.js";

const KEPT = "toolgate.chat";
const TOO_BIG = 1009; // how a WebSocket is closed over a message that is longer than it may be
const MOST = 20_000; // characters of one answer: a bubble is to be read, and a run's page has all of it
const EXAMPLES = [
  ["Add two numbers", 'Let me work that out. [[tool:math.add {"a": 2, "b": 40}]]'],
  ["Ask a person", 'I would like to note this down. [[tool:kv.set {"key": "greeting", "value": "hello"}]]'],
  ["Run a command", 'What machine is this? [[tool:shell {"command": "uname -a && id"}]]'],
  ["Try something forbidden", 'Cleaning up. [[tool:shell {"command": "rm -rf /"}]]'],
];

// Not crypto.randomUUID: a page that came over plain HTTP from another machine has none.
const newName = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (one) => one.toString(16).padStart(2, "0")).join("");

export async function show(context) {
  const { port, api_key: key, agents } = context.me.chat;
  const kept = JSON.parse(sessionStorage.getItem(KEPT) || "{}");
  const log = h("div", { class: "log", role: "log", "aria-live": "polite", tabindex: "0", "aria-label": t("Conversation") });
  const state = h("span", { class: "linked", role: "status" }, t("Connecting…"));
  const agent = h("select", { "aria-label": t("Agent") }, agents.map((name) => h("option", { value: name, selected: name === kept.agent }, plain(name))));
  const input = h("textarea", { rows: 1, placeholder: t("Message"), "aria-label": t("Message"), required: true });
  const runs = new Map();
  // Not known to have arrived: said again by the next connection, and by the page that comes after this one.
  const unheard = new Map(Object.entries(kept.unheard || {}));
  let socket = null, isIn = false, session = kept.session || "", seq = 0, epoch = kept.epoch || "", tries = 0, left = false;

  const keep = () => {
    const all = () => JSON.stringify({ session, epoch, agent: agent.value, said: kept.said, unheard: Object.fromEntries(unheard) });
    for (;;) try { sessionStorage.setItem(KEPT, all()); return; } catch { // there is room for some 5 MB
      const oldest = Object.keys(kept.said || {})[0];
      if (!oldest) return;
      delete kept.said[oldest];
    }
  };
  let follows = true; // until someone scrolls up to read, however much is added at once
  log.addEventListener("scroll", () => { follows = log.scrollHeight - log.scrollTop - log.clientHeight < 160; });
  const bottom = () => { if (follows) log.scrollTop = log.scrollHeight; };
  const show = (node) => { log.querySelector(".welcome")?.remove(); log.append(node); bottom(); return node; };
  const aside = (...words) => show(h("div", { class: "aside" }, words));
  const say = (type, members) => isIn && socket.send(JSON.stringify({ type, ts: Date.now(), session_id: session, ...members }));
  const saySurely = (name, type, members) => { unheard.set(name, { type, members }); keep(); say(type, members); };
  const heard = (name) => { if (unheard.delete(name)) keep(); };
  const settled = (id, types) => { for (const [name, one] of unheard) if (one.members.run_id === id && types.includes(one.type)) heard(name); };
  const place = (id) => `/console/runs/${encodeURIComponent(id)}`;
  const begin = (id, name, at = 0) => {
    const run = { bubble: null, words: "", said: 0, seq: at, approvals: new Map() };
    runs.set(id, run);
    run.stop = button(t("Cancel"), () => saySurely(`cancel ${id}`, "cancel_run", { run_id: id }), { tone: "quiet", small: true });
    aside(name ? [plain(name), " · "] : null, h("a", { href: place(id) }, t("the run")), " ", run.stop);
    return run;
  };
  const rest = (id) => ["… ", h("a", { href: place(id) }, t("The rest is in the run."))];

  const hear = {
    hello_ack(message) {
      if (!message.resumed) { // what was told before is not gone on with: what is open now follows
        seq = message.seq || 0;
        for (const id of runs.keys()) finish(id);
        runs.clear();
      }
      ({ session_id: session, epoch = "" } = message);
      tries = 0;
      isIn = true;
      state.className = "linked on";
      state.textContent = t("Connected");
      keep();
      for (const [request, { type, members }] of unheard) {
        if (type === "agent_invoke" && !bubbleOf(request)) mine(members.message.content, request);
        say(type, members);
      }
    },
    run_started(message) {
      heard(message.request_id);
      const words = kept.said?.[message.request_id];
      if (words && !bubbleOf(message.request_id)) mine(words, message.request_id);
      begin(message.run_id, message.agent_id, message.seq);
    },
    delta(message) {
      const run = runs.get(message.run_id);
      if (!run) return;
      settled(message.run_id, ["approval_decision"]);
      const room = MOST - run.said;
      run.said += message.text.length;
      run.words += message.text;
      if (room <= 0) return;
      run.bubble ||= show(h("div", { class: "bubble partial" }));
      run.bubble.append(plain(message.text.slice(0, room)));
      if (run.said >= MOST) add(run.bubble, rest(message.run_id));
      bottom();
    },
    state(message) {
      if (message.detail?.delta !== undefined) return; // output of a tool: the run's page shows it
      const run = runs.get(message.run_id) || begin(message.run_id, "");
      takeBackWords(run, message.detail?.retracted_characters || 0, message.run_id);
      if (message.state === "RUNNING") unask(run);
    },
    approval_required(message) {
      const run = runs.get(message.run_id) || begin(message.run_id, "");
      if (run.bubble) { run.bubble.classList.remove("partial"); run.bubble = null; run.words = ""; }
      run.approvals.get(message.approval_id)?.remove();
      const word = (decision) => () => { saySurely(message.approval_id, "approval_decision", { request_id: message.approval_id, run_id: message.run_id, approval_id: message.approval_id, decision }); node.querySelectorAll("button").forEach((one) => one.remove()); };
      const asked = h("div", { class: "call" }, mono(message.tool_name), call(message.args, message.args_summary));
      const hidden = message.hidden ? h("p", { class: "notice" }, t("{n} characters are hidden. Reveal them before you approve; this goes on record.", { n: message.hidden }), " ", h("a", { href: "/console/approvals" }, t("Approvals"))) : null;
      const actions = h("div", { class: "actions" });
      const offer = () => put(actions, button(t("Approve"), word("approve"), { small: true }), button(t("Reject"), word("reject"), { small: true, tone: "danger" }));
      const node = show(h("div", { class: "bubble" }, h("div", { class: "who" }, t("The policy asks a person")), asked, hidden, message.reason ? h("div", { class: "hint" }, plain(message.reason)) : null, actions));
      offer();
      run.approvals.set(message.approval_id, node);
      node.offer = offer;
    },
    tool_request(message) { aside(t("A tool of this device is asked for: {tool}", { tool: plain(message.tool_name) })); say("tool_result", { run_id: message.run_id, tool_call_id: message.tool_call_id, ok: false, error: "this device has no tools" }); },
    error(message) {
      heard(message.request_id);
      if (message.detail?.reason === "hidden_arguments") runs.get(message.run_id)?.approvals.get(message.request_id)?.offer(); // it stays open
      settled(message.run_id, ["approval_decision", "cancel_run"]);
      if (message.seq) finish(message.run_id); // or else it is about what we said, and the run goes on
      const words = `${plain(message.code)}: ${plain(message.message)}`;
      if (!message.seq && log.lastElementChild?.textContent === words) return; // as at each try to connect
      aside(words).classList.add("notice", "bad");
    },
    done(message) { settled(message.run_id, ["approval_decision", "cancel_run"]); finish(message.run_id); },
  };
  const unask = (run) => run.approvals.forEach((node) => node.querySelectorAll("button").forEach((one) => one.remove()));
  const finish = (id) => { const run = runs.get(id); if (run) { run.stop.remove(); run.bubble?.classList.remove("partial"); unask(run); } };
  // Its agent was interrupted, and says anew what it said last.
  const takeBackWords = (run, count, id) => {
    if (!count || !run.bubble) return;
    const left = Array.from(run.words).slice(0, -count).join(""); // counted in characters, not in halves of them
    run.said -= run.words.length - left.length;
    run.words = left;
    const room = Math.max(0, MOST - (run.said - left.length));
    put(run.bubble, plain(left.slice(0, room)), run.said >= MOST ? rest(id) : null);
  };
  const bubbleOf = (request) => log.querySelector(`[data-request="${CSS.escape(request)}"]`);
  const mine = (words, request) => show(h("div", { class: "bubble mine", "data-request": request }, plain(words)));
  const isOld = ({ type, seq: number, run_id: id, request_id: request }) => {
    if (type === "hello_ack" || !number) return false;
    const run = runs.get(id), isAwaited = unheard.has(request); // a run may be told again from its start
    if (number <= (run ? run.seq : isAwaited ? 0 : seq)) return true;
    if (run) run.seq = number;
    seq = Math.max(seq, number);
    return false;
  };

  let again = 0; // the next try, where one waits
  const connect = () => {
    clearTimeout(again);
    again = 0;
    if (left) return;
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    socket = new WebSocket(`${scheme}://${location.hostname}:${port}/ws`);
    socket.onopen = () => { const hello = { type: "hello", ts: Date.now(), user_id: "console", api_key: key, client_meta: { app: "console" } }; if (session) Object.assign(hello, { session_id: session, last_seq: seq, epoch }); socket.send(JSON.stringify(hello)); };
    socket.onmessage = (event) => {
      const message = JSON.parse(event.data);
      if (isOld(message)) return;
      if (message.type === "error" && message.code === "session_not_found" && !message.seq) { session = ""; seq = 0; }
      hear[message.type]?.(message);
    };
    socket.onclose = (event) => { isIn = false; if (event.code === TOO_BIG) takeBack(); state.className = "linked"; state.textContent = t("Connecting…"); if (!left) again = setTimeout(connect, Math.min(8000, 250 * 2 ** tries++)); };
  };

  context.onLink((on) => { if (on && again) { tries = 0; connect(); } }); // the server is back: so may the ingress be

  // The ingress has closed over it: it never came to be a run, and whoever wrote it may shorten it.
  const takeBack = () => {
    const [request, one] = [...unheard].filter(([, { type }]) => type === "agent_invoke").at(-1) || [];
    if (!request) return;
    bubbleOf(request)?.remove();
    unheard.delete(request);
    delete kept.said?.[request];
    keep();
    input.value ||= one.members.message.content;
    aside(t("This message is longer than the ingress takes, and was not sent.")).classList.add("notice", "bad");
  };
  const send = (words) => {
    const request = `c_${newName()}`;
    kept.said = { ...kept.said, [request]: words };
    mine(words, request);
    log.scrollTop = log.scrollHeight;
    saySurely(request, "agent_invoke", { request_id: request, agent_id: agent.value, message: { role: "user", content: words } });
  };
  const form = h("form", { on: { submit: (event) => { event.preventDefault(); if (input.value.trim()) { send(input.value); input.value = ""; } } } }, input, h("button", { type: "submit" }, t("Send")));
  input.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); } });
  const welcome = () => put(log, h("div", { class: "welcome" }, h("p", null, t("Say something to an agent. The script agent needs no model: it calls the tools that its message spells out.")), h("div", { class: "chips" }, EXAMPLES.map(([words, text]) => button(t(words), () => { agent.value = "script"; input.value = text; input.focus(); }, { tone: "quiet", small: true })))));
  welcome();
  connect();
  context.onLeave(() => { left = true; socket?.close(); });
  return h("div", { class: "chat" }, h("header", { class: "page-head" }, h("h1", { tabindex: "-1" }, t("Chat")), state, agent, button(t("New conversation"), () => { session = ""; seq = 0; kept.said = {}; unheard.clear(); runs.clear(); welcome(); sessionStorage.removeItem(KEPT); if (socket) socket.onmessage = null; socket?.close(); }, { tone: "quiet" })), log, form);
}
