"""What a network may offer so that its first weights never lie in memory as a whole.

    class Net(nn.Module):
        def init_parameter(self, name: str, weight: Tensor) -> None:
            weight.zero_() if name.endswith("bias") else weight.normal_(0.0, 0.02)

A network that is then given to a learner as a function that builds it (`bench.learner(lambda: Net())`) is built without
memory and filled parameter by parameter, each rank keeping its own part (see train/initialization.py).
"""

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class ParameterInit(Protocol):
    """A network that can draw the first values of each of its parameters alone.

    It holds no tensor that is neither a parameter nor a buffer, for such a one would be left without memory.
    """

    def init_parameter(self, name: str, weight: Tensor) -> None:
        """Fill a whole parameter in place; `name` is the one that it has in `named_parameters`.

        `weight` lies on the CPU, in float32, without gradients. Random values come from torch's generator, which was
        seeded for this parameter alone, so they depend on nothing that was drawn before.
        """
