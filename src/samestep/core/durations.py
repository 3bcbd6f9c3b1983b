"""How long ago something was, in words."""

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def ago(seconds: float) -> str:
    """`5 min`."""
    length, unit = next((pair for pair in _UNITS if seconds >= pair[0]), (1, "s"))
    return f"{max(0.0, seconds) / length:.0f} {unit}"
