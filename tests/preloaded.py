"""What the server that all workers are forked from has done before them, so that none of them does it again: its
imports, composing a configuration once, which imports the reader of YAML, and reading Python's documentation.

None of it is garbage: a collection in a worker, which would copy the memory of all these objects, leaves them out.
"""

from contextlib import suppress
from importlib import import_module

from disk_waits import skip_disk_waits
from samestep.core.imports import uncollected_imports

MODULES = (
    "samestep.cli.args",
    "samestep.train.session.entry",
    "samestep.cli.verify",
    "samestep.cli.train",
    "samestep.recipes.distill",
    "samestep.recipes.dpo",
    "samestep.recipes.gan",
    "samestep.recipes.lens",
    "samestep.recipes.mdlm",
    "torch.utils.tensorboard",
    "torch._dynamo",
    "gemmi",
    "peft",  # with transformers: some tests need them, and each of their workers would take seconds
)

skip_disk_waits()
with uncollected_imports():
    for name in MODULES:
        with suppress(ImportError):
            import_module(name)
    from samestep.core.config import compose
    from samestep.train.record.config import Config

    compose(Config)
    with suppress(ImportError):
        from samestep.recipes.distill.python_docs import python_docs
        from samestep.recipes.gan.data import pydoc_records

        python_docs(), pydoc_records()
