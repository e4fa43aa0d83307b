"""References within a JSON Schema: to pointers, anchors and resources of the same document.

https://json-schema.org/draft/2020-12/json-schema-core#section-8
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urldefrag, urljoin

from ..errors import RequestError
from .schema_keywords import DATA, MAPS_OF_SCHEMAS
from .schema_places import Place, malformed, unsupported

__all__ = ["MAX_ENTRIES", "Document"]

MAX_ENTRIES = 200_000  # objects, their members, and members of lists, all together

_SCHEMA, _MAP, _DATA = "schema", "map", "data"


class Document:
    """A schema with the places and base URIs of the objects in it."""

    def __init__(self, root: object) -> None:
        """Walk the whole document once.  RequestError if it is too large."""
        self.root = root
        dialect = root.get("$schema") if isinstance(root, Mapping) else None
        self._id_keyword = "id" if "/draft-04/" in str(dialect) else "$id"
        self._places: dict[int, Place] = {}
        self._bases: dict[int, str] = {}
        self._resources: dict[str, object] = {"": root}
        self._anchors: dict[tuple[str, str], object] = {}
        self._n_dynamic: dict[str, int] = {}
        self._walk()

    def _walk(self) -> None:
        left: list[tuple[object, Place, str, str]] = [(self.root, (), "", _SCHEMA)]
        n_entries = 0
        while left:
            node, place, base, kind = left.pop()
            if isinstance(node, list):
                n_entries += len(node)
                left += [(item, (*place, str(i)), base, kind) for i, item in enumerate(node)]
            elif isinstance(node, Mapping):
                n_entries += 1 + len(node)
                if kind == _SCHEMA:
                    base = self._named(node, place, base)
                self._places[id(node)], self._bases[id(node)] = place, base
                left += [(value, (*place, name), base, _kind_of(kind, name)) for name, value in node.items()]
            if n_entries > MAX_ENTRIES:
                raise RequestError(f"[json_schema] the schema has more than {MAX_ENTRIES} entries")

    def _named(self, schema: Mapping[str, object], place: Place, base: str) -> str:
        """Register the names of a schema and return its base URI."""
        own = schema.get(self._id_keyword)
        if isinstance(own, str) and own.startswith("#"):  # an anchor in older drafts
            self._anchors.setdefault((base, own[1:]), schema)
        elif isinstance(own, str):
            base = _joined(base, own, (*place, self._id_keyword))[0]
            self._resources.setdefault(base, schema)
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str):
                self._anchors.setdefault((base, name), schema)
                self._n_dynamic[name] = self._n_dynamic.get(name, 0) + (keyword == "$dynamicAnchor")
        return base

    def place(self, schema: object, otherwise: Place) -> Place:
        """Return the place of an object of the document."""
        return self._places.get(id(schema), otherwise)

    def follow(self, schema: Mapping[str, object], keyword: str, place: Place) -> tuple[object, Place]:
        """Return the schema that a reference leads to, and its place.

        Raises:
            UnsupportedError: It leads to another document, or its target depends on the path taken to it.
            RequestError: It leads nowhere.
        """
        reference, here = str(schema[keyword]), (*place, keyword)
        uri, fragment = _joined(self._bases.get(id(schema), ""), reference, here)
        if uri not in self._resources:
            raise unsupported(here, f"reference {reference!r:.80} leads out of the document")
        if keyword == "$dynamicRef" and self._n_dynamic.get(fragment, 0) > 1:
            raise unsupported(here, f"'$dynamicRef' to {fragment!r:.80}, which the document has more than once")
        found = self._anchored(uri, fragment, here) if fragment and fragment[0] != "/" else self._at(uri, fragment)
        if found is None:
            raise malformed(here, f"no schema in this document: {reference!r:.80}")
        return found

    def _anchored(self, uri: str, name: str, here: Place) -> tuple[object, Place] | None:
        target = self._anchors.get((uri, name))
        return None if target is None else (target, self.place(target, here))

    def _at(self, uri: str, fragment: str) -> tuple[object, Place] | None:
        """Return the target of a pointer from the resource or else, as some generators mean it, from the document."""
        parts = tuple(part.replace("~1", "/").replace("~0", "~") for part in unquote(fragment).split("/")[1:])
        for start in (self._resources[uri], self.root):
            target: object = start
            for part in parts:
                if isinstance(target, Mapping):
                    target = target.get(part)
                elif isinstance(target, list) and part.isdecimal() and int(part) < len(target):
                    target = target[int(part)]
                else:
                    target = None
            if isinstance(target, bool | Mapping):
                return target, self.place(target, (*self.place(start, ()), *parts))
        return None


def _kind_of(parent: str, keyword: str) -> str:
    if parent == _SCHEMA:
        return _MAP if keyword in MAPS_OF_SCHEMAS else _DATA if keyword in DATA else _SCHEMA
    return _SCHEMA if parent == _MAP else _DATA


def _joined(base: str, reference: str, place: Place) -> tuple[str, str]:
    """Return a reference as an absolute URI without its fragment, and the fragment."""
    if reference.startswith("#"):  # urljoin() drops the base of schemes that it does not know
        return base, reference[1:]
    try:
        uri, fragment = urldefrag(urljoin(base, reference))
    except ValueError as error:
        raise malformed(place, f"no URI: {reference!r:.80}") from error
    return uri, fragment
