"""A chat template is a program of whoever made the model: it gets little time and little memory, whatever it does."""

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from player_folders import CHATML, player_folder
from samestep import UserError, open_causal_lm
from samestep.models import chat_template
from samestep.models.chat_template import ChatTemplate, TemplateError

pytestmark = pytest.mark.timeout(60)
CHAT = [{"role": "user", "content": "so"}]
DOUBLED = "{% set x = x ~ x %}" * 45
NESTED = "{% set x = [x, x] %}" * 45
ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "one list": "{% set r = range(99999) | list %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "powers": "{% set x = 7 ** 9999999 %}{{ (x * x) // 3 }}",
    "comparison": f"{{% set x = [1] %}}{NESTED}{{% set y = x %}}{{% set x = [1] %}}{NESTED}{{{{ x == y }}}}",
}
HUGE = {
    "times": "{{ 'a' * 10 ** 10 }}",
    "doubled": f"{{% set x = 'ab' %}}{DOUBLED}{{{{ x }}}}",
    "list": "{{ [1] * 10 ** 10 }}",
    "nested": f"{{% set x = [1] %}}{NESTED}{{{{ x }}}}",
    "padded": "{{ 'a'.ljust(10 ** 10) }}",
    "formatted": "{{ '%10000000000d' % 1 }}",
    "indented": "{{ {'a': 1} | tojson(indent=10 ** 10) }}",
    "lipsum": "{% for i in range(99999) %}{{ lipsum(n=1000) }}{% endfor %}",
}


def some(templates: dict[str, str], *quick: str) -> Any:
    """Each takes seconds, so most of them run with the long tests."""
    marks = {name: () if name in quick else (pytest.mark.long,) for name in templates}
    return [pytest.param(text, marks=marks[name], id=name) for name, text in templates.items()]


@pytest.mark.parametrize("template", some(ENDLESS, "one list", "comparison"))
def test_a_template_that_goes_on_for_ages_is_ended(template: str) -> None:
    began = time.monotonic()
    with pytest.raises(TemplateError, match=r"it takes more than 3 s for one chat|MiB of memory"):
        ChatTemplate(template, {}).fill_in(CHAT, answer=True)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("template", some(HUGE, "times", "doubled", "padded"))
def test_a_template_that_writes_without_end_is_ended(template: str) -> None:
    with pytest.raises(TemplateError, match=r"more than \d+ MiB of memory|more than 3 s|more than \d+ characters"):
        ChatTemplate(template, {}).fill_in(CHAT, answer=True)


def test_a_text_may_be_as_long_as_what_is_said() -> None:
    said = "ab" * 1_000_000
    assert ChatTemplate("{{ messages[0]['content'] }}", {}).fill_in([{"content": said}], answer=True) == said
    with pytest.raises(TemplateError, match=r"it writes more than 1000\d\d\d characters"):
        ChatTemplate("{{ 'a' * 1100000 }}", {}).fill_in(CHAT, answer=True)


def test_a_template_that_is_harmless_until_a_row_comes(tmp_path: Path) -> None:
    """Nothing is known of a template from one chat: each is bounded, and the next is filled in as ever."""
    trap = f"{{% if messages[0]['content'] == 'trap' %}}{ENDLESS['one list']}{{% endif %}}"
    folder = open_causal_lm(player_folder(tmp_path, trap + CHATML))
    before = folder.encode_chat(CHAT)
    with pytest.raises(UserError, match=r"Use another model .*its chat template fails \(it takes more than 3 s"):
        folder.encode_chat([{"role": "user", "content": "trap"}])
    assert folder.encode_chat(CHAT) == before


def test_a_template_that_is_slow_with_every_row_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the limit of a chat, but not of all: a million rows would take weeks."""
    monkeypatch.setattr(chat_template, "_MOST_SLOW", 1.0)
    slow = ChatTemplate("{% for i in range(99999) %}{% for j in range(60) %}{% endfor %}{% endfor %}", {})
    said = ""
    for _ in range(30):
        try:
            slow.fill_in(CHAT, answer=True)
        except TemplateError as error:
            said = str(error)
    assert "it took more than 1 s for earlier chats" in said
    assert ChatTemplate("so", {}).fill_in(CHAT, answer=True) == "so"


def test_what_a_template_raises_is_said(tmp_path: Path) -> None:
    folder = open_causal_lm(player_folder(tmp_path, "{{ raise_exception('no 🙂') }}"))
    with pytest.raises(UserError, match=r"its chat template fails \(no 🙂\)"):
        folder.encode_chat(CHAT)
    with pytest.raises(TemplateError, match="there is no message"):
        ChatTemplate(CHATML, {}).fill_in([], answer=True)
    with pytest.raises(TemplateError, match="recursion"):
        ChatTemplate("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", {}).fill_in(CHAT, answer=True)


def test_any_text_comes_back_as_it_was() -> None:
    said = "Zürich 🙂 \ud800 \ufdd0\n\r\n\0 end"
    assert ChatTemplate("{{ messages[0]['content'] }}", {}).fill_in([{"content": said}], answer=True) == said


def test_two_templates_take_turns() -> None:
    first, second = (ChatTemplate(f"{{{{ bos_token }}}}{name}", {"bos_token": f"<{name}>"}) for name in "ab")
    assert [each.fill_in(CHAT, answer=True) for each in (first, second, first)] == ["<a>a", "<b>b", "<a>a"]


def test_a_stop_of_the_process_group_does_not_reach_it() -> None:
    template = ChatTemplate(CHATML, {})
    template.fill_in(CHAT, answer=True)
    child = chat_template._process_of(os.getpid())._started
    assert child is not None and os.getpgid(child.pid) != os.getpgid(0)


def _filled_in_worker(template: ChatTemplate) -> str:
    return template.fill_in(CHAT, answer=True)


def test_a_forked_worker_has_its_own() -> None:
    template = ChatTemplate(CHATML, {})
    text = template.fill_in(CHAT, answer=True)
    own = chat_template._process_of(os.getpid())._started
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_filled_in_worker, [template] * 4) == [text] * 4
    assert own is chat_template._process_of(os.getpid())._started and own is not None and own.poll() is None


def test_it_ends_with_its_parent() -> None:
    reader, writer = os.pipe()
    parent = os.fork()
    if not parent:
        ChatTemplate(CHATML, {}).fill_in(CHAT, answer=True)
        child = chat_template._process_of(os.getpid())._started
        os.write(writer, str(child.pid if child else 0).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    pid = int(os.read(reader, 100))
    until = time.monotonic() + 10
    while (Path("/proc") / str(pid)).exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert pid and not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in (Path("/proc") / str(pid) / "status").read_text()
    except OSError:
        return False
