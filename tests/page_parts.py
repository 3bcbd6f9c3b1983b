"""HTML pages, taken apart."""

from html.parser import HTMLParser


class PageParts(HTMLParser):
    """What is in a page: the names of its elements in order, their attributes, and the texts right inside them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: dict[tuple[str, str], list[str]] = {}
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self._open += [] if tag in ("meta", "input", "img") else [tag]
        for name, value in attrs:
            self.attributes.setdefault((tag, name), []).append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"{tag} ends where it did not begin"

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)
