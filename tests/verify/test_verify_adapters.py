"""Training of adapters against frozen references is the same run at any world size and after a kill."""

from pathlib import Path

import pytest

from samestep.cli.verify import run


@pytest.mark.long
@pytest.mark.timeout(900)
def test_adapters_and_references_of_a_sharded_language_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft")
    pytest.importorskip("transformers")
    settings = ["distributed.strategy=fsdp", "--kill-seed", "7", "--keep", str(tmp_path / "runs")]
    code = run(["planted.lora_dpo", *settings])
    output = capsys.readouterr().out
    assert code == 0, output
    for done in ("gradients at 1, 2, 3 ranks", "kill -9, resume at 2", "killed at 3, resumed at 1 rank"):
        assert f"ok      {done}" in output
