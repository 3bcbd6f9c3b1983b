"""The configuration every recipe shares. A recipe's own config inherits from `Config` and adds its fields.

Fields made with `free(...)` may change when a run is resumed; all others shape the run's trajectory and are fixed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from samestep.core.config import free, or_mapping
from samestep.core.config.bounds import Count, CountOrZero, Decay, NotNegative, PartialShare, Positive, Share
from samestep.core.config.checked import CheckedConfig
from samestep.world.watchdog.limits import WatchdogConfig

AUTO: Literal["auto"] = "auto"
"""The batch_size that is measured."""
UNMEASURED_ROWS = 8
"""What `batch_size=auto` means where nothing can be measured."""


@dataclass(frozen=True)
class PrecisionSwitch:
    """`mixed_precision` as other programs have it: `{enabled: true, dtype: bfloat16}`."""

    enabled: bool = True
    """Whether there is mixed precision at all."""
    dtype: Literal["auto", "bfloat16", "bf16", "float16", "fp16"] = "auto"
    """Type of the arithmetic."""

    def value(self) -> str:
        """The same as one word."""
        return {"bfloat16": "bf16", "float16": "fp16"}.get(self.dtype, self.dtype) if self.enabled else "none"


@dataclass(frozen=True)
class Distributed(CheckedConfig):
    """Where the run computes and how its ranks communicate."""

    device: str = free("auto")
    """auto, cpu, cuda, cuda:N or xpu; auto takes the best there is."""
    backend: Literal["auto", "nccl", "gloo", "xccl", "ccl", "xpu", "mpi"] = free("auto")
    """Library that runs the collectives; auto picks by device."""
    timeout: Positive = free(600.0)
    """Seconds a collective may wait for a peer; the variable NCCL_TIMEOUT overrides it."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """ddp keeps a full model on every rank, fsdp shards it over them."""
    mixed_precision: Literal["auto", "none", "tf32", "bf16", "fp16"] = or_mapping("auto", PrecisionSwitch)
    """Type of the arithmetic; the parameters stay in `dtype`. tf32: matrix products on a GPU keep 10 bits of their
    factors. auto: bf16 on GPUs that have it, decided at the first launch of a run for all others. Also a mapping such
    as {enabled: true, dtype: bfloat16}."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of parameters and optimizer state; float64 is for proofs."""


@dataclass(frozen=True)
class Checkpoints(CheckedConfig):
    """When to save, and what to keep."""

    every_steps: CountOrZero = free(0)
    """Save every so many steps; 0: not by steps."""
    every_epochs: CountOrZero = free(1)
    """Save every so many epochs; 0: not by epochs."""
    every_minutes: NotNegative = free(0.0)
    """Save every so many minutes; 0: not by time."""
    keep_last: CountOrZero = free(3)
    """How many of the newest to keep."""
    keep_best: CountOrZero = free(1)
    """How many of the best by the stage's metric to keep."""
    keep_every: CountOrZero = free(0)
    """Also keep those at multiples of so many steps; 0: do not."""
    background: bool = free(True)
    """Write while training goes on, from a copy of the state in memory; false: no copy, and training waits."""
    max_failures: Count = free(3)
    """Stop after so many saves in a row that failed; until then training goes on and the next save tries again."""
    weights: bool = free(False)
    """Also write plain weight files, {model}_step_{N}.pt and {model}_epoch_{N}.pt, for older scripts; with several
    stages, each in a folder of its own."""


@dataclass(frozen=True)
class Log(CheckedConfig):
    """What is printed and written."""

    every: Count = 10
    """Steps between two rows of metrics."""
    samples: CountOrZero = free(4)
    """Samples of what the network makes that are written at each validation, to look at; 0: none are made."""
    level: Literal["debug", "info", "warning", "error"] = free("warning")
    """Messages on the terminal; the log files always hold info and above."""
    quiet: bool = free(False)
    """Print nothing but errors."""
    tensorboard: bool = free(True)
    """Write TensorBoard events."""
    wandb: bool = free(False)
    """Log to Weights & Biases (extra `wandb`), a row once a checkpoint covers it; WANDB_MODE=offline works."""
    wandb_project: str = free("samestep")
    """Project name at Weights & Biases."""


@dataclass(frozen=True)
class Config(CheckedConfig):
    """What every training run has."""

    preset: str = "default"
    """A named set of values that the recipe ships."""
    name: str | None = free(None)
    """Name of the run and of its directory; by default recipe and preset with a number."""
    out: str = free("runs")
    """Folder that holds the run directories."""
    seed: int = 0
    """All random numbers of the run follow from it."""

    batch_size: Count | Literal["auto"] = free(8)
    """Rows a device takes at once. Without global_batch_size: global batch = batch_size x ranks x accumulation. Given
    without it, it is that of each device, whatever global_batch_size and accumulation a preset has. auto: with a
    global_batch_size, the most that fit in memory, measured before a stage's first step and kept for its resumes."""
    accumulation: Count = free(1)
    """Micro-batches per step and device, when global_batch_size is not given."""
    global_batch_size: Count | None = None
    """Rows per step over all devices, the same at any world size; batch_size then only bounds memory."""
    epochs: Count = 1
    """Passes over the data, unless max_steps is given."""
    max_steps: Count | None = None
    """Steps of the run, in place of epochs."""
    max_time: str | None = free(None)
    """Stop after this long with a checkpoint to resume from: 90s, 30m, 2h, or HH:MM:SS."""
    until: str | None = free(None)
    """End after this stage; the same command without it goes on with the next."""
    start_over: bool = free(False)
    """For this launch only: let a stage that has trained and has no intact checkpoint left begin again at step 0."""
    extend: bool = free(False)
    """For this launch only: let max_steps or epochs change although the learning rate then follows another schedule."""

    learning_rate: NotNegative = 1e-3
    """Peak learning rate at the base batch."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How the learning rate grows with the global batch."""
    base_batch_size: Count = 256
    """The global batch that learning_rate is stated for."""
    schedule: Literal["constant", "linear", "cosine", "wsd", "plateau"] = "cosine"
    """Shape of the learning rate after warm-up; wsd is warm-up, stable, decay; plateau falls when validation stalls."""
    warmup_steps: CountOrZero | None = None
    """Steps of linear warm-up; overrides warmup_ratio."""
    warmup_ratio: Share = 0.0
    """Warm-up as a fraction of the run."""
    decay_ratio: Share = 0.2
    """Length of wsd's decay as a fraction of the run."""
    final_lr_ratio: NotNegative = 0.0
    """Learning rate at the end as a fraction of the peak; plateau never falls below it."""
    plateau_factor: PartialShare = 0.1
    """With schedule=plateau: what the learning rate is multiplied by when it falls."""
    plateau_patience: Count = 3
    """With schedule=plateau: it falls after so many validations without improvement of the stage's `best` metric."""
    optimizer: Literal["adamw", "sgd", "muon", "adamw8bit"] = "adamw"
    """What learners are trained with, unless the recipe chooses; muon: hidden matrices by Muon, the rest by AdamW;
    adamw8bit: AdamW with 8-bit moments (extra `torchao`)."""
    momentum: Decay | None = None
    """Momentum of sgd (default 0.9) and muon (default 0.95)."""
    beta1: Decay = 0.9
    """AdamW's decay of the mean."""
    beta2: Decay = 0.95
    """AdamW's decay of the square."""
    adam_eps: NotNegative = 1e-8
    """AdamW's epsilon."""
    weight_decay: NotNegative = 0.1
    """Weight decay; norms, biases and embeddings have no decay."""
    clip: NotNegative = 1.0
    """Largest gradient norm; 0: no clipping."""
    clip_value: NotNegative = 0.0
    """Largest absolute value of an element of a gradient, applied before `clip`; 0: no clipping."""
    max_bad_steps: Count = free(5)
    """Stop after so many steps in a row whose gradient is not finite; such steps are skipped by all ranks."""

    init_from: str | None = None
    """Begin with the weights of a run, a checkpoint, a weight file or a model of the Hub (org/name or
    org/name@revision); everything else starts fresh."""
    continue_from: str | None = None
    """Continue from a plain weight file: its weights, and its optimizer state and step where it holds them."""
    stages_from: str | None = free(None)
    """Take over the finished stages of this run, from the first on, as long as their settings, code and data files are
    the same; the others are trained. Data that names no files (`origins()`) is not compared."""
    validate_every: CountOrZero = 0
    """Steps between validations; 0: at every epoch's end. The last step is always validated."""
    validate_at_start: bool = free(False)
    """Validate before the first step too. With a `best` metric that state is saved, and each one that is better: what a
    stage begins with is its best until something better comes."""
    early_stopping: CountOrZero = free(0)
    """End a stage after so many validations without improvement of its `best` metric; 0: never."""
    min_improvement: NotNegative = 0.0
    """How much the metric must change for the better to count as improved, for early_stopping and plateau."""
    best_at_end: bool = free(False)
    """At a stage's end take back the state of its best checkpoint; also saves whenever validation improves."""
    profile: str = free("")
    """Steps to profile, such as 20-25: a trace for Perfetto or chrome://tracing in the run's folder `profile`."""
    profile_all_ranks: bool = free(False)
    """Profile every rank; by default only rank 0."""
    compile: bool | None = free(None)
    """Compile the losses, and the models inside of them, with torch.compile. null: on a GPU, where it is faster and
    training would take longer than 3 minutes; decided at the first launch."""
    cuda_graphs: bool = free(True)
    """On a GPU, start the kernels of an update together as CUDA graphs, where the host would be too slow to start them
    one by one; decided at the first launch. false: never."""
    attention: Literal["auto", "flash", "cudnn", "efficient", "math"] = free("auto")
    """The kernel of scaled_dot_product_attention; auto: on a GPU the fastest one, measured at the first launch."""
    activation_checkpointing: str = free("none")
    """Compute blocks of the model again in the backward pass, for less memory: none, full, selective, or every n-th."""
    deterministic: bool = free(False)
    """Bit-exact arithmetic on GPUs too, at some cost."""
    num_workers: CountOrZero = free(0)
    """Processes per rank that load data; 0: the training process itself, a step ahead."""
    prefetch: Count = free(2)
    """Steps that each loading process works ahead."""
    evidence: bool = free(False)
    """Record ids, losses, gradients and hashes of every step, for `samestep verify`."""
    evidence_rounding: bool = free(False)
    """Round differently: rows of a step in another order, gradients scaled before they are summed; for verify."""

    distributed: Distributed = field(default_factory=Distributed)
    """Where the run computes and how its ranks communicate."""
    checkpoint: Checkpoints = field(default_factory=Checkpoints)
    """When to save, and what to keep."""
    log: Log = field(default_factory=Log)
    """What is printed and written."""
    watch: WatchdogConfig = field(default_factory=WatchdogConfig)
    """When a run counts as hung, and what else is checked while it runs."""

    @property
    def rows_at_once(self) -> int:
        """The batch_size as a number, for what is computed outside of a stage, where auto is not measured."""
        return UNMEASURED_ROWS if self.batch_size == AUTO else self.batch_size

    @staticmethod
    def left_out_of_preset(given: Mapping[str, Any]) -> Collection[str]:
        """A number of rows that a user gives is that of each device, and not a part of the batch that a preset has."""
        is_number = given.get("batch_size", AUTO) != AUTO
        return ("global_batch_size", "accumulation") if is_number else ()


TRAINING_SETTINGS = (
    "learning_rate",
    "lr_scaling",
    "base_batch_size",
    "schedule",
    "warmup_*",
    "final_lr_ratio",
    "decay_ratio",
    "plateau_*",
    "optimizer",
    "momentum",
    "beta1",
    "beta2",
    "adam_eps",
    "weight_decay",
    "clip",
    "clip_value",
    "epochs",
    "max_steps",
    "validate_every",
    "min_improvement",
)
"""Settings that a stage without a learner does not use: `Stage("dump", dump, ignores=TRAINING_SETTINGS)`."""


def named_source(config: Config) -> str | None:
    """The run, checkpoint or weight file that the user named to begin with: `continue_from` or `init_from`."""
    return config.continue_from or config.init_from
