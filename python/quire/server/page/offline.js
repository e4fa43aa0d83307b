// A service worker: the page opens while the server is away.  The server is always asked first, and only the page's own
// files are kept, so another program at this address later is not hidden.

const CACHE = "quire-page";
const root = new URL("./", registration.scope);
const isPage = (url) => url.origin === root.origin && (url.pathname === root.pathname || url.pathname.startsWith(`${root.pathname}page/`));

addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));

/** Keep the files that were loaded before this worker began. */
addEventListener("message", (event) => {
  const urls = event.data.filter((url) => isPage(new URL(url)));
  event.waitUntil(Promise.allSettled(urls.map((url) => serverFirst(new Request(url, { headers: { accept: "text/html,*/*" } })))));
});

addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method === "GET" && isPage(new URL(request.url))) event.respondWith(serverFirst(request));
});

async function serverFirst(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    const ours = response.ok && response.headers.get("content-security-policy")?.includes("trusted-types quire");
    if (ours) await cache.put(request, response.clone());
    return response;
  } catch (error) {
    const kept = await cache.match(request, { ignoreVary: true });
    if (kept) return kept;
    throw error;
  }
}
