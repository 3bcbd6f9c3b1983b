"""A small encoder: the same tokens from the same texts in any process, weights from the run's seed."""

import hashlib
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from adapter_toys import bench_of
from encoder_toys import padded
from samestep import World
from samestep.core.errors import UserError
from samestep.data.pydoc_topics import pydoc_topics
from samestep.models.sentence_folder import EncoderSource
from samestep.models.small_encoder import SPECIAL, small_encoder

TEXTS = ["a list of numbers", "the list is sorted", "numbers are sorted in a list"]


@pytest.fixture(scope="module")
def source() -> EncoderSource:
    return small_encoder(TEXTS, width=16, layers=2, heads=2, vocabulary=300, max_length=10)


def digest() -> str:
    """What a tokenizer learns from many texts."""
    texts = [text for _, text in pydoc_topics()]
    tokenizer = small_encoder(texts, width=8, layers=1, heads=2, vocabulary=4000).tokenizer.inner
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def test_the_same_texts_give_the_same_tokens_in_another_process() -> None:
    command = [sys.executable, "-c", "import test_small_encoder; print(test_small_encoder.digest())"]
    path = os.pathsep.join(filter(None, sys.path))
    other = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "3", "RAYON_NUM_THREADS": "3"}
    found = subprocess.run(command, env=other, capture_output=True, text=True, check=True).stdout.split()[-1]
    assert found == digest()


def test_tokens(source: EncoderSource) -> None:
    tokenizer = source.tokenizer
    read = tokenizer("A  LIST of\n numbers", 10)
    assert read.dtype == torch.long and read.dim() == 1
    assert torch.equal(read, tokenizer("a list of numbers", 10)), "neither capitals nor spaces matter"
    spelled = tokenizer.inner.convert_ids_to_tokens(read)
    assert (spelled[0], spelled[-1], tokenizer.pad) == ("[CLS]", "[SEP]", SPECIAL.index("[PAD]"))
    cut = tokenizer("a list of numbers " * 9, 10)
    assert (len(cut), int(cut[-1])) == (10, SPECIAL.index("[SEP]")), "what ends a text is kept"
    assert len(tokenizer("ß 漢字 [x]", 100)) > 4, "nothing is unknown"


def test_weights_follow_from_the_seed(source: EncoderSource) -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        learner = bench_of(World.single(), "lone", seed=seed).learner(source.with_projection(24).network)
        return {name: weight.detach().clone() for name, weight in learner.weights().items()}

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [name for name in first if not torch.equal(first[name], other[name])]
    assert sorted(drawn) == sorted(name for name, weight in first.items() if weight.dim() > 1)
    assert float(first["transformer.embeddings.word_embeddings.weight"].std()) == pytest.approx(0.02, rel=0.1)


def test_texts_get_vectors_of_length_one(source: EncoderSource) -> None:
    vectors = source.load()(*padded(source.tokenizer, TEXTS, source.max_length))
    assert vectors.shape == (3, source.dim) == (3, 16)
    assert vectors.norm(dim=1).tolist() == pytest.approx([1.0] * 3)


def test_impossible_shapes_are_refused(source: EncoderSource) -> None:
    with pytest.raises(UserError, match="Set max_length above 2, the special tokens of every text; it is 2"):
        source.tokenizer("a", 2)
    with pytest.raises(UserError, match="Set width to a multiple of heads; 30 is no multiple of 4"):
        small_encoder(TEXTS, width=30)
    with pytest.raises(UserError, match="Set vocabulary to 259 or more"):
        small_encoder(TEXTS, vocabulary=100)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r'pip install "samestep\[hf\]"; a sentence encoder needs it'):
        small_encoder(TEXTS)
