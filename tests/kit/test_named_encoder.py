"""What a name of a sentence encoder may be: a run, a checkpoint, and what was exported of it."""

from pathlib import Path

import pytest
import torch

from samestep import EncoderSource, UserError, World, load
from samestep.cli.main import main
from samestep.kit.named_encoder import open_named_encoder

pytestmark = pytest.mark.timeout(600)
SMALL = ["--preset", "verify", "distributed.dtype=float32", "log.quiet=true", "log.tensorboard=false"]
TEXTS = ["how do I sort a list", "list.sort() sorts a list in place."]


def named(name: object, **options: object) -> EncoderSource:
    return open_named_encoder(str(name), World.single(), **options)  # type: ignore[arg-type]


def vectors(source: EncoderSource, purpose: str) -> torch.Tensor:
    """As a teacher reads texts."""
    network, before = source.load(), source.prompt(purpose)
    ids = source.tokenizer.encode_all([before + text for text in TEXTS], source.max_length)
    return torch.cat([network(row[None], torch.ones_like(row[None])) for row in ids]).detach()


def train(folder: Path, name: str, *settings: str) -> Path:
    assert main(["train", "distill", *SMALL, f"out={folder}", f"name={name}", "max_steps=2", *settings]) == 0
    return folder / name


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs"), "run", "student.query_instruction=question: ")


def test_a_run_and_what_comes_out_of_it(run: Path, tmp_path: Path) -> None:
    """All read texts as the student was trained to."""
    assert main(["export", str(run), str(tmp_path / "folder"), "--which", "last"]) == 0
    assert main(["export", str(run), str(tmp_path / "one.safetensors"), "--which", "last"]) == 0
    model = load(run, "last")
    for name in (run, f"{run}:model", model.trained.source, tmp_path / "folder", tmp_path / "one.safetensors"):
        source = named(name)
        for is_query, purpose in ((True, "query"), (False, "passage")):
            wanted = model.embed(TEXTS, is_query=is_query)
            torch.testing.assert_close(vectors(source, purpose), wanted, rtol=0, atol=1e-5)
    assert set(named(run).files["weights"]) == {"manifest.json"} and set(named(tmp_path / "one.safetensors").files)


def test_a_run_teaches_another(run: Path, tmp_path: Path) -> None:
    second = train(tmp_path, "second", f"teacher_model={run}", f"student_model={run}", "use_projection=false")
    models = load(second, "last")
    assert models.embed(TEXTS).shape == load(run, "last").embed(TEXTS).shape
    assert main(["evaluate", str(second)]) == 0


def test_what_is_refused(run: Path) -> None:
    with pytest.raises(UserError, match=r"Leave out teacher.attention and teacher.append_eos: .* reads as it was"):
        named(run, attention="causal", section="teacher.")
    with pytest.raises(UserError, match=r"Say which sentence encoder of .* is meant: .*run:model; .*run:other names"):
        named(f"{run}:other")
