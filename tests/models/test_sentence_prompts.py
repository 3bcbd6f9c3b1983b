"""Which prompt of a folder stands before a query, and which before a passage."""

import pytest

from samestep.core.errors import UserError
from samestep.models.sentence_files import prompt_for


@pytest.mark.parametrize(
    ("prompts", "default", "query", "passage"),
    [
        ({}, None, "", ""),
        ({"query": "Q: ", "document": "D: ", "passage": "P: "}, None, "Q: ", "D: "),
        ({"query": "Q: ", "passage": "P: "}, None, "Q: ", "P: "),
        ({"web_search_query": "W: "}, None, "W: ", ""),
        ({"search_query": "Q: ", "search_document": "D: ", "clustering": "C: "}, None, "Q: ", "D: "),
        ({"query": "", "document": ""}, None, "", ""),
        ({"query": "Q: "}, "query", "Q: ", ""),
        ({"all": "A: "}, "all", "A: ", "A: "),
        ({"s2p_query": "Q: ", "s2s_query": "Q: "}, None, "Q: ", ""),
    ],
)
def test_what_is_found(prompts: dict[str, str], default: str | None, query: str, passage: str) -> None:
    assert prompt_for("query", prompts, default) == query
    assert prompt_for("passage", prompts, default) == passage


@pytest.mark.parametrize(
    ("prompts", "named"),
    [
        ({"web_search_query": "W: ", "sts_query": "S: "}, "'web_search_query', 'sts_query'"),
        ({"query": "", "web_search_query": "W: "}, "'web_search_query'"),
        ({"STS": "S: ", "document": "D: "}, "'STS'"),
    ],
)
def test_what_is_asked_for(prompts: dict[str, str], named: str) -> None:
    with pytest.raises(UserError, match=f"any of {named}, or none"):
        prompt_for("query", prompts)
