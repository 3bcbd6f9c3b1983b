"""What `samestep sample` does: sequences for structures, or texts after prompts, the same on any number of ranks."""

from collections.abc import Mapping, Sequence

from samestep import Trained, World
from samestep.core.output import print_text
from samestep.core.records import Json
from samestep.recipes.dpo.protein_sampling import design_sequences
from samestep.recipes.dpo.sample_options import SampleOptions
from samestep.recipes.dpo.text_sampling import complete_prompts


def generate(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """One record for each sequence or text, in order, on every rank."""
    if trained.config.family == "text":
        options.check_for("text")
        return complete_prompts(trained, options, world)
    options.check_for("protein")
    return design_sequences(trained, options, world)


def show(trained: Trained, records: Sequence[Mapping[str, Json]]) -> None:
    """Print the texts, each after a line if there are several; or the sequences as FASTA, and where they are."""
    for number, record in enumerate(records, 1):
        if "files" not in record and len(records) > 1:
            print_text(f"--- {number} of {len(records)} ---")
        print_text(record["text"])
    for files in dict.fromkeys(" and ".join(record["files"]) for record in records if "files" in record):
        print_text(f"wrote {files}")
