"""The one console of rich: brackets in a text are no markup, and no text controls the terminal."""

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from samestep.core.output import ResilientStream, escape_controls, is_terminal


class PlainConsole(Console):
    """A console that prints texts as they are, whatever is in them. A reader that is gone is no error."""

    def __init__(self, file: TextIO | None = None, **options: Any) -> None:
        stream: Any = ResilientStream(sys.stdout if file is None else file)
        if stream.isatty() and not is_terminal(stream):
            options.setdefault("force_terminal", False)
        super().__init__(file=stream, markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of anything that is printed; rich's own control codes are segments of another kind."""
        for segment in super().render(renderable, options):
            if segment.control is None and (self.is_terminal or self.file.isatty()):
                segment = Segment(escape_controls(segment.text), segment.style)
            yield segment
