"""The players: which models a configuration names, and that each can judge what another wrote."""

from pathlib import Path

import pytest
import torch

from player_folders import every_folder, player_folder
from samestep import CausalConfig, LanguageModel, UserError, World, open_causal_lm
from samestep.kit.language_model import ByteModel, FolderModel
from samestep.recipes.gan.judges import JudgeConfig, PairWriter, answer_tokens
from samestep.recipes.gan.players import PlayerConfig, open_player


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return every_folder(tmp_path_factory.mktemp("folders"))


def player_of(folder: Path) -> FolderModel:
    return FolderModel(open_causal_lm(folder))


def special_in(player: FolderModel, tokens: list[int]) -> list[str]:
    added = player.folder.tokenizer.added_tokens_decoder
    return [added[token].content for token in tokens if token in added]


def test_a_configuration_names_a_player(folders: dict[str, Path]) -> None:
    world = World.single()
    assert isinstance(open_player(PlayerConfig(), None, world), ByteModel)
    by_default = open_player(PlayerConfig(), str(folders["plain"]), world)
    of_its_own = open_player(PlayerConfig(model=str(folders["chatml"])), str(folders["plain"]), world)
    assert len(of_its_own.prompt("a")) > len(by_default.prompt("a")) == 1
    with pytest.raises(UserError, match="lora_rank must be a whole number of at least 0, not -1"):
        PlayerConfig(lora_rank=-1)


def test_what_is_trained_is_float32(tmp_path: Path) -> None:
    """Small steps are lost in bfloat16; the base of adapters takes none."""
    stored = str(player_folder(tmp_path, dtype=torch.bfloat16))
    for rank, dtype in ((0, torch.float32), (2, torch.bfloat16)):
        player = open_player(PlayerConfig(model=stored, lora_rank=rank), None, World.single())
        assert {weight.dtype for weight in player.network().parameters()} == {dtype}


@pytest.mark.parametrize("name", ["built-in", "chatml", "trimmed", "brackets", "spaces", "plain", "begins"])
def test_each_can_judge_what_another_wrote(folders: dict[str, Path], name: str) -> None:
    """Texts go from player to player as text, so their tokens may differ."""
    judge: LanguageModel = ByteModel(CausalConfig(tied_head=True)) if name == "built-in" else player_of(folders[name])
    writer = player_of(folders["trimmed"])
    written = writer.decode([*writer.encode("the <|im_end|> sea"), writer.eos[0]])
    pair = PairWriter(judge.encode, JudgeConfig(max_tokens=12), judge.around)(
        "the prompt", "the human one of two", written
    )
    assert pair.is_shown
    one, two = answer_tokens(judge.encode)
    assert (judge.decode([one]), judge.decode([two])) == ("1", "2")
    if isinstance(judge, FolderModel):
        tame = judge.prompt("the sea")
        assert special_in(judge, pair.orders[0]) == special_in(judge, pair.orders[1]) == special_in(judge, tame)
        assert "Text 1:\nthe hum" in judge.spell(pair.orders[0])
