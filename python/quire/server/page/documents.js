// The text of PDF and Word files, read in the browser.

import { scriptUrl } from "./trusted.js";

const MOST_PAGES = 500;

/** Return the text of a PDF, page by page.  Throws an Error for the user. */
export async function pdfText(file) {
  const pdf = await import("./pdf.js");
  const port = new Worker(scriptUrl("page/pdf.worker.js"), { type: "module" });
  try {
    const worker = new pdf.PDFWorker({ port });
    const opened = await pdf.getDocument({ data: await file.arrayBuffer(), worker, isEvalSupported: false, useWasm: false }).promise;
    if (opened.numPages > MOST_PAGES) throw new Error(`it has ${opened.numPages} pages; at most ${MOST_PAGES} are read`);
    const pages = [];
    for (let n = 1; n <= opened.numPages; n += 1) {
      const { items } = await (await opened.getPage(n)).getTextContent();
      pages.push(items.map((item) => item.str + (item.hasEOL ? "\n" : "")).join(""));
    }
    const text = pages.join("\n\n").trim();
    if (!text) throw new Error("it contains pictures of text only");
    return text;
  } catch (error) {
    throw new Error(`${file.name} cannot be read: ${error.message}`);
  } finally {
    port.terminate();
  }
}

/** Return the text of a Word file.  Throws an Error for the user. */
export async function docxText(file) {
  try {
    const xml = await entry(new Uint8Array(await file.arrayBuffer()), "word/document.xml");
    const marked = xml.replace(/<w:(?:br|cr)\b[^>]*>/g, "\n").replace(/<w:tab\b[^>]*\/>/g, "\t").replace(/<\/w:p>/g, "\n").replace(/<\/w:tc>/g, "\t");
    const text = marked.replace(/<[^>]*>/g, "");
    const names = { lt: "<", gt: ">", quot: "\"", apos: "'", amp: "&" };
    return text.replace(/&(?:#(\d+)|#x([\da-f]+)|(\w+));/gi, (all, n, hex, name) =>
      name ? (names[name] ?? all) : String.fromCodePoint(Number.parseInt(n ?? hex, n ? 10 : 16))).trim();
  } catch (error) {
    throw new Error(`${file.name} cannot be read: ${error.message}`);
  }
}

/** Return a file of a zip archive as text, of at most 32 MiB. */
async function entry(data, wanted) {
  const view = new DataView(data.buffer);
  let end = data.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < 0) throw new Error("it is not a Word file");
  let at = view.getUint32(end + 16, true);
  for (let n = view.getUint16(end + 10, true); n > 0; n -= 1) {
    const length = view.getUint16(at + 28, true);
    const name = new TextDecoder().decode(data.subarray(at + 46, at + 46 + length));
    if (name === wanted) {
      const from = view.getUint32(at + 42, true);
      const start = from + 30 + view.getUint16(from + 26, true) + view.getUint16(from + 28, true);
      const stored = new Blob([data.subarray(start, start + view.getUint32(at + 20, true))]);
      return inflated(stored, view.getUint16(at + 10, true));
    }
    at += 46 + length + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
  }
  throw new Error("it is not a Word file");
}

async function inflated(blob, method) {
  if (method === 0) return blob.text();
  const reader = blob.stream().pipeThrough(new DecompressionStream("deflate-raw")).pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return text;
    text += value;
    if (text.length > 32 * 2 ** 20) throw new Error("it is too large");
  }
}
