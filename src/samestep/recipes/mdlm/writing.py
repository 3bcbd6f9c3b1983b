"""Texts that are written when a run validates, for people to look at: from nothing, or answers to validation rows.

Their noise is keyed by the seed and the number of the text alone, so it is the same every time, on any number of ranks.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from samestep import Bench, Fit, Tick, samples
from samestep.recipes.mdlm.config import MdlmConfig
from samestep.recipes.mdlm.corpus import Corpus
from samestep.recipes.mdlm.sampling import batches_by_shape, sample, until_end


class Writer:
    """Writes texts with a network that is trained."""

    def __init__(self, bench: Bench, text: Corpus) -> None:
        self._bench, self._text = bench, text
        self.answers = text.sft
        """Whether texts are answers to prompts."""
        self.name = "answer" if text.sft else "sampled text"

    def texts(self, task: Fit, count: int) -> list[samples.Text]:
        """So many texts, on every rank."""
        config: MdlmConfig = self._bench.config
        rows, found = self._text.validation, dict[int, samples.Text]()
        given = [rows[number % len(rows)] for number in range(count)]
        prompts = [row["tokens"][: int(row["prompt"])] for row in given]
        batches = batches_by_shape([len(prompt) for prompt in prompts], config.rows_at_once)
        tokenizer, device = self._text.tokenizer, self._bench.world.device
        with self._bench.world.activity.doing("generate"), task.weights_in_use(), task.learner.inference() as module:
            for numbers in batches:
                prompt = torch.stack([prompts[number] for number in numbers]).to(device)
                room = config.model.max_sequence_length - prompt.shape[1]
                if room < 1:
                    continue
                options = replace(config.sampling, max_new_tokens=min(config.sampling.max_new_tokens, room))
                ids = torch.tensor(numbers, device=device)
                tokens = sample(
                    module, prompt, options, seed=config.seed, ids=ids, vocabulary=tokenizer.vocabulary
                ).tolist()
                for number, row in zip(numbers, tokens, strict=True):
                    written = until_end(row[prompt.shape[1] :], tokenizer.vocabulary)
                    begun = tokenizer.decode(prompts[number].tolist())
                    found[number] = samples.Text(tokenizer.decode(written), begun)
        return [found[number] for number in sorted(found)]

    def log(self, task: Fit) -> None:
        """Write texts as samples of the step."""
        self._bench.log_samples(self.name, *self.texts(task, self._bench.sample_count))


class WritingFit(Fit):
    """`Fit` that writes texts when it validates."""

    def __init__(self, *args: Any, writer: Writer | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.writer = writer

    def validate(self, tick: Tick) -> Mapping[str, float]:
        found = super().validate(tick)
        if self.writer is not None:
            self.writer.log(self)
        return found
