"""Floor 2: starting worker processes. Knows nothing of training.

`samestep.launch` is this package, and it can be called: `samestep.launch("mdlm", nproc=2)`. Both names are the same
attribute of `samestep`, because importing a package binds it there, whatever was bound before; so the package itself
is made callable, in the way that Python documents for modules: by giving it a class of its own.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """See samestep.launch.call.launch."""
        from samestep.launch.call import launch

        return launch(*args, **keywords)


sys.modules[__name__].__class__ = _Callable
