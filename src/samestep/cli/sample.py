"""`samestep sample MODEL [--prompt TEXT] [options] [settings]`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samestep.cli.args import COMMON, use_model
from samestep.core.config import dump, paths_of
from samestep.core.config.command_line import take
from samestep.core.config.merging import amend
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.records import Json
from samestep.train.pretrained.trained import Trained, open_trained
from samestep.world.world import World

HELP = """samestep sample MODEL [--prompt TEXT | --prompts FILE] [--samples N] [options] [settings]

Generates from a trained model. MODEL is a run (by name or path, its newest whole checkpoint), a checkpoint, or a folder
with a published model. Sampling settings may be shortened: --temperature 0.5 is --sampling.temperature 0.5; the others
are --length --steps --block_length --remasking --cfg_scale --eos --stop. Also useful: --seed, --batch_size.

--prompt     text to go on from; [[8]] in it is a gap of 8 tokens to fill in, and then nothing is added at its end
--gap        a marker for gaps in place of [[8]], such as ___; each gets --length tokens
--prompts    a file with a prompt a line, or a .jsonl file whose lines hold "prompt" (or "text")
--samples    texts for each prompt (1)
--chat       the prompt is a question to an instruction-tuned model, and only its answer is shown
--out        also write the texts to this .jsonl file
--watch      show the diffusion step by step
--html       write the diffusion as an animation to this .html file
--device     auto, cpu, cuda, cuda:N or xpu (auto)
--dtype      float32, bfloat16, float16 or float64, in place of the type the weights are stored in

`torchrun --nproc_per_node=4 -m samestep sample ...` deals batches of --batch_size texts to all ranks; the texts are the
same as those of one process."""
OPTIONS = ("prompt", "prompts", "samples", "gap", "out", "html", "device", "dtype")
SWITCHES = ("chat", "watch")


@dataclass(frozen=True)
class Asked:
    """What was asked for, beside settings."""

    options: dict[str, str]
    switches: dict[str, bool]
    settings: list[str]

    @classmethod
    def read(cls, words: Sequence[str]) -> "Asked":
        """Take the words behind the model apart."""
        switches = {name: f"--{name}" in words for name in SWITCHES}
        options, settings = take([word for word in words if word[2:] not in SWITCHES], OPTIONS)
        if "prompt" in options and "prompts" in options:
            raise UserError("Give --prompt or --prompts, not both.")
        for name in ("out", "html"):
            if name in options and not Path(options[name]).absolute().parent.is_dir():
                raise UserError(f"Make the folder of --{name} {options[name]} first; it does not exist.")
        return cls(options, switches, settings)

    def prompts(self) -> list[str]:
        """The prompts, at least one; without any, an empty one."""
        if "prompts" not in self.options:
            return [self.options.get("prompt", "")]
        return read_prompts(Path(self.options["prompts"]))

    def samples(self) -> int:
        """Texts for each prompt."""
        text = self.options.get("samples", "1")
        if not text.isdigit() or not int(text):
            raise UserError(f"--samples must be a whole number of at least 1, not {text!r}.")
        return int(text)

    def path(self, name: str) -> Path | None:
        """A file that was named."""
        return Path(self.options[name]) if name in self.options else None


def run(words: Sequence[str]) -> int:
    """Print samples of a trained model; exit code 2 when one rank or all of them cannot."""
    return use_model("sample", words, HELP, _sample)


def _sample(source: str, words: Sequence[str]) -> int:
    world = World.rendezvous()
    with world.together("opening the model"):
        asked = Asked.read(words)
        prompts, samples = asked.prompts(), asked.samples()
        trained = open_trained(source)
        generate = trained.recipe.sample
        if generate is None:
            raise UserError(f"the recipe {trained.name!r} does not generate anything; there is nothing to sample")
        trained = replace(trained, config=_amended(trained, asked.settings))
    world.connect(asked.options.get("device", "auto"))
    more = {name: asked.options.get(name) for name in ("dtype", "gap")}
    records = generate(trained, prompts, samples, world=world, html=asked.path("html"), **more, **asked.switches)
    if world.is_main:
        _show(records, asked.path("out"))
    world.leave()
    return EXIT_DONE


def _amended(trained: Trained, words: Sequence[str]) -> Any:
    """The model's configuration with what the words change; settings of the section `sampling` may be shortened."""
    cls, prefix = trained.recipe.config, "sampling."
    short = {path.removeprefix(prefix): path for path in paths_of(cls) if path.startswith(prefix)}
    return amend(cls, dump(trained.config), aliases={**COMMON, **short, **trained.recipe.aliases}, words=words)


def read_prompts(file: Path) -> list[str]:
    """A prompt a line: the line itself, or in a .jsonl file what it holds under "prompt" or "text"."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise UserError(f"Give --prompts a readable text file; {file} is none.") from None
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
    """The texts, each under a line of its own where there are several; and the records in a file."""
    for number, record in enumerate(records, 1):
        if len(records) > 1:
            print(f"--- {number} of {len(records)} ---")
        print(record["text"])
    if out is not None:
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        out.write_text("".join(lines), encoding="utf-8")
