"""Local work that ends the same way on every rank."""

from collections.abc import Callable

from samestep.core.errors import RunFailed, UserError
from samestep.core.records import Json
from samestep.world.world import World


def settle(world: World, doing: str, work: Callable[[], Json]) -> list[Json]:
    """What `work` returned on every rank, by rank; if it failed anywhere, every rank raises that same failure.

    `work` must not communicate. Unlike `World.together` a failure here leaves no mark, so a caller may carry on.
    """
    value: Json = None
    failure: Exception | None = None
    try:
        value = work()
    except Exception as error:
        failure = error
    outcomes = world.gather({"value": value} if failure is None else _word(failure))
    failed = next((rank for rank, outcome in enumerate(outcomes) if "text" in outcome), None)
    if failed is None:
        return [outcome["value"] for outcome in outcomes]
    if failure is not None and not isinstance(failure, OSError | UserError | RunFailed):
        raise failure  # a mistake of ours: its traceback is worth more than one voice
    word = outcomes[failed]
    if word["user"]:
        raise UserError(word["text"]) from failure
    raise RunFailed(f"{doing} failed on rank {failed}: {word['text']}") from failure


def _word(failure: Exception) -> dict[str, Json]:
    is_sentence = isinstance(failure, UserError | RunFailed)
    text = str(failure) if is_sentence else f"{type(failure).__name__}: {failure}"
    return {"user": isinstance(failure, UserError), "text": text}
