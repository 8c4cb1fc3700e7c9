"""Text that people and machines read, in messages, logs, reports, DAG docs and table history: without credentials and control signs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

#: Replaces a credential.
MASK = "***"
# Every pattern takes a whole word at once and its parts are compared in Python: no text makes them go back and forth.
_URL = re.compile(r"(?<![a-z0-9+.-])(?P<scheme>[a-z][a-z0-9+.-]{0,30})://(?P<rest>[^\s'\"]+)", re.IGNORECASE)
_ASSIGNED = re.compile(r"(?<![\w.-])(?P<name>[\w.-]{1,128})=(?P<quote>['\"]?)(?P<value>[^\s&;,'\"]+)")
_FIELD = re.compile(r"(?P<quote>['\"])(?P<name>[\w.-]{1,128})(?P=quote)(?P<colon>\s{0,8}:\s{0,8})(?P<open>['\"])(?P<value>[^'\"]+)")
_BEARER = re.compile(r"(?<!\w)(?P<name>Bearer\s)[\w.~+/=-]{8,}", re.IGNORECASE)
_SECRET = re.compile(r"secret|password|passwd|token|signature|credential|(?:access|account|api|private)[._-]?key", re.IGNORECASE)
_SECRET_NAMES = {"sig", "pwd", "sas"}
#: Words of the names of variables that hold secrets.
_SECRET_WORDS = _SECRET_NAMES | {"auth", "cred", "creds", "dsn", "key", "pass", "passphrase", "pin", "salt"}
_PORT = re.compile(r"\d{1,5}(?:[/?]|$)")
#: These have a container before their @.
_AZURE = {"abfs", "abfss", "wasb", "wasbs"}


def redacted(text: str) -> str:
    """``text`` with every credential that is recognized by its form replaced by ``***``.

    These are the part before the ``@`` of a URL's host, and the values of parameters, options and fields that are named like a
    secret. What holds none comes back unchanged, and redacting twice changes nothing more.

    >>> redacted("s3://key:secret@bucket/flights?sig=abc&version=2")
    's3://***@bucket/flights?sig=***&version=2'
    >>> redacted("abfss://container@account.dfs.core.windows.net/flights")
    'abfss://container@account.dfs.core.windows.net/flights'
    """
    text = _URL.sub(_without_user, text)
    text = _ASSIGNED.sub(lambda m: f"{m['name']}={m['quote']}{MASK}" if names_secret(m["name"]) else m[0], text)
    text = _FIELD.sub(
        lambda m: f"{m['quote']}{m['name']}{m['quote']}{m['colon']}{m['open']}{MASK}" if names_secret(m["name"]) else m[0], text
    )
    return _BEARER.sub(rf"\g<name>{MASK}", text)


def holds_credentials(text: str) -> bool:
    return redacted(text) != text


def as_written(text: str, filled: Mapping[str, str]) -> str:
    """``text`` with values from the environment replaced by the text that a spec has in their place.

    Parameters
    ----------
    filled
        Text with variables as written -> the text with their values.

    Examples
    --------
    >>> as_written("site = 'hunter2'", {"${SITE}": "hunter2"})
    "site = '${SITE}'"
    >>> as_written("No module named 'hunter2'", {"${OWN}": "hunter2.sums:Own"})
    "No module named '${OWN}'"
    """
    for written, value in sorted(filled.items(), key=lambda pair: -len(pair[1])):
        # Python's errors name the module or package of ``module:name`` alone.
        module, names_object, _ = value.partition(":")
        steps = module.split(".") if names_object else []
        for part in (".".join(steps[:count]) for count in range(len(steps), 0, -1)):
            text = text.replace(f"'{part}'", f"'{written}'")
        for form in {value, repr(value)[1:-1]} - {"", written}:
            # A short value may occur inside other words, so only whole words are replaced.
            bounds = (r"(?<!\w)", r"(?!\w)") if len(form) < 6 else ("", "")
            text = re.sub(bounds[0] + re.escape(form) + bounds[1], written.replace("\\", r"\\"), text)
    return text


def holds_secret(variable: str) -> bool:
    """Whether a variable of the environment holds a secret, by its name; messages show values of others, such as a length of time.

    >>> [holds_secret(name) for name in ("TOPICS_PASSWORD", "DB_PASS", "API_KEY", "DISORDER", "WAREHOUSE", "KEYS")]
    [True, True, True, False, False, False]
    """
    return names_secret(variable) or not _SECRET_WORDS.isdisjoint(variable.lower().split("_"))


def names_secret(name: str) -> bool:
    return name.lower() in _SECRET_NAMES or _SECRET.search(name) is not None


def _without_user(url: re.Match[str]) -> str:
    scheme, rest = url["scheme"], url["rest"]
    if "@" not in rest:
        return url[0]
    user, colon, after = rest.partition(":")
    # A secret may hold slashes (AWS keys do), so it goes on to the last @; a port is no secret.
    if colon and "@" in after and not {"/", "@"} & set(user) and not _PORT.match(after):
        return f"{scheme}://{MASK}@{after.rpartition('@')[2]}"
    authority, slash, path = rest.partition("/")
    if "@" in authority and scheme.lower() not in _AZURE:
        return f"{scheme}://{MASK}@{authority.rpartition('@')[2]}{slash}{path}"
    return url[0]


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

    >>> printable("\x1b[2Jred\x07, one\ttwo")
    '␛[2Jred␇, one\ttwo'
    """
    return text.translate(_PICTURES)


def code_span(text: str) -> str:
    r"""``text`` as a code span of Markdown: one line, which nothing in it can end.

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

    >>> in_markdown("*new*\n# a_b")
    '\\*new\\* \\# a\\_b'
    """
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(printable(text).split()))
