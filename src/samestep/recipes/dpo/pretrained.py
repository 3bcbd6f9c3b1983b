"""Weight files of ProteinMPNN as models: the published ones, and those that a run writes."""

from pathlib import Path

from samestep import UserError
from samestep.models.protein_mpnn_files import read_protein_mpnn
from samestep.recipes.dpo.config import DpoConfig, ModelConfig


def read_pretrained(path: Path) -> DpoConfig | None:
    """The configuration of a weight file such as v_48_020.pt or best_model.pt; None if it is something else."""
    if path.suffix != ".pt":
        return None
    try:
        file = read_protein_mpnn(path)
    except UserError:
        return None
    return DpoConfig(family="protein", model=ModelConfig(protein=file.config))
