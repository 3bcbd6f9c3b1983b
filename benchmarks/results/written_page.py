"""What the pages of docs/results have in common: tables, values with intervals, how and where."""

import textwrap
from collections.abc import Sequence
from typing import Any


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown, with a line break at its end."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |") for cells in lines)


def between(value: float, interval: Sequence[float], digits: int = 3) -> str:
    """A value and its interval."""
    return f"{value:.{digits}f} ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})"


def with_interval(values: Sequence[float]) -> str:
    """A value and its interval, as one list."""
    return between(values[0], values[1:])


def quoted(text: str) -> str:
    """What somebody or something wrote, in one line."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"


def part(found: dict[str, Any]) -> str:
    """Its share of the teacher."""
    low, high = found["of_teacher_interval"]
    if low == high:
        return f"{found['of_teacher']:.0%}"
    return f"{found['of_teacher']:.1%} ({low:.1%} to {high:.1%})"


def about(results: dict[str, Any]) -> str:
    """The command, when, where and how long."""
    return f"""```sh
{results["command"]}
```

{results["date"]}, {results["device"]}, torch {results["torch"]}; {results["minutes"]:g} minutes.
"""


def wrapped(page: str, width: int = 119) -> str:
    """A page whose paragraphs and lists fill their lines."""
    blocks, is_code = [], False
    for block in page.split("\n\n"):
        fences = block.count("```")
        if fences or is_code or block.startswith(("|", "!", "# ")):
            blocks.append(block)
        else:
            head, _, rest = block.partition("\n") if block.startswith("## ") else ("", "", block)
            if rest.startswith("|"):
                filled = rest
            else:
                parts = rest.replace("\n- ", "\n\0- ").split("\n\0")
                filled = "\n".join(_filled(part, width) for part in parts)
            blocks.append(f"{head}\n{filled}" if head else filled)
        is_code ^= bool(fences % 2)
    return "\n\n".join(blocks).rstrip("\n") + "\n"


def _filled(text: str, width: int) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        " ".join(text.split()), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
