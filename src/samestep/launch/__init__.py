"""Floor 2: starting worker processes. Knows nothing of training.

launcher.py starts the ranks of a run, attempt by attempt; node_runner.py and attempt.py do that on one node, nodes/ on
several, and restart_policy.py decides about restarts. schedulers/ submits jobs. local.py starts workers without
restarts, for `samestep verify` and tests.

`samestep.launch` is this package, and it can be called: `samestep.launch("my_recipe.py", nproc=2)`. Both names are the
same attribute of `samestep`, because importing a package binds it there, whatever was bound before; so the package
itself is made callable, in the way that Python documents for modules: by giving it a class of its own.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See samestep.launch.call.launch."""
        from samestep.launch.call import launch

        return launch(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
