// The input area: text, files, recording, and the button to send or stop.

import { attachmentOf, record } from "./attachments.js";
import { countTokens } from "./api.js";
import { toast } from "./dialogs.js";
import { $, announce, duration, icon, iconButton } from "./dom.js";
import { chip } from "./media_view.js";
import { draftFiles, saveDraftFiles, saveSetting, setting } from "./store.js";

export class Composer {
  /** `actions`: send(text, attachments), stop(), editLast(), usePrompt(); `models` says what the model reads. */
  constructor(actions, models) {
    Object.assign(this, { actions, models, files: [], running: false, chatId: "", waiting: 0 });
    this.text = $("text");
    $("form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) actions.stop();
      else this.#send();
    });
    this.text.addEventListener("input", () => this.#grow());
    this.text.addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running && !document.querySelector("dialog, .menu")) actions.stop();
    });
    this.#buttons();
    this.#dropping();
    this.busy = false;
  }

  #buttons() {
    this.attachButton = iconButton("paperclip", "Attach files", () => $("file").click(), { id: "attach" });
    this.recordButton = iconButton("mic", "Record sound", () => this.#record(), { id: "record", hidden: true });
    const prompts = iconButton("bookmark", "Prompt library", () => this.actions.usePrompt(), { id: "prompts-button" });
    $("composer-tools").prepend(this.attachButton, this.recordButton, prompts);
    $("file").addEventListener("change", async () => {
      const chosen = [...$("file").files];
      $("file").value = "";
      await this.attach(chosen);
    });
  }

  #dropping() {
    const has = (event) => event.dataTransfer?.types.includes("Files");
    addEventListener("dragover", (event) => {
      if (!has(event)) return;
      event.preventDefault();
      document.body.classList.add("dropping");
    });
    addEventListener("dragleave", (event) => event.relatedTarget === null && document.body.classList.remove("dropping"));
    addEventListener("drop", (event) => {
      document.body.classList.remove("dropping");
      if (!has(event)) return;
      event.preventDefault();
      this.attach([...event.dataTransfer.files]);
    });
    this.text.addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      if (!files.length) return;
      event.preventDefault();
      this.attach(files);
    });
  }

  /** Show the draft of a conversation. */
  open(chatId) {
    this.chatId = chatId;
    this.text.value = setting(`draft.${chatId}`, "");
    this.#list([]);
    this.#grow();
    draftFiles(chatId).then((files) => chatId === this.chatId && this.#list([...files, ...this.files]), () => {});
  }

  /** Put a text into the input. */
  put(text) {
    this.text.value = text;
    this.#grow();
    this.text.focus();
  }

  /** Set if an answer is in progress, which the button then stops. */
  set busy(running) {
    this.running = running;
    $("send").replaceChildren(icon(running ? "square" : "arrow-up"));
    $("send").setAttribute("aria-label", running ? "Stop" : "Send");
    $("send").title = running ? "Stop (Esc)" : "Send (Enter)";
    $("send").classList.toggle("stops", running);
    this.#enable();
  }

  /** Follow what the model reads. */
  modelChanged() {
    const { reads } = this.models;
    this.recordButton.hidden = !reads.includes("audio") || !navigator.mediaDevices;
    const kinds = ["files", reads.includes("image") && "images", reads.includes("audio") && "sound"].filter(Boolean);
    this.attachButton.title = `Attach ${kinds.join(", ")}`;
    this.attachButton.setAttribute("aria-label", this.attachButton.title);
  }

  async attach(files) {
    this.waiting += 1;
    this.#enable();
    for (const file of files) {
      try {
        const made = await attachmentOf(file, this.models.reads);
        if (made.kind === "text") made.n_tokens = await countTokens(this.models.chosen, made.text).catch(() => undefined);
        this.#show([...this.files, made]);
        announce(`${made.name} attached`);
      } catch (error) {
        toast(error.message, { bad: true });
      }
    }
    this.waiting -= 1;
    this.#enable();
  }

  async #record() {
    if (this.recording) {
      const { stop, timer } = this.recording;
      this.recording = null;
      clearInterval(timer);
      this.#showRecording();
      await this.attach([await stop()]);
      return;
    }
    try {
      this.recording = await record();
    } catch {
      toast("The browser does not allow this page to use the microphone", { bad: true });
      return;
    }
    const began = Date.now();
    this.recording.timer = setInterval(() => ($("use").textContent = `Recording, ${duration((Date.now() - began) / 1000)}`), 500);
    this.#showRecording();
  }

  #showRecording() {
    const on = Boolean(this.recording);
    this.recordButton.classList.toggle("recording", on);
    this.recordButton.setAttribute("aria-label", on ? "Stop recording" : "Record sound");
    this.recordButton.replaceChildren(icon(on ? "square" : "mic"));
    if (!on) $("use").textContent = "";
  }

  #send() {
    const text = this.text.value.trim();
    if ((!text && !this.files.length) || this.waiting) return;
    const files = this.files;
    this.text.value = "";
    this.#show([]);
    this.#grow();
    this.actions.send(text, files);
  }

  #key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!this.running) $("form").requestSubmit();
    } else if (event.key === "ArrowUp" && !this.text.value) this.actions.editLast();
    else if (event.key === "/" && !this.text.value) {
      event.preventDefault();
      this.actions.usePrompt("/"); // which stays if no prompt is chosen
    }
  }

  #show(files) {
    this.#list(files);
    saveDraftFiles(this.chatId, files).catch(() => {});
  }

  #list(files) {
    this.files = files;
    $("files").hidden = !files.length;
    $("files").replaceChildren(...files.map((file) => chip(file, () => this.#show(this.files.filter((other) => other !== file)))));
    this.#enable();
  }

  #enable() {
    $("send").disabled = !this.running && (Boolean(this.waiting) || (!this.text.value.trim() && !this.files.length));
  }

  /** Make the input as high as its text, up to two fifths of the window, and keep the draft. */
  #grow() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight, innerHeight * 0.4)}px`;
    saveSetting(`draft.${this.chatId}`, this.text.value || null);
    this.#enable();
  }
}
