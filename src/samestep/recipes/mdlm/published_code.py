"""The code of a published model, which other programs need to open an export: it is recorded when training begins,
carried along by `samestep export`, and never run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from samestep.core.json_files import expected_content, find_object, read_object_if_readable, write_json
from samestep.core.typed_json import from_json
from samestep.data.tokenizer.subword import FILE
from samestep.models.carried_code import CarriedCode, read_code
from samestep.train.trained.export import load_lines, quoted
from samestep.train.trained.model_card import listing
from samestep.train.trained.told import told_text

CODE = "code.json"
"""What was recorded, among the artifacts of a stage."""
FITTING = "GSAI-ML/LLaDA-8B-Base"
"""Its code opens every network of the published format."""
_CONFIG, _TOKENIZER = "config.json", "tokenizer_config.json"
_CLASSES = ("AutoModel", "AutoModelForCausalLM")


def code_in(folder: Path) -> CarriedCode:
    """The code of a published folder, if AutoModel finds its way with it."""
    code, _ = read_code(folder)
    if code.why_not or _class_of(code):
        return code
    return CarriedCode(code.folder, why_not="auto_map in config.json does not name both AutoConfig and AutoModel")


def record_code(code: CarriedCode, artifact: Path) -> str:
    """Write what training begins with. Returns it in words, for the banner."""
    write_json(artifact, asdict(code))
    if code.why_not:
        return f"none goes with exports: {code.why_not}"
    if code.repository:
        return f"exports name that of {code.repository}; it is neither downloaded nor run"
    return f"{', '.join(code.sha256)} of {_owner(code)}, to go with exports; it is not run"


def recorded_code(artifact: Path) -> CarriedCode:
    """What training began with; where that folder is gone, or was none, there is nothing to carry."""
    with expected_content(artifact):
        found = find_object(artifact)
        if found is None:
            return CarriedCode(why_not="training did not begin with a folder that has some")
        code = from_json(CarriedCode, found)
    if code.why_not:
        return CarriedCode(why_not=code.why_not)
    if code.repository or Path(code.folder).is_dir():
        return code
    return CarriedCode(why_not=f"the folder of {_owner(code)} is no longer where it was when training began")


def write_code(folder: Path, code: CarriedCode, contents: Mapping[str, bytes]) -> None:
    """Into an exported folder that has its configuration and its tokenizer: neither names code that is not there."""
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    for name in (_CONFIG, _TOKENIZER):
        found = read_object_if_readable(folder / name)
        plain = {key: value for key, value in found.items() if key != "auto_map"}
        named = {"auto_map": code.auto_map[name]} if name in code.auto_map else {}
        if found and found != plain | named:
            write_json(folder / name, plain | named)


def usage(path: object, code: CarriedCode, tokenizer: Path) -> list[str]:
    """Lines of Python that load the export."""
    kind = _class_of(code)
    if kind is None:
        return [f"# AutoModel cannot open it, since it has no code of its own: {code.why_not}.", *load_lines(path)]
    has_tokenizer = (tokenizer / FILE).is_file()
    arguments = f"{quoted(path)}, trust_remote_code=True"
    revision = f", code_revision={quoted(code.repository.partition('@')[2])}" if code.repository else ""
    where = "which is downloaded then" if code.repository else "which is in the folder"
    return [
        f"from transformers import {kind}" + ", AutoTokenizer" * has_tokenizer,
        "",
        f"# trust_remote_code runs the code of {_owner(code)}, {where}.",
        f"model = {kind}.from_pretrained({arguments}{revision})",
        *([f"tokenizer = AutoTokenizer.from_pretrained({arguments})"] * has_tokenizer),
    ]


def about_code(code: CarriedCode) -> str:
    """For the card: whose code it is, or how to open the model without any."""
    if _class_of(code) is None:
        return (
            f"There is no Python code for `AutoModel` in this folder: {code.why_not}. samestep opens it without. "
            f"What fits is the code of `{FITTING}`: put its `configuration_llada.py` and `modeling_llada.py` here, and "
            "its `auto_map` into config.json."
        )
    if code.repository:
        return (
            f"The Python code is that of `{code.repository}` on the Hub, which training began with; config.json names "
            "it. samestep did not download or run it; `trust_remote_code=True` does."
        )
    files = listing({f"`{name}`": f"sha256 `{sha256}`" for name, sha256 in code.sha256.items()})
    return (
        f"The Python files are those of `{_owner(code)}`, which training began with, unchanged, and under the licence "
        f"of their authors. samestep did not run them; `trust_remote_code=True` does.\n\n{files}"
    )


def library(code: CarriedCode) -> Mapping[str, str | Sequence[str]]:
    """For the header of the card."""
    return {} if _class_of(code) is None else {"library_name": "transformers", "tags": ["custom_code"]}


def _class_of(code: CarriedCode) -> str | None:
    """The class of transformers that opens it."""
    named = code.auto_map.get(_CONFIG, {})
    return next((name for name in _CLASSES if name in named and "AutoConfig" in named), None)


def _owner(code: CarriedCode) -> str:
    name = code.repository.partition("@")[0] or Path(code.folder).name
    return told_text(name) or "a model whose name is not told"
