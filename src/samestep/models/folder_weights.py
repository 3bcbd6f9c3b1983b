"""The weights in the files of a folder, read parameter by parameter under the names of a network."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from samestep.core.errors import UserError, first_line
from samestep.core.pt_files import UnreadableFile, is_plain_tensor, read_pt
from samestep.models.hub_download import weight_files


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    file: Path
    name: str
    shape: tuple[int, ...]
    mapped: Tensor | None = None
    """Of a file of torch: the tensor itself, which the file is mapped to."""

    def read(self) -> Tensor:
        """All of it. Safetensors are mapped again each time, so what was read does not count as used memory."""
        if self.mapped is not None:
            return self.mapped
        from safetensors import safe_open

        with _sentence(self.file), safe_open(self.file, framework="pt") as content:
            found: Tensor = content.get_tensor(self.name)
        return found


class FolderWeights:
    """The weights of a network, each in a file; see `FirstValues` in sentence_encoder.py."""

    def __init__(self, places: Mapping[str, StoredTensor]) -> None:
        """`places` are by the names of the network's parameters."""
        self._places = dict(places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def fill(self, name: str, weight: Tensor) -> None:
        """Copy one into a tensor of any type."""
        weight.copy_(self._places[name].read())


def find_weights(folder: Path, part: nn.Module, prefixes: Sequence[str] = ()) -> dict[str, StoredTensor]:
    """Where the parameters of a part of a network are in a folder's weight files, by their names in that part. In the
    files any of `prefixes` may stand in front of all names. What is missing or of another shape is refused."""
    stored = read_layout(folder)
    found: dict[str, StoredTensor] = {}
    missing: list[str] = []
    for name, parameter in part.named_parameters():
        place = next((stored[known] for known in _spellings(name, prefixes) if known in stored), None)
        if place is None:
            missing.append(name)
        elif place.shape != tuple(parameter.shape):
            raise UserError(
                f"Fetch or copy {folder} again; its {name} is of shape {place.shape}, and its config.json means "
                f"{tuple(parameter.shape)}."
            )
        else:
            found[name] = place
    if missing:
        raise UserError(
            f"Fetch or copy {folder} again; it has no weights for {', '.join(missing[:3])}"
            f"{', ...' if len(missing) > 3 else ''}, which would be random."
        )
    return found


def read_layout(folder: Path) -> dict[str, StoredTensor]:
    """The tensors in a folder's weight files; their values are not read."""
    names = weight_files({path.name for path in folder.iterdir() if path.is_file()}, folder)
    if not names:
        raise UserError(f"Fetch the weights of {folder}, such as a model.safetensors; it has none.")
    absent = next((name for name in names if not (folder / name).is_file()), None)
    if absent is not None:
        raise UserError(f"Fetch {absent} of {folder}, which its index of weights names; it is missing.")
    return {tensor.name: tensor for name in names for tensor in _tensors_in(folder / name)}


def _tensors_in(file: Path) -> Iterable[StoredTensor]:
    if file.suffix != ".safetensors":
        return [StoredTensor(file, name, tuple(tensor.shape), tensor) for name, tensor in _read_pickled(file).items()]
    from safetensors import safe_open

    with _sentence(file), safe_open(file, framework="pt") as content:
        return [StoredTensor(file, name, tuple(content.get_slice(name).get_shape())) for name in content.keys()]  # noqa: SIM118


def _spellings(name: str, prefixes: Sequence[str]) -> Iterable[str]:
    """How files may name a parameter; BERT's first files call the parts of a layer norm gamma and beta."""
    older = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    return (prefix + own for own in (name, older) for prefix in ("", *prefixes))


def _read_pickled(file: Path) -> dict[str, Tensor]:
    """A file of torch, memory-mapped, without running code from it."""
    with _sentence(file):
        content = read_pt(file)
        if not isinstance(content, dict):
            raise UnreadableFile(f"it holds a {type(content).__name__}")
        return {str(name): tensor for name, tensor in content.items() if is_plain_tensor(tensor)}


@contextmanager
def _sentence(file: Path) -> Iterator[None]:
    """One sentence for a file that cannot be read."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, RuntimeError, UnreadableFile) as error:
        raise UserError(f"Fetch or copy {file} again; it cannot be read ({first_line(error)}).") from error
