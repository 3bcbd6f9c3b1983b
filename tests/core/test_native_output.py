"""What libraries print below Python goes to the rank's log; a sentence holds no C++ frames."""

import subprocess
import sys
from pathlib import Path

import pytest

from samestep.core.native_output import without_native_frames

CODE = """
import ctypes, faulthandler, os, sys
from pathlib import Path
from samestep.core.native_output import send_native_output_to
faulthandler.enable()
send_native_output_to(Path("logs/rank_0.log"))
os.write(2, b"[W1] recvValue failed\\nframe #0: c10::Error\\n")
print("a sentence", file=sys.stderr)
ctypes.string_at(0)
"""
RAISED = """DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.
Exception raised from recvBytes at /torch/csrc/distributed/c10d/Utils.hpp:787 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0xc8 (0xffff884de158 in libc10.so)
frame #3: <unknown function> + 0x70b7e14 (0xffff7ff27e14 in libtorch_cpu.so)
<omitting python frames>
frame #27: <unknown function> + 0x27744 (0xffff8b727744 in libc.so.6)
"""


def test_native_output_goes_to_the_log_and_pythons_to_the_terminal(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True)
    assert (tmp_path / "logs/rank_0.log").read_text() == "[W1] recvValue failed\nframe #0: c10::Error\n"
    assert ended.stderr.startswith("a sentence\n") and "frame #" not in ended.stderr
    assert "Segmentation fault" in ended.stderr, "a crash is shown"


@pytest.mark.parametrize("after", ["", "\nThe above exception was the direct cause of:\n", "; resume"])
def test_a_sentence_without_frames(after: str) -> None:
    found = without_native_frames(RAISED + after)
    assert "frame #" not in found and "Exception raised" not in found and "python frames" not in found
    assert found.startswith("DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.")
    assert found.endswith(after.strip())
    assert without_native_frames("a frame #3 of film") == "a frame #3 of film"
