"""Pairs by a stated rule, from real text: of two passages of one page of a manual, the one in shorter sentences.

Both are cut at the end of a sentence, after at least 240 characters, so their lengths say nothing. Nothing is written
by a model and nobody was asked: whether a text follows the rule can be counted.
"""

import gzip
import json
import re
from pathlib import Path

import numpy as np

_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_LEAST_CHARACTERS = 240
_LEAST_RATIO = 1.4
"""Words a sentence of the rejected text are so many times those of the chosen one, or more."""
MANUALS = {
    "debian-reference-en": "Debian reference",
    "developers-reference": "Debian developer's reference",
    "git-doc": "Git manual",
    "libreoffice-help-en-us": "LibreOffice help",
    "linux-doc-6.1": "Linux kernel documentation",
    "postgresql-doc-15": "PostgreSQL manual",
    "python3.11-doc": "Python documentation",
    "sqlite3-doc": "SQLite documentation",
}


def words_a_sentence(text: str) -> float:
    """The rule's measure: words for each sentence that is complete; of a text without one, all its words."""
    sentences = [part for part in _END.split(text.strip()) if part.endswith((".", "!", "?"))] or [text]
    return sum(len(part.split()) for part in sentences) / len(sentences)


def cut(text: str) -> str:
    """The first sentences, of so many characters at least."""
    taken, length = [], 0
    for sentence in _END.split(text):
        taken.append(sentence)
        length += len(sentence) + 1
        if length >= _LEAST_CHARACTERS:
            break
    return " ".join(taken)


def read_pairs(passages: Path) -> dict[str, list[dict[str, str]]]:
    """Pairs by part; the parts are by page, so no page is in two of them."""
    pages: dict[tuple[str, str], list[str]] = {}
    with gzip.open(passages, "rt") as lines:
        for row in map(json.loads, lines):
            text = cut(f"{row['beginning']} {row['continuation']}")
            if text.endswith((".", "!", "?")):
                pages.setdefault((row["part"], row["document"]), []).append(text)
    parts: dict[str, list[dict[str, str]]] = {}
    for (part, page), texts in sorted(pages.items()):
        package, _, file = page.partition("/")
        prompt = f"From the {MANUALS.get(package, package)}, page {file.removesuffix('.html')}:\n"
        ordered = sorted(texts, key=words_a_sentence)
        for chosen, rejected in zip(ordered, reversed(ordered)):
            if words_a_sentence(rejected) < _LEAST_RATIO * words_a_sentence(chosen):
                break
            parts.setdefault(part, []).append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return {part: [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))] for part, pairs in parts.items()}


def held_out_prompts(pairs: list[dict[str, str]]) -> list[str]:
    """Each prompt once."""
    return list(dict.fromkeys(pair["prompt"] for pair in pairs))
