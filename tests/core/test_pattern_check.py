"""Which patterns could take for ages: those of published tokenizers do not, and what is known to explode does."""

import pytest

from samestep.core.pattern_check import LONGEST, pattern_problem

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = [r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]
PUBLISHED = {
    "gpt-2": ["'s", "'re", r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", *SPACES],
    "gpt-4": [
        r"'(?i:[sdmt]|ll)",
        r"[^\r\n\p{L}\p{N}]?+\p{L}++",
        r"\p{N}{1,3}+",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
        r"\s++$",
    ],
    "gpt-4o": [
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDINGS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDINGS}?",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        *SPACES,
    ],
    "llama 3": [ENDINGS, r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", *SPACES],
    "deepseek": [r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", *SPACES],
    "chinese": ["[一-龥]+"],
    "bloom": [r" ?[^(\s|[.,!?…])]+"],
    "clip": [r"<\|startoftext\|>", r"[\p{L}]+", r"[^\s\p{L}\p{N}]+"],
    "kimi": [r"[\p{Han}]+", r"[\p{Lu}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{M}&&[^\p{Han}]]+(?i:'s|'t)?"],
    "digits": [r"(?<=\d)(?=(\d{3})+(?!\d))"],
    "more digits": [r"\d{1,3}(?=(?:\d{3})*\b)", r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))"],
    "spaces": [r" {2,}", "\0", ""],
}
EXPLOSIVE = [
    r"(a+)+$",
    r"(a|aa)*$",
    r"(a*)*",
    r"((a{1,100}){1,100}){1,100}",
    r"a*a*a*a*c",
    r"(?:a?){40}a{40}",
    r"(?x)(a+#)(\n)+$",
    r"(a)\1",
    r"\g<0>",
    r"(?#)(",
    r"a{1,3}+$",
    r"(",
    r")",
    r"[a",
    r"(?>a+)*b",
    r"(?:\p{L}+\s?)+$",
    r"(a?)+",
    r"([^\]a]+)*x",
    r"([]a]+)+x",
    r"(?<n>a+)+",
    r"(?i)(a+)+",
    r"(?im-x:a)",
    r"a+{2}",
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_patterns_of_published_tokenizers(name: str) -> None:
    assert pattern_problem("|".join(PUBLISHED[name])) == ""


@pytest.mark.parametrize("pattern", EXPLOSIVE)
def test_patterns_that_explode_or_hide_something(pattern: str) -> None:
    assert pattern_problem(pattern)


def test_a_pattern_that_is_too_long() -> None:
    assert pattern_problem("a" * (LONGEST + 1)) == "it has 4,097 characters"
