"""Workers of all tests come from one server process that has everything imported: a launch costs milliseconds."""

import multiprocessing
from multiprocessing import forkserver

import torch

torch.set_num_threads(1)  # small tensors on few cores: more threads only wait for each other

multiprocessing.get_context("forkserver").set_forkserver_preload(
    [
        "samestep.cli.train_words",
        "samestep.train.entry",
        "samestep.cli.verify",
        "samestep.recipes.mdlm",
        "torch.utils.tensorboard",
        "torch._dynamo",
    ]
)
forkserver.ensure_running()
