"""HTML pages made from a template in which comments such as <!--TITLE--> mark the places to fill."""

from collections.abc import Mapping
from pathlib import Path


def fill_template(template: Path, parts: Mapping[str, str]) -> str:
    """The page with each place filled by the part of its name, which must be HTML already."""
    first, *pieces = template.read_text(encoding="utf-8").split("<!--")
    filled = [first]
    for piece in pieces:  # one pass, so that a text that looks like a place in the template stays a text
        name, _, rest = piece.partition("-->")
        filled.append(parts[name] + rest)
    return "".join(filled)
