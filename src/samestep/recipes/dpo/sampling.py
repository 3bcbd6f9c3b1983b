"""What `samestep sample` does: sequences for structures, or texts after prompts, the same on any number of ranks.

All that is random in a sequence follows from its decoding seed: the seed of the run, the design (what is read of the
file, its chains and mutable positions) and the number of the sample. So it does not depend on ranks, on how a file is
packed or on other structures.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep import GenerationConfig, Model, Trained, UserError, World, noise, pad_rows
from samestep.core.errors import print_error
from samestep.core.json_files import Json, write_atomically, write_json
from samestep.core.output import print_text
from samestep.core.paths import expand_home
from samestep.data.records.reading import leave_out
from samestep.data.records.rows import Problem
from samestep.kit.generation import generator_outside
from samestep.kit.showing import show_lines, show_texts
from samestep.models.decoding import position_limit
from samestep.models.protein_mpnn import LETTERS, UNKNOWN, ProteinMPNN
from samestep.models.protein_mpnn_sampling import decoding_order, sample
from samestep.recipes.dpo.config import SampleOptions
from samestep.recipes.dpo.designs import Design, DesignError, check_length, choose_design
from samestep.recipes.dpo.protein_data import PAD, design_row
from samestep.recipes.dpo.protein_family import kept_folder
from samestep.recipes.dpo.structures import read_structure
from samestep.recipes.dpo.task import POLICY
from samestep.recipes.dpo.text_family import open_text_model
from samestep.train.trained.batch_inference import complete, my_batches, network_of, say_idle

_SEED = noise.purpose("dpo/decoding seed")
_ORDER = noise.purpose("dpo/sampled order")
_LETTER = noise.purpose("dpo/sampled letter")
RESIDUES = 2**13
"""Residues in a batch, padding included: its edges take about 200 MB with the published network, and a few times that
in a layer."""
NATIVE = 0
"""The number among a structure's sequences of the one that is in its file, which is only scored."""
Request = tuple[int, int]
"""The number of a design, and that of a sequence for it: `NATIVE`, or a sample's, from 1."""
_METRICS = ("score", "global_score", "seq_recovery")
_FIELDS = ("design_chains", "fixed_chains", "mutable_positions", "mutable_ranges")


def generate(trained: Trained, options: SampleOptions, world: World, write_files: bool = True) -> list[dict[str, Json]]:
    """One record for each sequence or text, in order, on every rank."""
    if trained.config.family == "text":
        options.check_for("text")
        return complete_prompts(trained, options, world)
    options.check_for("protein")
    return design_sequences(trained, options, world, write_files)


def design(model: Model, structure: str | Path, **options: Any) -> list[dict[str, Json]]:
    """`model.design(structure)`: a record for each sequence, with the options of `samestep sample`; no files are
    written unless `output_dir` is given."""
    verb = model.recipe.sample
    assert verb is not None
    run = partial(generate, write_files="output_dir" in options)
    found: list[dict[str, Json]] = model.use(replace(verb, run=run), pdb_file=structure, **options)
    return [{name: value for name, value in one.items() if name != "files" or "output_dir" in options} for one in found]


def show(trained: Trained, records: Sequence[Mapping[str, Json]]) -> None:
    """Print the texts, or the sequences as FASTA, and where they are."""
    if trained.config.family == "text":
        return show_texts(records)
    show_lines(trained, records)
    for files in dict.fromkeys(" and ".join(record["files"]) for record in records):
        print_text(f"wrote {files}")


def complete_prompts(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """Complete each prompt `samples` times: one record per text, in order, on every rank."""
    requests = options.requests()
    given: dict[str, Any] = {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature}
    how = GenerationConfig(**{name: value for name, value in given.items() if value is not None})
    model = open_text_model(trained.config.model, world)
    prompts = [model.begin(({"role": "user", "content": text},) if options.chat else text) for text in requests.prompts]
    network, compute = network_of(trained, POLICY, world.device)
    _check_room(max(map(len, prompts)), how.max_new_tokens, position_limit(network))
    seed = trained.config.seed
    generator = generator_outside(model, "dpo/sampled texts", how, seed, world, options.batch_size)
    found = complete(generator, network, compute, requests.each(prompts), requests.ids())
    return requests.records({"text": model.decode(tokens), "finished": ended} for tokens, ended in found)


def _check_room(longest: int, new_tokens: int, limit: int | None) -> None:
    """On all ranks alike, though only some of them will have the prompt."""
    if longest == 0:
        raise UserError("Give a prompt with some text: for this model, it has no tokens.")
    if limit is not None and longest + new_tokens > limit:
        raise UserError(
            f"Set --max_new_tokens to {max(limit - longest, 0)} or less, or shorten the prompt: it has {longest} "
            f"tokens, and the model takes {limit} in all."
        )


@dataclass(frozen=True)
class NamedDesign:
    """A design, with the file that it comes from and those that its sequences go to."""

    file: Path
    design: Design
    folder: Path
    name: str
    """The name of its files, which no other design has."""

    @property
    def json_file(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def fasta_file(self) -> Path:
        return self.folder / f"{self.name}.fa"

    def by_chain(self, letters: str) -> dict[str, str]:
        """The letters of each design chain; `letters` begin with those of all design chains."""
        found, start = {}, 0
        for chain in self.design.design_chains:
            found[chain.id] = letters[start : start + len(chain)]
            start += len(chain)
        return found

    def about(self) -> dict[str, Json]:
        """What was designed, for its JSON file."""
        return {
            "pdb_file": str(self.file),
            "sha256": self.design.structure.sha256,
            "design_chains": [chain.id for chain in self.design.design_chains],
            "fixed_chains": [chain.id for chain in self.design.fixed_chains],
            "designed_positions": np.flatnonzero(_designed(self.design)).tolist(),
        }


def read_designs(options: SampleOptions, max_length: int, skip_invalid: bool) -> list[NamedDesign]:
    """Read and check every structure that is named; the same on every rank."""
    fields = {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}
    files = [expand_home(options.pdb_file)] if options.pdb_file else list(_listed(options.pdb_list or Path()))
    found: list[tuple[Path, Design]] = []
    problems: list[Problem] = []
    for number, file in enumerate(files, start=1):
        try:
            found.append((file, _design(file, fields, max_length)))
        except DesignError as problem:
            problems.append(Problem(str(file), str(problem), problem.about, number))
        except UserError as problem:
            problems.append(Problem(str(file), str(problem).rstrip("."), "file", number))
    if options.pdb_list is not None:
        left_out = leave_out(options.pdb_list, problems, len(files), skip_invalid)
        if left_out:
            print_error(left_out)
    elif problems:
        is_named = str(files[0]) in problems[0].text
        raise UserError(f"{problems[0].text}." if is_named else f"{files[0]} does not fit: {problems[0].text}.")
    names = _names([file for file, _ in found])
    return [NamedDesign(file, design, options.folder, name) for (file, design), name in zip(found, names, strict=True)]


def _listed(path: Path) -> Iterator[Path]:
    """The paths in a file, one on each line: from its folder, or from the working directory."""
    try:
        lines = expand_home(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        raise UserError(f"Give --pdb_list a text file with one path on each line; {path} cannot be read.") from None
    wanted = [line.strip() for line in lines if line.strip()]
    if not wanted:
        raise UserError(f"Put at least one path into {path}; it is empty.")
    for line in wanted:
        beside = expand_home(path).parent / expand_home(line)
        yield beside if beside.is_file() else expand_home(line)


def _design(file: Path, fields: dict[str, str], max_length: int) -> Design:
    design = choose_design(read_structure(file, kept_folder() / "structures"), fields)
    check_length(design, max_length)
    if not _designed(design).any():
        raise DesignError(
            "positions", "no position is left to design: none that may change has all of N, CA, C and O; name others"
        )
    return design


def _designed(design: Design) -> np.ndarray:
    """[design residues], bool: where letters are sampled. Unlike in training, an unknown letter is no hindrance."""
    resolved: np.ndarray = np.concatenate([chain.resolved for chain in design.design_chains])
    return design.mutable & resolved


def _names(files: Sequence[Path]) -> list[str]:
    """The names of files without their endings; of equal ones, all but the first get a number."""
    names: list[str] = []
    for file in files:
        stem = Path(file.name.removesuffix(".gz")).stem
        more = (f"{stem}_{number}" for number in range(2, len(files) + 2))
        names.append(stem if stem not in names else next(name for name in more if name not in names))
    return names


def design_sequences(
    trained: Trained, options: SampleOptions, world: World, write_files: bool = True
) -> list[dict[str, Json]]:
    """Design each structure `samples` times: one record per sequence, in order, on every rank.

    Rank 0 writes the files of a structure as soon as all of its sequences are there.
    """
    config = trained.config
    designs = read_designs(options, config.data.max_length, config.data.skip_invalid)
    is_writer = world.is_main and write_files
    world.run_on_all_ranks("making the folder", lambda: _make_folder(options.folder) if is_writer else None)
    requests = [(number, sample) for number in range(len(designs)) for sample in range(NATIVE, options.samples + 1)]
    network = trained.network(POLICY, world.device)
    assert isinstance(network, ProteinMPNN)
    temperature = config.sampling_temperature if options.temperature is None else options.temperature
    sampler = _Sampler(network, designs, config.seed, temperature)
    name = trained.run.path.name if trained.run else trained.source.stem
    model = {"model": str(trained.source), "model_name": name}
    about = {**model, "seed": config.seed, "temperature": temperature}
    results = _Results(designs, options.samples, about)
    lengths = [designs[number].design.length for number, _ in requests]
    for turn, batch in enumerate(my_batches(lengths, options.batch_size, world, most=RESIDUES)):
        parts = world.run_on_all_ranks("designing", partial(sampler, [requests[number] for number in batch]))
        if turn == 0:
            say_idle(sum(not part for part in parts), world)
        complete = results.add([sequence for part in parts for sequence in part])
        world.run_on_all_ranks("writing the designs", partial(results.write, complete if is_writer else []))
        world.activity.made_progress()
    return results.records()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"Give --output_dir a folder; {folder} cannot be one: {problem.strerror}.") from None


@dataclass(frozen=True)
class _Sampler:
    """Samples sequences for designs, several at once."""

    network: ProteinMPNN
    designs: Sequence[NamedDesign]
    seed: int
    temperature: float

    @torch.no_grad()
    def __call__(self, requests: Sequence[Request]) -> list[dict[str, Json]]:
        """A record for each request, in their order. A structure is encoded once, however many samples it gets."""
        if not requests:
            return []
        numbers = list(dict.fromkeys(number for number, _ in requests))
        device = self.network.W_e.weight.device
        rows = [design_row(self.designs[number].design) for number in numbers]
        pad = {name: value for name, value in PAD.items() if name in rows[0]}
        batch = {name: values.to(device) for name, values in pad_rows(rows, pad).items()}
        which = torch.tensor([numbers.index(number) for number, _ in requests], device=device)
        names = ("coordinates", "resolved", "residue_index", "chain")
        encoded = self.network.encode(*(batch[name] for name in names)).rows(which)
        fixed, resolved, native = (batch[name][which] for name in ("fixed", "resolved", "native"))
        seeds = [decoding_seed(self.seed, self.designs[number], sample) for number, sample in requests]
        keys = torch.tensor(seeds, device=device)[:, None]
        bits = noise.bits(_ORDER, keys, torch.arange(fixed.shape[1], device=device))
        order = decoding_order(fixed, resolved, bits)
        given = torch.where(fixed, native, UNKNOWN)  # what is not resolved is not sampled, and stays X

        def choose(log_probs: Tensor, place: int) -> Tensor:
            return noise.add_gumbel(log_probs, _LETTER, keys, place, temperature=self.temperature).argmax(1)

        is_native = torch.tensor([sample == NATIVE for _, sample in requests], device=device)[:, None]
        drawn = sample(self.network, encoded, given, order, ~fixed & ~is_native, choose).sequence
        sequence = torch.where(is_native, native, drawn)
        log_probs = self.network.decode(encoded, sequence, order).gather(2, sequence[..., None])[..., 0]
        is_design = ~fixed & resolved
        recovered = (sequence == native) & (native != UNKNOWN)
        columns = (-_mean(log_probs, is_design), -_mean(log_probs, resolved), _mean(recovered, is_design))
        found = zip(requests, seeds, sequence.tolist(), *(column.tolist() for column in columns), strict=True)
        return [self._record(*values) for values in found]

    def _record(self, request: Request, seed: int, letters: list[int], *metrics: float) -> dict[str, Json]:
        number, sample = request
        chains = self.designs[number].by_chain("".join(LETTERS[letter] for letter in letters))
        rounded = {name: round(value, 6) for name, value in zip(_METRICS, metrics, strict=True)}
        about = {"structure": number, "sample": sample, "sequence": "/".join(chains.values()), "chains": chains}
        return {**about, **rounded, "decoding_seed": seed}


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """The mean of each row over the positions that count."""
    return torch.where(counted, values.double(), 0.0).sum(1) / counted.sum(1)


def decoding_seed(seed: int, named: NamedDesign, sample: int) -> int:
    """A number of 52 bits, which any reader of JSON takes exactly."""
    design = int(hashlib.sha256(named.design.identity().encode()).hexdigest()[:15], 16)
    high, low = noise.words(seed, _SEED, design, sample)
    return int((high << 20) | (low >> 12))


@dataclass(frozen=True)
class _Results:
    """Sequences of all ranks, and the files of those structures that have all of theirs."""

    designs: Sequence[NamedDesign]
    samples: int
    about: Mapping[str, Json]
    """What is the same for all structures."""
    _found: dict[int, list[dict[str, Json]]] = field(default_factory=dict)

    def add(self, sequences: Sequence[dict[str, Json]]) -> list[int]:
        """Add sequences; the numbers of those structures that are complete with them."""
        touched = dict.fromkeys(sequence["structure"] for sequence in sequences)
        for sequence in sequences:
            self._found.setdefault(sequence["structure"], []).append(sequence)
        for number in touched:
            self._found[number].sort(key=lambda sequence: int(sequence["sample"]))
        return [number for number in touched if len(self._found[number]) == 1 + self.samples]

    def write(self, numbers: Sequence[int]) -> None:
        """Write the JSON and the FASTA file of each of these structures."""
        for number in numbers:
            named = self.designs[number]
            native, *designs = ({k: v for k, v in one.items() if k != "structure"} for one in self._found[number])
            found = {"native": {k: v for k, v in native.items() if k not in ("sample", "seq_recovery")}}
            write_json(named.json_file, {**named.about(), **self.about, **found, "designs": designs})
            write_atomically(named.fasta_file, "".join(f"{self._fasta(one)}\n" for one in self._found[number]))

    def records(self) -> list[dict[str, Json]]:
        """All of them, for the terminal and for --out."""
        return [
            {
                **sequence,
                "structure": str(named.file),
                "text": self._fasta(sequence),
                "files": [str(named.json_file), str(named.fasta_file)],
            }
            for number, named in enumerate(self.designs)
            for sequence in self._found[number]
            if sequence["sample"] != NATIVE
        ]

    def _fasta(self, sequence: Mapping[str, Json]) -> str:
        """An entry as the published program writes it: chains in alphabetical order, the native sequence with what was
        designed, a sample with its temperature. What that program reads from its own git folder is unknown."""
        named, chains = self.designs[sequence["structure"]], sequence["chains"]
        metrics = {name: f"{sequence[name]:.4f}" for name in _METRICS}
        if sequence["sample"] == NATIVE:
            title = named.name
            del metrics["seq_recovery"]
            about = {
                "fixed_chains": sorted(chain.id for chain in named.design.fixed_chains),
                "designed_chains": sorted(chains),
                "model_name": self.about["model_name"],
                "git_hash": "unknown",
                "seed": self.about["seed"],
            }
        else:
            title, about = f"T={self.about['temperature']}, sample={sequence['sample']}", {}
        entries = [title, *(f"{name}={value}" for name, value in {**metrics, **about}.items())]
        return f">{', '.join(entries)}\n{'/'.join(chains[name] for name in sorted(chains))}"
