"""No bug: the gan recipe with a judge that writes its answer. An untrained network writes no box, so here the length of
what it wrote is read as its answer."""

from dataclasses import replace

from samestep.recipes.gan import judges
from samestep.recipes.gan import recipe as gan

VERIFY = {**gan.presets["verify"], "judging": {"max_tokens": 12, "mode": "generative", "answer_tokens": 4}}


def read_answer(text: str) -> int | None:
    return {0: None, 1: 1, 2: 2}[sum(map(ord, text)) % 3]


judges.read_answer = read_answer
recipe = replace(gan, presets={"verify": VERIFY})
