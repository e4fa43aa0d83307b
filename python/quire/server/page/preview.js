// Show HTML, SVG and diagrams of an answer in a frame that can reach neither this page nor any server.

import { el } from "./dom.js";

const KINDS = { html: "html", svg: "html", xml: "html", mermaid: "mermaid" };

/** Return true if a language can be shown. */
export const canShow = (language, code) => language in KINDS && (language !== "xml" || code.includes("<svg"));

/** Create a frame that shows some code. */
export function preview(code, language) {
  const frame = el("iframe", { class: "preview", sandbox: "allow-scripts", src: "page/preview.html", title: "Preview" });
  frame.addEventListener("load", async () => {
    const kind = KINDS[language];
    const library = kind === "mermaid" ? await (await fetch("page/mermaid.js")).text() : "";
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    frame.contentWindow.postMessage({ kind, code, library, dark: document.documentElement.style.colorScheme === "dark" || (dark && document.documentElement.style.colorScheme !== "light") }, "*");
  }, { once: true });
  addEventListener("message", function sized({ source, data }) {
    if (!frame.isConnected) removeEventListener("message", sized);
    else if (source === frame.contentWindow && Number.isFinite(data?.height)) frame.style.height = `${Math.min(700, Math.max(80, data.height))}px`;
  });
  return frame;
}
