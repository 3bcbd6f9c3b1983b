"""Answers questions about models with sentence-transformers alone: one line of JSON in, one line out.

{"make": FOLDER, "base": FOLDER, "pooling": [...], "modules": [...], "prompts": {...}, "texts": [...]}
{"load": FOLDER, "texts": [...], "options": {...}, "prompt_name": NAME, "purpose": "query" or "document"}
{"kl": TEMPERATURE, "vectors": [query, passage, ...], "scores": [[...], ...]}
"""

import json
import logging
import os
import sys
import traceback
from typing import Any

sys.modules["samestep"] = None  # type: ignore[assignment]
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


class Kept(logging.Handler):
    """Keeps what the libraries warn of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.lines.append(record.getMessage())


def main() -> None:
    """Answer until there is no more question."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules
    from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss
    from torch import nn

    torch.set_num_threads(1)
    kept = Kept()
    for name in ("transformers", "sentence_transformers"):
        logging.getLogger(name).addHandler(kept)

    def module(name: str, *sizes: Any) -> Any:
        if name == "Dense":
            return modules.Dense(sizes[0], sizes[1], activation_function=getattr(nn, sizes[2])())
        return getattr(modules, name)(*sizes)

    def make(question: dict[str, Any]) -> Any:
        torch.manual_seed(3)
        first = modules.Transformer(question["base"])
        pooling = modules.Pooling(first.get_embedding_dimension(), tuple(question["pooling"]))
        rest = [module(*given) for given in question.get("modules", [])]
        model = SentenceTransformer(
            modules=[first, pooling, *rest], prompts=question.get("prompts"), device="cpu", similarity_fn_name="dot"
        )
        model.save(question["make"])
        return model

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        kept.lines.clear()
        if "kl" in question:
            loss = DistillKLDivLoss(SentenceTransformer(modules=[modules.Normalize()]), temperature=question["kl"])
            columns = [torch.tensor(vectors, dtype=torch.float64) for vectors in question["vectors"]]
            scores = torch.tensor(question["scores"], dtype=torch.float64)
            return {"loss": float(loss.compute_loss_from_embeddings(columns, scores))}
        if "make" in question:
            model = make(question)
        else:
            model = SentenceTransformer(question["load"], device="cpu", **question.get("options", {}))
        purpose = question.get("purpose")
        encode = getattr(model, f"encode_{purpose}") if purpose else model.encode
        vectors = encode(question["texts"], prompt_name=question.get("prompt_name"), show_progress_bar=False)
        about = {"similarity": model.similarity_fn_name, "max_length": model.max_seq_length, "prompts": model.prompts}
        return {"vectors": vectors.tolist(), "warnings": list(kept.lines), **about}

    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Exception:
            found = {"error": traceback.format_exc()}
        print(json.dumps(found), file=answers)


main()
