"""Settings that have no effect beside others; the family is known by then."""

from samestep import NoEffect

NO_EFFECT = (
    NoEffect(
        ("model.text.*", "model.lora_rank", "padding_free"),
        lambda c: c.family == "protein",
        "it is for texts, and the pairs are proteins; leave it out",
    ),
    NoEffect(
        ("model.protein.*", "decoding_order", "sampling_temperature"),
        lambda c: c.family == "text",
        "it is for proteins, and the pairs are texts; leave it out",
    ),
    NoEffect(
        ("model.protein.*", "model.text.*"),
        lambda c: c.model.name is not None or c.model.dir is not None,
        "the model that base_model_name names has its own shape; leave out one of the two",
    ),
    NoEffect(
        "objective.label_smoothing",
        lambda c: c.objective.loss_type != "dpo",
        "only the loss dpo has label smoothing; set objective.loss_type=dpo, or leave it out",
    ),
    NoEffect(
        ("data.validation_fraction", "data.split_by"),
        lambda c: c.data.validation is not None,
        "the validation records are a file of their own; leave out data.validation (--val_data) or this",
    ),
)
"""Settings that have no effect beside others."""
