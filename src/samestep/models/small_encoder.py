"""A small encoder without any download: a random BERT, and a tokenizer that is learned from given texts."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from samestep.core.errors import UserError
from samestep.models.sentence_encoder import SentenceEncoder
from samestep.models.sentence_folder import EncoderSource
from samestep.models.sentence_modules import Normalize, Pooling
from samestep.models.text_tokenizer import TextTokenizer
from samestep.models.transformer_plan import TransformerPlan

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
"""The special tokens, in the order of their ids."""
_LONGEST = 24
"""Letters of a word beyond which it is unknown; texts have addresses and lines of dashes."""


def small_encoder(
    texts: Sequence[str],
    *,
    width: int = 128,
    layers: int = 2,
    heads: int = 4,
    vocabulary: int = 4000,
    max_length: int = 128,
    dropout: float = 0.0,
) -> EncoderSource:
    """A BERT of this shape whose words are learned from `texts`; the same texts give the same tokens everywhere.

    Its vectors are the normalised mean of its tokens'. Its weights are drawn by the learner, from the run's seed.
    """
    if width % heads:
        raise UserError(f"Set width to a multiple of heads; {width} is no multiple of {heads}.")
    tokenizer = TextTokenizer(_learn_word_pieces(texts, vocabulary, max_length))
    plan = TransformerPlan.of(_bert(len(tokenizer.inner), width, layers, heads, max_length), "float32", dropout)
    return EncoderSource(
        network=partial(_build, plan), tokenizer=tokenizer, dim=width, max_length=max_length, config=plan.published
    )


def _build(plan: TransformerPlan) -> SentenceEncoder:
    return SentenceEncoder(plan.build(), Pooling(plan.width), [Normalize()])


def _bert(vocabulary: int, width: int, layers: int, heads: int, max_length: int) -> Any:
    try:
        from transformers import BertConfig
    except ImportError as error:
        raise UserError(
            'Install the library transformers with: pip install "samestep[hf]"; a sentence encoder needs it '
            f"({str(error).splitlines()[0]})."
        ) from error
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=max_length,
        type_vocab_size=1,
        pad_token_id=SPECIAL.index("[PAD]"),
    )


def _learn_word_pieces(texts: Sequence[str], vocabulary: int, max_length: int) -> Any:
    """A tokenizer of transformers. Ids follow the order of spelling: that in which the library learns pieces depends on
    its threads."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    learner = _word_pieces({token: number for number, token in enumerate(SPECIAL)})
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    pieces = sorted(set(learner.get_vocab()) - set(SPECIAL))
    inner = _word_pieces({token: number for number, token in enumerate((*SPECIAL, *pieces))})
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=max_length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


def _word_pieces(vocabulary: dict[str, int]) -> Any:
    """Lower case, split at spaces and punctuation."""
    import tokenizers

    model = tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=_LONGEST)
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    inner.decoder = tokenizers.decoders.WordPiece()
    return inner
