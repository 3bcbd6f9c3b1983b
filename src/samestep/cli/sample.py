"""`samestep sample MODEL [--prompt TEXT] [options] [settings]`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samestep.cli.args import COMMON_ALIASES, run_on_model
from samestep.core.config import dump, override, paths_of, split_options
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.records import Json
from samestep.train.pretrained.trained_model import Trained, open_trained
from samestep.world.world import World

HELP = """samestep sample MODEL [--prompt TEXT | --prompts FILE] [--samples N] [options] [settings]

Generates from a trained model. MODEL is a run (by name or path, its newest intact checkpoint), a checkpoint, or a
folder with a published model. Sampling settings may be shortened: --temperature 0.5 is --sampling.temperature 0.5; the
others are --length --steps --block_length --remasking --cfg_scale --eos --stop. Also useful: --seed, --batch_size.

--prompt     text to continue; [[8]] in it is a gap of 8 tokens to fill in, and then nothing is appended
--gap        a marker for gaps in place of [[8]], such as ___; each gets --length tokens
--prompts    a file with one prompt per line, or a .jsonl file whose lines hold "prompt" (or "text")
--samples    texts for each prompt (1)
--chat       the prompt is a question to an instruction-tuned model, and only its answer is printed
--out        also write the texts to this .jsonl file
--watch      show the diffusion step by step
--html       write the diffusion as an animation to this .html file
--device     auto, cpu, cuda, cuda:N or xpu (auto)
--dtype      float32, bfloat16, float16 or float64, in place of the type the weights are stored in

`torchrun --nproc_per_node=4 -m samestep sample ...` splits the texts among all ranks, in batches of --batch_size; the
texts are the same as those of one process."""
OPTIONS = ("prompt", "prompts", "samples", "gap", "out", "html", "device", "dtype")
SWITCHES = ("chat", "watch")


@dataclass(frozen=True)
class SampleArgs:
    """The args after the model: options of the verb, switches, and settings of the recipe."""

    options: dict[str, str]
    switches: dict[str, bool]
    settings: list[str]

    @classmethod
    def parse(cls, args: Sequence[str]) -> "SampleArgs":
        """Parse the args after the model."""
        switches = {name: f"--{name}" in args for name in SWITCHES}
        options, settings = split_options([arg for arg in args if arg[2:] not in SWITCHES], OPTIONS)
        if "prompt" in options and "prompts" in options:
            raise UserError("Give --prompt or --prompts, not both.")
        for name in ("out", "html"):
            if name in options and not Path(options[name]).absolute().parent.is_dir():
                raise UserError(f"Make the folder of --{name} {options[name]} first; it does not exist.")
        return cls(options, switches, settings)

    def prompts(self) -> list[str]:
        """The prompts; without the options, one empty prompt."""
        if "prompts" not in self.options:
            return [self.options.get("prompt", "")]
        return read_prompts(Path(self.options["prompts"]))

    def samples(self) -> int:
        """Number of texts for each prompt."""
        text = self.options.get("samples", "1")
        if not text.isdigit() or not int(text):
            raise UserError(f"--samples must be a whole number of at least 1, not {text!r}.")
        return int(text)

    def path(self, name: str) -> Path | None:
        """The file that an option names, if it was given."""
        return Path(self.options[name]) if name in self.options else None


def run(args: Sequence[str]) -> int:
    """Print samples of a trained model; exit code 2 when one rank or all of them cannot."""
    return run_on_model("sample", args, HELP, _sample)


def _sample(source: str, args: Sequence[str]) -> int:
    world = World.rendezvous()
    with world.together("opening the model"):
        sample_args = SampleArgs.parse(args)
        prompts, samples = sample_args.prompts(), sample_args.samples()
        trained = open_trained(source)
        generate = trained.recipe.sample
        if generate is None:
            raise UserError(f"the recipe {trained.name!r} has no function that generates; there is nothing to sample")
        trained = replace(trained, config=_overridden(trained, sample_args.settings))
    world.connect(sample_args.options.get("device", "auto"))
    more = {name: sample_args.options.get(name) for name in ("dtype", "gap")}
    records = generate(
        trained, prompts, samples, world=world, html=sample_args.path("html"), **more, **sample_args.switches
    )
    if world.is_main:
        _show(records, sample_args.path("out"))
    world.leave()
    return EXIT_DONE


def _overridden(trained: Trained, args: Sequence[str]) -> Any:
    """The model's config with the overridden settings; those of the section `sampling` may be shortened."""
    cls, prefix = trained.recipe.config, "sampling."
    short = {path.removeprefix(prefix): path for path in paths_of(cls) if path.startswith(prefix)}
    return override(cls, dump(trained.config), aliases={**COMMON_ALIASES, **short, **trained.recipe.aliases}, args=args)


def read_prompts(file: Path) -> list[str]:
    """One prompt per line: the line itself, or in a .jsonl file its value of "prompt" or "text"."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise UserError(f"Give --prompts a readable text file; {file} cannot be read.") from None
    if not lines:
        raise UserError(f"Put at least one prompt into {file}; it is empty.")
    return [_prompt(file, number, line) for number, line in enumerate(lines, 1)] if file.suffix == ".jsonl" else lines


def _prompt(file: Path, number: int, line: str) -> str:
    try:
        row = json.loads(line)
        prompt = row["prompt"] if "prompt" in row else row["text"]
    except (ValueError, KeyError, TypeError):
        prompt = None
    if not isinstance(prompt, str):
        raise UserError(f'Make prompt {number} of {file} a JSON object such as {{"prompt": "The "}}.')
    return prompt


def _show(records: Sequence[dict[str, Json]], out: Path | None) -> None:
    """Print the texts, each after a separator line if there are several; write the records to a file."""
    for number, record in enumerate(records, 1):
        if len(records) > 1:
            print(f"--- {number} of {len(records)} ---")
        print(record["text"])
    if out is not None:
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        out.write_text("".join(lines), encoding="utf-8")
