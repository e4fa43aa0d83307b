// A conversation as a file, for other programs.

import { Conversation } from "./conversation.js";
import { download } from "./dom.js";
import { chat, exportOf } from "./store.js";

/** Return the shown branch of a stored conversation as Markdown. */
export function markdownOf(kept) {
  const conversation = new Conversation(kept);
  const parts = conversation.path().filter((node) => node.role !== "tool").map((node) => {
    const files = (node.attachments ?? []).map((one) => `*Attached: ${one.name}*\n\n`).join("");
    return `## ${node.role === "user" ? "Question" : "Answer"}\n\n${files}${node.content}`;
  });
  return [`# ${conversation.title}`, ...parts].join("\n\n").concat("\n");
}

/** The entries of a menu that save a conversation. */
export function shareEntries(id, title) {
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 40) || "chat";
  return [
    ["file-text", "Save as Markdown", async () => download(`${name}.md`, markdownOf(await chat(id)), "text/markdown")],
    ["download", "Save as file", async () => download(`${name}.json`, await exportOf([id]))],
  ];
}
