"""Sentences for a function that is called with the wrong arguments, and for one that takes others than it will get."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from samestep.core.errors import UserError
from samestep.core.near_names import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")


def explains_arguments(shown: str, **instead: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Turns a call with wrong arguments into a sentence. `shown` is how users write the function's name, `instead` what
    to do for names that people try."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except TypeError:
                sentence = _mismatch(shown, function, args, kwargs, instead)
                if not sentence:  # it was called as it should be: the error is inside
                    raise
            raise UserError(sentence)

        return call

    return decorate


def explains_init(**instead: str) -> Callable[[type[T]], type[T]]:
    """The same for a class."""

    def decorate(kind: type[T]) -> type[T]:
        kind.__init__ = explains_arguments(kind.__name__, **instead)(kind.__init__)  # type: ignore[method-assign]
        return kind

    return decorate


def check_function(what: str, function: object, arguments: Sequence[str]) -> None:
    """Refuse what is no function of `arguments`, which are the names to show."""
    wanted = f"a function of ({', '.join(arguments)})"
    if not callable(function):
        raise UserError(f"{what} must be {wanted}, but is {described(function)}")
    parameters = _parameters(function)
    if parameters is None:
        return
    try:
        parameters.bind(*arguments)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        raise UserError(f"{what} must be {wanted}, but {name} takes {_listed(parameters)}") from None


def described(value: object) -> str:
    """A value for a sentence: what kind it is, and itself if it is short."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    article = "an" if type(value).__name__[:1] in "aeiouAEIOU" else "a"
    kind = f"{article} {type(value).__name__}"
    return f"{kind} ({value!r})" if isinstance(value, str | int | float) and len(repr(value)) < 40 else kind


def _parameters(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some functions of C do not say
        return None


def _listed(signature: inspect.Signature) -> str:
    """The names that a function takes, with a star before those that must be named."""
    plain = [each.replace(annotation=each.empty, default=each.empty) for each in signature.parameters.values()]
    return str(inspect.Signature([each for each in plain if each.name != "self"]))


def _mismatch(
    shown: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], instead: Mapping[str, str]
) -> str:
    """What is wrong with a call; empty if nothing is."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
        return ""
    except TypeError as error:
        problem = str(error)
    names = [name for name in signature.parameters if name != "self"]
    unknown = [name for name in kwargs if name not in names]
    if not unknown:
        problem = problem.replace("missing a", "without the")
        return f"{shown} takes {_listed(signature)}, but was called with {problem}"
    if unknown[0] in instead:
        return f"{shown} has no argument {unknown[0]!r}; {instead[unknown[0]]}"
    return f"{shown} has no argument {unknown[0]!r}{did_you_mean(unknown[0], names)}; it takes {', '.join(names)}"
