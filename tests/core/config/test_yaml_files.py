"""Lists of defaults mean what they mean to Hydra."""

import warnings
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from samestep.core.config.yaml_files import MAX_FILES, compose_yaml
from samestep.core.errors import UserError

FILES = {
    "base.yaml": "x: 1\nnested: {a: 1, b: [1, 2]}\n",
    "model/small.yaml": "width: 4\nlayers: 2\n",
    "model/large.yaml": "defaults: [small]\nwidth: 400\n",
    "model/global.yaml": "# @package _global_\nx: 7\nmodel: {width: 9}\n",
    "model/elsewhere.yaml": "\n# @package other.place\nwidth: 5\n",
    "model/late.yaml": "# some words\n# @package other.place\nwidth: 5\n",
    "model/act/relu.yaml": "kind: relu\n",
    "model/act/gelu.yaml": "kind: gelu\n",
    "model/composed.yaml": "defaults: [act: relu, _self_]\nwidth: 3\nact: {slope: 1}\n",
    "model/absolute.yaml": "defaults: [/data: c4, small]\n",
    "data/c4.yaml": "path: c4\nrows: 1e3\n",
    "data/wiki.yaml": "path: wiki\nextra: {b: 2}\n",
    "experiment.yaml": "defaults: [base, model: composed, data: c4]\nx: 3\n",
}
TEXTS = [
    "x: 1",
    "",
    "defaults: [base]\nnested: {a: 3, b: [3]}",
    "defaults: [base, _self_]\nnested: {a: '???', c: null}",
    "defaults: [_self_, base]\nx: 5\ny: 6",
    "defaults: [model: small]\nmodel: {width: 8}",
    "defaults: [_self_, model: small]\nmodel: {width: 8}",
    "defaults: [model: large, data: wiki]",
    "defaults: [model: null]\nx: 2",
    "defaults: [optional model: gone, optional data: c4]",
    "defaults: [model: global]",
    "defaults: [model: elsewhere]",
    "defaults: [model: late]",
    "defaults: [model@teacher: small, model@student.net: large]",
    "defaults: [model@_global_: small]",
    "defaults: [model/small@here]",
    "defaults: [model/small, data/c4]",
    "defaults: [data: [c4, wiki]]",
    "defaults: [/data: c4]",
    "defaults: [model: composed]",
    "defaults: [model/act: gelu]",
    "defaults: [model: absolute]",
    "defaults: [model: composed, override model/act: gelu]",
    "defaults: [experiment, override model: large]",
    "defaults: [experiment, override /model: small, override data: wiki]\nx: 9",
    "defaults: [experiment, override model/act: gelu]",
    "defaults: [model: composed, data: c4, override hydra/job_logging: none]",
    "hydra: {run: {dir: x}}\nx: 1",
    "a: 1e-3\nb: 1_000\nc: 2001-01-01\nd: .5\ne: -1.5e3\nf: .inf\ng: 12e03\nh: 0x10\ni: '1e3'\nj: 1.\nk: on\nl: 1e5x",
    "a: &a {b: 1, c: 2}\nd: {<<: *a, c: 3}",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("choices", [{}, {"model": "large"}, {"data": "wiki", "model.act": "gelu"}], ids=str)
def test_lists_mean_what_they_mean_to_hydra(text: str, choices: dict[str, str], folder: Path) -> None:
    (folder / "c.yaml").write_text(text)
    groups = compose_yaml(folder, "c.yaml", {}, [])[1]
    choices = {group: option for group, option in choices.items() if group in groups}
    overrides = [f"{group.replace('.', '/')}={option}" for group, option in choices.items()]
    try:
        expected, known = _by_hydra(folder, overrides)
    except ConfigCompositionException:
        with pytest.raises(UserError, match="there is no model/act to override"):
            compose_yaml(folder, "c.yaml", choices, [])
        return
    data, groups = compose_yaml(folder, "c.yaml", choices, [])
    assert repr(_sorted(data)) == repr(_sorted(expected))
    assert groups == known


def _by_hydra(folder: Path, overrides: list[str]) -> tuple[Any, dict[str, str]]:
    with hydra.initialize_config_dir(str(folder), version_base="1.3"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = hydra.compose("c", overrides, return_hydra_config=True)
    known = {key.replace("/", "."): str(choice) for key, choice in found.hydra.runtime.choices.items()}
    data = OmegaConf.to_container(found, resolve=False)
    assert isinstance(data, dict)
    del data["hydra"]
    return data, {key: choice for key, choice in known.items() if not key.startswith("hydra.")}


def _sorted(value: Any) -> Any:
    """With the keys of mappings in order, which differs where a list of defaults is merged."""
    if isinstance(value, dict):
        return {str(key): _sorted(value[key]) for key in sorted(value, key=str)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def test_lists_that_name_ever_more_files_end(tmp_path: Path) -> None:
    for at in range(20):
        (tmp_path / f"a{at}.yaml").write_text(f"defaults: [a{at + 1}, a{at + 1}]")
    (tmp_path / "a20.yaml").write_text("x: 1")
    with pytest.raises(UserError, match=f"more than {MAX_FILES} files"):
        compose_yaml(tmp_path, "a0.yaml", {}, [])
