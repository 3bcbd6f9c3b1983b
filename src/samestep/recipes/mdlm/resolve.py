"""What a run takes over from its data and from the model it begins with, settled before the run is recorded."""

from dataclasses import replace
from pathlib import Path

from samestep.core.errors import UserError
from samestep.data.tokenizer import load_tokenizer
from samestep.data.tokenizer.vocabulary import ByteTokenizer, Tokenizer, Vocabulary
from samestep.models.transformer import TransformerConfig
from samestep.recipes.mdlm.config import PRESETS, MdlmConfig
from samestep.recipes.mdlm.corpus import Corpus, DataConfig, row_length, tokenizer_of
from samestep.recipes.mdlm.pretrained import begin_with, is_published, read_config
from samestep.train.pretrained.sources import is_checkpoint, is_run
from samestep.train.pretrained.trained import Trained, open_trained

ROUND = 64
"""An embedding that was rounded up for speed is rounded up to a multiple of this."""
PROBES = 200
"""So many tokens are read to tell whether two tokenizers are the same."""
WEIGHT_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


def resolve(config: MdlmConfig) -> MdlmConfig:
    """The configuration with the network of the model that the run begins with, or with room for its data."""
    first = origin(config)
    if first is None:
        return replace(config, model=_with_room(config.model, config.data))
    usual = TransformerConfig(**PRESETS.get(config.preset, {}).get("model", {}))
    return replace(config, model=begin_with(str(config.init_from), first.config.model, config.model, usual))


def origin(config: MdlmConfig) -> Trained | None:
    """The model that the run's first weights are of; None where they are fresh, or in a file that is silent.

    Opening it may mean to check every byte of a checkpoint: open it once, and pass it on.
    """
    if not config.init_from:
        return None
    source = Path(config.init_from)
    if not source.exists() and source.suffix in WEIGHT_FILES:
        return None  # who opens it will say so
    if not source.exists():
        name = config.init_from if "/" in config.init_from else f"GSAI-ML/{config.init_from}"
        raise UserError(
            f"There is no {source} here; give the local folder of a published model, fetched for example with: "
            f"hf download {name} --local-dir {source.name}"
        )
    if is_published(source) or is_run(source) or is_checkpoint(source):
        return open_trained(str(source))
    return None


def _with_room(network: TransformerConfig, data: DataConfig) -> TransformerConfig:
    """A fresh network has the vocabulary of its data, and takes rows as long as they are."""
    size = tokenizer_of(data).vocabulary.size
    rows = network.embedding_size
    return replace(
        network,
        vocab_size=size,
        embedding_size=rows if rows is None or rows >= size else -(-size // ROUND) * ROUND,
        max_sequence_length=max(network.max_sequence_length, row_length(data)),
    )


def check(config: MdlmConfig, text: Corpus, first: Trained | None) -> None:
    """Refuse data whose tokens mean something else to the run's first weights, or that the network has no room for."""
    if first is not None and not _same_tokens(first, text.tokenizer):
        raise UserError(
            f"{text.name} is in other tokens than {config.init_from} knows; prepare the text with its tokenizer: "
            f"samestep data prepare TEXT --tokenizer {first.tokenizer}"
        )
    text.check_fits(config.model.vocab_size, config.model.embeddings, config.model.max_sequence_length)


def _same_tokens(first: Trained, ours: Tokenizer) -> bool:
    theirs = load_tokenizer(first.tokenizer)
    if is_published(first.source) and isinstance(theirs, ByteTokenizer):  # it came without a tokenizer
        return read_config(first.source).ids["mask_token_id"] == ours.vocabulary.mask
    return _sign(theirs) == _sign(ours)


def _sign(tokenizer: Tokenizer) -> tuple[Vocabulary, list[str]]:
    """What two tokenizers of the same kind may differ in."""
    known = range(min(PROBES, tokenizer.vocabulary.size))
    return tokenizer.vocabulary, [tokenizer.decode([token]) for token in known]
