"""What a launcher tells a process of its place among the others."""

from collections.abc import Mapping
from dataclasses import dataclass

from samestep.core.errors import UserError

HERE = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    """One process among its peers. `grouped` is false only for a lone process that nobody launched."""

    launcher: str
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    grouped: bool = True
    address: str = ""
    """The host of rank 0, as far as the launcher tells; empty where it does not."""
    job: str = ""
    """What all processes of this launch know and those of no other; empty where ranks are told a port."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, instead of guessing around it."""
        if not 0 <= self.rank < self.size:
            raise UserError(f"{self.launcher} says rank {self.rank} of {self.size}, which lies outside; start anew")
        if not 0 <= self.local_rank < self.local_size <= self.size:
            raise UserError(
                f"{self.launcher} says local rank {self.local_rank} of {self.local_size} among {self.size} in all, "
                "which cannot be; start anew"
            )


def numbers(env: Mapping[str, str], launcher: str, *names: str) -> list[int]:
    """Variables of a launcher as whole numbers; a missing one is refused, never guessed."""
    missing = [name for name in names if not env.get(name)]
    if missing:
        raise UserError(
            f"{launcher} started this process, but {', '.join(missing)} is not set, so its rank is not known: "
            "start with torchrun, srun or mpiexec, or unset the launcher's variables to run a single process"
        )
    try:
        return [int(env[name]) for name in names]
    except ValueError as error:
        raise UserError(f"the variables of {launcher} must be whole numbers ({error})") from None
