"""What transformers and the tokenizers library raise for the files of anybody, as one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from samestep.core.errors import UserError, first_line


@contextmanager
def library_sentence(what: str) -> Iterator[None]:
    """One sentence for whatever a library raises; they have no exceptions of their own."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise UserError(f"{what}: {first_line(error)}") from error


@contextmanager
def tokenizer_sentence(folder: Path) -> Iterator[None]:
    """One sentence where the tokenizers library gives up on a text."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and not _is_panic(error):  # it has no kinds of its own
            raise
        raise UserError(
            f"Use another tokenizer than that of {folder}, or other texts: it fails ({first_line(error)})."
        ) from None


def _is_panic(error: BaseException) -> bool:
    """Whether the tokenizers library gave up; what it raises then is no Exception."""
    return type(error).__name__ == "PanicException"
