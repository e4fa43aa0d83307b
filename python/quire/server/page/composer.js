// The input area: the text, attached files, and the button to send or stop.

import { $, announce, button, el } from "./dom.js";

const LARGEST = 512 * 1024;

export class Composer {
  /** `send(text, attachments)`, `stop()`, `editLast()`. */
  constructor({ send, stop, editLast }) {
    this.files = [];
    this.running = false;
    this.text = $("text");
    $("form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) return stop();
      const text = this.text.value.trim();
      if (!text && !this.files.length) return;
      const files = this.files;
      this.text.value = "";
      this.#show([]);
      this.#grow();
      send(text, files);
    });
    this.text.addEventListener("input", () => this.#grow());
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.running) $("form").requestSubmit();
      } else if (event.key === "ArrowUp" && !this.text.value) editLast();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running) stop();
    });
    $("attach").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", async () => {
      await this.#attach([...$("file").files]);
      $("file").value = "";
    });
    $("form").addEventListener("dragover", (event) => event.preventDefault());
    $("form").addEventListener("drop", (event) => {
      event.preventDefault();
      this.#attach([...event.dataTransfer.files]);
    });
  }

  /** Set if an answer is in progress, which the button then stops. */
  set busy(running) {
    this.running = running;
    $("send").textContent = running ? "Stop" : "Send";
  }

  async #attach(files) {
    const read = [];
    for (const file of files) {
      const text = file.size <= LARGEST ? await file.text() : null;
      if (text === null) this.#note(`${file.name} is larger than ${LARGEST / 1024} KiB`);
      else if (text.includes("\0") || text.includes("\uFFFD")) this.#note(`${file.name} is not UTF-8 text`);
      else read.push({ name: file.name, text });
    }
    this.#show([...this.files, ...read]);
  }

  #note(text) {
    $("note").textContent = text;
    announce(text);
  }

  #show(files) {
    this.files = files;
    if (!files.length) $("note").textContent = "";
    $("files").replaceChildren(...files.map((file) =>
      el("span", { class: "chip" }, file.name,
        button("×", `Remove ${file.name}`, () => this.#show(this.files.filter((other) => other !== file))))));
  }

  /** Make the input as high as its text, up to a third of the window. */
  #grow() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight, innerHeight / 3)}px`;
  }
}
