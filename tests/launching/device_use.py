"""Importing this is as if a library had used a GPU: what is forked from then on cannot use it."""

import os

import torch


def _poison() -> None:
    torch.cuda._is_in_bad_fork = lambda: True  # type: ignore[assignment]


os.register_at_fork(after_in_child=_poison)
