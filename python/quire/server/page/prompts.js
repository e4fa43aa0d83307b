// The prompt library.  `{{name}}` in a prompt is asked for when it is used.

import { dialog, toast } from "./dialogs.js";
import { button, el, iconButton } from "./dom.js";
import { saveSetting, setting } from "./store.js";

const BUILT_IN = {
  Summarize: "Summarize the following text in {{number of sentences}} sentences:\n\n{{text}}",
  Translate: "Translate into {{language}}:\n\n{{text}}",
  "Explain code": "Explain step by step what this code does, and point out mistakes:\n\n```\n{{code}}\n```",
};
const all = () => setting("prompts", BUILT_IN);

/** Let the user choose a prompt; resolves to its text, undefined if none was chosen.  `draft` can be saved as one. */
export async function choosePrompt(draft) {
  const list = el("ul", { class: "prompt-list" });
  const search = el("input", { type: "search", placeholder: "Search prompts", "aria-label": "Search prompts", autofocus: true });
  let chosen;
  const draw = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = Object.entries(all()).filter(([name, text]) => `${name} ${text}`.toLowerCase().includes(wanted));
    list.replaceChildren(...found.map(([name, text]) => el("li", {},
      el("button", { type: "button", onclick: () => { chosen = name; shown.element.close(); } }, el("b", {}, name), el("span", {}, text.slice(0, 120))),
      iconButton("pencil", `Edit ${name}`, async () => { if (await edit(name, text)) draw(); }),
      iconButton("trash-2", `Remove ${name}`, () => { store(name, undefined); draw(); }))),
      found.length ? "" : el("li", { class: "soft" }, "Nothing found"));
  };
  search.addEventListener("input", draw);
  const shown = dialog("Prompt library", [search, list], [button("New prompt", async () => { if (await edit("", draft)) draw(); }, { sign: "plus" })]);
  draw();
  await shown.closed;
  return chosen === undefined ? undefined : filled(all()[chosen]);
}

function store(name, text) {
  const { [name]: _, ...rest } = all();
  saveSetting("prompts", text === undefined ? rest : { ...rest, [name]: text });
}

async function edit(name, text) {
  const title = el("input", { type: "text", maxlength: 80, required: true });
  const area = el("textarea", { rows: 8, required: true });
  title.value = name;
  area.value = text;
  const shown = dialog(name ? "Edit prompt" : "New prompt", [el("label", {}, el("span", {}, "Name"), title),
    el("label", {}, el("span", {}, "Text"), area, el("small", {}, "Write {{name}} where something is to be filled in."))], [el("button", { value: "yes", class: "primary" }, "Save")]);
  if ((await shown.closed) !== "yes") return false;
  if (name && name !== title.value) store(name, undefined);
  store(title.value.trim(), area.value);
  toast("Prompt saved");
  return true;
}

/** Ask for the values of a prompt's variables, and put them in. */
async function filled(text) {
  const names = [...new Set([...text.matchAll(/\{\{([^{}]+)\}\}/g)].map((found) => found[1].trim()))];
  if (!names.length) return text;
  const fields = new Map(names.map((name) => [name, el("textarea", { rows: /text|code/i.test(name) ? 5 : 1 })]));
  const shown = dialog("Fill in", [...fields].map(([name, area]) => el("label", {}, el("span", {}, name), area)), [el("button", { value: "yes", class: "primary" }, "Use")]);
  if ((await shown.closed) !== "yes") return undefined;
  return text.replace(/\{\{([^{}]+)\}\}/g, (_, name) => fields.get(name.trim()).value);
}
