"""Every setting of the recipe beyond those that all recipes share, its presets, and settings without effect."""

from dataclasses import dataclass, field
from typing import Any

from samestep import Config, NoEffect, UserError
from samestep.core.config.bounds import Decay
from samestep.data.pydoc_topics import PROSE
from samestep.data.records.reading import only_for_records
from samestep.models.transformer import TransformerConfig
from samestep.recipes.mdlm.corpus import QUESTIONS, DataConfig, holds_chats, holds_records, is_prepared_folder
from samestep.recipes.mdlm.objective import ObjectiveConfig
from samestep.recipes.mdlm.sampling import SamplingConfig

LLADA_SAMPLING: dict[str, Any] = {"max_new_tokens": 128, "block_length": 32, "temperature": 0.0}
"""How LLaDA's authors sample: the likeliest tokens in blocks of 32, the most confident first, one a pass."""
_VERIFY_MODEL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "mlp_hidden_size": 32, "init_std": 0.1}
_BOTH_VERIFY = {
    "distributed": {"dtype": "float64"},
    "global_batch_size": 11,
    "batch_size": 4,
    "epochs": 2,
    "learning_rate": 1e-2,
    "warmup_ratio": 0.1,
}
PRESETS: dict[str, dict[str, Any]] = {
    # A minute or two on two CPU cores. Measured with Python 3.11's text: 3.04 bits per byte, where single bytes have
    # 4.72 and bigrams 3.44 (benchmarks/ngram.py); nine epochs reach 2.93.
    # At this size, rotary wavelengths for short rows and larger initial weights help most.
    "tiny": {
        "data": {"sequence_length": 64},
        "model": {
            "d_model": 96,
            "n_layers": 3,
            "n_heads": 3,
            "mlp_hidden_size": 256,
            "rope_theta": 10000.0,
            "max_sequence_length": 256,
            "init_std": 0.06,
        },
        # A network this small is most confident of spaces: with low-confidence remasking it would write nothing else.
        "sampling": {"max_new_tokens": 64, "temperature": 0.7, "remasking": "random"},
        "global_batch_size": 16,
        "batch_size": 16,
        "epochs": 7,
        "validate_every": 550,
        "learning_rate": 3e-3,
        "warmup_ratio": 0.05,
        "weight_decay": 0.1,
    },
    # Two minutes on two CPU cores, for a text that reads as words: the sentences of Python's help, words as tokens.
    # Written from left to right, a token a pass: so small a network knows little beyond the words before.
    "words": {
        "data": {"path": PROSE, "sequence_length": 64},
        "model": {
            "d_model": 96,
            "n_layers": 3,
            "n_heads": 3,
            "mlp_hidden_size": 256,
            "rope_theta": 10000.0,
            "max_sequence_length": 256,
            "init_std": 0.06,
        },
        "sampling": {"max_new_tokens": 64, "temperature": 0.7, "block_length": 1},
        "global_batch_size": 16,
        "batch_size": 16,
        "max_steps": 1200,
        "validate_every": 300,
        "checkpoint": {"every_epochs": 4},
        "optimizer": "muon",
        "learning_rate": 8e-3,
        "warmup_ratio": 0.05,
        "weight_decay": 0.1,
    },
    # 14 million parameters for a GPU and a text of your own: a few minutes. A text of half a megabyte is read 220 times
    # over; strong weight decay and averaged weights keep it from being memorized.
    "small": {
        "data": {"sequence_length": 512},
        "model": {
            "d_model": 384,
            "n_layers": 8,
            "n_heads": 6,
            "mlp_hidden_size": 1024,
            "embedding_size": 320,  # 259 tokens rounded up; with other data, its vocabulary is rounded up
            "rope_theta": 10000.0,
            "max_sequence_length": 2048,
            "init_std": 0.05,
        },
        "sampling": {"max_new_tokens": 256, "temperature": 0.7, "remasking": "random"},
        "distributed": {"mixed_precision": "bf16"},
        "global_batch_size": 64,
        "batch_size": 64,
        "max_steps": 2200,
        "validate_every": 200,
        "learning_rate": 1e-3,
        "warmup_ratio": 0.05,
        "final_lr_ratio": 0.2,
        "weight_decay": 2.0,
        "ema_decay": 0.999,
        "compile": True,
    },
    # The published LLaDA-8B, to be fine-tuned: `--model_name FOLDER --data_dir CHATS`. The folder's config.json decides
    # the shape; these are its values, for a run without one. Sharded, since a parameter and its state take 16 bytes.
    "llada-8b": {
        "model": {
            "d_model": 4096,
            "n_layers": 32,
            "n_heads": 32,
            "n_kv_heads": 32,
            "mlp_hidden_size": 12288,
            "vocab_size": 126464,
            "embedding_size": 126464,
            "rope_theta": 500000.0,
            "max_sequence_length": 4096,
        },
        "sampling": LLADA_SAMPLING,
        "distributed": {"strategy": "fsdp", "mixed_precision": "bf16"},
        "batch_size": 1,
        "accumulation": 8,
        "epochs": 3,
        "learning_rate": 2.5e-5,
        "warmup_ratio": 0.03,
        "final_lr_ratio": 0.1,
    },
    # Milliseconds a step in float64. Both regions end in a partial row, an epoch in a smaller batch, and some steps are
    # cut, so that any wrong weighting shows here.
    "verify": {
        **_BOTH_VERIFY,
        "data": {"sequence_length": 16, "limit": 1610},
        "model": {**_VERIFY_MODEL, "max_sequence_length": 64},
        "objective": {"cut_rows": 0.2, "validation_times": 2},
        "sampling": {"max_new_tokens": 16, "steps": 4, "block_length": 8},
    },
    # The same for answers to prompts, padded to another width from step to step, with averaged weights and .pt files,
    # all of which a resume must restore.
    "verify-sft": {
        **_BOTH_VERIFY,
        "data": {"path": QUESTIONS, "sequence_length": 128, "limit": 5760},
        "model": {**_VERIFY_MODEL, "max_sequence_length": 160},
        "objective": {"validation_times": 2},
        "sampling": {"max_new_tokens": 8, "steps": 2},
        "ema_decay": 0.8,
        "pt_checkpoints": True,
    },
}


@dataclass(frozen=True)
class MdlmConfig(Config):
    """A masked-diffusion language model."""

    preset: str = "tiny"
    """A named set of values: tiny for a CPU, words for a CPU and a text of words, small for a GPU,
    llada-8b to fine-tune a published model, verify and verify-sft for proofs."""
    data: DataConfig = field(default_factory=DataConfig)
    """The training data; of chats, only the answers are learned."""
    model: TransformerConfig = field(default_factory=TransformerConfig)
    """The network. Its vocabulary is that of the data; with init_from=FOLDER, all of it comes from that folder."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """How tokens are masked, how rows are weighed, and how validation averages over it."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """How text is sampled in validation and by `samestep sample`."""
    ema_decay: Decay = 0.0
    """Keep an exponential moving average of the weights with this decay, such as 0.999, for validation, sampling and
    export; 0: no average."""
    bucketed: bool = True
    """Put chats of similar length into one step, for less padding."""
    pt_checkpoints: bool = False
    """Also write checkpoint_epoch_N.pt after every epoch, for older scripts; `--resume FILE` continues from one."""

    def __post_init__(self) -> None:
        """Refuse settings that would fail only after hours."""
        if self.log.samples and self.sampling.max_new_tokens > self.model.max_sequence_length:
            raise UserError(
                f"Set sampling.max_new_tokens to at most model.max_sequence_length={self.model.max_sequence_length}, "
                f"or log.samples to 0; it is {self.sampling.max_new_tokens}."
            )


NO_EFFECT = (
    NoEffect(
        "objective.cut_rows",
        lambda c: holds_chats(c.data),
        "rows of running text are cut, and the data is chats; leave it out",
    ),
    NoEffect(
        ("bucketed", "objective.wide_steps"),
        lambda c: not holds_chats(c.data),
        "rows of running text have one length, and are not padded; leave it out",
    ),
    NoEffect(
        ("data.validation_fraction", "data.test_fraction"),
        lambda c: c.data.path is not None and is_prepared_folder(c.data.path),
        "a prepared folder has its own; give it to samestep data prepare, or leave it out",
    ),
    only_for_records(lambda c: c.data.path is None or not holds_records(c.data.path)),
    NoEffect(
        "sampling.steps",
        lambda c: (c.sampling.steps or 0) > c.sampling.max_new_tokens,
        "there is no more than one pass for each of the tokens; lower it to sampling.max_new_tokens, or leave it out",
    ),
)
"""Settings that have no effect beside others."""
