"""Chat templates that would run forever or fill the memory, for test_chat_template_hostile.py.

Each family is a way in which a single operation, between two checks of the clock, can do a lot of work.
"""

from __future__ import annotations

TEXT = "a" * 1000


def text(characters: int, of: str = "a") -> str:
    """Return an expression for a long text."""
    return f"('{(of * 1000)[:1000]}' * {characters // 1000})"


def turns(expression: str, start: str, after: str) -> str:
    """Return a template in which ``ns.s`` and ``ns.t``, equal but not identical, are doubled sixty times."""
    body = "".join(f"{{% set ns.{n} = {expression.replace('X', 'ns.' + n)} %}}" for n in "st")
    begin = f"{{% set ns = namespace(s={start}, t={start}) %}}"
    return f"{begin}{{% for i in range(60) %}}{body}{{% endfor %}}{after}"


def lists(after: str) -> str:
    """Return a template with lists that are small in memory, but endless when printed or compared."""
    return turns("[X, X]", "[1]", after)


def tuples(after: str) -> str:
    """Return a template like ``lists``, with values that can be hashed."""
    return turns("(X, X)", "(1,)", after)


# Operations that print, compare or hash a nested value.
NESTED = {
    **{
        f"printed: {expression}": lists("{{ " + expression + " }}")
        for expression in (
            "ns",
            "ns ~ ''",
            "ns | string",
            "[ns] | join",
            "[ns] | map('upper') | list",
            "ns.s | upper",
            "ns.s | replace('a', 'b')",
            "ns.s | trim",
            "ns.s | safe",
            "ns.s | title",
            "ns.s | center",
            "ns.s | wordcount",
            "ns.s | truncate(5)",
            "ns.s is lower",
            "'%s' % ns",
            "'%r' % [ns.s]",
            "'{}'.format(ns)",
            "raise_exception(ns.s)",
            "{'a': ns.s}.values()",
            "{'a': ns.s}.items() ~ ''",
        )
    },
    **{
        f"compared: {expression}": lists("{{ " + expression + " }}")
        for expression in (
            "ns.s is eq(ns.t)",
            "ns.s is lt(ns.t)",
            "ns.s in [ns.t]",
            "[ns.t].index(ns.s)",
            "[ns.t].count(ns.s)",
            "[ns.t] | select('eq', ns.s) | list",
            "[{'a': ns.s}] | selectattr('a', 'eq', ns.t) | list",
            "[{'a': ns.s}, {'a': ns.t}] | groupby('a') | list",
            "[{'a': ns.s}, {'a': ns.t}] | map(attribute='a') | max",
            "{'a': ns.s}.items() == {'a': ns.t}.items()",
        )
    },
    "compared by a loop": lists(
        "{% for x in [1, 2] %}{{ loop.changed(ns.s) if loop.first else loop.changed(ns.t) }}{% endfor %}"
    ),
    **{
        f"hashed: {expression}": tuples("{{ " + expression + " }}")
        for expression in (
            "{ns.s: 1}",
            "{}[ns.s]",
            "{}.get(ns.s)",
            "ns.s in {}",
            "dict([(ns.s, 1)])",
            "namespace([(ns.s, 1)])",
            "messages | map(attribute=ns.s) | list",
            "messages | map('attr', ns.s) | list",
            "[{'a': ns.s}, {'a': ns.t}] | map(attribute='a') | unique | list",
            "{'a': ns.s}.items() == {'a': ns.t}.items()",
        )
    },
}

# Searches whose time is the product of two lengths, and lists of long texts that differ at their ends.
NEEDLE = "{% set s = " + text(8_000_000) + " %}{% set n = 'ab' + " + text(4_000_000) + " %}"
ALIKE = "{% set a = " + text(4_000_000) + f" %}}{{% set b = ['{TEXT}' * 3999, 'a' * 999, 'b'] | join %}}"
SEARCHES = {
    **{f"search: {name}": NEEDLE + f"{{{{ s.{name}(n) }}}}" for name in ("rfind", "rindex", "rsplit", "rpartition")},
    **{
        f"many texts: {expression}": ALIKE + "{% set l = [a] * 100000 %}{{ " + expression + " }}"
        for expression in (
            "b in l",
            "b is in(l)",
            "l.index(b)",
            "l.count(b)",
            "l == [b] * 100000",
            "l | select('in', [b]) | list",
            "b.endswith((a,) * 100000)",
        )
    },
    "strip": "{% set c = " + text(4_000_000, "b") + " %}{{ (" + text(10_000_000) + ").strip(c + 'a') | length }}",
    "strip tags": "{{ " + text(9_000_000, "<a>") + " | striptags }}",
    "comments": "{{ " + text(9_000_000, "<!---->") + " | striptags }}",
    "words": "{{ " + text(36_000_000, "ab ") + " | wordcount }}",
    "title": "{{ " + text(36_000_000, "ab ") + " | title | length }}",
}

# Long texts that are split into many small ones.
PIECES = {
    **{
        f"pieces: {expression}": "{% macro m() %}{{ varargs | length }}{% endmacro %}{% set s = "
        + text(40_000_000)
        + " %}{{ "
        + expression
        + " }}"
        for expression in (
            "s | batch(1) | list | length",
            "s | select | list | length",
            "s | sort | length",
            "s | groupby('x') | list",
            "s | unique | list",
            "''.join(s) | length",
            "m(*s)",
            "dict(*s)",
            "'{}'.format(*s)",
            "s.splitlines() | length",
            "s.split('a') | length",
        )
    },
    "batches": "{{ ([0] * 6000000) | batch(1) | list | length }}",
    "loop length": "{% for c in " + text(10_000_000, "東") + " %}{{ loop.revindex }}{% break %}{% endfor %}",
    "recursive loop over a text": "{% set s = " + text(40_000_000) + " %}{% for x in [1] recursive %}"
    "{% if loop.depth0 %}" + "y" * 5000 + "{% else %}{{ loop(s) | length }}{% endif %}{% endfor %}",
    "slices": "{% set a = " + text(10_000_000) + " %}{% set ns = namespace(l=[]) %}{% for i in range(1000) %}"
    "{% set ns.l = [ns.l, a[1:]] %}{% endfor %}",
    "chained maps": "{{ range(99999) " + "| map('string')" * 40 + " | list | length }}",
}

# Short templates with long results.
GROWTH = {
    "fields": "{% set a = " + text(1_000_000) + " %}{{ ('{0}' * 40000).format(a) }}",
    "named fields": "{% set a = " + text(1_000_000) + " %}{{ ('%(a)s' * 40000) % {'a': a} }}",
    "filtered fields": "{% set a = " + text(1_000_000) + " %}{{ ('%(a)s' * 40000) | format(a=a) }}",
    "wide fields": "{{ ('{0:9999}' * 9999).format(1) }}",
    "wide named fields": "{{ ('%(a)9999d' * 9999) % {'a': 1} }}",
    "parentheses in a name": "{{ '%((a))999999999d' % {'(a)': 1} }}",
    "precision": "{{ '%.999999999f' % 1 }}",
    "filled": "{{ '{:_>99999999}'.format('a') }}",
    "a test that formats": "{{ '%999999999d' is divisibleby(3) }}{{ '%999999999d' is odd }}",
    "wide time": "{{ strftime_now('%1000000000d') }}",
    "wide times": "{{ strftime_now('%9999999d' * 700) }}",
    "joined range": "{{ range(99999) | join(" + text(1_000_000) + ") }}",
    "joined text": "{{ " + text(1_000_000) + " | join(" + text(1_000_000) + ") }}",
    "summed lists": "{% set x = [0] * 1000 %}{{ ([x] * 100000) | sum(start=[]) | length }}",
    "JSON separators": "{{ range(99999) | list | tojson(separators=(" + text(1_000_000) + ", ':')) }}",
    "JSON indent": "{{ range(99999) | list | tojson(indent=" + text(1_000_000) + ") }}",
    "indent": "{{ ('a\n' * 300000) | indent(9999, true, true) | length }}",
    "indented by text": "{{ ('a\n' * 300000) | indent(" + text(1_000_000) + ", true, true) }}",
    "escaped": "{% set a = '' | safe %}{{ (a + " + text(20_000_000, "&") + ") | length }}",
    "escaped join": "{% set a = '' | safe %}{{ a.join([" + text(20_000_000, "&") + "]) | length }}",
    "escaped format": "{{ ('{}' | safe).format(" + text(20_000_000, "&") + ") | length }}",
    "escape": "{{ " + text(40_000_000, "&") + " | escape | length }}",
    "HTML": "{% autoescape true %}{{ " + text(9_000_000, "&") + " }}{% endautoescape %}",
    "wide characters": "{% set a = " + text(10_000_000) + " %}{% set ns = namespace(l=[]) %}{% for i in range(99) %}"
    "{% set ns.l = [ns.l, a + '🗼', a ~ '🗼', ('b' + a).replace('b', '🗼')] %}{% endfor %}",
    "case": "{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = [ns.l, "
    + text(3_000_000, "ΐ")
    + ".upper()] %}{% endfor %}",
    "constants": "{% macro m() %}{% for i in range(99999) %}{{ '" + "y" * 50_000 + "' }}{% endfor %}{% endmacro %}"
    "{{ m() | length }}",
    "numbers": "{% macro m() %}{% for i in range(99999) %}{% for j in range(99999) %}{{ j }}{% endfor %}{% endfor %}"
    "{% endmacro %}{{ m() | length }}",
    "macro text": "{% macro m(n) %}" + "y" * 99_999 + "{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) | length }}",
    "blocks": "{% block a %}{{ self.b() }}{{ self.b() }}{% endblock %}{% block b %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "call blocks": "{% macro m(n) %}{{ caller(n + 1) }}{{ caller(n + 1) }}{% endmacro %}{% macro r(n) %}"
    "{% call(k) m(n) %}{{ r(k) }}{% endcall %}{% endmacro %}{{ r(0) }}",
}

# Work at compile time: constants are folded, and a failed folding is tried again.
FOLDED = {
    "folded": "{{ 'a' | center(9000) | replace(' ', 'ab ') " + "| title" * 140 + " }}",
    "folded and escaped": ("{{ 'a' | center(9000) | replace(' ', '&') " + "| escape | string" * 60 + " }}") * 50,
}

# A text with parts by the template and by a user takes one more byte per character.
MIXED_TEXT = "(('a' + messages[0].content) * 30000)"
MIXED = {
    "mixed doubling": turns("X + X", "'a' + messages[0].content", ""),
    "mixed tilde": turns("X ~ X", "'a' + messages[0].content", ""),
    "mixed pieces": "{% set s = " + MIXED_TEXT + " %}{% for i in range(99) %}{% set x = s.split('x') %}{% endfor %}",
    "mixed words": "{% set s = ('a ' + messages[0].content) * 90000 %}{% for i in range(99) %}{% set x = s.split() %}"
    "{% endfor %}",
    "mixed lines": "{{ ((messages[0].content + '\n') * 90000 + 'a').splitlines() | length }}",
    "mixed characters": "{{ " + MIXED_TEXT + " | list | join | length }}",
    "mixed replacement": "{{ " + MIXED_TEXT + ".replace('x', 'bc') | length }}",
    "mixed joined": "{{ (messages[0].content * 90000) | join('a') | length }}",
    "mixed output": "{% for i in range(99999) %}{% for j in range(99999) %}a{{ messages[0].content[0] }}{% endfor %}"
    "{% endfor %}",
    "mixed runs": "{{ ('a' + messages[0].content[0]) * 8000000 }}",
}

# Lists and dicts that the template creates and modifies.
CHANGED = {
    "appended for ever": "{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}",
    "appended for long": "{% set l = [] %}{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% set _ = l.append(1) %}{% endfor %}{% endfor %}",
    "inserted first": "{% set l = range(99999) | list %}{% for a in range(99999) %}{% set _ = l.insert(0, 1) %}"
    "{% set _ = l.insert(0, 1) %}{% endfor %}",
    "extended by itself": "{% set l = [1, 2] %}{% for i in range(60) %}{% set _ = l.extend(l) %}{% endfor %}",
    "extended by a range": "{% set l = [] %}{% for i in range(9999) %}{% set _ = l.extend(range(99999)) %}{% endfor %}",
    "reversed": "{% set l = range(99999) | list %}{% for i in range(99999) %}{% set _ = l.reverse() %}{% endfor %}",
    "updated for long": "{% set d = {} %}{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% set _ = d.update({a * 99999 + b: 1}) %}{% endfor %}{% endfor %}",
    "set for long": "{% set d = {} %}{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% set _ = d.setdefault(a * 99999 + b, [1]) %}{% endfor %}{% endfor %}",
    **{
        f"in itself: {expression}": "{% set l = [] %}{% set _ = l.append(l) %}{% set m = [] %}{% set _ = m.append(m) %}"
        "{% set d = {} %}{% set _ = d.update(a=d) %}{{ " + expression + " }}"
        for expression in (
            "l",
            "l | tojson",
            "l == m",
            "l in [m]",
            "[l] | sort",
            "l | join",
            "d",
            "d | tojson",
            "'%s' % (l,)",
            "d.items() | list",
            "raise_exception(l)",
        )
    },
}

OPERATIONS = {**NESTED, **SEARCHES, **PIECES, **GROWTH, **FOLDED, **MIXED, **CHANGED}
