"""Escapes text from files, such as class names and samples, for HTML and Markdown."""

import html
import re
import unicodedata

MARKUP = re.compile(r"[\\`*\[\]|~$<>&]|(?<![^\W_])_|_(?![^\W_])|^(?:[#+=-]|[0-9]+(?=[.)](?:\s|$)))")
"""Characters that can begin markup in a dialect of Markdown. Underscores within a word cannot begin markup; some other characters can do so
only at the beginning of a line."""
ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def visible(text: str, *, lines: bool = False) -> str:
    """Return the text with Python's escapes in place of control characters, marks of text direction, and invalid UTF-8.

    Line feeds and tabs are kept if `lines` is True, else escaped too. Spaces of all kinds (category Zs) are kept.
    """
    return "".join(
        letter if letter.isprintable() or unicodedata.category(letter) == "Zs" or (lines and letter in "\n\t") else ascii(letter)[1:-1]
        for letter in text
    )


def html_text(text: str, *, lines: bool = False) -> str:
    """Return the text for an element or an attribute of HTML."""
    return html.escape(visible(text, lines=lines), quote=True)


def markdown_text(text: str) -> str:
    """Return the text for a paragraph, a heading or the cell of a table: on one line, and without any markup."""
    return MARKUP.sub(lambda match: ENTITIES.get(match[0]) or escaped(match[0]), visible(text).strip())


def escaped(markup: str) -> str:
    """Return `markup` with a backslash: after the number of a list item, or before any other markup."""
    return f"{markup}\\" if markup.isdigit() else f"\\{markup}"


def fenced(text: str) -> str:
    """Return the text as a block of code in Markdown, between fences that are longer than any in the text."""
    shown = visible(text, lines=True)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{shown}\n{fence}"
