"""The adversarial stage, run for a few steps as a user would: careless input never ends a step early."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest

import samestep
from cli.conftest import Shell
from samestep.cli.main import main
from samestep.data.records.reading import FORMATS
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.rollout import Rollouts
from samestep.recipes.gan.task import Balance
from toys import run_on_ranks

FLOAT = "distributed.dtype=float32"


def train(folder: Path, *settings: str, name: str = "run") -> list[dict[str, Any]]:
    """The rows of metrics of a run of some steps."""
    common = [f"out={folder}", f"name={name}", "log.every=1", "log.quiet=true", FLOAT]
    assert main(["train", "gan", "--preset", "verify", *common, *settings]) == 0
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "judge_accuracy" in row]


def rollouts(folder: Path, name: str = "run") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name / "rollouts.jsonl").read_text().splitlines()]


def test_what_is_logged(tmp_path: Path) -> None:
    rows = train(tmp_path, "objective.kl_coef=0.1", "judge_learning_rate=0.01", "schedule=constant")
    assert len(rows) == 4
    names = {"judge_accuracy", "generator_reward_mean", "judge_reward_mean", "generator_loss", "judge_loss"}
    names |= {
        "judge_position_bias",
        "judge_prompts_cut",
        "generator/kl",
        "generator/entropy",
        "generator/clipped",
        "generator/no_variance",
        "tokens_written",
    }
    assert names | {"cut_at_the_limit", "parse_failures", "prompts_cut", "too_short_to_judge"} <= rows[0].keys()
    assert rows[0]["generator_loss"] == rows[0]["generator/loss"]
    assert (rows[0]["generator/lr"], rows[0]["judge/lr"]) == (0.003, 0.01)
    assert abs(rows[0]["generator/kl"]) < 1e-6 < rows[3]["generator/kl"]
    assert rows[0]["generator/entropy"] > 0
    assert rows[0]["generator/clipped"] == 0  # the first update on a rollout is of the policy that made it


def test_rollouts_can_be_read_and_are_written_once(tmp_path: Path) -> None:
    train(tmp_path, "max_steps=2", "schedule=constant")
    lines = tmp_path / "run" / "rollouts.jsonl"
    before = rollouts(tmp_path)
    assert [row["step"] for row in before] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert [row["human"] for row in before[:4]] != [row["human"] for row in before[4:]]
    with lines.open("a") as file:  # as of a run that was killed after its last save
        file.write(json.dumps({**before[-1], "step": 4}) + "\n")
    assert main(["train", "--resume", str(tmp_path / "run"), "max_steps=4"]) == 0
    after = rollouts(tmp_path)
    assert [row["step"] for row in after] == sorted(row["step"] for row in after)
    assert {row["step"] for row in after} == {1, 2, 3, 4} and len({json.dumps(row) for row in after}) == len(after)
    assert after[:8] == before
    for row in after:
        assert row["prompt"].startswith("Write a paragraph of Python's reference")
        assert row["prompt"] not in row["generated"]
        assert len(row["answers"]) == 2 and set(row["answers"]) <= {1, 2, None}
        assert 0 <= row["generator_reward"] <= 1


@pytest.mark.timeout(900)
def test_rollouts_are_the_same_rows_at_any_number_of_ranks(tmp_path: Path) -> None:
    """Also in a run that is shorter than the steps between metrics."""
    settings = ["objective.kind=grpo", "objective.group_size=2", "max_steps=2", "log.every=10"]
    train(tmp_path, *settings, name="alone")
    common = ["--preset", "verify", f"out={tmp_path}", "log.quiet=true", FLOAT, *settings, "log.every=10"]
    for ranks in (2, 3):
        run_on_ranks(main, ranks, ["train", "gan", *common, f"name=on_{ranks}"], logs=tmp_path / f"logs_{ranks}")
        found = rollouts(tmp_path, f"on_{ranks}")
        assert [row["step"] for row in found] == [1, 1, 1, 1]
        for row, alone in zip(found, rollouts(tmp_path, "alone"), strict=True):
            assert row == {
                **alone,
                **{name: pytest.approx(alone[name]) for name in ("generator_reward", "judge_reward")},
            }
    assert len({row["prompt"] for row in found}) > 2, "not the completions of one prompt"


def test_a_prompt_that_is_long_for_the_judge_is_cut_and_counted(tmp_path: Path) -> None:
    for name, settings, share in (("long", ["judging.max_prompt_tokens=5"], 1), ("whole", [], 0)):
        (row,) = train(tmp_path, "max_steps=1", *settings, name=name)
        assert row["judge_prompts_cut"] == share


def test_completions_too_short_to_judge_earn_nothing(tmp_path: Path) -> None:
    """All rewards are equal then, and there is nothing that the judge could learn from."""
    for row in train(tmp_path, "judging.min_tokens=40", "judging.max_tokens=40"):
        assert (row["too_short_to_judge"], row["judge_accuracy"], row["generator_reward_mean"]) == (1, 1, 0)
        assert row["generator/no_variance"] == 1
        assert "judge/loss" not in row
    assert all(row["answers"] == [None, None] for row in rollouts(tmp_path))


def test_completions_are_cut_at_the_limit(tmp_path: Path) -> None:
    rows = train(tmp_path, "writing.max_new_tokens=2")
    assert all(row["tokens_written"] <= 2 and row["cut_at_the_limit"] > 0.5 for row in rows)


def test_a_prompt_that_is_too_long_is_cut(tmp_path: Path) -> None:
    rows = train(tmp_path, "generator.network.max_sequence_length=30")
    assert all(row["prompts_cut"] == 1 and row["tokens_written"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["writing.max_new_tokens=512"], r"Set writing.max_new_tokens below 512 - 1"),
        (["judge.network.max_sequence_length=80"], r"Use a judge that takes more tokens"),
        (["generator_pauses_below=0.9", "judge_pauses_above=0.5"], r"generator_pauses_below < judge_pauses_above"),
        (["replay.share=2"], r"replay.share must be a number of at least 0 and at most 1"),
        (
            ["judging.mode=generative", "judging.answer_tokens=0"],
            r"judging.answer_tokens must be a whole number",
        ),
        (["judging.template={text_1} or {text_2}", "judging.show_prompt=true"], r"show_prompt has no effect"),
        (["judging.show_prompt=false", "judging.max_prompt_tokens=5"], r"max_prompt_tokens has no effect"),
        (["judging.template={text_1}"], r"Name {text_1} and {text_2} once each in judging.template"),
        (["data.test_fraction=0.7"], r"less than 1 together, or nothing is left to train on; they are 0.3 and 0.7"),
        (["generator.network.vocab_size=300"], r"Leave network.vocab_size at"),
        (["writing.temperature=0"], r"Set writing.temperature above 0: ppo learns from completions that are drawn"),
    ],
)
def test_settings_that_cannot_work(
    settings: list[str], sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "gan", "--preset", "verify", f"out={tmp_path}", "name=run", *settings]) == 2
    assert sentence in capfd.readouterr().err


@pytest.mark.parametrize(("flag", "fooled"), [("false", 0), ("true", 1)])
def test_a_judge_that_never_gives_an_answer(flag: str, fooled: int, tmp_path: Path) -> None:
    judging = ["judging.mode=generative", "judging.answer_tokens=5", f"judging.unparsed_fools={flag}"]
    for row in train(tmp_path, *judging):
        assert (row["parse_failures"], row["judge_reward_mean"], row["judge_accuracy"]) == (1, -1, 0)
        assert row["generator_reward_mean"] == fooled
        assert row["generator/no_variance"] == 1
    assert all(len(row["judge"]) == 2 and row["answers"] == [None, None] for row in rollouts(tmp_path))


def test_spin_learns_from_the_likeliest_completions_too(tmp_path: Path) -> None:
    (row,) = train(tmp_path, "objective.kind=spin", "writing.temperature=0", "max_steps=1")
    assert row["generator/loss"] == pytest.approx(math.log(2)), "it has not moved yet"


def test_a_judge_that_learns_from_drawn_answers_says_where_it_cannot(tmp_path: Path) -> None:
    rows = train(tmp_path, "judging.training=policy_gradient", "max_steps=2")
    assert {row["judge/no_variance"] for row in rows} <= {0, 1}
    alike = train(tmp_path, "judging.mode=generative", "judging.answer_tokens=2", "max_steps=1", name="alike")
    assert alike[0]["judge/no_variance"] == 1, "no answer can be read"


def test_data_is_read_once_for_all_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"A{number},crime,There were {number} of them." for number in range(20)]
    (tmp_path / "stories.csv").write_text("\n".join(["title,genre,human_story", *rows]))
    read: list[Path] = []
    read_csv = FORMATS[".csv"]
    monkeypatch.setitem(FORMATS, ".csv", lambda file: (read.append(file), read_csv(file))[1])
    train(tmp_path, f"data.path={tmp_path / 'stories.csv'}", "mle_epochs=1", "max_steps=1")
    assert len(read) == 1
    (tmp_path / "stories.csv").write_text("\n".join(["title,genre,human_story", *rows, "B,crime,None was left."]))
    train(tmp_path, f"data.path={tmp_path / 'stories.csv'}", "max_steps=1", name="later")
    assert len(read) == 2, "the file has changed"


def judge_weights(run: Path, learner: str) -> list[float]:
    """A part of the network that a run has learned."""
    network = samestep.load(run, which="last", learner=learner).network
    return [float(value) for value in network.transformer.ln_f.weight]


@pytest.mark.parametrize(
    ("settings", "paused", "learning"),
    [
        (["judge_pauses_above=0.001"], "judge", "generator"),
        (["generator_pauses_below=0.999"], "generator", "judge"),
    ],
)
def test_the_side_that_wins_too_much_pauses(settings: list[str], paused: str, learning: str, tmp_path: Path) -> None:
    rows = train(tmp_path, *settings)
    assert all(row[f"{paused}_paused"] == 1 and f"{paused}/loss" not in row for row in rows)
    assert all(row[f"{learning}_paused"] == 0 and f"{learning}/loss" in row for row in rows)
    assert judge_weights(tmp_path / "run", paused) == [1.0] * 16
    assert judge_weights(tmp_path / "run", learning) != [1.0] * 16


def test_the_average_of_the_judge_soon_follows_and_one_rollout_decides_nothing() -> None:
    balance = Balance(GanConfig(generator_pauses_below=0.7, judge_pauses_above=0.9))
    balance.add(0.9)
    assert balance.accuracy == pytest.approx(0.7), "as much as the half that it begins with"
    for _ in range(3):
        balance.add(0.9)
    assert balance.accuracy == pytest.approx((0.5 + 4 * 0.9) / 5) and balance.generator_learns and balance.judge_learns
    for _ in range(5):
        balance.add(0.9)
    resumed = Balance(GanConfig())
    resumed.load_state_dict(balance.state_dict())
    for each in (balance, resumed):
        before = each.accuracy
        each.add(0.0)
        assert each.accuracy == pytest.approx(0.9 * before), "a tenth, from the tenth on"


def test_the_generator_begins_with_what_the_first_stage_learned(tmp_path: Path) -> None:
    rows = train(tmp_path, "mle_epochs=1", "max_steps=1", "learning_rate=0", "mle_learning_rate=0.01")
    assert len(rows) == 1
    begun = samestep.load(tmp_path / "run", which="last", learner="generator").network
    assert [float(value) for value in begun.transformer.ln_f.weight] != [1.0] * 16


def test_each_update_of_the_judge_has_samples_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[tuple[int, int], set[int]] = {}
    make = Rollouts.make

    def noting(self: Rollouts, batch: Any, step: int, turn: int, opponents: Any) -> Any:
        seen.setdefault((step, turn), set()).update(batch["ids"][:, 1].tolist())
        return make(self, batch, step, turn, opponents)

    monkeypatch.setattr(Rollouts, "make", noting)
    train(tmp_path, "judge_steps=3", "max_steps=2")
    assert len(seen) == 6
    for step in (0, 1):
        assert seen[step, 0] != seen[step, 2] != seen[step, 1] != seen[step, 0]


@pytest.mark.timeout(900)
def test_a_kill_inside_of_a_step_replays_it(tmp_path: Path) -> None:
    """One of 2 ranks, while it writes; the other cannot go on alone."""
    shell = Shell(tmp_path)

    def launch(name: str, **env: str) -> list[int | None]:
        settings = [f"out={tmp_path}", f"name={name}", "log.every=1", "checkpoint.every_steps=1", "log.quiet=true"]
        return list(shell("train", "planted.gan_killed", "--preset", "verify", *settings, ranks=2, env=env)[0])

    def metrics(name: str) -> list[dict[str, Any]]:
        rows = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in row.items() if not k.endswith(("/s", "_s")) and "wait" not in k} for row in rows]

    assert launch("whole") == [0, 0]
    survivor, killed = launch("killed", KILL_MARK=str(tmp_path / "mark"))
    assert killed == -signal.SIGKILL and survivor
    assert len(metrics("killed")) < len(metrics("whole"))
    assert launch("killed", KILL_MARK=str(tmp_path / "mark")) == [0, 0]
    assert metrics("killed") == metrics("whole")
    assert rollouts(tmp_path, "killed") == rollouts(tmp_path, "whole")


def test_pairs_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pairs.csv").write_text("title,paragraph,genrated\na,b,c\n")
    command = ["train", "gan", "--preset", "verify", f"out={tmp_path}", f"benchmark.pairs={tmp_path / 'pairs.csv'}"]
    assert main(command) == 2
    assert "generated" in capsys.readouterr().err
    assert not (tmp_path / "gan-verify-1").exists()
