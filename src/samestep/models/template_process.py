"""The process that fills in chat templates; see chat_template.py. It is run as a file, and never imported.

A template is a program of whoever made the model, and jinja's sandbox bounds neither its time nor its memory: loops
inside of loops, a text that is doubled forty times, a list that holds itself twice, are all allowed there. The kernel
bounds both here, also in the middle of a native call.

A request is a line of JSON: the template (null: that of the last request) and what it is filled with. An answer is a
line that says whether it went well, how many microseconds it took, and how many bytes follow: those of the text, or of
what is wrong.
"""

import json
import resource
import signal
import sys
import time
from typing import Any

SECONDS = 3.0
"""Of the processor, for one chat. Templates that are published take thousandths."""
_MEMORY = 1 << 30
"""More than what the libraries take."""
_CHARACTERS, _TIMES = 1_000_000, 4
"""A text may have this many characters, and for each of the request these more."""
_SHOWN = 500
CODING = ("utf-8", "surrogatepass")
"""Of what is answered: a text may hold halves of characters."""


def _limit_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + _MEMORY if most == resource.RLIM_INFINITY else min(used + _MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(render: Any, template: str, filling: dict[str, Any], size: int) -> tuple[bool, bytes]:
    """Whether it went well, and the text or what is wrong."""
    most = _CHARACTERS + _TIMES * size
    try:
        text = str(render(chat_template=template, **filling)[0][0])
        if len(text) > most:
            return False, b"it writes more than %d characters" % most
        return True, text.encode(*CODING)
    except MemoryError:
        return False, b"it takes more than %d MiB of memory" % (_MEMORY >> 20)
    except Exception as error:  # whatever a template raises
        return False, (str(error) or type(error).__name__)[:_SHOWN].encode(*CODING)


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    from transformers.utils.chat_template_utils import render_jinja_template

    if sys.platform == "linux":
        _limit_memory()
    template = ""
    for line in sys.stdin.buffer:
        other, filling = json.loads(line)
        template = template if other is None else other
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # it does not run while this process waits for the next request
        began = time.process_time_ns()
        is_well, content = _answer(render_jinja_template, template, filling, len(line))
        took = (time.process_time_ns() - began) // 1000
        sys.stdout.buffer.write(b"%d %d %d\n%b" % (is_well, took, len(content), content))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
