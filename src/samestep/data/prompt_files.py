"""Files of prompts, for recipes that generate text."""

from pathlib import Path

from samestep.core.errors import UserError
from samestep.core.records import parse_json


def read_prompts(file: Path) -> list[str]:
    """One prompt per line: the line itself, or in a .jsonl file its value of "prompt" or "text"."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise UserError(f"Give --prompts a readable text file; {file} cannot be read.") from None
    if not lines:
        raise UserError(f"Put at least one prompt into {file}; it is empty.")
    return [_prompt(file, number, line) for number, line in enumerate(lines, 1)] if file.suffix == ".jsonl" else lines


def _prompt(file: Path, number: int, line: str) -> str:
    try:
        row = parse_json(line)
        prompt = row["prompt"] if "prompt" in row else row["text"]
    except (ValueError, KeyError, TypeError):
        prompt = None
    if not isinstance(prompt, str):
        raise UserError(f'Make prompt {number} of {file} a JSON object such as {{"prompt": "The "}}.')
    return prompt
