"""Every setting of the recipe beyond those that all recipes share."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from samestep import CausalConfig, Config, free
from samestep.core.config.bounds import Bounds, Count, CountOrZero, PartialShare, Positive
from samestep.core.config.checked import CheckedConfig
from samestep.models.protein_mpnn import ProteinMPNNConfig
from samestep.recipes.dpo.objective import Objective


@dataclass(frozen=True)
class DataConfig(CheckedConfig):
    """Pairs of sequences."""

    train: str | None = None
    """A .json or .jsonl file of records: pdb_file, preferred_seq, unpreferred_seq; or prompt, chosen, rejected. null:
    pairs that come with the recipe."""
    validation: str | None = None
    """The same for validation; null: a share of the training records."""
    validation_fraction: PartialShare = 0.1
    """That share, rounded up, chosen by the seed."""
    split_by: Literal["pair", "structure"] = "pair"
    """What is never in both parts: a pair; or a structure (text: a prompt), with all its pairs."""
    max_length: Count = 2048
    """Most residues or tokens of a pair's longer sequence (text: with its prompt)."""
    skip_invalid: bool = False
    """Leave out records that cannot be used, and say how many; false: list all of them and stop."""
    limit: Annotated[int, Bounds(least=2)] | None = None
    """Use only this many records, from the beginning, for a quick trial; null: all."""


@dataclass(frozen=True)
class ModelConfig(CheckedConfig):
    """The network that is trained, and that it is compared with."""

    name: str | None = None
    """protein: v_48_020 or another weight file of ProteinMPNN; text: a folder with a causal model of transformers, or a
    model of the Hub (org/name). null: a small network with random weights."""
    dir: str | None = None
    """The folder that the model or weight file is in."""
    protein: ProteinMPNNConfig = field(default_factory=ProteinMPNNConfig)
    """protein: the shape of the network, where no weight file is named."""
    text: CausalConfig = field(default_factory=lambda: CausalConfig(tied_head=True))
    """text: the shape of the built-in network, which reads bytes."""
    lora_rank: CountOrZero = 0
    """text: train adapters of this rank instead of the whole network; 0: the whole network."""


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
    is multiplied by the number of processes."""
