"""Changes of a model's files, each of which makes it another model, and which are undone afterwards."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Change = Callable[[bytes], bytes]


@contextmanager
def changed(path: Path, change: Change) -> Iterator[None]:
    """The file is another one inside."""
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    try:
        yield
    finally:
        path.write_bytes(before)


def last_byte(content: bytes) -> bytes:
    """The same up to its last bit but seven."""
    return content[:-1] + bytes([content[-1] ^ 1])


def fields(**values: Any) -> Change:
    """The fields of a JSON file."""
    return lambda content: json.dumps({**json.loads(content), **values}).encode()


def two_tokens_swapped(content: bytes) -> bytes:
    """Of a tokenizer.json, the numbers of the first two tokens after the special ones."""
    found = json.loads(content)
    words = found["model"]["vocab"]
    first, second = [word for word, number in words.items() if number in (5, 6)]
    words[first], words[second] = words[second], words[first]
    return json.dumps(found).encode()
