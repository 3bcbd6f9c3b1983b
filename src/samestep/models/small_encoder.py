"""A small encoder without any download: a random BERT, and a tokenizer that is learned from given texts."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from samestep.core.errors import UserError
from samestep.models.sentence_encoder import SentenceEncoder
from samestep.models.sentence_folder import EncoderSource
from samestep.models.sentence_modules import Normalize, Pooling
from samestep.models.text_tokenizer import TextTokenizer
from samestep.models.transformer_plan import TransformerPlan, import_transformers

SPECIAL = ("[PAD]", "[CLS]", "[SEP]")
"""The special tokens, in the order of their ids."""
SMALLEST = 256 + len(SPECIAL)
"""The smallest vocabulary: every byte is a token."""


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
    """A BERT of this shape whose tokens are learned from `texts`; the same texts give the same tokens everywhere.

    Its vectors are the normalised mean of its tokens'. Its weights are drawn by the learner, from the run's seed.
    """
    if width % heads:
        raise UserError(f"Set width to a multiple of heads; {width} is no multiple of {heads}.")
    if vocabulary < SMALLEST:
        raise UserError(f"Set vocabulary to {SMALLEST} or more, since every byte is a token; it is {vocabulary}.")
    tokenizer = TextTokenizer(_learn_words(texts, vocabulary, max_length))
    plan = TransformerPlan.of(_bert(len(tokenizer.inner), width, layers, heads, max_length), "float32", dropout)
    return EncoderSource(
        network=partial(_build, plan), tokenizer=tokenizer, dim=width, max_length=max_length, config=plan.published
    )


def _build(plan: TransformerPlan) -> SentenceEncoder:
    return SentenceEncoder(plan.build(), Pooling(plan.width), [Normalize()])


def _bert(vocabulary: int, width: int, layers: int, heads: int, max_length: int) -> Any:
    return import_transformers().BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=max_length,
        type_vocab_size=1,
        pad_token_id=SPECIAL.index("[PAD]"),
    )


def _learn_words(texts: Sequence[str], vocabulary: int, max_length: int) -> Any:
    """A tokenizer of transformers: bytes and their most frequent sequences, in lower case, spaces as one.

    Not word pieces: of those the library learns others each time, since it numbers the letters within words in the
    order of a hash table.
    """
    transformers = import_transformers()
    import tokenizers  # which transformers needs, too
    from tokenizers import normalizers, pre_tokenizers

    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    one_space = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    inner.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), one_space])
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, model_max_length=max_length, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )
