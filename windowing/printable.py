"""Text of data and paths in a form that no terminal, log or page takes for anything else."""

from __future__ import annotations

import re
from typing import Final

#: What ends a text's place in a line, or moves the cursor: controls but for tab and line end, surrogates, and marks that turn the order of
#: signs around. A replacement is as wide as the sign, so columns stay in line.
_PICTURES: Final = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys(
        (*range(0x80, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)), 0xFFFD
    ),
}
#: Signs that mean something within a line of Markdown, or at its begin.
_MARKDOWN: Final = re.compile(r"[\\`*_{}\[\]()#+!<>|~&]")


def printable(text: str) -> str:
    r"""``text`` with every character that a terminal acts on replaced by its picture.

    Examples
    --------
    >>> printable("\x1b[2Jred\x07, one\ttwo")
    '␛[2Jred␇, one\ttwo'
    """
    return text.translate(_PICTURES)


def code_span(text: str) -> str:
    r"""``text`` as a code span of Markdown: one line, which nothing in it can end.

    Examples
    --------
    >>> code_span("JFK"), code_span("a`\n\n# Approved")
    ('`JFK`', '``a`␊␊# Approved``')
    >>> code_span("`a")
    '`` `a ``'
    """
    line = printable(text).translate({0x09: 0x2409, 0x0A: 0x240A})
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    pad = " " if line[:1] in "` " or line[-1:] in "` " else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def in_markdown(text: str) -> str:
    r"""``text`` as plain words in Markdown, in one line.

    Examples
    --------
    >>> in_markdown("*new*\n# a_b")
    '\\*new\\* \\# a\\_b'
    """
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(printable(text).split()))
