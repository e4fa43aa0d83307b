// Files that go with a question: images, sound and text.  Large pictures are made smaller, recordings become WAV.

import { bytes, duration } from "./dom.js";
import { newId } from "./store.js";

const LARGEST_TEXT = 1024 * 1024;
const LARGEST_MEDIA = 5_500_000; // in base64 within the server's 8 MiB for a request
const LONGEST_SIDE = 2048;
const RATE = 16_000;
const READ_AS_IS = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];

/** Read a file; `reads` says what the model reads.  Throws an Error whose message is for the user. */
export async function attachmentOf(file, reads) {
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") {
    if (!reads.includes("image")) throw new Error(`${file.name}: this model does not read images`);
    return imageOf(file);
  }
  if (file.type.startsWith("audio/") || file.type === "video/webm") {
    if (!reads.includes("audio")) throw new Error(`${file.name}: this model does not hear`);
    return recordingOf(file);
  }
  return { id: newId(), kind: "text", name: file.name, text: await textOf(file) };
}

async function textOf(file) {
  if (/\.pdf$/i.test(file.name) || file.type === "application/pdf") return (await import("./documents.js")).pdfText(file);
  if (/\.docx$/i.test(file.name)) return (await import("./documents.js")).docxText(file);
  if (file.size > LARGEST_TEXT) throw new Error(`${file.name} has ${bytes(file.size)}; texts may have ${bytes(LARGEST_TEXT)}`);
  const text = await file.text();
  if (text.includes("\0") || text.includes("\uFFFD")) throw new Error(`${file.name} is not a text, and not a file that this page reads`);
  return text;
}

async function imageOf(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is not an image that this browser reads`);
  }
  const { width, height } = bitmap;
  const scale = Math.min(1, LONGEST_SIDE / Math.max(width, height));
  let blob = file;
  let size = { width, height };
  if (scale < 1 || file.size > LARGEST_MEDIA / 2 || !READ_AS_IS.includes(file.type)) {
    size = { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) };
    const canvas = Object.assign(document.createElement("canvas"), size);
    canvas.getContext("2d").drawImage(bitmap, 0, 0, size.width, size.height);
    const type = file.type === "image/png" && file.size < LARGEST_MEDIA / 2 ? "image/png" : "image/jpeg";
    blob = await new Promise((resolve) => canvas.toBlob(resolve, type, 0.92));
  }
  bitmap.close();
  const about = `${size.width} × ${size.height}${scale < 1 ? `, made smaller from ${width} × ${height}` : ""}`;
  return { id: newId(), kind: "image", name: file.name || "Pasted image", about, ...size, blob };
}

/** Decode sound and write it as 16 kHz mono WAV, which is what models hear. */
export async function recordingOf(file) {
  const context = new OfflineAudioContext(1, 1, RATE);
  let decoded;
  try {
    decoded = await context.decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not sound that this browser reads`);
  }
  const n = Math.ceil(decoded.duration * RATE);
  const mixing = new OfflineAudioContext(1, Math.max(1, n), RATE);
  const source = new AudioBufferSourceNode(mixing, { buffer: decoded });
  source.connect(mixing.destination);
  source.start();
  const blob = wav((await mixing.startRendering()).getChannelData(0));
  if (blob.size > LARGEST_MEDIA) throw new Error(`${file.name} lasts ${duration(decoded.duration)}; at most ${duration(LARGEST_MEDIA / 2 / RATE)} can be sent`);
  return { id: newId(), kind: "audio", name: file.name, seconds: decoded.duration, about: duration(decoded.duration), blob };
}

function wav(samples) {
  const data = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, value) => [...value].forEach((char, i) => data.setUint8(at + i, char.charCodeAt(0)));
  text(0, "RIFF");
  data.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  data.setUint32(16, 16, true);
  data.setUint16(20, 1, true); // PCM
  data.setUint16(22, 1, true); // channels
  data.setUint32(24, RATE, true);
  data.setUint32(28, 2 * RATE, true);
  data.setUint16(32, 2, true);
  data.setUint16(34, 16, true);
  text(36, "data");
  data.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => data.setInt16(44 + 2 * i, Math.max(-1, Math.min(1, sample)) * 32_767, true));
  return new Blob([data], { type: "audio/wav" });
}

/** Record from the microphone; returns an object whose `stop()` resolves to a file.  Throws if it is not allowed. */
export async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  recorder.start(1000);
  return {
    stop: () => new Promise((resolve) => {
      recorder.onstop = () => {
        stream.getTracks().forEach((track) => track.stop());
        const at = new Date().toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hour12: false });
        resolve(new File(parts, `Recording ${at}.wav`, { type: "audio/webm" }));
      };
      recorder.stop();
    }),
  };
}
