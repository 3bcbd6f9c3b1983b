"""A limit on open files that is too low is refused with its name, and raised where the system allows it."""

import errno
import os
import resource
from collections.abc import Iterator

import pytest

from samestep.core.errors import UserError
from samestep.core.open_files import (
    LEAST,
    SpareFiles,
    is_too_many_files,
    raise_limit,
    require_open_files,
    too_many_open_files,
)


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_needs_more_files_than_are_allowed_is_refused(limits: tuple[int, int]) -> None:
    now = len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (now + LEAST, limits[1]))
    require_open_files(LEAST - 8, "this")
    sentence = rf"only {now + LEAST} files .*ulimit -n.* num_workers=9 may need .*, or fewer$"
    with pytest.raises(UserError, match=sentence):
        require_open_files(LEAST + 9, "num_workers=9", "fewer")


def test_the_limit_is_raised_as_far_as_it_may_be(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, limits[1]))
    raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(4096, limits[1])


def test_a_process_that_may_open_no_more_gives_back_its_spare_files(limits: tuple[int, int]) -> None:
    spare = SpareFiles()
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 5, limits[1]))
    opened: list[int] = []
    try:
        with pytest.raises(OSError, match="Too many open files") as raised:
            opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(99))
        assert is_too_many_files(raised.value)
        spare.close()
        os.close(os.open(os.devnull, os.O_RDONLY))
    finally:
        for number in opened:
            os.close(number)
    assert "ulimit -n" in str(too_many_open_files())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENFILE, "x"), True),
        (ImportError("libc10.so: cannot open shared object file: Too many open files"), True),
        (RuntimeError("Too many open files. Communication with the workers is no longer possible."), True),
        (OSError(errno.ENOENT, "x"), False),
        (ValueError("Too many open files"), False),
    ],
)
def test_which_errors_mean_it(error: Exception, expected: bool) -> None:
    assert is_too_many_files(error) is expected
