"""Every setting of the recipe beyond those that all recipes share, presets, and the options of `samestep sample`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from samestep import CausalConfig, Config, NoEffect, UserError, free
from samestep.core.config.bounds import Bounds, Count, CountOrZero, NotNegative, PartialShare, Positive
from samestep.core.paths import expand_home
from samestep.data.records.reading import RecordsConfig, only_for_records
from samestep.data.records.too_long import TooLong
from samestep.kit.model_settings import TrainedModelSettings, without_effect
from samestep.kit.prompts import PromptOptions
from samestep.models.protein_mpnn import ProteinMPNNConfig
from samestep.recipes.dpo.objective import Objective


@dataclass(frozen=True)
class DataConfig(RecordsConfig):
    """Pairs of sequences."""

    PATHS: ClassVar = ("train", "validation")
    train: str | list[str] | None = None
    """A file or folder of records (.json, .jsonl, .csv, .tsv, .parquet) or a dataset of the Hub (org/name:split):
    pdb_file, preferred_seq, unpreferred_seq; or prompt, chosen, rejected. Several are drawn in the proportion of
    weights, as [a.jsonl:3, b.csv:1]. null: pairs that come with the recipe."""
    validation: str | None = None
    """The same for validation; null: a share of the training records."""
    validation_fraction: PartialShare = 0.1
    """That share, rounded up, chosen by seed and content."""
    test_fraction: Annotated[float, Bounds(least=0, below=1)] = 0.0
    """A share of the training records for `samestep evaluate` alone, in neither training nor validation; 0: none."""
    split_by: Literal["auto", "pair", "structure"] = "auto"
    """What is never in two parts: a pair; or a structure (text: a prompt), with all its pairs. auto: a structure, where
    there are at least 10 of them and parts are within a fifth of their share."""
    max_length: Count = 2048
    """Most residues or tokens of a pair's longer sequence (text: with its prompt)."""
    too_long: TooLong = "refuse"
    """What to do with pairs that are longer than that, or than the model takes: refuse, drop, or truncate, which cuts
    the ends of both completions (text only)."""
    limit: Annotated[int, Bounds(least=2)] | None = None
    """Use only this many records, from the beginning, for a quick trial; null: all."""

    def __post_init__(self) -> None:
        """Refuse shares that leave nothing to train on."""
        super().__post_init__()
        if self.validation is None and self.validation_fraction + self.test_fraction >= 1:
            raise UserError(
                "Set data.validation_fraction and data.test_fraction to less than 1 together, or nothing is left to "
                f"train on; they are {self.validation_fraction:g} and {self.test_fraction:g}."
            )


@dataclass(frozen=True)
class ModelConfig(TrainedModelSettings):
    """The network that is trained, and that it is compared with; adapters and dtype are for texts."""

    name: str | None = None
    """protein: v_48_020 or another weight file of ProteinMPNN, or a run; text: a folder with a causal model of
    transformers, a model of the Hub (org/name or org/name@revision), or a run. null: a small network with random
    weights."""
    dir: str | None = None
    """The folder that the model or weight file is in."""
    protein: ProteinMPNNConfig = field(default_factory=ProteinMPNNConfig)
    """protein: the shape of the network, where no weight file is named."""
    text: CausalConfig = field(default_factory=lambda: CausalConfig(tied_head=True))
    """text: the shape of the built-in network, which reads bytes."""

    @property
    def path(self) -> str | None:
        """The name, in the folder that it is in."""
        if self.dir is None:
            return self.name
        return str(Path(self.dir) / self.name) if self.name else self.dir


@dataclass(frozen=True)
class DpoConfig(Config):
    """Preference optimisation, for protein inverse folding and for text."""

    preset: str = "tiny"
    """A named set of values."""
    family: Literal["auto", "protein", "text"] = "auto"
    """What the pairs are; auto: by the columns of their file, and proteins where there is none."""
    data: DataConfig = field(default_factory=DataConfig)
    """Pairs of sequences."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The network that is trained."""
    objective: Objective = field(default_factory=Objective)
    """What the pairs teach."""
    reference: Literal["cached", "live"] = "cached"
    """cached: a stage of its own computes the reference's log-probabilities once, and training holds one network; live:
    with every batch (with adapters, by the same network without them)."""
    temperature: Positive = 1.0
    """What scores are divided by before log-probabilities are taken, for the loss, of policy and reference alike."""
    sampling_temperature: Positive = 0.1
    """protein: the temperature of sampled sequences (diversity_lambda, and `samestep sample`)."""
    decoding_order: Literal["random", "left_to_right"] = "random"
    """protein: the order in which residues are given; random: by seed and pair, and with a live reference by epoch."""
    padding_free: bool = free(False)
    """text: give a model of transformers the texts of a micro-batch as one row without padding."""
    bucketed: bool = True
    """Put pairs of similar length into one step, for less padding."""
    pt_files: bool | None = free(None)
    """Also write checkpoint_epoch_N.pt, best_model.pt and latest_model.pt; null: for proteins."""
    base_batch_size: CountOrZero = 0
    """With lr_scaling (--scale_lr): the global batch that learning_rate is stated for; 0: batch_size, so that the rate
    is multiplied by the number of processes (with batch_size=auto: the global batch, so that it is not)."""


# An epoch of 11 pairs ends in a step with one, which most ranks have no row of.
_BOTH_VERIFY: dict[str, Any] = {
    "data": {"limit": 14, "validation_fraction": 0.2},
    "distributed": {"dtype": "float64"},
    "global_batch_size": 5,
    "batch_size": 2,
    "max_steps": 4,
    "validate_every": 2,
    "learning_rate": 3e-3,
}
_TEXT_VERIFY: dict[str, Any] = {
    **_BOTH_VERIFY,
    "family": "text",
    "model": {
        "text": {
            "d_model": 16,
            "n_layers": 1,
            "n_heads": 2,
            "mlp_hidden_size": 32,
            "max_sequence_length": 256,
            "init_std": 0.1,
        }
    },
    "objective": {"sft_coef": 0.1, "label_smoothing": 0.1},
}
_VERIFY: dict[str, Any] = {
    **_BOTH_VERIFY,
    "family": "protein",
    "model": {"protein": {"hidden": 16, "encoder_layers": 1, "decoder_layers": 2, "neighbours": 6}},
    "objective": {"sft_coef": 0.1},
}
PRESETS: dict[str, dict[str, Any]] = {
    # A small network learns which letters fit helices and strands, in seconds on 2 CPU processes.
    "tiny": {
        "family": "protein",
        "model": {"protein": {"hidden": 32, "encoder_layers": 1, "decoder_layers": 1, "neighbours": 12}},
        "data": {"validation_fraction": 0.2},
        "global_batch_size": 16,
        "batch_size": 8,
        "epochs": 10,
        "learning_rate": 3e-3,
        "weight_decay": 0.0,
    },
    # The published network: --base_model_name v_48_020 --base_model_dir FOLDER --train_data FILE. None of its values
    # sets global_batch_size: --batch_size is for each process, as users of such scripts expect. bf16 gains nothing, the
    # network is small; TF32 would move the first loss of a compiled network away from ln 2.
    "proteinmpnn": {
        "family": "protein",
        "model": {"name": "v_48_020"},
        "distributed": {"mixed_precision": "none"},
        "batch_size": 4,
        "epochs": 10,
        "learning_rate": 1e-5,
        "schedule": "constant",
        "weight_decay": 0.0,
    },
    # A small language model learns to prefer text without typing errors, in a minute on 2 CPU processes.
    "text-tiny": {
        "family": "text",
        "model": {
            "text": {
                "d_model": 64,
                "n_layers": 2,
                "n_heads": 4,
                "mlp_hidden_size": 192,
                "max_sequence_length": 256,
                "init_std": 0.04,
            }
        },
        "objective": {"sft_coef": 0.1},
        "global_batch_size": 32,
        "batch_size": 16,
        "epochs": 6,
        "learning_rate": 3e-3,
        "weight_decay": 0.0,
    },
    # Language models: --base_model_name FOLDER --train_data FILE.
    "text": {
        "family": "text",
        "model": {"lora_rank": 16},
        "reference": "live",
        "batch_size": 4,
        "learning_rate": 1e-5,
        "warmup_ratio": 0.1,
        "schedule": "linear",
        "weight_decay": 0.0,
    },
    # Milliseconds a step in float64.
    "verify": _VERIFY,
    "verify-live": {
        **_VERIFY,
        "model": {"protein": {"hidden": 16, "encoder_layers": 1, "decoder_layers": 1, "neighbours": 6}},
        "reference": "live",
        "objective": {"diversity_lambda": 0.1, "loss_type": "hinge"},
    },
    "verify-text": _TEXT_VERIFY,
    "verify-text-live": {
        **_TEXT_VERIFY,
        "reference": "live",
        "bucketed": False,
        "objective": {"loss_type": "ipo"},
    },
}


NO_EFFECT = (
    only_for_records(lambda c: c.data.train is None and c.data.validation is None),
    NoEffect(
        ("model.text.*", "model.lora_*", "model.dtype", "padding_free"),
        lambda c: c.family == "protein",
        "it is for texts, and the pairs are proteins; leave it out",
    ),
    *without_effect("model", lambda c: c.model, lambda c: c.model.path is not None, shape="text"),
    NoEffect(
        ("model.protein.*", "decoding_order", "sampling_temperature"),
        lambda c: c.family == "text",
        "it is for proteins, and the pairs are texts; leave it out",
    ),
    NoEffect(
        "model.protein.*",
        lambda c: c.model.path is not None,
        "the model that base_model_name names has its own shape; leave out one of the two",
    ),
    NoEffect(
        "objective.label_smoothing",
        lambda c: c.objective.loss_type != "dpo",
        "only the loss dpo has label smoothing; set objective.loss_type=dpo, or leave it out",
    ),
    NoEffect(
        "objective.length_normalised",
        lambda c: c.objective.loss_type == "ipo",
        "the loss ipo is by token as it is; leave it out, or set objective.loss_type=ipo_sum for sums",
    ),
    NoEffect(
        "data.validation_fraction",
        lambda c: c.data.validation is not None,
        "the validation records are a file of their own; leave out data.validation (--val_data) or this",
    ),
    NoEffect(
        "data.split_by",
        lambda c: c.data.validation is not None and not c.data.test_fraction,
        "the validation records are a file of their own; leave out data.validation (--val_data) or this",
    ),
)
"""Settings that have no effect beside others."""

_PROTEIN = (
    "pdb_file",
    "pdb_list",
    "design_chains",
    "fixed_chains",
    "mutable_positions",
    "mutable_ranges",
    "output_dir",
)
_TEXT = ("prompt", "prompts", "chat", "max_new_tokens")


@dataclass(frozen=True)
class SampleOptions(PromptOptions):
    """Sequences for protein structures, or texts."""

    prompt: str | None = None
    """text: what the model goes on from."""
    prompts: Path | None = None
    """text: a text file with one prompt per line, or records with a column `prompt` (or `text`)."""
    samples: Count = 1
    """Sequences for each structure, or texts for each prompt."""

    pdb_file: Path | None = None
    """protein: a structure to design sequences for: a PDB or mmCIF file, gzipped or not."""
    pdb_list: Path | None = None
    """protein: a file with the path of a structure on each line, from its folder or the working directory."""
    design_chains: str | None = None
    """protein: the chains that get new sequences, such as A,B; by default all that are not fixed."""
    fixed_chains: str | None = None
    """protein: chains that stand beside them and keep their letters; other chains are left out."""
    mutable_positions: str | None = None
    """protein: the positions that may change: 0,5,6 counts from 0 over the design chains as these are named, A12,A52A
    goes by the numbers in the file. By default all may."""
    mutable_ranges: str | None = None
    """protein: the same as ranges, ends included, such as 3-9,12-20 or A12-A20."""
    output_dir: Path | None = None
    """protein: the folder that gets NAME.json and NAME.fa for each structure; by default designs."""
    chat: bool = False
    """text: a prompt is what a user says to a chat model, and not text that goes on."""
    max_new_tokens: Count | None = None
    """text: tokens of a text at most; by default 128."""
    temperature: NotNegative | None = None
    """0 takes the likeliest letter or token, 1 samples from the network's own probabilities; by default the run's
    sampling_temperature for proteins, and 1 for texts."""
    batch_size: Count = 32
    """Sequences or texts that are made together on a rank."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, before the model is opened."""
        super().__post_init__()
        if self.pdb_file is not None and self.pdb_list is not None:
            raise UserError("Give --pdb_file or --pdb_list, not both.")

    @property
    def folder(self) -> Path:
        """Where designs are written."""
        return expand_home(self.output_dir or "designs")

    def check_for(self, family: Literal["protein", "text"]) -> None:
        """Refuse options that are for the other family, or none for this one."""
        others, what = (_TEXT, "designs proteins") if family == "protein" else (_PROTEIN, "writes texts")
        given = [f"--{name}" for name in others if getattr(self, name) not in (None, False)]
        if given:
            raise UserError(f"Leave out {', '.join(given)}: this model {what}.")
        if family == "protein" and self.pdb_file is None and self.pdb_list is None:
            raise UserError("Name a structure with --pdb_file, or a file with the paths of several with --pdb_list.")
        if family == "text":
            self.require_prompt()
