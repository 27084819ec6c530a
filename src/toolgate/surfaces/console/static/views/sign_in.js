import { h } from "../dom.js";
import { post } from "../api.js";
import { t } from "../lang.js";
import { field } from "../ui.js";

export function show(start, problem) {
  const token = h("input", { type: "password", name: "token", autocomplete: "current-password", required: true, spellcheck: "false" });
  const wrong = h("p", { class: "notice bad", role: "alert", hidden: !problem }, problem);
  const submit = h("button", { type: "submit" }, t("Sign in"));
  const form = h("form", { on: { submit: async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try { await post("~/sign-in", { token: token.value.trim() }); await start(); } catch (failed) {
      wrong.hidden = false;
      wrong.textContent = failed.status === 403 ? t("That is not the operator's token.") : failed.message;
      submit.disabled = false;
      token.select();
    }
  } } },
    h("div", { class: "brand" }, h("img", { src: "/console/static/icon.svg", alt: "", width: 30, height: 30 }), h("h1", null, "Toolgate")),
    wrong, field(t("The operator's token"), token), submit,
    h("p", { class: "hint" }, t("It is in the file operator.token of the home directory. The command toolgate console prints a link that signs in once.")));
  return h("main", { class: "sign-in" }, form);
}
