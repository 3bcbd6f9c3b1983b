"""Config files: where they are found, groups beside them, refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.config.config_toys import Small, Teacher, Toy
from samestep.core.config import compose
from samestep.core.errors import UserError


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write a file below the working directory, which is a fresh folder."""
    monkeypatch.chdir(tmp_path)

    def put(name: str, text: str) -> Path:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return put


def toy(*args: str, **options: Any) -> Toy:
    return compose(Toy, presets={"tiny": {}, "cluster": {}}, args=args, **options)


Write = Callable[[str, str], Path]


def test_a_users_own_groups_and_search_path(write: Write) -> None:
    write("conf/teacher/big.yaml", "path: big\nlayers: 9\n")
    write("conf/distributed/mine.yaml", "backend: mine\n")
    write("more/teacher/far.yaml", "path: far\n")
    write(
        "conf/exp.yaml",
        f"defaults: [teacher: big, distributed: fsdp, _self_]\nhydra: {{searchpath: ['file://{Path('more').resolve()}']}}\n",
    )
    got = toy(config_path=Path("conf"), config_name="exp")
    assert (got.teacher, got.distributed.strategy) == (Teacher("big", 9), "fsdp")
    assert toy("distributed=mine", config=Path("conf/exp.yaml")).distributed.backend == "mine"
    assert toy("teacher=far", config=Path("conf/exp.yaml")).teacher == Teacher("far", 1)
    with pytest.raises(UserError, match="There is no teacher=near; choose big or far"):
        toy("teacher=near", config=Path("conf/exp.yaml"))
    write("conf/exp2.yaml", Path("conf/exp.yaml").read_text().replace("big", "far"))
    assert toy(config=Path("conf/exp2.yaml")).teacher == Teacher("far", 1)


@pytest.mark.parametrize(
    "options",
    [
        {"config": Path("sub/config.yaml")},
        {"config": "sub/../sub/config.yaml"},
        {"config_path": Path("sub"), "config_name": "config"},
        {"config_path": Path("sub"), "config_name": "config.yaml"},
        {"config_path": Path("sub")},
        {"config_name": "config"},
    ],
)
def test_files_are_found_from_the_working_directory(write: Write, options: dict[str, Any]) -> None:
    write("sub/config.yaml", "x: 5")
    write("config.yaml", "x: 5")
    assert compose(Small, **options).x == 5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["a b", "lr=3", "exp@2", "a.b", "x,y", "a'b", "base", "a.yaml"])
def test_odd_file_names(write: Write, name: str) -> None:
    write("it's/other.yaml", "x: 1\ntext: other")
    assert compose(Small, config=write(f"it's/{name}.yaml", "defaults: [other]\nx: 5")) == Small(5, "other")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", "a: [1,\nb: }", "c.yaml is not YAML: "),
        ("c.yaml", "a: [1,\nb: }", "line 2, column 4"),
        ("c.yaml", "lr: 1\nlr: 2", "found duplicate key lr"),
        ("c.yaml", "- 1", "must hold settings as 'key: value' lines"),
        ("c.yaml", "hello", "must hold settings as 'key: value' lines"),
        ("c.yaml", "name: ${lr", "The setting name cannot be resolved (a ${ has no closing brace)"),
        ("c.yaml", "name: ${nowhere}", "The setting name cannot be resolved (Interpolation key 'nowhere' not found)"),
        (
            "c.yaml",
            "defaults: [distributed: zip]",
            "names distributed/zip, which does not exist; choose auto, cpu, ddp or",
        ),
        ("c.yaml", "defaults: [nothing]", "names nothing, which does not exist"),
        ("c.yaml", "defaults: [c]", "defaults lists name each other in a circle"),
        ("c.yaml", "defaults: [override distributed: fsdp]", "there is no distributed to override in a defaults list"),
        ("c.yaml", "defaults: [{distributed: cpu}, {distributed: ddp}]", "distributed appears more than once"),
        ("c.yaml", "defaults: [distributed: '???']", "is left open; write the option itself"),
        ("c.yaml", "defaults: [_self_, _self_]", "_self_ is twice in a defaults list"),
        ("c.yaml", "name: !!set {a}", "holds a value of type set"),
        ("c.yaml", "defaults: [nogroup: zip]", "names nogroup/zip, which does not exist; fix"),
        ("c.yaml", "defaults: {distributed: fsdp}", "cannot be composed"),
        ("c.yaml", "defaults: [3]", "cannot be composed"),
        ("c.yaml", "defaults: 3", "cannot be composed"),
        ("c.yaml", "distributed: zip", "There is no distributed=zip; choose auto, cpu, ddp or fsdp"),
        (
            "c.yaml",
            "teacher: big",
            "teacher is a section, not a setting; set one of its fields with teacher.FIELD=VALUE",
        ),
        ("c.yaml", "stepz: 3", "There is no setting 'stepz'; did you mean steps"),
        ("c.yaml", "3: 3", "There is no setting '3'"),
        ("c.yaml", "steps: many", "steps must be a whole number, not 'many'"),
        ("c.yaml", "name: no", "name must be text (put it in quotes), not False"),
        ("c.yaml", "preset: tony", "There is no preset 'tony'; choose tiny or cluster"),
        ("c.yaml", "distributed:", "distributed must be a mapping of the fields of Distributed, not None"),
        ("c.json", "{", "c.json is not JSON"),
        ("c.json", "[]", "must hold a mapping of settings, as {...}, not a list"),
        ("c.json", '{"distributed": {"bckend": 1}}', "did you mean distributed.backend"),
        ("c.txt", "lr: 3", "name that ends in .yaml or .json"),
    ],
)
def test_bad_files_are_refused_with_a_sentence(write: Write, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        toy(config=write(name, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text(write: Write) -> None:
    write("c.yaml", "").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="save it as UTF-8"):
        toy(config=Path("c.yaml"))


def test_a_broken_option_is_named(write: Write) -> None:
    write("teacher/bad.yaml", "path: [\n")
    with pytest.raises(UserError, match=r"teacher/bad.yaml is not YAML"):
        toy(config=write("c.yaml", "defaults: [teacher: bad]"))


def test_files_that_are_not_there(write: Write) -> None:
    write("conf/a.yaml", "")
    with pytest.raises(UserError, match=r"There is no file b.yaml in .*conf; it holds a.yaml"):
        toy(config_path=Path("conf"), config_name="b")
    with pytest.raises(UserError, match=r"There is no folder .*gone"):
        toy(config=Path("gone/a.yaml"))
    with pytest.raises(UserError, match=r"it holds no \.yaml"):
        toy(config=Path("a.yaml"))
    with pytest.raises(UserError, match="either --config FILE or"):
        toy(config=Path("conf/a.yaml"), config_name="a")
