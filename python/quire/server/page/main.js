// Connects the parts of the page: the conversation, the stored ones, settings, models and the server's status.

import { Answers, findInterrupted } from "./answers.js";
import { buildBar } from "./bar.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { toast } from "./dialogs.js";
import { $, announce, button, count, el, iconButton } from "./dom.js";
import { Models } from "./models.js";
import { choosePrompt } from "./prompts.js";
import { keysSection, requestFields, Settings, themeChoice } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Status } from "./status.js";
import { chat, newId, onOtherTabs, saveChat, saveFile, saveSetting, setting } from "./store.js";
import { keepPage } from "./trusted.js";
import { ToolLoop } from "./tool_loop.js";
import { showTools, Toolbox } from "./tools.js";
import { Turns } from "./turns.js";
import { welcome } from "./welcome.js";

const startSettings = () => setting("new-settings", null) ?? setting("defaults", {});
let conversation = new Conversation(undefined, startSettings());
let [reachable, following] = [true, null];

const answers = new Answers({
  changed(of, node) {
    if (of === conversation) turns.update(node);
  },
  ended(of, node) {
    if (of === conversation) {
      turns.draw(node);
      showState();
    } else if (node.state !== "stopped") toast(`“${of.title}” ${node.error ? "failed" : "is answered"}`, { bad: Boolean(node.error) });
    toolLoop.proceed(of, node);
    announce(node.error ? "The answer failed" : `The answer: ${node.content.slice(0, 500)}`);
    keep(of);
    refresh();
  },
});
const toolbox = new Toolbox();
const toolLoop = new ToolLoop(toolbox, {
  changed(of, node) {
    keep(of, true);
    if (of !== conversation) return;
    turns.draw(node);
    showState();
  },
  goOn(of, result, isLast) {
    write(of, of.add("assistant", "", result.id), isLast ? { tool_choice: "none" } : {});
  },
});
const turns = new Turns({
  show: (node) => branch(() => conversation.show(node)),
  choose: (node) => branch(() => conversation.showUpTo(node)),
  edit(node, text) {
    const edited = conversation.add("user", text, node.parent);
    edited.attachments = node.attachments;
    respond(edited);
  },
  callState: (node, call) => toolLoop.stateOf(conversation, node, call),
  decide(node, call, word) {
    if (word === "always") setSettings({ ...conversation.settings, tools: { ...conversation.settings.tools, [call.function.name]: "always" } });
    toolLoop.decide(conversation, node, call, word !== "no");
  },
  regenerate: (node) => respond(conversation.nodes.get(node.parent)),
  again(node) {
    Object.assign(node, { content: "", reasoning: undefined, tokens: undefined, tool_calls: undefined });
    write(conversation, node, {});
  },
  shorten(node) {
    settings.show({ ...conversation.settings, truncation: "auto" });
    setSettings(settings.values());
    this.again(node);
  },
  resume: (node) => write(conversation, node, { continue_final_message: true, add_generation_prompt: false }),
});
const models = new Models((byUser) => {
  composer.modelChanged();
  if (byUser) setSettings({ ...conversation.settings, model: models.chosen });
  if (!conversation.nodes.size) welcome(models, { put: (text) => composer.put(text), attach: () => $("file").click() });
  showState();
});
const composer = new Composer({
  async send(text, attachments) {
    toolLoop.dismiss(conversation);
    const node = conversation.add("user", text);
    node.attachments = attachments.map(({ blob: _, ...one }) => one);
    const stored = attachments.filter((one) => one.blob).map((one) => saveFile({ id: one.id, chat: conversation.id, blob: one.blob }));
    saveSetting("new-settings", null);
    composer.chatId = conversation.id; // the next draft belongs to this chat
    await Promise.all(stored);
    respond(node);
  },
  stop() {
    answers.stop(conversation.id);
    toolLoop.stop(conversation.id);
  },
  editLast: () => [...document.querySelectorAll(".turn.user [aria-label=Edit]")].at(-1)?.click(),
  async usePrompt(typed) {
    const text = await choosePrompt($("text").value);
    if (text !== undefined || typed) composer.put(text ?? typed);
  },
}, models);
const serverStatus = new Status(models);
const sidebar = new Sidebar({
  open, startNew, opened: () => conversation.id, isRunning: (id) => answers.of(id).length > 0,
  changed(id, fields) {
    if (id !== conversation.id) return;
    Object.assign(conversation, fields);
    showState();
  },
});
const settings = new Settings(setSettings, [
  el("section", { id: "tools-section", hidden: true }, el("h3", {}, "Tools for this chat"), el("div", { id: "tools" })),
  el("section", {}, el("h3", {}, "Appearance"), themeChoice()),
  el("section", {}, el("h3", {}, "Conversations in this browser"), el("div", { class: "row" },
    button("Export all", () => sidebar.exportAll(), { sign: "download", id: "export" }),
    button("Import", () => $("import-file").click(), { sign: "upload", id: "import" }),
    button("Remove all", () => sidebar.removeAll(), { sign: "trash-2" }),
    el("input", { id: "import-file", type: "file", accept: "application/json", hidden: true, onchange({ target }) {
      if (target.files[0]) sidebar.import(target.files[0]);
      target.value = "";
    } }))),
  keysSection(),
]);

function setSettings(values) {
  const { compare, model, tools } = conversation.settings;
  conversation.settings = { compare, model, tools, ...values };
  if (conversation.nodes.size) keep();
  else saveSetting("new-settings", conversation.settings);
  showState();
}

/** Show another branch. */
function branch(choose) {
  choose();
  draw();
  keep();
}

/** Let the model answer a question, in a new branch; while comparing, let two settings answer it. */
function respond(question) {
  const { compare } = conversation.settings;
  const node = conversation.add("assistant", "", question.id);
  if (!compare) return write(conversation, node, {});
  const other = conversation.add("assistant", "", question.id);
  node.group = other.group = newId();
  node.label = "This chat's settings";
  other.label = compare.label;
  conversation.showUpTo(node);
  write(conversation, other, compare.fields, compare.model);
  return write(conversation, node, {});
}

async function write(of, node, fields, model = models.nameOf(of.settings.model)) {
  const resumes = Boolean(fields.continue_final_message);
  const done = answers.run(of, node, async () => {
    const tools = node.group ? [] : toolbox.offered(of.settings).map((tool) => tool.definition);
    const given = { ...requestFields(of.settings), ...(tools.length ? { tools } : {}), ...fields };
    return { model, ...given, messages: await of.messages(of.settings.system, resumes ? node.id : node.parent) };
  });
  announce("The answer is in progress");
  if (of === conversation) draw();
  keep(of, true);
  await done;
}

async function keep(of = conversation, whole = false) {
  if (of === conversation) saveSetting("chat", of.id);
  try {
    const own = [...of.nodes.values()].filter((node) => node.state !== "running" || answers.isRunning(node));
    if (of.nodes.size) await saveChat(of.kept(), whole || !answers.of(of.id).length ? own : []);
  } catch (error) {
    toast(`This browser does not store the conversation: ${error.message}`, { bad: true });
  }
  sidebar.refresh();
}

function draw() {
  turns.render(conversation, answers);
  showState();
}

async function open(id) {
  const running = answers.of(id)[0];
  const kept = running ? undefined : await chat(id);
  if (!running && !kept) return startNew();
  show(running?.conversation ?? new Conversation(kept));
  if (kept) await pickUp();
}

/** Go on with answers of the shown conversation that nobody reads any more: the server keeps them for a minute. */
async function pickUp() {
  const of = conversation;
  for (const node of await findInterrupted([...of.nodes.values()], answers)) {
    if (node.stream) answers.run(of, node);
    else {
      node.state = "interrupted";
      keep();
    }
    turns.draw(node);
  }
  showState();
}

function show(next) {
  conversation = next;
  saveSetting("chat", conversation.nodes.size ? conversation.id : "");
  if (!$("status-view").hidden) serverStatus.show(false);
  settings.show(conversation.settings);
  models.choose(conversation.settings.model);
  composer.open(conversation.nodes.size ? conversation.id : "new");
  draw();
  sidebar.refresh();
}

function startNew() {
  show(new Conversation(undefined, startSettings()));
  $("text").focus();
}

/** Show what depends on the conversation and on the server. */
function showState() {
  const running = answers.of(conversation.id).length > 0 || toolLoop.isRunning(conversation.id);
  composer.busy = running;
  $("title").textContent = conversation.title || "New chat";
  document.title = conversation.title ? `${conversation.title} – Quire` : "Quire";
  $("share-button").hidden = !conversation.nodes.size;
  const stats = conversation.path().findLast?.((node) => node.stats?.context)?.stats;
  const share = stats && models.n_ctx ? stats.context / models.n_ctx : 0;
  $("use").replaceChildren(...stats ? [count(stats.context), el("small", {}, models.n_ctx ? ` of ${count(models.n_ctx)}` : ""), " tokens"] : []);
  $("use").title = stats ? `How much of the model's context this conversation fills; ${count(stats.cached)} of ${count(stats.prompt)} prompt tokens came from the cache` : "";
  $("use").classList.toggle("bad", share > 0.9);
  const { compare } = conversation.settings;
  $("compare-line").hidden = !compare;
  if (compare) $("compare-line").replaceChildren(`Each question is also answered with ${compare.label}`, iconButton("x", "Stop comparing", () => setSettings({ ...conversation.settings, compare: undefined })));
  $("compare-button").setAttribute("aria-pressed", String(Boolean(compare)));
  showTools(toolbox, conversation.settings, (tools) => setSettings({ ...conversation.settings, tools }));
  $("offline").hidden = reachable;
  $("offline").textContent = "The server is not responding. Your conversations are stored in this browser; you can read and write on, and send when it is back.";
}

async function refresh() {
  try {
    await models.refresh();
    await serverStatus.ask();
    if (!reachable) await toolbox.refresh(); // the server may have been started again
    reachable = true;
    pickUp();
  } catch {
    reachable = false;
  }
  showState();
}

/** Show what another tab wrote into a conversation; calls in quick succession are one. */
function follow(id) {
  sidebar.refresh();
  if (id !== conversation.id || following) return;
  following = setTimeout(async () => {
    following = null;
    const kept = await chat(id);
    if (!kept?.nodes.length || id !== conversation.id) return;
    const shown = () => conversation.path().map((node) => node.id).join();
    const before = shown();
    conversation.merge(kept, answers.running);
    if (shown() === before) conversation.path().filter((node) => node.role === "assistant").slice(-2).forEach((node) => turns.draw(node));
    else draw();
  }, 200);
}

/** Restore the last open conversation and set up the page. */
async function start() {
  buildBar({ settings, serverStatus, models, sidebar, startNew, current: () => conversation, change: setSettings, async rename(title) {
    conversation.title = title;
    await keep();
    showState();
  } });
  const listed = toolbox.refresh();
  document.addEventListener("keydown", (event) => {
    const command = event.ctrlKey || event.metaKey;
    if (command && event.shiftKey && event.key.toLowerCase() === "o") startNew();
    else if (command && event.key === "k") $("search").focus();
    else return;
    event.preventDefault();
  });
  onOtherTabs(follow);
  const last = setting("chat", "");
  if (last) await open(last).catch(() => startNew());
  else show(conversation);
  await Promise.all([listed, refresh()]);
  if (toolbox.tools.length) draw();
  setInterval(() => document.visibilityState === "visible" && $("status-view").hidden && refresh(), 10_000);
  addEventListener("online", refresh);
  navigator.storage?.persist?.().catch(() => {});
  await keepPage();
}

start();
