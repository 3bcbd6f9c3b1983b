"""The small files of an encoder's folder: which modules it has, its prompts, how long its texts may be."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from samestep.core.errors import UserError, quoted
from samestep.core.json_files import read_json_if_readable
from samestep.models.hub_modules import MODULES
from samestep.models.sentence_modules import Dense, HeadModule, LayerNorm, Normalize, Pooling

SETTINGS = "config_sentence_transformers.json"
TRANSFORMER_SETTINGS = "sentence_bert_config.json"
_CONFIG = "config.json"
PURPOSES = {"query": ("query",), "passage": ("document", "passage", "corpus")}
"""Words in the names of prompts for them."""
_MOST_MODULES, _LONGEST_PATH = 64, 200
_ONE_VECTOR = "Give a model that makes one vector of each text"
_OTHER_KINDS = {
    "CrossEncoder": "a cross-encoder",
    "SparseEncoder": "a sparse encoder",
    "MultiVectorEncoder": "an encoder of many vectors",
}
"""Models of sentence-transformers that are something else, by what its settings call them."""
_OTHER_MODULES = {
    "LogitScore": "a cross-encoder",
    "SpladePooling": "a sparse encoder",
    "MLMTransformer": "a sparse encoder",
    "SparseAutoEncoder": "a sparse encoder",
    "CSRSparsity": "a sparse encoder",
    "SparseStaticEmbedding": "a sparse encoder",
    "MultiVectorMask": "an encoder of many vectors",
}
_OTHER_TASKS = {"sequence-classification": "a cross-encoder", "fill-mask": "a sparse encoder"}
_READERS: Mapping[str, Callable[[Mapping[str, Any], str], HeadModule]] = {
    "Dense": Dense.read,
    "LayerNorm": LayerNorm.read,
    "Normalize": lambda settings, where: Normalize(),
}


@dataclass(frozen=True)
class SentenceFiles:
    """What the small files say."""

    transformer: Path
    """The folder of the transformer and the tokenizer."""
    pooling_settings: Mapping[str, Any] | None = None
    pooling_file: str = ""
    head: Mapping[Path, Callable[[], HeadModule]] = field(default_factory=dict)
    """What builds each module behind the pooling, by its folder, in order."""
    is_plain: bool = False
    """Whether it is a folder of transformers, which says nothing of sentences."""
    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str = "cosine"

    def pooling(self, width: int) -> Pooling:
        """The pooling of token vectors of this width."""
        if self.pooling_settings is None:
            return Pooling(width)
        found = Pooling.read(self.pooling_settings, self.pooling_file)
        if found.width != width:
            raise UserError(f"Fetch or copy {self.pooling_file} again; it pools vectors of {found.width}, not {width}.")
        return found


def prompt_for(purpose: str, prompts: Mapping[str, str], default: str | None = None) -> str:
    """What stands before a text that is a `query` or a `passage`: the prompt of that name (`document` first, as in
    sentence-transformers), or the one whose name has the word, such as `web_search_query`, or the default one, or
    nothing. Where several may be meant, that is refused."""
    exact = next((word for word in PURPOSES[purpose] if word in prompts), None)
    found = {name: text for name, text in prompts.items() if text and _purpose_of(name) == purpose}
    if exact is not None and (prompts[exact] or not found):
        return prompts[exact]
    if len(set(found.values())) == 1 and exact is None:
        return next(iter(found.values()))
    if default and default in prompts and not found and _purpose_of(default) in (purpose, None):
        return prompts[default]
    if purpose == "query" and not found:
        found = {name: text for name, text in prompts.items() if text and _purpose_of(name) is None}
    if found:
        raise UserError(f"it may be any of {quoted(found)}, or none")
    return ""


def _purpose_of(name: str) -> str | None:
    """What a prompt of this name is for; `query` in `query_for_document`."""
    return next((purpose for purpose, words in PURPOSES.items() if any(word in name.lower() for word in words)), None)


def read_sentence_files(folder: Path) -> SentenceFiles:
    """Read and check the small files of a folder."""
    if (folder / "adapter_config.json").is_file():
        raise UserError(f"Merge the adapters into their base first; {folder} holds adapters alone.")
    settings = _read(folder / SETTINGS)
    _refuse_kind(_OTHER_KINDS.get(str(settings.get("model_type"))), folder)
    modules = _read_modules(folder)
    if modules is None:
        _check_config(folder)
        return SentenceFiles(folder, is_plain=True)
    kinds = [kind for kind, _ in modules]
    for kind in kinds:
        _refuse_kind(_OTHER_MODULES.get(kind), folder)
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise UserError(
            f"Give a model that begins with Transformer and Pooling; {folder / MODULES} lists {', '.join(kinds)}."
        )
    own = _read(modules[0][1] / TRANSFORMER_SETTINGS)
    _refuse_kind(_OTHER_TASKS.get(str(own.get("transformer_task"))), folder)
    _check_config(modules[0][1])
    prompts = settings.get("prompts")
    prompts = prompts if isinstance(prompts, dict) else {}
    return SentenceFiles(
        modules[0][1],
        pooling_settings=_module_settings(modules[1][1]),
        pooling_file=str(modules[1][1] / _CONFIG),
        head={path: _head_module(kind, path, folder) for kind, path in modules[2:]},
        max_length=own.get("max_seq_length") if isinstance(own.get("max_seq_length"), int) else None,
        lower_case=bool(own.get("do_lower_case")),
        prompts={name: text for name, text in prompts.items() if isinstance(text, str)},
        default_prompt=settings.get("default_prompt_name"),
        similarity=settings.get("similarity_fn_name") or "cosine",
    )


def _read_modules(folder: Path) -> list[tuple[str, Path]] | None:
    """Kind and folder of each module; None where there is no list of them."""
    if not (folder / MODULES).is_file():
        return None
    listed = read_json_if_readable(folder / MODULES)
    try:
        entries = [(str(entry["type"]), str(entry["path"])) for entry in listed]
    except (TypeError, KeyError):
        entries = []
    if not 0 < len(entries) <= _MOST_MODULES:
        raise UserError(
            f"Fetch or copy {folder / MODULES} again; it is not a list of modules with type and path, at most "
            f"{_MOST_MODULES} of them."
        )
    return [(_kind(name, folder), folder / _inside(path, folder)) for name, path in entries]


def _kind(name: str, folder: Path) -> str:
    """A module's name without its package, which differs between versions; only sentence-transformers' own."""
    found = re.fullmatch(r"sentence_transformers\.(?:\w+\.)*(\w+)", name)
    if found is None:
        raise UserError(
            f"Give a model with stock modules of sentence-transformers; {folder / MODULES} names {name!r}, and code of "
            "models is not run."
        )
    return found[1]


def _inside(path: str, folder: Path) -> str:
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or len(path) > _LONGEST_PATH or "\0" in path:
        shown = repr(path)[:100]
        raise UserError(f"Fetch or copy {folder / MODULES} again; it names {shown}, which is outside of the folder.")
    return path


def _head_module(kind: str, path: Path, folder: Path) -> Callable[[], HeadModule]:
    if kind not in _READERS:
        raise UserError(
            f"Give a model with no other modules behind the pooling than {', '.join(_READERS)}; {folder / MODULES} "
            f"names {kind!r}."
        )
    settings = {} if kind == "Normalize" else _module_settings(path)
    return partial(_READERS[kind], settings, str(path / _CONFIG))


def _module_settings(path: Path) -> Mapping[str, Any]:
    found = _read(path / _CONFIG)
    if not found:
        raise UserError(f"Fetch or copy {path / _CONFIG}; it is missing or cannot be read.")
    return found


def _check_config(folder: Path) -> None:
    if not (folder / _CONFIG).is_file():
        raise UserError(
            f"Give the folder of a model of sentence-transformers or transformers; {folder} has no {_CONFIG}."
        )


def _refuse_kind(kind: str | None, folder: Path) -> None:
    if kind is not None:
        raise UserError(f"{_ONE_VECTOR}; {folder} holds {kind}.")


def _read(path: Path) -> Mapping[str, Any]:
    """A file of settings; nothing where there is none."""
    found = read_json_if_readable(path)
    return found if isinstance(found, dict) else {}
