"""Settings that a run gets from its data and from its pretrained model, resolved before the run is recorded."""

from dataclasses import replace
from pathlib import Path

from samestep import Trained, UserError
from samestep.data.tokenizer.vocabulary import ByteTokenizer, Tokenizer, Vocabulary
from samestep.models.transformer import TransformerConfig
from samestep.recipes.mdlm.config import PRESETS, MdlmConfig
from samestep.recipes.mdlm.corpus import Corpus, DataConfig, data_tokenizer, row_length
from samestep.recipes.mdlm.pretrained import is_published, read_config, resolve_network
from samestep.recipes.mdlm.tokenizer import load_tokenizer
from samestep.train.trained.trained_model import open_trained
from samestep.train.weights.sources import is_checkpoint, is_run

ROUND = 64
"""An embedding that is rounded up for speed is rounded up to a multiple of this."""
COMPARED_TOKENS = 200
"""How many tokens are decoded to compare two tokenizers."""
WEIGHT_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


def resolve_config(config: MdlmConfig) -> MdlmConfig:
    """The configuration with the network of the pretrained model, or with a fresh network that fits the data."""
    initial = initial_model(config)
    if initial is None:
        return replace(config, model=_fit_to_data(config.model, config.data))
    preset = TransformerConfig(**PRESETS.get(config.preset, {}).get("model", {}))
    return replace(config, model=resolve_network(str(config.init_from), initial.config.model, config.model, preset))


def initial_model(config: MdlmConfig) -> Trained | None:
    """The model that `init_from` names; None if weights are fresh, or in a file that holds nothing but weights.

    Opening it may check every byte of a checkpoint: open it once, and pass it on.
    """
    if not config.init_from:
        return None
    source = Path(config.init_from)
    if not source.exists() and source.suffix in WEIGHT_FILES:
        return None  # opening the weights reports that
    if not source.exists():
        name = config.init_from if "/" in config.init_from else f"GSAI-ML/{config.init_from}"
        raise UserError(
            f"There is no {source} here; give the local folder of a published model, downloaded for example with: "
            f"hf download {name} --local-dir {source.name}"
        )
    if is_published(source) or is_run(source) or is_checkpoint(source):
        return open_trained(str(source))
    return None


def _fit_to_data(network: TransformerConfig, data: DataConfig) -> TransformerConfig:
    """The fresh network with the vocabulary of its data, and long enough for its rows."""
    size = data_tokenizer(data).vocabulary.size
    rows = network.embedding_size
    return replace(
        network,
        vocab_size=size,
        embedding_size=rows if rows is None or rows >= size else -(-size // ROUND) * ROUND,
        max_sequence_length=max(network.max_sequence_length, row_length(data)),
    )


def check_corpus(config: MdlmConfig, text: Corpus, initial: Trained | None) -> None:
    """Refuse data in other tokens than those of the pretrained model, or that does not fit into the network."""
    if initial is not None and not _same_tokens(initial, text.tokenizer):
        raise UserError(
            f"{text.name} has other tokens than {config.init_from}; prepare the text with the model's tokenizer: "
            f"samestep data prepare TEXT --tokenizer {initial.tokenizer}"
        )
    text.check_fits(config.model.vocab_size, config.model.embeddings, config.model.max_sequence_length)


def _same_tokens(initial: Trained, ours: Tokenizer) -> bool:
    theirs = load_tokenizer(initial.tokenizer)
    if is_published(initial.source) and isinstance(theirs, ByteTokenizer):  # it came without a tokenizer
        return read_config(initial.source).ids["mask_token_id"] == ours.vocabulary.mask
    return _signature(theirs) == _signature(ours)


def _signature(tokenizer: Tokenizer) -> tuple[Vocabulary, list[str]]:
    """The vocabulary and the first tokens as text, to compare tokenizers by."""
    known = range(min(COMPARED_TOKENS, tokenizer.vocabulary.size))
    return tokenizer.vocabulary, [tokenizer.decode([token]) for token in known]
