"""Every setting of the recipe beyond those that all recipes share."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from samestep import Config, UserError, free
from samestep.core.config.bounds import Bounds, Count, CountOrZero, PartialShare, Positive
from samestep.core.config.checked import CheckedConfig
from samestep.data.records.reading import RecordsConfig
from samestep.data.records.too_long import TooLong
from samestep.recipes.distill.objective import AlignObjective, RankObjective


def as_list(named: str | list[str] | None) -> list[str]:
    """One path, several, or none."""
    return [named] if isinstance(named, str) else list(named or ())


@dataclass(frozen=True)
class DataConfig(RecordsConfig):
    """Queries and passages."""

    PATHS: ClassVar = ("train", "phase1")
    train: str | list[str] | None = None
    """A file or folder of records (.jsonl, .json, .csv, .tsv, .parquet) or a dataset of the Hub (org/name:split) with
    query and passage, or query, positive and negatives; a folder in BEIR's format, or its qrels/SPLIT.tsv; or several,
    drawn in the proportion of weights, as [a.jsonl:3, b.csv:1]. null: the documentation inside Python."""
    phase1: str | list[str] | None = None
    """What phase 1 learns in place of train: the same kinds of records, or single texts (a column text, and perhaps a
    title); or several of these with weights, as [a.jsonl:3, texts.csv:1]. Queries that are kept for validation or the
    test are left out, and so are single texts that are kept. null: the texts of train."""
    validation: str | None = None
    """A folder in BEIR's format to validate on, whose queries are then left out of train; null: a part of the records,
    or of the documentation."""
    validation_fraction: PartialShare = 0.05
    """That part of the queries, rounded up, chosen by the seed."""
    validation_queries: Count = 500
    """Queries of that part at most."""
    test_fraction: Annotated[float, Bounds(least=0, below=1)] = 0.0
    """Another part of the queries, with all their records: neither trained on nor validated with. `samestep evaluate`
    then measures on it."""
    sentences: bool = False
    """Phase 1 also learns single sentences of all passages, and the passages of the validation set (not its queries):
    more to learn from where records are few."""
    too_long: TooLong = "truncate"
    """What to do with texts of more than student.max_length tokens: truncate; drop, with the records of a query or an
    answer that is too long; or refuse. The retrieval set keeps them, and they are cut."""
    limit: Annotated[int, Bounds(least=2)] | None = None
    """Use only this many records, for a quick trial: from the beginning of files, or spread over the documentation;
    null: all."""

    @property
    def named(self) -> list[str]:
        """What `train` names."""
        return as_list(self.train)


@dataclass(frozen=True)
class ShapeConfig(CheckedConfig):
    """A small network with random weights, where no model is named."""

    width: Count = 64
    """Width of a layer, and size of a vector."""
    layers: Count = 2
    """Number of layers."""
    heads: Count = 4
    """Heads of attention."""
    vocabulary: Count = 4000
    """Tokens, learned from the training texts."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UserError(f"Set width to a multiple of heads={self.heads}; it is {self.width}.")


@dataclass(frozen=True)
class ReadingConfig(CheckedConfig):
    """How a model reads texts."""

    query_instruction: str | None = None
    """What stands before a query; null: what its folder says, if anything."""
    passage_instruction: str | None = None
    """What stands before a passage; null: what its folder says, if anything."""
    query_prompt_name: str | None = None
    """Which of its folder's prompts stands before a query; null: `query`, or the only one whose name has that word."""
    passage_prompt_name: str | None = None
    """Which stands before a passage; null: `document`, `passage`, or the only one whose name has such a word."""
    attention: Literal["bidirectional", "causal"] | None = None
    """Of a Llama, Mistral or Qwen: every token sees all tokens of its text, or those before it. null: what its folder
    says; to be set where that names code of its own, which is not run."""
    append_eos: bool | None = None
    """Whether every text ends with the end token, also one that is cut. null: what its tokenizer does; to be set where
    that names code of its own."""

    def __post_init__(self) -> None:
        for text, name in ((self.query_instruction, "query"), (self.passage_instruction, "passage")):
            if text is not None and getattr(self, f"{name}_prompt_name") is not None:
                raise UserError(f"Set {name}_instruction, which is a text, or {name}_prompt_name, not both.")


@dataclass(frozen=True)
class TeacherConfig(ReadingConfig):
    """How the teacher is used."""

    mode: Literal["cached", "live"] = "cached"
    """cached: a stage of its own computes the vectors of all texts once, and training holds one network; live: the
    teacher is asked with every batch."""
    batch_size: Count = free(32)
    """Texts that a device gives the teacher at once, in the stage that fills the cache."""
    max_length: Count = 512
    """Tokens of a text that the teacher reads at most."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of its weights; auto: bfloat16 on a GPU, float32 on a CPU."""
    cache_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Type of cached vectors."""
    save_every: Count = free(100)
    """Steps between two saves of the cache: what a kill costs at most."""
    shape: ShapeConfig = field(default_factory=lambda: ShapeConfig(width=96, layers=2, heads=4))
    """The network where no teacher_model is named."""


@dataclass(frozen=True)
class StudentConfig(ReadingConfig):
    """What the student reads."""

    max_length: Count = 256
    """Tokens of a text that the student reads at most."""
    matryoshka_dims: list[Count] = field(default_factory=list)
    """Sizes at which the beginning of a vector is trained to be a vector too, such as [384, 128, 64]; without any: only
    whole vectors."""
    shape: ShapeConfig = field(default_factory=ShapeConfig)
    """The network where no student_model is named."""


@dataclass(frozen=True)
class MiningConfig(CheckedConfig):
    """Hard negatives: passages that the teacher finds close to a query and that do not answer it."""

    negatives: CountOrZero = 0
    """Negatives that are found for each record, in place of its own; 0: none are mined."""
    highest: Positive = 0.95
    """Only passages that the teacher scores below this times the positive: closer ones may be answers too."""
    skip: CountOrZero = 0
    """The closest of these are passed over."""


@dataclass(frozen=True)
class DistillConfig(Config):
    """A small retriever that learns from a large one."""

    preset: str = "tiny"
    """A named set of values."""
    best_at_end: bool = free(True)
    """When a phase ends, take back the best validated state, for the files it hands over. Phase 2 validates what it
    begins with too, so it never hands over less than phase 1 did."""
    teacher_model: str | None = None
    """A folder of sentence-transformers or transformers, a model of the Hub (org/name or org/name@revision), or a run.
    null: a small random network."""
    student_model: str | None = None
    """The same for the student."""
    use_projection: bool = True
    """true: layers behind the student bring its vectors to the teacher's size; false: no layers, the student learns the
    first numbers of the teacher's vectors, scaled to length 1."""
    data: DataConfig = field(default_factory=DataConfig)
    """Queries and passages."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    """How the teacher is used."""
    student: StudentConfig = field(default_factory=StudentConfig)
    """What the student reads."""
    mining: MiningConfig = field(default_factory=MiningConfig)
    """Hard negatives from the teacher."""
    align: AlignObjective = field(default_factory=AlignObjective)
    """Phase 1: the teacher's vectors."""
    rank: RankObjective = field(default_factory=RankObjective)
    """Phase 2: which passage answers which query."""
    negatives: CountOrZero = 7
    """Negatives of a record that are used at most, in phase 2."""
    phase1_epochs: Count = 1
    """Passes over the texts in phase 1."""
    phase2_epochs: Count = 3
    """Passes over the records in phase 2."""
    phase1_lr: Positive = 2e-5
    """Peak learning rate of phase 1."""
    phase2_lr: Positive = 5e-6
    """Peak learning rate of phase 2."""
    max_samples_phase1: Count = 100_000
    """Records whose texts are used in phase 1, at most; or texts, see phase1_samples."""
    phase1_samples: Literal["records", "texts"] = "records"
    """What max_samples_phase1 counts: records, each with all of its texts; or distinct texts."""
    max_samples_phase2: Count = 500_000
    """Records that are used in phase 2, at most."""
    skip_phase1: bool = False
    """Begin with phase 2: with the best weights of phase 1 of the newest run in `out` with the same models, or else
    with the student as it is."""
    skip_phase2: bool = False
    """End after phase 1."""
    bucketed: bool = True
    """Put texts of similar length into one step, for less padding."""
    save_to_artifacts: bool = free(False)
    """When the last stage ends, also write the student as a folder of sentence-transformers."""
    artifacts_dir: str = free("artifacts")
    """Where to: a folder in it has the name of the run."""

    def __post_init__(self) -> None:
        if self.skip_phase1 and self.skip_phase2:
            raise UserError("Leave out --skip_phase1 or --skip_phase2: with both there is nothing to train.")
