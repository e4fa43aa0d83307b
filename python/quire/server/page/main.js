// Connects the parts of the page: the conversation, the stored ones, settings, models and the server's status.

import { answer } from "./answer.js";
import { status } from "./api.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { $, announce } from "./dom.js";
import { Models } from "./models.js";
import { Settings, themeButton, toggle } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Status } from "./status.js";
import { chat, saveChat, saveSetting, setting } from "./store.js";
import { Turns } from "./turns.js";

let conversation = new Conversation();
let running = null;

const turns = new Turns({
  show(node) {
    if (running) return;
    conversation.show(node);
    turns.render(conversation);
    keep();
  },
  edit(node, text) {
    if (running) return;
    const edited = conversation.add("user", text, node.parent);
    edited.attachments = node.attachments;
    respond(edited);
  },
  regenerate(node) {
    if (!running) respond(conversation.nodes.get(node.parent));
  },
  resume(node) {
    if (!running) write(node, { continue_final_message: true, add_generation_prompt: false });
  },
});
const composer = new Composer({
  send(text, attachments) {
    const node = conversation.add("user", text);
    if (attachments.length) node.attachments = attachments;
    respond(node);
  },
  stop: () => running?.abort(),
  editLast: () => [...document.querySelectorAll(".turn.user .tools button")].at(-1)?.click(),
});
const settings = new Settings($("settings"));
const models = new Models(showUse);
const serverStatus = new Status();
const sidebar = new Sidebar({ open, opened: () => conversation.id, startNew });

/** Let the model answer a question, in a new branch. */
function respond(question) {
  const node = conversation.add("assistant", "", question.id);
  node.stats = {};
  return write(node, {});
}

async function write(node, fields) {
  let body;
  try {
    const until = fields.continue_final_message ? node.id : node.parent;
    const messages = conversation.messages(settings.system.value, until);
    body = { model: models.chosen, ...settings.request(), ...fields, messages };
  } catch (error) {
    node.error = error.message;
    turns.render(conversation);
    return;
  }
  running = new AbortController();
  composer.busy = true;
  turns.render(conversation);
  announce("The answer is in progress");
  const own = conversation;
  await answer(node, body, running.signal, () => {
    if (own === conversation) turns.update(node, true);
    showUse();
  });
  running = null;
  composer.busy = false;
  if (own === conversation) turns.draw(node, false);
  announce(node.error ? "The answer failed" : `The answer: ${node.content.slice(0, 500)}`);
  await keep(own);
  refresh();
}

async function keep(which = conversation) {
  if (which === conversation) saveSetting("chat", which.id);
  if (which.nodes.size) await saveChat(which.kept());
  sidebar.refresh();
}

function open(kept) {
  running?.abort();
  conversation = new Conversation(kept);
  saveSetting("chat", conversation.id);
  turns.render(conversation);
  showUse();
  sidebar.refresh();
}

function startNew() {
  open(undefined);
  $("text").focus();
}

/** Show how full the context is, and how much of the prompt came from the cache. */
function showUse() {
  const stats = conversation.path().at(-1)?.stats;
  const parts = [];
  if (stats?.context) {
    const n_ctx = models.n_ctx;
    parts.push(`context ${stats.context}${n_ctx ? ` of ${n_ctx}` : ""}`);
    parts.push(`${stats.cached} of ${stats.prompt} prompt tokens cached`);
  }
  if (cache) parts.push(cache);
  $("use").textContent = parts.join(" · ");
}

let cache = "";
async function refresh() {
  try {
    await models.refresh();
    const now = await status();
    const model = now.models.find((one) => one.id === models.chosen);
    cache = model?.cache ? `cache ${model.cache.used}/${model.cache.blocks} blocks` : "";
  } catch {
    cache = "the server is not responding";
  }
  showUse();
}

/** Restore the last open conversation and set up the page. */
async function start() {
  $("bar").append(themeButton());
  toggle($("settings-button"), $("settings"));
  toggle($("status-button"), $("status-view"));
  $("status-button").addEventListener("click", () => serverStatus.show(!$("status-view").hidden));
  $("new").addEventListener("click", startNew);
  document.addEventListener("keydown", (event) => {
    const command = event.ctrlKey || event.metaKey;
    if (command && event.shiftKey && event.key.toLowerCase() === "o") startNew();
    else if (command && event.key === "k") $("search").focus();
    else return;
    event.preventDefault();
  });
  sidebar.refresh();
  const last = await chat(setting("chat", "")).catch(() => undefined);
  if (last && !conversation.nodes.size) open(last);
  await refresh();
  setInterval(() => document.visibilityState === "visible" && !running && refresh(), 10_000);
}

start();
