"""What must start at once, or in little memory, imports no torch."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "code",
    [
        "import samestep.core.process_end",
        "import samestep.launching.call, samestep.launching.launcher, samestep.launching.nodes.member",
        "from samestep.cli.main import main; main(['--help'])",
        "from samestep.cli.main import main; main(['data', '--help'])",
        "from samestep.cli.main import main; main(['train', '--help'])",
        "from samestep.cli.main import main; main(['train', 'mdlm', '--help'])",
        "from samestep.cli.main import main; main(['recipes'])",
        "import samestep.cli.report, samestep.cli.runs, samestep.cli.watch",
        "from samestep.cli.main import main; main(['sample', '--help'])",
        "from samestep.cli.main import main; main(['eval', '--help'])",
        "import samestep; samestep.run, samestep.runs",
    ],
)
def test_without_torch(code: str) -> None:
    subprocess.run([sys.executable, "-c", f"import sys; {code}; sys.exit('torch' in sys.modules)"], check=True)
