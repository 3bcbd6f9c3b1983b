"""Sequences for protein structures: each sampled in a decoding order of its own, with a score and its recovery.

All that is random in a sequence follows from its decoding seed: the seed of the run, the design (the file's content,
its chains and mutable positions) and the number of the sample. So it does not depend on ranks or on other structures.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from samestep import Trained, World, noise, pad_rows
from samestep.core.errors import print_error
from samestep.core.records import Json, write_atomically, write_json
from samestep.models.protein_mpnn import LETTERS, UNKNOWN, ProteinMPNN
from samestep.models.protein_mpnn_sampling import decoding_order, sample
from samestep.recipes.dpo.design_files import NamedDesign, make_folder, read_designs
from samestep.recipes.dpo.protein_data import PAD, design_row
from samestep.recipes.dpo.reference import POLICY
from samestep.recipes.dpo.sample_options import SampleOptions
from samestep.train.trained.batch_inference import my_batches

_SEED = noise.purpose("dpo/decoding seed")
_ORDER = noise.purpose("dpo/sampled order")
_LETTER = noise.purpose("dpo/sampled letter")
RESIDUES = 2**13
"""Residues in a batch, padding included: its edges take about 200 MB with the published network, and a few times that
in a layer."""

Request = tuple[int, int]
"""The number of a design, and that of a sample of it."""


def design_sequences(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """Design each structure `num_samples` times: one record per sequence, in order, on every rank.

    Rank 0 writes the files of a structure as soon as all of its sequences are there.
    """
    config = trained.config
    designs = read_designs(options, config.data.max_length, config.data.skip_invalid)
    world.run_on_all_ranks("making the folder", lambda: make_folder(options.folder) if world.is_main else None)
    requests = [(number, sample) for number in range(len(designs)) for sample in range(options.num_samples)]
    network = trained.network(POLICY, world.device)
    assert isinstance(network, ProteinMPNN)
    temperature = config.sampling_temperature if options.temperature is None else options.temperature
    sampler = _Sampler(network, designs, config.seed, temperature)
    about = {"model": str(trained.source), "seed": config.seed, "temperature": temperature}
    results = _Results(designs, options.num_samples, about)
    lengths = [designs[number].length for number, _ in requests]
    for turn, batch in enumerate(my_batches(lengths, options.batch_size, world, most=RESIDUES)):
        parts = world.run_on_all_ranks("designing", partial(sampler, [requests[number] for number in batch]))
        if turn == 0 and not all(parts):
            idle = sum(not part for part in parts)
            print_error(f"{idle} of {world.size} ranks have nothing to do; a smaller --batch_size helps")
        complete = results.add([sequence for part in parts for sequence in part])
        world.run_on_all_ranks("writing the designs", partial(results.write, complete if world.is_main else []))
        world.activity.made_progress()
    return results.records()


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

        drawn = sample(self.network, encoded, given, order, ~fixed, choose)
        is_design = ~fixed & resolved
        score = -drawn.log_probs.double().sum(1) / is_design.sum(1)
        is_known = is_design & (native != UNKNOWN)
        recovered = (is_known & (drawn.sequence == native)).sum(1)
        columns = (drawn.sequence, score, recovered, is_known.sum(1))
        found = zip(requests, seeds, *(column.tolist() for column in columns), strict=True)
        return [self._record(*values) for values in found]

    def _record(
        self, request: Request, seed: int, letters: list[int], score: float, recovered: int, known: int
    ) -> dict[str, Json]:
        number, sample = request
        chains = self.designs[number].by_chain("".join(LETTERS[letter] for letter in letters))
        return {
            "structure": number,
            "sample": sample,
            "sequence": "/".join(chains.values()),
            "chains": chains,
            "score": round(score, 6),
            "recovery": round(recovered / known, 6) if known else None,
            "decoding_seed": seed,
        }


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
        return [number for number in touched if len(self._found[number]) == self.samples]

    def write(self, numbers: Sequence[int]) -> None:
        """Write the JSON and the FASTA file of each of these structures."""
        for number in numbers:
            named = self.designs[number]
            sequences = [{k: v for k, v in one.items() if k != "structure"} for one in self._found[number]]
            write_json(named.json_file, {**named.about(), **self.about, "designs": sequences})
            write_atomically(named.fasta_file, "".join(f"{_fasta(named, one)}\n" for one in sequences))

    def records(self) -> list[dict[str, Json]]:
        """All of them, for the terminal and for --out."""
        return [
            {
                **sequence,
                "structure": str(named.file),
                "text": _fasta(named, sequence),
                "files": [str(named.json_file), str(named.fasta_file)],
            }
            for number, named in enumerate(self.designs)
            for sequence in self._found[number]
        ]


def _fasta(named: NamedDesign, sequence: Mapping[str, Json]) -> str:
    shown = {name: sequence[name] for name in ("sample", "score", "recovery", "decoding_seed")}
    about = ", ".join(f"{name}={json.dumps(value)}" for name, value in shown.items())
    return f">{named.name}, {about}\n{sequence['sequence']}"
