"""Chats as people publish them, as messages with `role` and `content`.

{"messages": [{"role": "user", "content": ...}, ...]}
{"messages": [{"role": "user", "content": [{"type": "text", "text": ...}]}, ...]}
{"conversations": [{"from": "human", "value": ...}, ...]}    ShareGPT
{"instruction": ..., "input": ..., "output": ...}            Alpaca
{"prompt": ..., "completion": ...} or {"prompt": ..., "answer": ...}, {"question": ..., "answer": ...}
"""

from collections.abc import Mapping
from typing import Any

LISTS = ("messages", "conversations", "conversation")
PAIRS = (("prompt", "answer"), ("prompt", "completion"), ("instruction", "output"), ("question", "answer"))
"""Columns of what a user says, and of the answer."""
_MORE = ("input", "system")
CHAT_COLUMNS = tuple(dict.fromkeys([*LISTS, *(name for pair in PAIRS for name in pair), *_MORE]))
USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
_ROLES = {"human": USER, "gpt": ASSISTANT, "chatgpt": ASSISTANT, "bot": ASSISTANT, "model": ASSISTANT}


def has_chat(record: Mapping[str, Any]) -> bool:
    """Whether a record looks like a chat."""
    return any(name in record for name in LISTS) or any(record.keys() >= set(pair) for pair in PAIRS)


def text_or_messages(value: Any) -> Any:
    """A text, also one in parts, or a list of messages; what is neither stays as it is."""
    if isinstance(value, dict):
        value = [value]
    text = _joined(value)
    if isinstance(text, list) and all(map(_is_message, text)):
        return list(map(_message, text))
    return text


def find_messages(record: Mapping[str, Any]) -> Any:
    """The messages of a record; None if it has no chat. What is wrong with them is left as it is."""
    listed = next((record[name] for name in LISTS if record.get(name) is not None), None)
    if listed is not None:
        messages = text_or_messages(listed)
    else:
        pair = next((pair for pair in PAIRS if record.keys() >= set(pair)), None)
        if pair is None:
            return None
        more = record.get("input") if pair[0] == "instruction" else None
        asked = "\n\n".join([record[pair[0]], more]) if more and isinstance(more, str) else record[pair[0]]
        messages = [*_turn(asked, USER), *_turn(record[pair[1]], ASSISTANT)]
    system = record.get("system")
    if isinstance(system, str) and system.strip() and isinstance(messages, list):
        return [{"role": SYSTEM, "content": system}, *messages]
    return messages


def _turn(value: Any, role: str) -> list[Any]:
    said = text_or_messages(value)
    return said if isinstance(said, list) else [{"role": role, "content": said}]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and ("role" in value or "from" in value)


def _message(value: Mapping[str, Any]) -> dict[str, Any]:
    others = {name: each for name, each in value.items() if name not in ("role", "content", "from", "value")}
    role, content = (value.get(name, value.get(other)) for name, other in (("role", "from"), ("content", "value")))
    known = _ROLES.get(role, role) if isinstance(role, str) else role
    return {"role": known, "content": _joined(content), **others}


def _joined(content: Any) -> Any:
    """The text of a list of parts, if all of them are text."""
    if isinstance(content, list) and content and all(_is_text_part(part) for part in content):
        return "".join(part["text"] for part in content)
    return content


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
