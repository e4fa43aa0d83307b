"""Check a built site: every local link and anchor exists, and no page loads anything from another site.

python ci/check_site.py FOLDER
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Resources that a browser loads by itself; links for readers may point elsewhere.
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("object", "data")}


class Page(HTMLParser):
    """The anchors and links of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := values.get(key))}
        for key in ("href", "src", "data"):
            if value := values.get(key):
                is_loaded = (tag, key) in LOADED and values.get("rel") not in ("canonical", "next", "prev")
                (self.loaded if is_loaded else self.links).append(value)


def problems(site: Path) -> list[str]:
    """Return the errors in the pages of a folder, one line each."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    found.append(f"{name} loads {link}")
                continue
            if name.name == "404.html":  # its links are relative to a server's root
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{name} leads to {link}, which is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].names:
                found.append(f"{name} leads to {link}, which has no such place")
    for path in sorted(site.rglob("*.css")):
        for link in re.findall(r"url\(\s*[\"']?((?:https?:)?//[^)\"']+)", path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(site)} loads {link}")
    return found


def main() -> None:
    """Check the folder given as the argument."""
    site = Path(sys.argv[1])
    pages = list(site.rglob("*.html"))
    if not pages:
        raise SystemExit(f"no pages in {site}")
    found = problems(site)
    if found:
        print("\n".join(found))
        raise SystemExit(f"failed: {len(found)} of {len(pages)} pages' links")
    print(f"{len(pages)} pages, all links lead somewhere, nothing is loaded from elsewhere")


if __name__ == "__main__":
    main()
