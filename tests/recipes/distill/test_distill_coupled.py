"""At 1, 2 and 3 ranks phase 2's loss and its gradient are those of the whole global batch, and texts get the same
vectors."""

import pytest
import torch
from torch import Tensor, nn

from samestep import small_encoder
from samestep.data.loading import Batch
from samestep.data.order import Shuffled
from samestep.recipes.distill.data import Text
from samestep.recipes.distill.models import Reading
from samestep.recipes.distill.objective import KnownPositives, RankObjective, RankTerms
from samestep.recipes.distill.sampling import embed_texts
from samestep.recipes.distill.task import count_negatives
from samestep.train.logging.metrics import MetricAccumulator
from samestep.world.world import World
from toys import ByHand, Case, close, feed_of, learner_of, made, on_ranks, rate, weights_of

SPLITS = [(13, 6, 2), (7, 4, 100)]
DIMS = (5, 2)
NEGATIVES = 3
PASSAGES = 9
OBJECTIVES = {
    "published": RankObjective(),
    "all": RankObjective(
        info_nce=0.5, margin_mse=0.3, kl=0.4, cosent=0.6, mse=0.1, temperature=0.1, teacher_margin=0.3
    ),
}


class Records:
    """Rows as phase 2 has them, with vectors in place of tokens. Passages repeat, and some negatives are absent."""

    def __init__(self, size: int) -> None:
        random = torch.Generator().manual_seed(size)
        self.query = torch.arange(size) % 4
        self.passages = torch.randint(PASSAGES, (size, 1 + NEGATIVES), generator=random)
        self.passages[::2, 2:] = -1
        self.passages[1, 1:] = -1
        self.x = torch.randn(size, 2 + NEGATIVES, 4, generator=random, dtype=torch.float64)
        self.teacher = nn.functional.normalize(
            torch.randn(size, 2 + NEGATIVES, 7, generator=random, dtype=torch.float64), dim=-1
        )

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Batch:
        raise AssertionError("a dataset with rows() is not asked row by row")

    def rows(self, indices: object) -> Batch:
        chosen = torch.as_tensor(indices)
        teacher = self.teacher[chosen]
        return {
            "query": self.query[chosen],
            "passages": self.passages[chosen],
            "x": self.x[chosen],
            "teacher_query": teacher[:, 0],
            "teacher_passages": teacher[:, 1:],
        }

    @property
    def known(self) -> KnownPositives:
        return KnownPositives(list(zip(self.query.tolist(), self.passages[:, 0].tolist())), PASSAGES)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


def embed(terms: RankTerms, module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    vectors = module(batch["x"])
    return terms.of_records(vectors[:, 0], vectors[:, 1:], batch)


def the_loss_is_that_of_the_whole_batch(world: World, strategy: str) -> None:
    for objective in OBJECTIVES.values():
        for size, batch, micro in SPLITS:
            rows, order = Records(size), Shuffled(size, batch, seed=3)
            terms = RankTerms(objective, DIMS, rows.known)
            hand = ByHand(made(Encoder), ("first.weight", "last.weight"))
            learner = learner_of(made(Encoder), world, strategy)
            counted = lambda found, objective=objective: count_negatives(objective, found)  # noqa: E731
            feed, accumulator = feed_of(rows, world, batch, micro, steps=2, count=counted), MetricAccumulator(world)
            for step in range(2):
                whole = rows.rows(order.ids(step)[:, 1])
                found = terms.coupled(embed(terms, hand.module, whole), slice(0, len(whole["x"])))
                counts = count_negatives(objective, whole)
                loss = torch.zeros(())
                for name, weight in objective.mix.items():
                    divisor = float(counts[name].sum()) if name in counts else len(whole["x"])
                    loss = loss + weight * found[name].sum() / divisor if divisor else loss
                hand.update(loss, rate(step))
                embedded = lambda module, found, terms=terms: embed(terms, module, found)  # noqa: E731
                accumulator.add(learner.update_coupled(feed[step], embedded, terms.coupled, objective.mix))
                assert accumulator.read()["loss"] == pytest.approx(float(loss), rel=1e-9)
            close(weights_of(learner), hand.module.state_dict(), tolerance=1e-8)


def texts_get_the_same_vectors(world: World, strategy: str) -> None:
    """Also where a rank has no text at all."""
    texts = [Text(f"the {number}th text " * number, number % 2 == 0) for number in range(1, 6)]
    source = small_encoder([text.text for text in texts], width=8, layers=1, heads=2, vocabulary=300, max_length=32)
    torch.manual_seed(3)
    network = source.load()
    reading = Reading(source.tokenizer, max_length=32, query_instruction="find: ")
    for count, batch_size in [(5, 2), (1, 4)]:
        alone = embed_texts(network, reading, texts[:count], World.single(), 1)
        found = embed_texts(network, reading, texts[:count], world, batch_size)
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-6)


CASES: list[Case] = [the_loss_is_that_of_the_whole_batch, texts_get_the_same_vectors]

test_on_ranks = on_ranks(CASES)
