// The only scripts that this page starts by their URL: files of the page itself.

const policy = globalThis.trustedTypes?.createPolicy("quire", {
  createScriptURL(url) {
    if (!/^page\/[\w.]+\.js$/.test(url)) throw new TypeError(`not a script of this page: ${url}`);
    return url;
  },
});

/** Return the URL of a script in the form in which workers accept it. */
export const scriptUrl = (url) => policy?.createScriptURL(url) ?? url;
