"""onnx/model.onnx of an encoder: what onnxruntime computes from it in a process without samestep and torch."""

from pathlib import Path

import pytest
import torch

from encoder_onnx import needs_onnx, onnx_vectors
from encoder_toys import TEXTS, backbone_folder, vectors_of
from samestep import UserError
from samestep.models import sentence_onnx
from samestep.models.sentence_export import write_encoder
from samestep.models.sentence_folder import EncoderSource, open_encoder
from samestep.models.small_encoder import small_encoder

PUBLISHED = ("bert", "mpnet", "xlm-roberta", "qwen2")


def source_of(kind: str, folder: Path) -> EncoderSource:
    if kind == "small":
        return small_encoder(TEXTS, width=16, layers=1, heads=2, vocabulary=300, max_length=12)
    return open_encoder(backbone_folder(kind, folder))


@needs_onnx
@pytest.mark.parametrize("kind", ["small", *(pytest.param(kind, marks=pytest.mark.long) for kind in PUBLISHED)])
def test_onnxruntime_gives_the_same_vectors_without_samestep(tmp_path: Path, kind: str) -> None:
    """At other lengths and numbers of texts than it was exported with."""
    source = source_of(kind, tmp_path / "base").with_projection(20)
    torch.manual_seed(1)
    encoder = source.load()
    write_encoder(tmp_path / "out", source, encoder.state_dict(), "", onnx=True)
    texts = [*TEXTS, "a list of numbers " * 20]
    wanted = vectors_of(encoder, source.tokenizer, texts, source.max_length)
    for batch_size in (5, 2):
        found = onnx_vectors(tmp_path / "out", texts, source.max_length, batch_size)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@needs_onnx
def test_a_file_that_gives_other_vectors_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_onnx, "BOUND", 0.0)
    source = source_of("small", tmp_path)
    with pytest.raises(UserError, match=r"Leave out --onnx: for .* differs from the network's by"):
        write_encoder(tmp_path / "out", source, source.load().state_dict(), "", onnx=True)
    assert not list(tmp_path.iterdir())


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_onnx, "_NEEDED", ("no_such_package",))
    source = source_of("small", tmp_path)
    with pytest.raises(UserError, match=r'Install no_such_package for --onnx, with: pip install "samestep\[onnx\]"'):
        write_encoder(tmp_path / "out", source, {}, "", onnx=True)
