"""Encoders beside sentence-transformers: the vectors of its folders, and of the folders that are written for it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from encoder_toys import TEXTS, SentenceTransformers, backbone_folder, vectors_of
from samestep.core.json_files import read_object
from samestep.models.sentence_export import write_encoder
from samestep.models.sentence_folder import open_encoder
from samestep.models.small_encoder import small_encoder

NORMALIZE = ["Normalize"]
PUBLISHED: dict[str, dict[str, Any]] = {
    "bert": {"pooling": ["mean"], "modules": [NORMALIZE]},
    "mpnet": {"pooling": ["mean"], "modules": [NORMALIZE]},
    "distilbert": {"pooling": ["cls", "max", "weightedmean"], "modules": [["Dense", 48, 12, "Tanh"]]},
    "xlm-roberta": {
        "pooling": ["mean_sqrt_len_tokens"],
        "modules": [["Dense", 16, 12, "GELU"], ["LayerNorm", 12], NORMALIZE],
    },
    "qwen2": {"pooling": ["lasttoken"], "modules": [NORMALIZE], "prompts": {"query": "query: "}},
}


@pytest.fixture(scope="module")
def library() -> Iterator[SentenceTransformers]:
    process = SentenceTransformers()
    yield process
    process.close()


@pytest.fixture(scope="module")
def published(library: SentenceTransformers, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Folder and vectors of a model that sentence-transformers made and saved."""
    home, made = tmp_path_factory.mktemp("published"), dict[str, Any]()

    def find(kind: str) -> Any:
        if kind not in made:
            base = backbone_folder(kind, home / f"{kind}-base")
            answer = library.ask(make=home / kind, base=base, texts=TEXTS, **PUBLISHED[kind])
            made[kind] = home / kind, torch.tensor(answer["vectors"])
        return made[kind]

    return find


@pytest.mark.long
def test_a_causal_model_that_looks_both_ways(library: SentenceTransformers, tmp_path: Path) -> None:
    base = backbone_folder("qwen2", tmp_path / "base", is_causal=False)
    wanted = library.ask(make=tmp_path / "both", base=base, texts=TEXTS, **PUBLISHED["qwen2"])["vectors"]
    source = open_encoder(tmp_path / "both")
    found = vectors_of(source.load(), source.tokenizer, TEXTS, source.max_length)
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=0, atol=1e-5)


@pytest.mark.long
def test_stated_attention_and_end_token_are_written(library: SentenceTransformers, tmp_path: Path) -> None:
    """The folder's tokenizer puts nothing around a text."""
    base = backbone_folder("qwen2", tmp_path / "base", without_special=True)
    library.ask(make=tmp_path / "published", base=base, texts=TEXTS, **PUBLISHED["qwen2"])
    source = open_encoder(tmp_path / "published", attention="bidirectional", append_eos=True)
    encoder = source.load()
    write_encoder(tmp_path / "out", source, encoder.state_dict(), "")
    answer = library.ask(load=tmp_path / "out", texts=TEXTS)
    found = vectors_of(encoder, source.tokenizer, TEXTS, source.max_length)
    torch.testing.assert_close(torch.tensor(answer["vectors"]), found, rtol=0, atol=1e-5)
    stock = open_encoder(tmp_path / "published")
    others = vectors_of(stock.load(), stock.tokenizer, TEXTS, source.max_length)
    assert torch.cosine_similarity(found, others).max() < 0.95, "otherwise this proves nothing"


@pytest.mark.parametrize("kind", PUBLISHED)
def test_vectors_are_those_of_sentence_transformers(published: Any, kind: str) -> None:
    folder, wanted = published(kind)
    source = open_encoder(folder)
    assert (source.dim, source.similarity) == (wanted.shape[1], "dot")
    found = vectors_of(source.load(), source.tokenizer, TEXTS, source.max_length)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_written_folder_gives_the_same_without_samestep(
    published: Any, library: SentenceTransformers, tmp_path: Path, kind: str
) -> None:
    source = open_encoder(published(kind)[0]).with_projection(20)
    torch.manual_seed(1)
    encoder = source.load()
    write_encoder(tmp_path / "out", source, encoder.state_dict(), "# A card\n")
    answer = library.ask(load=tmp_path / "out", texts=TEXTS)
    found = vectors_of(encoder, source.tokenizer, TEXTS, source.max_length)
    torch.testing.assert_close(torch.tensor(answer["vectors"]), found, rtol=0, atol=1e-5)
    assert not answer["warnings"]
    assert (answer["similarity"], answer["max_length"]) == ("dot", source.max_length)
    assert found.norm(dim=1) == pytest.approx([1.0] * len(TEXTS)), "it ends with Normalize"
    again = open_encoder(tmp_path / "out")
    torch.testing.assert_close(vectors_of(again.load(), again.tokenizer, TEXTS, again.max_length), found)


def test_prompts_and_shorter_vectors(published: Any, library: SentenceTransformers, tmp_path: Path) -> None:
    source = open_encoder(published("qwen2")[0])
    assert source.prompt("query") == "query: " and source.prompt("passage") == ""
    encoder = source.load()
    write_encoder(tmp_path / "out", source, encoder.state_dict(), "# A card\n")
    answer = library.ask(load=tmp_path / "out", texts=TEXTS, prompt_name="query", options={"truncate_dim": 5})
    with_prompt = [source.prompt("query") + text for text in TEXTS]
    found = vectors_of(encoder, source.tokenizer, with_prompt, source.max_length)
    torch.testing.assert_close(torch.tensor(answer["vectors"]), found[:, :5], rtol=0, atol=1e-5)
    write_encoder(tmp_path / "other", source, encoder.state_dict(), "", prompts={"passage": "p: "})
    assert open_encoder(tmp_path / "other").prompts == {"passage": "p: "}
    config, tokenizer = (read_object(tmp_path / "out" / name) for name in ("config.json", "tokenizer_config.json"))
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"], "for version 4 of transformers"
    assert tokenizer["tokenizer_class"] != "TokenizersBackend"


def test_a_small_encoder_is_written_too(library: SentenceTransformers, tmp_path: Path) -> None:
    source = small_encoder(TEXTS, width=16, layers=1, heads=2, vocabulary=300, max_length=12).with_projection(24)
    torch.manual_seed(1)
    encoder = source.load()
    write_encoder(tmp_path / "out", source, encoder.state_dict(), "# A card\n")
    texts = [*TEXTS, "Words it has never seen, and many more than it can read: a " + "list " * 20]
    answer = library.ask(load=tmp_path / "out", texts=texts)
    found = vectors_of(encoder, source.tokenizer, texts, 12)
    torch.testing.assert_close(torch.tensor(answer["vectors"]), found, rtol=0, atol=1e-5)
    assert not answer["warnings"]
