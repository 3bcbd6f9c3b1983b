"""The frame of verbs that use a trained model: `samestep VERB MODEL ...`, by one process or by several ranks."""

from collections.abc import Callable, Sequence

from samestep.core.errors import EXIT_DONE, UserError, complain


def use_model(verb: str, words: Sequence[str], help_text: str, use: Callable[[str, Sequence[str]], int]) -> int:
    """Call `use` with the model and the other words; the exit code of the rank that failed first, when one did."""
    if not words or "-h" in words or "--help" in words:
        print(help_text)
        return EXIT_DONE
    if words[0].startswith("-"):
        raise UserError(f"samestep {verb} needs a run, a checkpoint or a model folder first, not {words[0]}.")
    from samestep.world.world import PeerFailed

    try:
        return use(words[0], words[1:])
    except PeerFailed as failure:
        complain(str(failure))
        return failure.exit_code
