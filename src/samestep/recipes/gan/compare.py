"""`samestep evaluate RUN_A RUN_B`: two generators complete the same held-out prompts, and a judge compares the texts.

Without RUN_B, the generator is compared with what people wrote. A generator must not be asked for what it was trained
on, so a record whose human text is in the training data of one of the two is left out. Every rank writes and judges its
share; the results are those of one process.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from samestep import Trained, UserError, World, noise
from samestep.core.config.bounds import Count, NotNegative, Positive
from samestep.core.config.checked import CheckedConfig
from samestep.core.json_files import Json, write_atomically
from samestep.core.paths import check_new_file
from samestep.recipes.gan.comparison_judges import (
    ComparisonJudge,
    EndpointJudge,
    JudgeSettings,
    Shown,
    label,
    model_judge,
    run_judge,
)
from samestep.recipes.gan.comparison_results import Verdict, comparison_page, decide, question_results, without_judge
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import DataConfig, Record, Texts, count_repeated, load
from samestep.recipes.gan.endpoint import Endpoint, is_url, key_from
from samestep.recipes.gan.evaluation import text_metrics
from samestep.recipes.gan.judges import DEFAULT_CRITERION, Mode
from samestep.recipes.gan.players import open_player
from samestep.recipes.gan.sampling import Written, complete_prompts
from samestep.recipes.gan.task import GENERATOR, JUDGE
from samestep.train.artifacts.file_hashes import hash_files
from samestep.train.record.run_record import run_path
from samestep.train.trained.trained_model import open_trained
from samestep.train.weights.sources import is_checkpoint

_CHOICE = noise.purpose("gan/compare/choice")


@dataclass(frozen=True)
class CompareOptions(CheckedConfig):
    """Compares the generators of two runs, or one with the human texts. Both write with the settings of the first one
    (--temperature 0.7, --seed 1)."""

    against: str | None = None
    """The second run or checkpoint; null: the human texts."""
    against_which: str = "last"
    """Of the second run: last, best, or the number of a step."""
    against_stage: str | None = None
    """Of the second run: the stage, such as mle; null: the last one."""
    records: str | None = None
    """A .csv or .jsonl file with prompts and human texts, read with the first run's data settings; null: the first
    run's test records, or where it has none (data.test_fraction) those for validation."""
    limit: Count | None = 200
    """Use this many of the records, drawn by the seed; null is all."""
    criteria: str = DEFAULT_CRITERION
    """Questions about two texts, with semicolons between them; each is asked and reported for itself."""
    show_prompt: bool | None = None
    """Show the judge the prompt; null: as it was trained, or yes."""
    judge: str | None = None
    """Who compares: a run, a folder with a language model, org/name of the Hub, or the URL of an OpenAI-compatible
    endpoint; null: the judges of both runs, one after the other, since each knows its own opponent best."""
    judge_mode: Mode | None = None
    """verdict: by the odds of the answers 1 and 2; generative: by what it writes; null: as it was trained, or
    verdict."""
    judge_max_tokens: Count | None = None
    """Tokens of each text that the judge is shown, at most (words, for an endpoint); null: as it was trained, or
    256."""
    judge_answer_tokens: Count | None = None
    """Tokens that a generative judge may write; null: as it was trained, or 256, or what an endpoint allows."""
    judge_model: str = ""
    """The name of the model at an endpoint."""
    judge_key_env: str = "SAMESTEP_JUDGE_KEY"
    """The environment variable with the key of an endpoint; if it is not set, none is sent."""
    judge_timeout: Positive = 60.0
    """Seconds that a request to an endpoint may take; it is sent up to 5 times."""
    judge_temperature: NotNegative | None = 0.0
    """Of a model at an endpoint; null: its own default."""
    html: Path | None = None
    """Write a page with plots and texts to this .html file."""

    def __post_init__(self) -> None:
        if not self.questions:
            raise UserError("Give --criteria at least one question, such as 'Which is clearer?'.")
        if self.html is not None:
            check_new_file("--html", self.html)
        if self.judge_model and not (self.judge and is_url(self.judge)):
            raise UserError("Leave out --judge_model, or name the URL of its endpoint with --judge.")
        if self.judge and is_url(self.judge):
            if self.judge_mode == "verdict":
                raise UserError("Leave out --judge_mode verdict: an endpoint gives no odds, so its answer is read.")
            self.endpoint()

    @property
    def questions(self) -> list[str]:
        return list(dict.fromkeys(text.strip() for text in self.criteria.split(";") if text.strip()))

    def endpoint(self) -> Endpoint:
        assert self.judge is not None
        return Endpoint(
            self.judge,
            self.judge_model,
            key_from(self.judge_key_env),
            timeout=self.judge_timeout,
            answer_tokens=self.judge_answer_tokens,
            temperature=self.judge_temperature,
        )


@dataclass(frozen=True)
class ChosenRecords:
    """The records that are compared on."""

    name: str
    """Where they come from."""
    records: list[Record]
    ids: list[int]
    """Their numbers among all that could have been chosen, which key the noise."""
    notes: list[str]
    """What a reader should know about the choice."""


def compare(trained: Trained, options: CompareOptions, world: World) -> dict[str, Json]:
    """The results: plain values, with all texts."""
    if trained.learner is not None:
        raise UserError("Leave out --learner: it is always the generator that is compared.")
    config: GanConfig = trained.config
    runs = [_with_generator(trained)]
    if options.against is not None:
        which, stage = options.against_which, options.against_stage
        runs.append(_with_generator(_open(options.against, world, which=which, stage=stage)))
    judges, notes = _choose_judges(runs, options, config.rows_at_once, world)
    chosen = choose_records(runs, options.records, config.data, options.limit)
    if any(ids != chosen.ids for ids in world.gather(chosen.ids)):
        raise UserError("Put the data of both runs on a disk that all nodes see: ranks would compare other records.")
    prompts, ids = [record.prompt for record in chosen.records], torch.tensor([[0, number] for number in chosen.ids])
    a, *more = (complete_prompts(run, config, "gan/compare", prompts, ids, world) for run in runs)
    for run, written in zip(runs, (a, *more)):
        if written.cut_prompts:
            notes.append(f"{written.cut_prompts} prompts are cut to what the network of {label(run)} takes")
    humans = [record.human for record in chosen.records]
    b = more[0] if more else Written(humans, [])
    questions, verdicts = _judge(judges, options.questions, chosen.records, a.texts, b.texts)
    results: dict[str, Json] = {
        "a": _about(runs[0]),
        "b": _about(runs[1]) if more else {"name": "the human texts"},
        "records": {"name": chosen.name, "count": len(chosen.records)},
        "notes": [*notes, *chosen.notes],
        "questions": questions,
        "texts": _text_metrics(runs[0], humans, a, b if more else None, world),
        "pairs": [
            {**asdict(record), "a": text_a, "b": text_b, "verdicts": [asdict(verdict) for verdict in of_pair]}
            for record, text_a, text_b, of_pair in zip(chosen.records, a.texts, b.texts, zip(*verdicts), strict=True)
        ],
    }
    if options.html is not None and world.is_main:
        write_atomically(options.html, comparison_page(results))
    return results


def choose_records(trained: Sequence[Trained], file: str | None, data: DataConfig, limit: int | None) -> ChosenRecords:
    """The test or validation records of the first run, or those of a file, without what one of the runs was trained on.

    `data` says how the file is read. Every rank reads them, with the same result.
    """

    def texts_of(run: Trained) -> Texts:
        config: GanConfig = run.config
        return load(config.data, config.seed)

    # As they were trained: a setting on the command line must not split the data in another way.
    runs = [open_trained(str(one.source)) for one in trained]
    if file is None:
        texts = texts_of(runs[0])
        part, rows = ("validation", texts.validation) if texts.test is None else ("test", texts.test)
        name, found = f"{part} records of {label(runs[0])}", list(rows.records)
    else:
        texts = load(replace(data, path=file, limit=None, test_fraction=0.0), runs[0].config.seed)
        name, found = file, [*texts.train.records, *texts.validation.records]
    kept, notes = _without_training(list(enumerate(found)), runs, texts_of)
    if not kept:
        raise UserError(
            f"There is no record left to compare on ({len(found)} {name}; {'; '.join(notes) or 'it has none'}); name "
            "others with --records FILE."
        )
    chosen = _some(kept, limit, runs[0].config.seed)
    if len(chosen) < len(kept):
        notes.append(f"{len(chosen)} of {len(kept)} records are used (--limit)")
    return ChosenRecords(name, [record for _, record in chosen], [number for number, _ in chosen], notes)


def _without_training(
    found: list[tuple[int, Record]], runs: Sequence[Trained], texts_of: Callable[[Trained], Texts]
) -> tuple[list[tuple[int, Record]], list[str]]:
    """The records whose human text no run was trained on, and sentences about it."""
    notes: list[str] = []
    for run in runs:
        try:
            known = texts_of(run).train.records
        except UserError as error:
            notes.append(f"nothing is left out for {label(run)}, whose training data cannot be read ({error})")
            continue
        humans = {record.human for record in known}
        before = len(found)
        found = [(number, record) for number, record in found if record.human not in humans]
        if len(found) < before:
            notes.append(f"{before - len(found)} left out: {label(run)} was trained on them")
        if repeated := count_repeated([record for _, record in found], known):
            notes.append(f"{repeated} have a prompt that {label(run)} was trained on, with another human text")
    return found, list(dict.fromkeys(notes))


def _some(kept: Sequence[tuple[int, Record]], limit: int | None, seed: int) -> list[tuple[int, Record]]:
    """So many of the records, drawn by the seed, in their order: a file may be sorted by group."""
    numbers = torch.tensor([number for number, _ in kept])
    order = noise.uniform(seed, _CHOICE, numbers, dtype=torch.float64).argsort(stable=True)
    return [kept[place] for place in sorted(order[:limit].tolist())]


def _with_generator(trained: Trained) -> Trained:
    if not isinstance(trained.config, GanConfig):
        raise UserError(f"Give two runs of the same recipe; {trained.source} is of recipe {trained.name!r}.")
    trained.learner_name(GENERATOR)
    return trained


def _open(
    text: str, world: World, *, which: str = "last", stage: str | None = None, learner: str | None = None
) -> Trained:
    """The model that rank 0 chooses: a run that is still training may save another checkpoint at any moment."""

    def choose() -> str | None:
        found = open_trained(text, which, stage=stage, learner=learner) if world.is_main else None
        return str(found.source) if found else None

    source = world.run_on_all_ranks(f"opening {text}", choose)[0]
    return replace(open_trained(source), verified=True)


def _choose_judges(
    runs: Sequence[Trained], options: CompareOptions, rows: int, world: World
) -> tuple[list[ComparisonJudge], list[str]]:
    """Who is asked, and what a reader should know about it."""
    most, answer = options.judge_max_tokens, options.judge_answer_tokens
    settings = JudgeSettings(options.judge_mode, most, answer, options.show_prompt, rows)
    named = options.judge
    if named is None:
        return _own_judges(runs, settings, world)
    if is_url(named):
        return [EndpointJudge(options.endpoint(), most or 256, options.show_prompt is not False, world)], []
    path = Path(run_path(named, "runs"))
    is_run = is_checkpoint(path) or ((path / "config.json").exists() and (path / "checkpoints").is_dir())
    if world.share(is_run):
        judge = _open(str(path), world, learner=JUDGE)
        if not isinstance(judge.config, GanConfig):
            raise UserError(f"Name another --judge; {named} is of recipe {judge.name!r}, which has no judge.")
        return [run_judge(judge, settings, world)], []
    return [model_judge(named, settings, world)], []


def _own_judges(
    runs: Sequence[Trained], settings: JudgeSettings, world: World
) -> tuple[list[ComparisonJudge], list[str]]:
    """The judges that the runs trained; of a stage without one, that of the last checkpoint of the run. One that is
    named in two ways, or copied, is asked once."""
    found: dict[tuple[str, ...], Trained] = {}
    for run in runs:
        judge: Trained | None = run if JUDGE in run.learners() else None
        if judge is None and run.run is not None:
            try:
                judge = _open(str(run.run.path), world, learner=JUDGE)
            except UserError:  # this run has none, but the other may
                continue
        if judge is not None:
            files = judge.weight_files()
            found.setdefault(tuple(hash_files([files[name] for name in sorted(files)], world)), judge)
    if not found:
        raise UserError("Name a judge with --judge: no run here has trained one.")
    note = "a judge knows the generator that it was trained against better than others; --judge names another one"
    return [run_judge(judge, settings, world) for judge in found.values()], [note]


def _judge(
    judges: Sequence[ComparisonJudge], criteria: Sequence[str], records: Sequence[Record], a: list[str], b: list[str]
) -> tuple[list[dict[str, Json]], list[list[Verdict]]]:
    """The results of every judge and criterion, and the verdicts on all pairs for each of them."""
    clear = [without_judge(*texts) for texts in zip(a, b, strict=True)]
    open_pairs = [number for number, verdict in enumerate(clear) if verdict is None]
    a_first = [Shown(records[number].prompt, a[number], b[number]) for number in open_pairs]
    b_first = [Shown(one.prompt, one.second, one.first) for one in a_first]
    groups = [record.group for record in records]
    results: list[dict[str, Json]] = []
    verdicts: list[list[Verdict]] = []
    for judge in judges:
        for criterion, answers in zip(criteria, judge.ask(criteria, [*a_first, *b_first]), strict=True):
            half = len(open_pairs)
            decided = dict(zip(open_pairs, map(decide, answers[:half], answers[half:]), strict=True))
            verdicts.append([decided[number] if one is None else one for number, one in enumerate(clear)])
            results.append(question_results(judge, criterion, verdicts[-1], groups))
    return results, verdicts


def _about(trained: Trained) -> dict[str, Json]:
    return {"name": label(trained), "source": str(trained.source), "stage": trained.stage}


def _text_metrics(
    run: Trained, humans: list[str], a: Written, b: Written | None, world: World
) -> dict[str, dict[str, Json]]:
    """The metrics of each kind of text. Diversity falls with length, so that of human texts is of their beginnings:
    as many tokens as the generator may write."""
    config: GanConfig = run.config
    player = open_player(config.generator, config.model_name, world)
    cut = [player.decode(player.encode(text)[: config.writing.max_new_tokens]) for text in humans]
    written = {"a": a, **({"b": b} if b else {})}
    metrics: dict[str, dict[str, Json]] = {
        name: {**text_metrics(one.texts), "at_the_limit": sum(one.cut) / len(one.cut)} for name, one in written.items()
    }
    return {**metrics, "human": text_metrics(cut, humans)}
