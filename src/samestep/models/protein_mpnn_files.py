"""Weight files of ProteinMPNN, as published: `num_edges`, `noise_level` and `model_state_dict` in one .pt file.

    file = read_protein_mpnn("v_48_020.pt")
    network = file.network()
    write_protein_mpnn("best_model.pt", file.config, network.state_dict(), file.noise_level)

Nothing in a file is executed: it is read by torch's weights-only loader.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samestep.core.errors import UserError
from samestep.core.json_files import atomic_file
from samestep.core.pt_files import UnreadableFile, is_weights, read_pt
from samestep.models.protein_mpnn import ProteinMPNN, ProteinMPNNConfig

_EDGES, _NOISE, _WEIGHTS = "num_edges", "noise_level", "model_state_dict"


class ProteinMPNNFile(NamedTuple):
    """What a file holds."""

    config: ProteinMPNNConfig
    """The shape of the network, from its weights."""
    noise_level: float
    """How far coordinates were moved in training, in Å."""
    weights: dict[str, Tensor]

    def network(self) -> ProteinMPNN:
        """A network with these weights, on the CPU."""
        with torch.device("meta"):
            network = ProteinMPNN(self.config)
        network.to_empty(device="cpu").load_state_dict(self.weights)
        return network


def read_protein_mpnn(path: str | Path) -> ProteinMPNNFile:
    """Read and check a file, with weights in float32."""
    path = Path(path)
    content = _read(path)
    missing = [name for name in (_EDGES, _NOISE, _WEIGHTS) if name not in content]
    if missing:
        raise _other_file(path, f"it has no {' and no '.join(missing)}")
    weights, edges, noise = content[_WEIGHTS], content[_EDGES], content[_NOISE]
    if not isinstance(edges, int) or not isinstance(noise, int | float) or not is_weights(weights):
        raise _other_file(path, f"{_EDGES}, {_NOISE} or {_WEIGHTS} is of another kind")
    if "features.node_embedding.weight" in weights:
        raise UserError(f"{path} is a CA-only ProteinMPNN; give one for whole backbones, such as v_48_020.pt")
    config = _config(path, weights, edges)
    _check_shapes(path, config, weights)
    return ProteinMPNNFile(config, float(noise), {name: weight.float() for name, weight in weights.items()})


def write_protein_mpnn(
    path: str | Path, config: ProteinMPNNConfig, weights: Mapping[str, Tensor], noise_level: float
) -> None:
    """Write weights as the published files have them, in float32; after a kill the old or the new file is there."""
    plain = {name: weight.detach().to("cpu", torch.float32, copy=True) for name, weight in weights.items()}
    content = {_EDGES: config.neighbours, _NOISE: noise_level, _WEIGHTS: plain}
    with atomic_file(Path(path)) as file:
        torch.save(content, file)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"there is no file {path}; give a weight file of ProteinMPNN, such as v_48_020.pt")
    try:
        content = read_pt(path)
    except UnreadableFile as error:
        raise _other_file(path, "it cannot be read without running code from it, or is damaged") from error
    if not isinstance(content, dict):
        raise _other_file(path, f"it holds a {type(content).__name__}")
    return content


def _other_file(path: Path, why: str) -> UserError:
    return UserError(f"{path} is not a weight file of ProteinMPNN: {why}; give one such as v_48_020.pt")


def _config(path: Path, weights: Mapping[str, Tensor], neighbours: int) -> ProteinMPNNConfig:
    """The shape, from names and sizes."""
    letters = weights.get("W_s.weight")
    if letters is None or letters.dim() != 2:
        raise _other_file(path, "it has no embedding of letters, W_s.weight")
    layers = {
        kind: {found[1] for name in weights if (found := re.match(rf"{kind}_layers\.(\d+)\.", name))}
        for kind in ("encoder", "decoder")
    }
    try:
        return ProteinMPNNConfig(letters.shape[1], len(layers["encoder"]), len(layers["decoder"]), neighbours)
    except UserError as error:
        raise _other_file(path, "it has no layers or no edges") from error


def _check_shapes(path: Path, config: ProteinMPNNConfig, weights: Mapping[str, Tensor]) -> None:
    with torch.device("meta"):
        expected = {name: tuple(weight.shape) for name, weight in ProteinMPNN(config).state_dict().items()}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        names = ", ".join(wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        raise _other_file(path, f"{len(wrong)} of its weights are missing, unknown or of another shape ({names})")
