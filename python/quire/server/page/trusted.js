// The only scripts that this page starts by their URL: files of the page itself.

const policy = globalThis.trustedTypes?.createPolicy("quire", {
  createScriptURL(url) {
    if (!/^page\/[\w.]+\.js$/.test(url)) throw new TypeError(`not a script of this page: ${url}`);
    return url;
  },
});

/** Return the URL of a script in the form in which workers accept it. */
export const scriptUrl = (url) => policy?.createScriptURL(url) ?? url;

/** Start the service worker, and let it keep what was loaded before it. */
export async function keepPage() {
  const registered = await navigator.serviceWorker?.register(scriptUrl("page/offline.js"), { scope: "./" }).catch(() => null);
  if (!registered) return;
  const { active } = await navigator.serviceWorker.ready;
  active.postMessage([location.href, ...performance.getEntriesByType("resource").map((one) => one.name)]);
}
