"""What version 4 of transformers calls otherwise than version 5, in a folder that version 5 wrote."""

from pathlib import Path
from typing import Any

from samestep.core.json_files import read_object, write_json
from samestep.models.folder_fields import TOKENIZER_CONFIG
from samestep.models.hub_download import CONFIG


def write_older_names(folder: Path) -> None:
    """Add the older names. Version 4 reads the rotary wavelengths and the type of the weights under these, and without
    them computes something else, in silence; and it does not know the class that version 5 gives most tokenizers."""
    if (folder / CONFIG).is_file():
        found = read_object(folder / CONFIG)
        write_json(folder / CONFIG, {**_older_fields(found), **found})
    if (folder / TOKENIZER_CONFIG).is_file():
        tokenizer = read_object(folder / TOKENIZER_CONFIG)
        if tokenizer.get("tokenizer_class") == "TokenizersBackend":
            write_json(folder / TOKENIZER_CONFIG, {**tokenizer, "tokenizer_class": "PreTrainedTokenizerFast"})


def _older_fields(config: dict[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_parameters")
    older = {"torch_dtype": config.get("dtype")}
    if isinstance(rope, dict) and "rope_theta" in rope:
        scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
        is_scaled = rope.get("rope_type", "default") != "default"
        older |= {"rope_theta": rope["rope_theta"], **({"rope_scaling": scaling} if is_scaled else {})}
    return {name: value for name, value in older.items() if value is not None}
