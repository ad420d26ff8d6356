"""Reads a written report: the elements of the page, its text, and the parts of the model card."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from markdown_it import MarkdownIt
from ruamel.yaml import YAML

VOID = {"meta", "br", "img"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]


@dataclass
class Read(HTMLParser):
    """The elements of a page in order and its visible texts. Fails if elements do not nest."""

    page: str
    elements: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def tags(self) -> list[str]:
        return [element.tag for element in self.elements]

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    @property
    def titles(self) -> list[str]:
        return re.findall(r"<h2>(.*?)</h2>", self.page)


def card_parts(card: str) -> tuple[dict[str, Any], list[Any]]:
    """Return the metadata of a model card, and the tokens of its Markdown."""
    assert card.startswith("---\n")
    metadata, _, body = card.removeprefix("---\n").partition("\n---\n")
    return YAML(typ="safe", pure=True).load(metadata), MarkdownIt("commonmark").enable("table").parse(body)


def structure(tokens: list[Any]) -> list[str]:
    """Return the types of the tokens with those inside of lines, without which text they have."""
    return [each.type for token in tokens for each in (token, *(token.children or []))]


def plain_text(tokens: list[Any]) -> str:
    return "\n".join("".join(part.content for part in token.children or [token]) for token in tokens if token.content)
