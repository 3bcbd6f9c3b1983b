"""Tiny encoders of transformers with random weights, as folders, and sentence-transformers in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samestep.models.sentence_encoder import SentenceEncoder
from samestep.models.text_tokenizer import TextTokenizer

TEXTS = [
    "a list of numbers",
    "The dictionary maps a key to its value.",
    "def",
    "a generator yields one value a time",
]
NAMES = {"bert": "Bert", "mpnet": "MPNet", "distilbert": "DistilBert", "xlm-roberta": "XLMRoberta", "qwen2": "Qwen2"}
"""How transformers begins the names of a kind's classes."""
DECODERS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
POSITIONS = 40
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
"""MPNet counts positions from the padding token, which it takes to have the id 1."""


def tokenizer_of(kind: str, without_special: bool = False) -> Any:
    """Whole words are tokens; of a decoder they are bytes and pairs of them, as transformers wants them."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    if kind in DECODERS:
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        letters = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=300, special_tokens=list(_SPECIAL), initial_alphabet=letters, show_progress=False
        )
        inner.train_from_iterator(TEXTS, trainer)
    else:
        words = sorted({word for text in TEXTS for word in text.lower().replace(".", " . ").split()})
        vocabulary = {word: number for number, word in enumerate((*_SPECIAL, *words))}
        inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        inner.normalizer, inner.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    ends = [("<s>", 0), ("</s>", 2)]
    if not without_special:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def backbone_folder(kind: str, folder: Path, *, without_special: bool = False, **changes: Any) -> Path:
    """A folder of transformers with a random model of this kind, whose weights are not small. `without_special`: its
    tokenizer puts nothing around a text."""
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    if kind == "distilbert":
        sizes = {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24}
    if kind in DECODERS:
        sizes["num_key_value_heads"] = 2
    tokenizer = tokenizer_of(kind, without_special)
    more = {"vocab_size": len(tokenizer) + 3, "max_position_embeddings": POSITIONS, "pad_token_id": 1, **changes}
    name = {**NAMES, **DECODERS}[kind]
    config = getattr(transformers, f"{name}Config")(**(sizes | more), initializer_range=0.3)
    torch.manual_seed(7)
    model = getattr(transformers, f"{name}Model")(config).float()  # whatever the type of a proof
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)  # norms and biases too
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def padded(tokenizer: TextTokenizer, texts: list[str], max_length: int, more: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens and mask of texts, with some padding more than is needed."""
    rows = tokenizer.encode_all(texts, max_length)
    length = max(map(len, rows)) + more
    tokens = torch.full((len(rows), length), tokenizer.pad)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    return tokens, (torch.arange(length) < torch.tensor([[len(row)] for row in rows])).long()


def vectors_of(encoder: SentenceEncoder, tokenizer: TextTokenizer, texts: list[str], max_length: int) -> Tensor:
    """What an encoder makes of texts."""
    with torch.no_grad():
        found: Tensor = encoder(*padded(tokenizer, texts, max_length))
    return found


class SentenceTransformers:
    """A process with sentence-transformers and without samestep, which cannot be imported there. Its import takes many
    seconds, so it begins at once and all tests share it."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        script = Path(__file__).with_name("sentence_transformers_process.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**environment, "HF_HUB_OFFLINE": "1"},
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        """Its answer; see the script."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question, default=str) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
