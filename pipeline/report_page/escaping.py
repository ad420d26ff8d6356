"""Makes text of files, such as class names and samples, safe to put into HTML and Markdown."""

import html
import re
import unicodedata

MARKUP = re.compile(r"[\\`*\[\]|~$<>&]|(?<![^\W_])_|_(?![^\W_])|^(?:[#+=-]|[0-9]+(?=[.)](?:\s|$)))")
"""What can begin markup in some dialect of Markdown. An underscore within a word cannot, and some characters can at the beginning of a line
only."""
ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def visible(text: str, *, lines: bool = False) -> str:
    """Return the text with control characters, marks that change the direction of text, and invalid UTF-8 as escapes, as in Python.

    Line feeds and tabs are kept if `lines` is True, else escaped too. All kinds of spaces are kept (category Zs).
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
    """Return the characters with a backslash where Markdown needs it: before a sign, or after the number of a list."""
    return f"{markup}\\" if markup.isdigit() else f"\\{markup}"


def fenced(text: str) -> str:
    """Return the text as a block of code in Markdown, between fences that are longer than any in the text."""
    shown = visible(text, lines=True)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{shown}\n{fence}"
