"""A table is written once, and shown in a page, on the console, or as plain text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samestep.core.pages.html import Html, element

if TYPE_CHECKING:  # it takes a tenth of a second
    from rich.table import Table as ConsoleTable
    from rich.text import Text


class Styled(str):
    """A cell that the console shows in a style, such as `bold red`."""

    style: str

    def __new__(cls, text: str, style: str) -> "Styled":
        made = super().__new__(cls, text)
        made.style = style
        return made


@dataclass(frozen=True)
class Column:
    """A column, and how the console shows it."""

    name: str = ""
    is_number: bool = False
    """Numbers end at the right."""
    wraps: bool = False
    width: int | None = None
    """Characters that it has at most."""
    style: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under a head. A column that is given by its name alone holds numbers, unless it is the first."""

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[str]]
    """Cells are texts; in a page a cell may be `Html`."""
    title: str = ""

    @property
    def all_columns(self) -> list[Column]:
        return [
            Column(column, is_number=place > 0) if isinstance(column, str) else column
            for place, column in enumerate(self.columns)
        ]

    def html(self, kind: str = "") -> Html:
        """For a page; its title is left to the page."""
        columns = self.all_columns
        kinds = ["number" if column.is_number else "" for column in columns]
        head = [element("th", column.name, kind=kind) for column, kind in zip(columns, kinds, strict=True)]
        rows = [
            element("tr", *(element("td", cell, kind=kind) for cell, kind in zip(row, kinds, strict=True)))
            for row in self.rows
        ]
        return element("table", element("tr", *head), *rows, kind=kind)

    def drawn(self) -> "ConsoleTable":
        """For a console of core/console.py; what is in brackets is no markup."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as ConsoleTable
        from rich.text import Text

        title = Text(self.title) if self.title else None
        drawn = ConsoleTable(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for column in self.all_columns:
            drawn.add_column(
                Text(column.name),
                justify="right" if column.is_number else "left",
                no_wrap=not column.wraps,
                overflow="fold",
                max_width=column.width,
                style=column.style,
            )
        for row in self.rows:
            drawn.add_row(*map(_as_rich, row))
        return drawn

    def text(self) -> str:
        """As lines."""
        columns = self.all_columns
        table = [[column.name for column in columns], *self.rows]
        widths = [max(len(row[place]) for row in table) for place in range(len(columns))]
        pads = [str.rjust if column.is_number else str.ljust for column in columns]
        lines = ["  ".join(pad(cell, width) for pad, cell, width in zip(pads, row, widths)).rstrip() for row in table]
        return "\n".join([self.title, *lines] if self.title else lines)


def _as_rich(cell: str) -> "Text":
    from rich.text import Text

    return Text(str(cell), style=cell.style if isinstance(cell, Styled) else "")
