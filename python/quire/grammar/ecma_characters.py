"""Character sets of ECMA-262's regular expressions, written so that they mean the same in every dialect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "ALL",
    "ANY_BUT_LINE_ENDS",
    "BINARY_PROPERTIES",
    "CATEGORIES",
    "ESCAPED_SETS",
    "LAST",
    "SURROGATES",
    "CharacterSet",
    "literal",
]

Span: TypeAlias = "tuple[int, int]"

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)  # never part of a text
_LINE_ENDS = [(0xA, 0xA), (0xD, 0xD), (0x2028, 0x2029)]
_DIGITS = [(0x30, 0x39)]
_WORD = [*_DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACES = [
    (0x9, 0xD), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
]  # fmt: skip


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The values of General_Category, by both names (PropertyValueAliases.txt of Unicode).
CATEGORIES = _names(
    "L Letter LC Cased_Letter Lu Uppercase_Letter Ll Lowercase_Letter Lt Titlecase_Letter Lm Modifier_Letter Lo "
    "Other_Letter M Mark Combining_Mark Mn Nonspacing_Mark Mc Spacing_Mark Me Enclosing_Mark N Number Nd "
    "Decimal_Number digit Nl Letter_Number No Other_Number P Punctuation punct Pc Connector_Punctuation Pd "
    "Dash_Punctuation Ps Open_Punctuation Pe Close_Punctuation Pi Initial_Punctuation Pf Final_Punctuation Po "
    "Other_Punctuation S Symbol Sm Math_Symbol Sc Currency_Symbol Sk Modifier_Symbol So Other_Symbol Z Separator "
    "Zs Space_Separator Zl Line_Separator Zp Paragraph_Separator C Other Cc Control cntrl Cf Format Co "
    "Private_Use Cn Unassigned"
)
# Properties that have the same name in ECMA-262 and in llguidance.
BINARY_PROPERTIES = _names(
    "Alphabetic Alpha Lowercase Lower Uppercase Upper White_Space space ASCII_Hex_Digit AHex Hex_Digit Hex ID_Start "
    "IDS ID_Continue IDC XID_Start XIDS XID_Continue XIDC Dash Math Emoji Extended_Pictographic Ideographic Ideo "
    "Assigned Cased Case_Ignorable CI Diacritic Dia Extender Ext"
)


@dataclass(frozen=True)
class CharacterSet:
    """Ascending, disjoint spans of code points, and Unicode properties."""

    spans: tuple[Span, ...] = ()
    properties: tuple[str, ...] = ()

    @classmethod
    def of(cls, spans: Iterable[Span], properties: Iterable[str] = ()) -> CharacterSet:
        """Create a set from spans in any order."""
        found: list[Span] = []
        for first, last in sorted(spans):
            if found and first <= found[-1][1] + 1:
                found[-1] = (found[-1][0], max(found[-1][1], last))
            else:
                found.append((first, last))
        return cls(tuple(found), tuple(dict.fromkeys(properties)))

    def without(self) -> CharacterSet:
        """Return the complement of a set without properties."""
        assert not self.properties
        found, at = [], 0
        for first, last in self.spans:
            if at < first:
                found.append((at, first - 1))
            at = last + 1
        if at <= LAST:
            found.append((at, LAST))
        return CharacterSet(tuple(found))

    @property
    def is_empty(self) -> bool:
        return not self.written_spans() and not self.properties

    def written_spans(self) -> str:
        """Return the spans as written between brackets."""
        parts = []
        for first, last in self.spans:
            low = SURROGATES[1] + 1 if SURROGATES[0] <= first <= SURROGATES[1] else first
            high = SURROGATES[0] - 1 if SURROGATES[0] <= last <= SURROGATES[1] else last
            if low <= high:
                parts.append(literal(low) if low == high else f"{literal(low)}-{literal(high)}")
        return "".join(parts)

    def written(self, negated: bool = False) -> str:
        """Return the set as an atom of a regular expression."""
        return f"[{'^' if negated else ''}{self.written_spans()}{''.join(self.properties)}]"


def literal(code: int) -> str:
    """Return a character, escaped unless it is an ASCII letter or digit."""
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\u{{{code:X}}}"


ALL = CharacterSet(((0, LAST),))
ANY_BUT_LINE_ENDS = CharacterSet.of(_LINE_ENDS).without()
ESCAPED_SETS = {
    "d": CharacterSet.of(_DIGITS), "D": CharacterSet.of(_DIGITS).without(), "w": CharacterSet.of(_WORD),
    "W": CharacterSet.of(_WORD).without(), "s": CharacterSet.of(_SPACES), "S": CharacterSet.of(_SPACES).without(),
}  # fmt: skip
