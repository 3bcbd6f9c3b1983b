"""Texts and chats as tokens of a model of transformers, where no text can spell a special token.

Special tokens come from the chat template alone. Where a text spells one, such as <|im_end|>, it is cut there before
the template is filled in, and the pieces become tokens one by one. A template that writes today's date gets a fixed
one: a run must be the same run tomorrow.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError, first_line
from samestep.core.library_errors import tokenizer_sentence
from samestep.models.chat_template import ChatTemplate
from samestep.models.text_tokenizer import plain_ids

# Characters that Unicode keeps out of texts: where a text is cut, where texts stand in a template, and one that no
# token holds, so that nothing grows together with it.
_CUT, _PLACE, _ANCHOR = "\ufdd0", "\ufdd1", "\ufdd2"
_DAY = datetime(2024, 7, 26, tzinfo=UTC)  # Llama's templates write this one where there is no clock
_PARTS_OF_TIME = "aAbBcdDeFHIjmMpSTxXyYZ"
_CLOCK = "strftime_now"


class ChatTokens:
    """Makes tokens with the tokenizer of the model in a folder."""

    def __init__(self, tokenizer: Any, folder: Path) -> None:
        self._tokenizer, self._folder = tokenizer, folder
        self.has_template = bool(tokenizer.chat_template)
        self._template = ChatTemplate(self._template_source(), tokenizer.special_tokens_map)
        self._spells_special = self._special_spellings()
        self._adds_space = self._ids("x") != self._ids(_ANCHOR + "x")[len(self._ids(_ANCHOR)) :]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text that follows other text, without special ones."""
        return self._tokens(self._cut(text), begins=False)

    def begin(self, text: str) -> list[int]:
        """A text that nothing stands before: first what the tokenizer itself puts there, such as a BOS token; many put
        nothing, though they have one."""
        with tokenizer_sentence(self._folder):
            whole, alone = list(self._tokenizer("x")["input_ids"]), self._ids("x")
        starts = range(len(whole) - len(alone) + 1)
        first = next((whole[:start] for start in starts if whole[start : start + len(alone)] == alone), [])
        return [*first, *self._tokens(self._cut(text), begins=True)]

    def chat(self, messages: Sequence[Mapping[str, str]], answer: bool = True) -> list[int]:
        """A chat by the template; with `answer`, up to where the model is to answer."""
        return self._tokens(self._rendered(messages, answer), begins=True)

    def around(self, before: str) -> tuple[list[int], list[int]]:
        """What the template puts before and after some text of a user that begins with `before`, up to the answer."""
        parts = self._rendered([_said("user", before + _PLACE)]).split(_PLACE)
        if len(parts) != 2:
            raise UserError(
                f"Use another model than {self._folder}: its chat template shows the user's text "
                f"{len(parts) - 1} times instead of once."
            )
        opening, closing = parts
        return self._tokens(opening, begins=True), self._tokens(closing, begins=False)

    def after_answer(self) -> list[int]:
        """What the template puts after an answer."""
        chat = [_said("user", "x"), _said("assistant", _PLACE)]
        return self._tokens(self._rendered(chat, answer=False).rpartition(_PLACE)[2], begins=False)

    def _rendered(self, messages: Sequence[Mapping[str, str]], answer: bool = True) -> str:
        """A chat as the template writes it, cut where what is said spells special tokens."""
        try:
            return self._filled_in(self._cut_all(list(messages)), answer)
        except Exception as error:  # whatever a template raises
            raise UserError(
                f"Use another model than {self._folder}, or other messages: its chat template fails ({error})."
            ) from error

    def _filled_in(self, messages: list[dict[str, str]], answer: bool = True) -> str:
        return self._template.fill_in(messages, answer)

    def _template_source(self) -> str:
        if not self.has_template:
            return ""
        try:
            return _stopped_clock(self._tokenizer.get_chat_template())
        except ValueError as error:  # it has several, and none is the usual one
            raise UserError(f"Use another model than {self._folder}: {first_line(error)}") from error

    def _special_spellings(self) -> re.Pattern[str]:
        """Finds each place where the spelling of a special token begins, or of another one that the template uses."""
        added = self._tokenizer.added_tokens_decoder.values()
        used = self._template_text()
        names = {token.content for token in added if token.special or token.content in used}
        names.update(self._tokenizer.all_special_tokens)
        spelled = [re.escape(name) for name in sorted(names) if len(name.strip()) > 1]
        return re.compile(f"(?=(?:{'|'.join(spelled) or '(?!)'}))(.)", re.DOTALL)

    def _template_text(self) -> str:
        """What the template writes around a user's text; of one that wants other messages, its source."""
        if not self.has_template:
            return ""
        try:
            return self._filled_in([_said("user", _PLACE)])
        except Exception:  # whatever a template raises
            return self._template.text

    def _cut(self, text: str) -> str:
        return self._spells_special.sub(rf"\1{_CUT}", text)

    def _cut_all(self, said: Any) -> Any:
        """The same for all texts in messages, which may also have lists of parts."""
        if isinstance(said, str):
            return self._cut(said)
        if isinstance(said, Mapping):
            return {name: self._cut_all(part) for name, part in said.items()}
        return [self._cut_all(part) for part in said] if isinstance(said, list | tuple) else said

    def _tokens(self, text: str, begins: bool) -> list[int]:
        """The tokens of a text, the special ones that it spells included; `begins`: nothing stands before it."""
        first, *rest = text.split(_CUT)
        pieces = [self._ids(first) if begins else self._ids_inside(first), *map(self._ids_inside, rest)]
        return [token for piece in pieces for token in piece]

    def _ids_inside(self, text: str) -> list[int]:
        """The tokens of a text that others stand before, so without the space that some tokenizers begin with."""
        if not self._adds_space:
            return self._ids(text)
        return self._ids(_ANCHOR + text)[len(self._ids(_ANCHOR)) :]

    def _ids(self, text: str) -> list[int]:
        with tokenizer_sentence(self._folder):
            return plain_ids(self._tokenizer, text)


def _stopped_clock(template: str) -> str:
    """A template whose function for the time of now always gives the same; any text may be its format."""
    if _CLOCK not in template:
        return template
    replaced = "".join(f" | replace('%{part}', '{_DAY.strftime(f'%{part}')}')" for part in _PARTS_OF_TIME)
    # The macro hides the function. With +, a line break after it belongs to the template.
    return f"{{% macro {_CLOCK}(format) %}}{{{{ format | replace('%-', '%'){replaced} }}}}{{% endmacro +%}}{template}"


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
