// The buttons around the conversation.

import { chooseComparison } from "./compare.js";
import { askText, menu } from "./dialogs.js";
import { $, button, iconButton } from "./dom.js";
import { shareEntries } from "./share.js";

/** Build the bar above the conversation, and the buttons beside the input that open something else. */
export function buildBar({ settings, serverStatus, models, sidebar, startNew, current, change, rename }) {
  const drawer = iconButton("settings-2", "Settings", () => settings.toggle(), { id: "settings-button", "aria-controls": "settings", "aria-expanded": "false" });
  const statusButton = iconButton("activity", "Status", () => serverStatus.show(), { id: "status-button", "aria-controls": "status-view", "aria-expanded": "false" });
  const compare = iconButton("columns-2", "Compare two settings", async () => {
    const chosen = await chooseComparison(models);
    if (chosen) change({ ...current().settings, compare: chosen });
  }, { id: "compare-button", "aria-pressed": "false" });
  const share = iconButton("share-2", "Save or print", () => menu(share, [
    ...shareEntries(current().id, current().title), ["printer", "Print", () => print()],
  ]), { id: "share-button", "aria-haspopup": "menu", hidden: true });
  $("bar-start").append(iconButton("panel-left", "Conversations", () => sidebar.toggle(), { id: "menu", "aria-controls": "sidebar", "aria-expanded": "false" }));
  const tools = iconButton("wrench", "Tools", () => {
    settings.toggle(true);
    $("tools-section").scrollIntoView();
  }, { id: "tools-button", hidden: true });
  document.querySelector("#prompts-button").after(tools);
  $("bar-end").append(compare, share, statusButton, drawer);
  $("title").addEventListener("dblclick", async () => {
    const title = await askText("Rename", { label: "Title", value: current().title });
    if (title && current().nodes.size) rename(title);
  });
  $("sidebar-actions").append(button("New chat", startNew, { sign: "square-pen", id: "new", title: "Ctrl+Shift+O" }));
}
