"""A config file that somebody else wrote reads no secrets, runs no code and ends in bounded time and memory."""

import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from core.config.config_toys import Toy
from samestep.core.config import compose
from samestep.core.config.interpolation import resolve_interpolations
from samestep.core.errors import UserError

ALIASES = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))
REFERENCES = ", ".join(f"x{n}: '${{.x{n - 1}}}${{.x{n - 1}}}'" for n in range(1, 60))
LISTS = ", ".join(f"x{n}: ['${{..x{n - 1}}}', '${{..x{n - 1}}}']" for n in range(1, 60))
DEEP = 20_000


def toy(tmp_path: Path, text: str, name: str = "c.yaml", *args: str, **more: Any) -> Toy:
    (tmp_path / name).write_text(text)
    return compose(Toy, config=tmp_path / name, args=args, **more)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"x: &a0 [1, 2]\n{ALIASES.replace('*a0', '1')}", "stands for more than 100,000 values"),
        ("files: &a [*a]", "inside of what it stands for"),
        (f"files: {'[' * DEEP}{']' * DEEP}", "more than 50 deep"),
        (f"files: {'{a: ' * DEEP}1{'}' * DEEP}", "more than 50 deep"),
        ("\n".join(" " * n + f"k{n}:" for n in range(900)), "more than 50 deep"),
        (f"name: {'x' * 600_000}", "more than 500,000 bytes"),
        (f"mix: {{x0: aa, {REFERENCES}}}", "more than 1,000,000 values or characters"),
        (f"mix: {{x0: aa, {LISTS}}}", "more than 1,000,000 values or characters"),
        ("mix: {a: '${.b}', b: '${.a}'}", "it refers to itself"),
        ("mix: {a: '${mix}'}", "it refers to itself"),
        ("mix: {" + ", ".join(f"x{n}: '${{.x{n + 1}}}'" for n in range(2000)) + ", x2000: 1}", "too often"),
        ("name: !!python/object/apply:os.system ['touch MARKER']", "could not determine a constructor"),
        ("name: !!python/name:os.system", "could not determine a constructor"),
        ("name: ${oc.env:SECRET}", "reads the environment variable 'SECRET'; if you trust the file, allow that with"),
        ("name: ${oc.env:SECRET,x}", "--allow-env SECRET"),
        ("name: 'a-${ oc.env : SECRET }'", "--allow-env SECRET"),
        ("mix: {a: oc.env, b: '${${.a}:SECRET}'}", "--allow-env SECRET"),
        ("mix: {a: 'oc.env:SECRET', b: '${${.a}}'}", "--allow-env SECRET"),
        ("files: ['${oc.env:SECRET}']", "--allow-env SECRET"),
        ("name: ${oc.decode:'[1]'}", "'oc.decode' is a function"),
        ("name: '${oc.create:{a: 1}}'", "'oc.create' is a function"),
        ("name: ${now:%Y}", "'now' is a function"),
        ("name: ${mine:1}", "'mine' is a function"),
        ("hydra: {searchpath: ['pkg://evil']}", "names pkg://evil; only folders are searched"),
        ("hydra: {searchpath: ['structured://evil']}", "only folders are searched"),
        ("hydra: {searchpath: ['file://${oc.env:SECRET}']}", "only folders are searched"),
        ("defaults: ['distributed: ${oc.env:SECRET}']", "fix"),
        ("defaults: [{distributed: '${oc.env:SECRET}'}]", "cannot be composed"),
        ("defaults: [{distributed: '${mine:1}'}]", "cannot be composed"),
    ],
    ids=lambda text: text[:40],
)
def test_one_sentence(text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", "fsdp")
    (tmp_path / "evil.py").write_text("open('MARKER', 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    OmegaConf.register_new_resolver("mine", called.append)
    began = time.monotonic()
    try:
        with pytest.raises(UserError) as caught:
            toy(tmp_path, text)
        assert OmegaConf.has_resolver("mine") and OmegaConf.has_resolver("oc.env"), "they are put back"
    finally:
        OmegaConf.clear_resolver("mine")
    assert sentence in str(caught.value) and len(str(caught.value).splitlines()) == 1
    assert not called and not (tmp_path / "MARKER").exists()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "text", [f"lr: 1\nx: &a0 [1, 2]\n{ALIASES.replace('*a0', '1')}", f"lr: {'[' * DEEP}", f"lr: {'x' * 600_000}"]
)
def test_a_file_that_a_defaults_list_names_is_checked_too(text: str, tmp_path: Path) -> None:
    (tmp_path / "bomb.yaml").write_text(text)
    with pytest.raises(UserError, match=r"bomb.yaml (stands|nests|has)"):
        toy(tmp_path, "defaults: [bomb]")


@pytest.mark.parametrize(
    "text", ["[" * DEEP + "]" * DEEP, '{"lr": ' * 200 + "1" + "}" * 200, '{"lr": %s}' % ("1" * 600_000)]
)
def test_json(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"too deeply|more than 50 deep|more than 500,000 bytes"):
        toy(tmp_path, text, "c.json")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "value", ["[" * DEEP, "{a: " * DEEP, "{" + ALIASES.replace("*a0", "1").replace("\n", ", ") + "}"]
)
def test_a_value_of_the_command_line(value: str) -> None:
    with pytest.raises(UserError, match="more than"):
        compose(Toy, args=[f"files={value}"])


@pytest.mark.timeout(900)
def test_memory_is_bounded(tmp_path: Path) -> None:
    text = f"x: &a0 [1, 2]\n{ALIASES.replace('*a0', '1')}"
    (tmp_path / "c.yaml").write_text(text)
    code = "import sys; from samestep.cli.main import main; sys.exit(main(sys.argv[1:]))"
    example = Path(__file__).parents[3] / "examples" / "sine.py"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", str(example), "--config", str(tmp_path / "c.yaml")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30)),
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "stands for more than 100,000 values" in done.stderr


def test_variables_that_the_user_allows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "${oc.env:OTHER} ${lr}")
    monkeypatch.setenv("OTHER", "other")
    monkeypatch.delenv("UNSET", raising=False)
    text = "name: ${oc.env:SECRET}\nfiles: ['${oc.env:UNSET,a b}', '${name}', 'x ${oc.env:SECRET}']"
    got = toy(tmp_path, text, allow_env=["SECRET", "UNSET"])
    assert got.name == "${oc.env:OTHER} ${lr}", "what a variable holds is text"
    assert got.files == ["a b", got.name, f"x {got.name}"]
    with pytest.raises(UserError, match="--allow-env OTHER"):
        toy(tmp_path, "name: ${oc.env:OTHER}", allow_env=["SECRET"])
    with pytest.raises(UserError, match="UNSET is not set"):
        toy(tmp_path, "name: ${oc.env:UNSET}", allow_env=["UNSET"])


def test_the_command_line_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from samestep.cli.args import RecipeArgs

    monkeypatch.setenv("SECRET", "s")
    (tmp_path / "c.yaml").write_text("name: ${oc.env:SECRET}")
    args = ["sine.py", f"--config={tmp_path}/c.yaml", "--allow-env", "HOME,SECRET", "lr=1"]
    parsed = RecipeArgs.parse(args, "train")
    assert parsed.options["allow-env"] == "HOME,SECRET" and parsed.settings == ["lr=1"]


def test_references(tmp_path: Path) -> None:
    text = "lr: 0.5\nsteps: 3\nname: a\\${lr}-${mix.b}\nmix: {a: 1, b: '${.a}', c: '${..steps}', d: '${${name_of}}'}"
    got = toy(tmp_path, text.replace("${${name_of}}", "${lr}"))
    assert got.name == "a${lr}-1"
    assert got.mix == {"a": 1.0, "b": 1.0, "c": 3.0, "d": 0.5}


names = st.sampled_from("abcd")
leaf = st.one_of(
    st.integers(0, 9),
    st.text("xy", max_size=3),
    names.map(lambda name: f"${{{name}}}"),
    st.tuples(names, names).map(lambda pair: f"{pair[0]}-${{{pair[1]}}}!"),
    st.tuples(names, names).map(lambda pair: f"${{{pair[0]}.{pair[1]}}}"),
    names.map(lambda name: f"${{.{name}}}"),
    names.map(lambda name: f"${{..{name}}}"),
    st.just("${a[0]}"),
)
trees = st.dictionaries(names, leaf | st.dictionaries(names, leaf, max_size=3) | st.lists(leaf, max_size=3), max_size=4)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(tree=trees)
def test_references_mean_what_they_mean_to_omegaconf(tree: dict[str, Any]) -> None:
    try:
        expected = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    except Exception:
        expected = None
    try:
        found = resolve_interpolations(tree, {}, ())
    except UserError:
        found = None
    assert found == expected


def test_references_count_wherever_they_are_used() -> None:
    """Each of these settings alone is small enough."""
    thousand = {"a": [1] * 1000, "b": ["${a}"] * 300, **{f"x{n}": "${b}" for n in range(100)}}
    with pytest.raises(UserError, match="1,000,000 values"):
        resolve_interpolations(thousand, {}, ())
