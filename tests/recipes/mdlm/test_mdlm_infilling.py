"""Infilling: given text stays unchanged, gaps get exactly their tokens, and templates of any shape can be mixed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.core.errors import UserError
from samestep.data.tokenizer.char import CharTokenizer
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer, Vocabulary
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.generating import GivenText, Template, answer_template, fill_templates, parse_template
from samestep.recipes.mdlm.sampling import SamplingConfig, batches_by_shape

BYTE = ByteTokenizer()
torch.manual_seed(0)
NETWORK = Transformer(
    TransformerConfig(d_model=16, n_layers=1, n_heads=2, mlp_hidden_size=16, embedding_size=260, init_std=0.5)
).double()


def shape_of(template: Template) -> list[str | int]:
    return [part if isinstance(part, int) else part.text for part in template.parts]


@pytest.mark.parametrize(
    ("prompt", "gap", "expected"),
    [
        ("The ", None, ["The ", 8]),
        ("", None, [8]),
        ("[[3]]", None, [3]),
        ("a [[3]] b [[12]]", None, ["a ", 3, " b ", 12]),
        ("[[1]][[2]]", None, [1, 2]),
        ("a [3] b [[x]] [[]]", None, ["a [3] b [[x]] [[]]", 8]),
        ("a ___ b", "___", ["a ", 8, " b"]),
        ("a [[3]] b", "___", ["a [[3]] b", 8]),
        ("(.)(.)", "(.)", [8, 8]),
    ],
)
def test_prompts_become_templates(prompt: str, gap: str | None, expected: list[str | int]) -> None:
    template = parse_template(prompt, 8, BYTE, gap)
    assert shape_of(template) == expected
    assert len(template.tokens(BYTES.mask)) == len(template.masked()) == template.shape()[0]
    assert template.shape()[1] == sum(part for part in expected if isinstance(part, int))


@pytest.mark.parametrize(("prompt", "gap", "message"), [("a [[0]]", None, r"\[\[0\]\]"), ("a", "", "--gap")])
def test_invalid_gaps_are_refused(prompt: str, gap: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_template(prompt, 8, BYTE, gap)


TEXTS = st.text(st.characters(exclude_characters="[]", exclude_categories=["Cs"]), max_size=6)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(TEXTS | st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_any_templates_are_filled_each_as_if_it_were_alone(wanted: list[list[str | int]], size: int) -> None:
    prompts = ["".join(part if isinstance(part, str) else f"[[{part}]]" for part in parts) for parts in wanted]
    templates = [parse_template(prompt, 5, BYTE) for prompt in prompts]
    options = SamplingConfig(max_new_tokens=5, steps=24, block_length=3, temperature=1.0, stop=False)
    rules = {"seed": 3, "vocabulary": BYTES}
    for batch in batches_by_shape([template.shape() for template in templates], size):
        rows = fill_templates(NETWORK, [templates[number] for number in batch], options, ids=batch, **rules)  # type: ignore[arg-type]
        for number, row in zip(batch, rows):
            template = templates[number]
            masked = template.masked()
            assert [t for t, is_masked in zip(row, masked) if not is_masked] == [
                t for part in template.parts if isinstance(part, GivenText) for t in part.tokens
            ]
            assert not {t for t, is_masked in zip(row, masked) if is_masked} & set(BYTES.forbidden(260))
            assert fill_templates(NETWORK, [template], options, ids=[number], **rules) == [row]  # type: ignore[arg-type]
            text, gaps = template.read(row, BYTE)
            pieces = iter(gaps)
            assert text == "".join(
                part.text if isinstance(part, GivenText) else next(pieces) for part in template.parts
            )


def test_the_text_of_a_gap_stops_at_its_end_and_continues_after_it() -> None:
    template = parse_template("é[[4]]![[3]]", 8, BYTE)
    row = [*"é".encode(), 65, BYTES.eos, 66, 67, 33, 68, 69, 70]
    assert template.read(row, BYTE) == ("éA!DEF", ["A", "DEF"])
    assert template.visible_length(row, BYTES) == len(row)
    assert template.visible_length([*row[:8], BYTES.eos, 70], BYTES) == 9
    assert parse_template("[[2]]!", 8, BYTE).visible_length([BYTES.eos, 65, 33], BYTES) == 3


def test_a_chat_has_the_format_of_training() -> None:
    tokenizer = CharTokenizer({c: n for n, c in enumerate("\n aeinrstuHi?")}, Vocabulary(20, 14, 15, 16, 17, (18, 19)))
    template = answer_template(" Hi? ", 4, tokenizer)
    question = [*tokenizer.encode("\n\nHi?"), 17]
    head = [
        16,
        18,
        *tokenizer.encode("user"),
        19,
        *question,
        18,
        *tokenizer.encode("assistant"),
        19,
        *tokenizer.encode("\n\n"),
    ]
    assert template.tokens(14) == [*head, 14, 14, 14, 14]
    assert template.read([*head, 10, 11, 17, 2], tokenizer)[0] == tokenizer.decode([10, 11])
