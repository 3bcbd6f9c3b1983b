"""The model card says what it was told, in a form that the Hub reads, and nothing else."""

import ast
import re
from dataclasses import replace

import yaml

from samestep.recipes.distill.exporting import CardFacts, model_card

FACTS = CardFacts(
    title="small-retriever",
    dim=3584,
    max_length=384,
    teacher="infly/inf-retriever-v1-pro",
    base_model="sentence-transformers/all-mpnet-base-v2",
    prompts={"query": 'Instruct: "find"\nQuery: '},
    modules=["Transformer", "Pooling", "Normalize"],
    shorter=[256, 768],
    data=["org/pairs", "/home/me/pairs.jsonl", "Python's documentation"],
    training={"phase1_lr": 2e-5, "phase 1, steps": 100},
    metrics={"teacher": {"ndcg@10": 0.9}, "student | v2": {"ndcg@10": 0.81234, "retained": 0.9026}},
    measured_on="the held-out queries",
)


def header(card: str) -> dict[str, object]:
    found = yaml.safe_load(card.split("---")[1])
    assert isinstance(found, dict)
    return found


def test_the_header_is_yaml_and_names_only_what_the_hub_has() -> None:
    found = header(model_card(FACTS))
    assert found["library_name"] == "sentence-transformers"
    assert found["base_model"] == ["sentence-transformers/all-mpnet-base-v2"]
    assert found["datasets"] == ["org/pairs"]
    local = header(model_card(replace(FACTS, base_model="/home/me/model", data=["pairs.jsonl"])))
    assert not local.keys() & {"base_model", "datasets"}


def test_the_facts_are_in_it() -> None:
    card = model_card(FACTS)
    for fact in ("# small-retriever", "a vector of 3584 numbers", "`infly/inf-retriever-v1-pro`", "384 tokens"):
        assert fact in card
    assert "- Data: org/pairs, /home/me/pairs.jsonl, Python's documentation" in card
    assert "- phase1_lr: 2e-05" in card
    assert '- Prompt `query`: "Instruct: \\"find\\"\\nQuery: "' in card
    assert "Trained to be cut to: 256, 768" in card
    assert "It began as random weights" in model_card(replace(FACTS, base_model=None))


def test_metrics_are_a_table() -> None:
    card = model_card(FACTS)
    assert "Measured on the held-out queries.\n\n| model | ndcg@10 | retained |\n| --- | --- | --- |\n" in card
    assert "| teacher | 0.9000 |  |\n| student \\| v2 | 0.8123 | 0.9026 |\n" in card


def test_what_is_not_known_is_not_mentioned() -> None:
    card = model_card(CardFacts(title="t", dim=4, max_length=8, teacher="a/b"))
    for absent in ("Evaluation", "Training", "Prompt", "prompt_name", "Modules", "cut to", "truncate_dim", "license"):
        assert absent not in card


def test_its_code_is_python() -> None:
    found = re.search(r"```python\n(.*?)```", model_card(FACTS), re.DOTALL)
    assert found is not None
    ast.parse(found[1])
    assert 'prompt_name="query"' in found[1] and "truncate_dim=256" in found[1]
