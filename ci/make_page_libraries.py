"""Write the libraries that the chat page loads on demand: ``python ci/make_page_libraries.py FOLDER``.

FOLDER is where this ran: ``npm install --ignore-scripts temml@0.13.5 mermaid@11.17.2 pdfjs-dist@5.6.205
@fontsource/stix-two-math@5.3.0``.  The results are committed, compressed as they are served.
"""

from __future__ import annotations

import hashlib
import sys
import zlib
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "python" / "quire" / "server" / "page"
# name on the page: (file of the package, SHA-256 of it, what makes it a module)
FILES = {
    "temml.js": (
        "temml/dist/temml.min.js",
        "1ab19148afe0dbc836b7a74f344071b3f3a70a7a8259ae4049e76894fcdf8d95",
        b"\nexport default temml;\n",
    ),
    "temml.css": (
        "temml/dist/Temml-STIX2.css",
        "e8e17549df716ffc30d3a063dcde31aa3199b1309373e4fe54c87375f98826d0",
        b"",
    ),
    "mermaid.js": (
        "mermaid/dist/mermaid.min.js",
        "581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8",
        b"",
    ),
    "pdf.js": ("pdfjs-dist/build/pdf.min.mjs", "2221020ea508479dcc1221f36f2731656339230097c69ba1f78802832c0ad685", b""),
    "pdf.worker.js": (
        "pdfjs-dist/build/pdf.worker.min.mjs",
        "51a2fd1ea47f1a9b0814e65e0c336c739c54957795ee774e8f93cb81e8028dd1",
        b"",
    ),
}
FONTS = {
    "STIXTwoMath.woff2": (
        "@fontsource/stix-two-math/files/stix-two-math-latin-400-normal.woff2",
        "8b2a6834cfe1f4e0f3724ffa59fe92000013fc5a4c41e6a3f438006c26c60f0d",
    ),
}


def read(folder: Path, name: str, digest: str) -> bytes:
    """Return a file of a package.  Exits if it is not the pinned one."""
    content = (folder / "node_modules" / name).read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        sys.exit(f"{name} has the SHA-256 {found}, not {digest}")
    return content


def compressed(content: bytes) -> bytes:
    """Compress without a name and a time, so that the bytes depend on the content alone."""
    writer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return writer.compress(content) + writer.flush()


def main(folder: Path) -> None:
    """Write all files."""
    for name, (source, digest, end) in FILES.items():
        (PAGE / f"{name}.gz").write_bytes(compressed(read(folder, source, digest) + end))
    for name, font in FONTS.items():
        (PAGE / name).write_bytes(read(folder, *font))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
