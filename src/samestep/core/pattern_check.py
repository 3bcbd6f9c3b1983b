"""Regular expressions of anybody, for a library that cannot be interrupted: which could take for ages on a text."""

import re
from dataclasses import dataclass

LONGEST = 4096
_MOST_REPEATS = 3
"""In a row. Each adds a power to the time, and published tokenizers have two."""
_FEW = 16
"""A repeat that ends here costs little."""
_BOUNDS = re.compile(r"\{(\d*)(,?)(\d*)\}")
_OPTIONS = re.compile(r"\(\?[a-zA-Z]*-?[a-zA-Z]*[:)]")
_REFERENCE = re.compile(r"\\(?:[1-9kg])")


@dataclass
class _Group:
    """What was seen of a group so far, which ends at a parenthesis."""

    repeats: int = 0
    """In the branch that is being read."""
    most: int = 0
    """In one of the branches before it."""
    varies: bool = False
    """Whether it can match one text in several ways: it has a repeat, or branches."""


@dataclass(frozen=True)
class _Repeat:
    """How often something is repeated."""

    end: int
    """Where the quantifier ends."""
    varies: bool = False
    """Whether there are several numbers of times."""
    is_long: bool = False
    """Whether it may be many times."""
    is_repeated: bool = False
    """Whether another quantifier follows, for what this one makes."""


def pattern_problem(pattern: str) -> str:
    """What is wrong with a pattern of Oniguruma; empty where its time is bounded by a low power of the text's length.

    A group that is repeated must be of one length: (a+)+ and (a|aa)* try a number of ways that grows exponentially.
    """
    if len(pattern) > LONGEST:
        return f"it has {len(pattern):,} characters"
    try:
        return _scan(pattern)
    except IndexError:
        return "its parentheses or brackets do not match"


def _scan(pattern: str) -> str:
    groups, place = [_Group()], 0
    while place < len(pattern):
        letter, ended = pattern[place], None
        if problem := _unsupported(pattern, place):
            return problem
        if letter == "(":
            groups.append(_Group())
            place = _after_opening(pattern, place)
            continue
        if letter == "|":
            top = groups[-1]
            top.most, top.repeats, top.varies = max(top.most, top.repeats), 0, True
            place += 1
            continue
        if letter == ")":
            ended = groups.pop()
            groups[-1].repeats += max(ended.most, ended.repeats)
            groups[-1].varies |= ended.varies
        repeat = _repeat_at(pattern, _after_atom(pattern, place))
        place = repeat.end
        is_last = len(groups) == 1 and pattern[place + 1 : place + 2] in ("", "|")  # so nothing is ever tried again
        if (repeat.is_repeated and not is_last) or (repeat.is_long and ended is not None and ended.varies):
            return "it repeats what can be matched in several ways"
        groups[-1].varies |= repeat.varies
        groups[-1].repeats += repeat.is_long
        if groups[-1].repeats > _MOST_REPEATS:
            return f"it has more than {_MOST_REPEATS} repeats in a row"
    return "" if len(groups) == 1 else "its parentheses do not match"


def _unsupported(pattern: str, place: int) -> str:
    if _REFERENCE.match(pattern, place):
        return "it refers to its own groups"
    if pattern.startswith(("(?(", "(?~", "(?#"), place):
        return "it has conditions, absences or comments"
    options = _OPTIONS.match(pattern, place)
    return "it has comments" if options is not None and "x" in options[0] else ""


def _after_opening(pattern: str, place: int) -> int:
    """Behind what a group begins with."""
    found = re.compile(r"\((?:\?(?:<?[=!]|>|<\w+>|[a-zA-Z]*-?[a-zA-Z]*:?))?").match(pattern, place)
    assert found is not None
    return found.end()


def _after_atom(pattern: str, place: int) -> int:
    """Behind one thing that can be repeated: a letter, an escape, a set of characters, a group that ends."""
    if pattern[place] == "\\":
        named = re.compile(r"\\[pP]\{[^}]*\}|\\x\{[^}]*\}|\\.", re.DOTALL).match(pattern, place)
        return named.end() if named else place + 2
    if pattern[place] != "[":
        return place + 1
    depth, place = 1, place + 1
    if pattern[place] == "^":
        place += 1
    if pattern[place] == "]":  # the first one is a character of the set
        place += 1
    while depth:
        letter = pattern[place]
        place += 2 if letter == "\\" else 1
        depth += {"[": 1, "]": -1}.get(letter, 0)
    return place


def _repeat_at(pattern: str, place: int) -> _Repeat:
    """The quantifier that begins here."""
    bounds = _BOUNDS.match(pattern, place)
    kind = pattern[place : place + 1]
    if bounds is not None:
        least, comma, most = bounds.groups()
        is_long = int(most or 0) > _FEW if comma and most else bool(comma) or int(least or 0) > _FEW
        return _Repeat(bounds.end(), bool(comma) and least != most, is_long, _is_repeated(pattern, bounds.end()))
    if kind not in ("*", "+", "?"):
        return _Repeat(place)
    end = place + (2 if pattern[place + 1 : place + 2] in ("+", "?") else 1)  # possessive, or lazy
    return _Repeat(end, True, kind != "?", _is_repeated(pattern, end))


def _is_repeated(pattern: str, place: int) -> bool:
    return pattern.startswith(("*", "+"), place) or _BOUNDS.match(pattern, place) is not None
