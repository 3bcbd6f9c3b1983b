"""The networks of two learners of a run, in Python and as files, and as the beginning of another run."""

import hashlib
import json
import random
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

import samestep
from cli.conftest import EXAMPLE, SMALL
from planted.two_networks import Critic, Two
from samestep.checkpoint.loading import read_tensors
from samestep.cli.main import main
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir
from samestep.train.api import stage_feeds
from samestep.train.api.bench import Bench
from samestep.train.logging.console import Screen
from samestep.world.world import World
from toys import run_on_ranks

pytestmark = pytest.mark.timeout(900)
RECIPE = "planted.two_networks"
TRAIN = ["train", RECIPE, "--preset=verify", "--distributed.device=cpu", "--no-log.tensorboard", "--max_steps=6"]
TRAIN += ["--checkpoint.every_steps=2", "--validate_every=2", "--checkpoint.weights", "--distributed.dtype=float64"]


def train(folder: Path, name: str, *args: str, ranks: int = 1) -> str:
    return run_on_ranks(
        main, ranks, [*TRAIN, "--out", str(folder / "runs"), "--name", name, *args], logs=folder / f"logs_{name}"
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs that differ in their number of ranks alone."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "data.txt").write_text("needed before the critic is made")
    for ranks in (1, 2):
        train(folder, f"on_{ranks}", f"--data={folder / 'data.txt'}", ranks=ranks)
    return folder


@pytest.fixture
def inside(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, in which both runs are known by their names."""
    (tmp_path / "runs").symlink_to(home / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(home: Path, step: int, part: str, run: str = "on_1") -> dict[str, Tensor]:
    return read_tensors(home / f"runs/{run}/checkpoints/both/step_{step:08d}", f"{part}/model")


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def content(folder: Path) -> dict[str, tuple[int, str]]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files}


@pytest.mark.parametrize(("which", "step"), [("best", 2), ("last", 6), (4, 4), ("6", 6)])
def test_any_checkpoint_of_any_learner(inside: Path, which: str | int, step: int) -> None:
    critic = samestep.load("on_1", which, "critic").network
    assert same(critic.state_dict(), saved(inside, step, "judge")), "which lies there under a key of its own"
    assert critic.back.weight is critic.there.weight
    assert float(critic.seen) == step, "the buffer is that of the checkpoint"
    assert not critic.training
    raw = samestep.load(inside / "runs/on_1", which, "encoder", averaged=False).network
    assert same(raw.state_dict(), saved(inside, step, "encoder"))
    assert same(samestep.load("on_1", which, "encoder").network.state_dict(), saved(inside, step, "average"))


def test_ranks_make_no_difference(inside: Path) -> None:
    for learner in ("critic", "encoder"):
        one, two = (samestep.load(f"on_{ranks}", learner=learner).network.state_dict() for ranks in (1, 2))
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_nothing_changes_but_the_network_is_there(inside: Path) -> None:
    before, states = content(inside / "runs/on_1"), (torch.get_rng_state(), random.getstate())
    network = samestep.load("on_1", learner="critic", dtype="bfloat16").network
    assert {tensor.dtype for tensor in network.state_dict().values()} == {torch.bfloat16}
    assert content(inside / "runs/on_1") == before
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert torch.get_default_dtype() == torch.float32
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({}, "has several learners; say which one is meant: 'encoder' or 'critic'"),
        ({"learner": "model"}, "on_1 has no learner 'model'; it has 'critic' or 'encoder'"),
        ({"learner": "critic", "which": 3}, "there is no checkpoint of step 3 in .*those kept are of step 2, 4 and 6"),
        ({"learner": "critic", "which": "first"}, "Write best, last or the number of a step, not 'first'"),
        ({"learner": "critic", "stage": "fit"}, "no checkpoints of a stage 'fit'; it has those of "),
        ({"learner": "critic", "stage": "dump"}, "stage 'dump' of the run .*on_1 has no learner, so there are no"),
        ({"learner": "critic", "dtype": "half-ish"}, "dtype must be a type such as 'bfloat16'"),
        ({"learner": "critic", "recipe": "planted.sound"}, "There is no setting 'width'"),
        ({"source": "nothing"}, "'nothing' is not a run directory; runs in runs/: on_1, on_2"),
    ],
)
def test_a_mistake_is_one_sentence(inside: Path, asked: dict, sentence: str) -> None:
    with pytest.raises(samestep.UserError, match=sentence):
        _ = samestep.load(**{"source": "on_1", **asked}).network


def test_only_what_is_read_before_the_learner_is_needed(inside: Path, home: Path) -> None:
    (home / "data.txt").rename(home / "elsewhere.txt")
    try:
        _ = samestep.load("on_1", learner="encoder").network
        with pytest.raises(samestep.UserError, match=r"'critic' cannot be built again.*FileNotFoundError.*put back"):
            _ = samestep.load("on_1", learner="critic").network
    finally:
        (home / "elsewhere.txt").rename(home / "data.txt")


def test_the_data_is_not_compared(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever data there is now, the weights are those of the checkpoint; reading it would only take time."""
    monkeypatch.setattr(stage_feeds, "check_data", lambda *args: pytest.fail("the data was read"))
    assert float(samestep.load("on_1", "last", "critic").network.seen) == 6


def test_a_damaged_checkpoint_is_passed_over_unless_its_step_is_wanted(inside: Path) -> None:
    shutil.copytree("runs/on_1", "copy")
    next(Path("copy/checkpoints/both/step_00000006").glob("*.distcp")).write_bytes(b"")
    assert float(samestep.load("copy", "last", "critic").network.seen) == 4
    with pytest.raises(samestep.UserError, match=r"step_00000006 is damaged"):
        _ = samestep.load("copy", 6, "critic").network


def test_a_recipe_that_has_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE, "sine.py")
    assert main(["train", "sine.py", *SMALL, "--max_steps=3", "--name=a"]) == 0
    Path("elsewhere").mkdir()
    Path("sine.py").rename("elsewhere/sine.py")
    with pytest.raises(samestep.UserError, match=r"sine.py does not exist; if the recipe is elsewhere now, say where"):
        _ = samestep.load("a").network
    network = samestep.load("a", recipe="elsewhere/sine.py").network
    found = read_tensors(Path("runs/a/checkpoints/fit/step_00000003"), "model/model")
    assert same(network.state_dict(), found)
    shutil.copytree("runs/a/checkpoints/fit/step_00000003", "step_00000003")
    moved = samestep.load("step_00000003", recipe="elsewhere/sine.py").network
    assert same(moved.state_dict(), found), "a checkpoint needs no run"


def test_a_learner_goes_out_as_one_file_and_comes_back(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "on_1", "out", "--learner", "critic", "--which", "best"]) == 0
    assert (
        "exported runs/on_1/checkpoints/both/step_00000002 to out: 0.0 MB in 1 weight file\n" in capsys.readouterr().out
    )
    plain = Critic(4).double()
    plain.load_state_dict(load_file("out/critic.safetensors"))
    assert same(plain.state_dict(), saved(inside, 2, "judge"))
    record = read_json(Path("out/samestep.json"))
    about = {"recipe": RECIPE, "stage": "both", "step": 2, "learner": "critic"}
    assert {**record, "config": 0} == {**about, "config": 0, "files": ["README.md", "critic.safetensors"]}
    assert record["config"]["width"] == 4
    assert record["config"]["data"] == "data.txt", "not where it was on this machine"
    with pytest.raises(samestep.UserError, match=r"No such file or directory: 'data.txt'\); put back the files"):
        _ = samestep.load("out").network
    Path("data.txt").write_text("found here")
    assert same(samestep.load("out").network.state_dict(), plain.state_dict())
    assert main(["export", "on_1", "half.safetensors", "--learner", "encoder", "--dtype", "bf16"]) == 0
    with safe_open("half.safetensors", "pt") as file:
        assert json.loads(file.metadata()["samestep"])["learner"] == "encoder"
    average = {name: weight.bfloat16().double() for name, weight in saved(inside, 6, "average").items()}
    assert same(samestep.load("half.safetensors").network.state_dict(), average)
    assert main(["export", "on_1", "half.safetensors", "--learner", "encoder", "--raw", "--overwrite"]) == 0
    assert same(load_file("half.safetensors"), saved(inside, 6, "encoder"))


def test_weight_files_are_those_that_the_run_wrote(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "on_1", "files", "--weights", "--which", "4"]) == 0
    for name in ("critic_step_4.pt", "encoder_step_4.pt"):
        ours, theirs = torch.load(f"files/{name}"), torch.load(f"runs/on_1/weights/both/{name}")
        assert same(ours, theirs)
    again = ["export", "on_1", "files", "--weights", "--which", "4"]
    assert main(again) == 2 and "replace it with --overwrite" in capsys.readouterr().err
    assert main([*again, "--overwrite"]) == 0, "they are marked"
    shutil.copy("runs/on_1/weights/both/critic_step_4.pt", "files/critic_step_4.pt")
    for more in ([], ["--overwrite"]):
        assert main([*again, "--learner", "critic", *more]) == 2, "what a run wrote is no export"
        assert "critic_step_4.pt exists and was not exported by samestep" in capsys.readouterr().err
    assert main(["export", "on_1", "files", "--weights", "--learner", "critic"]) == 0
    assert sorted(path.name for path in Path("files").iterdir()) == [
        "critic_step_4.pt",
        "critic_step_6.pt",
        "encoder_step_4.pt",
    ]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["out"], "has several learners; say which one is meant"),
        (["taken.safetensors", "--learner", "critic"], "taken.safetensors exists and was not exported by samestep"),
        (["taken", "--learner", "critic"], "taken exists and was not exported by samestep"),
        (["out", "--learner", "critic", "--max_shard_size", "1GB"], "leave out --max_shard_size"),
        (["out", "--weights", "--dtype", "bf16"], "leave out --dtype"),
        (["taken", "--weights", "--learner", "critic"], "taken/critic_step_6.pt exists"),
    ],
)
def test_an_export_that_cannot_be(
    inside: Path, args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").mkdir()
    for file in ("taken/critic_step_6.pt", "taken.safetensors"):
        Path(file).write_text("mine")
    assert main(["export", "on_1", *args]) == 2
    assert sentence in capsys.readouterr().err
    assert Path("taken.safetensors").read_text() == Path("taken/critic_step_6.pt").read_text() == "mine"


def test_every_learner_of_another_run_begins_where_the_first_ended(inside: Path) -> None:
    more = inside / "more"
    source = inside / "runs" / "on_1"
    output = train(more, "next", "--learning_rate=0", f"--init_from={source}", "distributed=fsdp", ranks=2)
    shown = " ".join(output.split())  # where a line breaks depends on the length of the path
    for learner in ("encoder", "critic"):
        assert re.search(rf"first weights of {learner} \S+ both/step_00000006", shown), output
    encoder = samestep.load(more / "runs/next", "last", "encoder", averaged=False).network
    assert same(encoder.state_dict(), saved(inside, 6, "encoder"))
    critic = samestep.load(more / "runs/next", "last", "critic").network.state_dict()
    wanted = saved(inside, 6, "judge")
    assert all(torch.equal(critic[name], wanted[name]) for name in wanted if name != "seen")
    assert float(critic["seen"]) == 12, "it went on counting"
    assert read_json(more / "runs/next/first_launch.json")["both"]["first_weights"] == ["encoder", "critic"]


def bench(folder: Path, **settings: str) -> Bench:
    return Bench(World.single(), Two(**settings), RunDir(folder / "run"), "both", Screen(False))


def test_a_plain_file_goes_to_the_learner_it_fits_and_is_refused_where_it_fits_two(inside: Path) -> None:
    file = str(inside / "runs/on_1/weights/both/critic_step_6.pt")
    made = bench(inside, init_from=file)
    made.learner(torch.nn.Linear(1, 1), name="encoder")
    critic = made.learner(lambda: Critic(4), name="critic")
    assert same(critic.weights(), {name: tensor.float() for name, tensor in saved(inside, 6, "judge").items()})
    assert made.first_weights.descriptions == {"encoder": "its model's own, or drawn from seed 0", "critic": file}
    with pytest.raises(samestep.UserError, match=r"may be for learner 'critic' or for 'other'; call the right one"):
        made.learner(lambda: Critic(4), name="other")


def test_what_a_recipe_names_for_a_learner_is_for_that_one(inside: Path) -> None:
    made = bench(inside)
    same_name = made.learner(lambda: Critic(4), name="critic", init_from="on_1")
    assert float(same_name.weights()["seen"]) == 6
    assert made.first_weights.descriptions["critic"] == "runs/on_1, both/step_00000006"
    step = str(inside / "runs/on_1/checkpoints/both/step_00000002")
    with pytest.raises(samestep.UserError, match=r"step_00000002 has no learner 'judge'; it has 'critic' or 'encoder'"):
        made.learner(lambda: Critic(4), name="judge", init_from=step)
    with pytest.raises(samestep.UserError, match=r"nowhere.pt does not exist; give a run directory"):
        made.learner(lambda: Critic(4), name="judge", init_from="nowhere.pt")


def test_verbs_have_the_options_of_the_recipe(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.no_grad():
        value = float(samestep.load("on_1", "best", "critic").network(torch.tensor([[0.5]], dtype=torch.float64)))
    args = ["--at", "0.5", "--loud", "--device", "cpu", "--out", "x.jsonl"]
    assert main(["sample", "on_1", *args, "--which", "best"]) == 0
    assert capsys.readouterr().out == f"CRITIC OF WIDTH 4 SAYS {value:.6f}\n"
    assert json.loads(Path("x.jsonl").read_text())["value"] == value
    assert main(["eval", "on_1", "--device=cpu"]) == 0
    assert capsys.readouterr().out == "critic/width  4\nparameters    4\n"
    for model in ("on_1", RECIPE):
        assert main(["sample", model, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "--at            Where" in shown and "--w             Width of the critic (width)" in shown
    mistakes = {
        ("--att", "1"): "There is no setting 'att'; did you mean at",
        ("--at", "x"): "--at must be a number, not 'x'.",
        ("--w", "7"): "do not fit the model",
    }
    for mistake, sentence in mistakes.items():
        assert main(["sample", "on_1", *mistake]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["sample", str(Path(samestep.__file__).parents[2] / "examples/sine.py"), "--help"]) == 2
    said = capsys.readouterr().err
    assert "has no `sample`; give it one, a Verb(...) (as distill, dpo, gan, lens and mdlm have)" in said
