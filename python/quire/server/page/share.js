// A conversation as Markdown, for other programs.

import { Conversation } from "./conversation.js";

/** Return the shown branch of a stored conversation as Markdown. */
export function markdownOf(kept) {
  const conversation = new Conversation(kept);
  const parts = conversation.path().map((node) => {
    const files = (node.attachments ?? []).map((one) => `*Attached: ${one.name}*\n\n`).join("");
    return `## ${node.role === "user" ? "Question" : "Answer"}\n\n${files}${node.content}`;
  });
  return [`# ${conversation.title}`, ...parts].join("\n\n").concat("\n");
}
