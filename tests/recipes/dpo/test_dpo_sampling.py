"""`samestep sample`: designs and texts that do not depend on ranks, and a sentence for each mistake."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dpo_runs import text_records, train, write_records
from pdb_toys import NAMES, chain, residue

from player_folders import CHATML, player_folder
from protein_toys import tiny_network
from samestep import UserError, load, open_causal_lm
from samestep.cli.main import main
from samestep.launching import local
from samestep.models.protein_mpnn import LETTERS, UNKNOWN, ProteinMPNN
from samestep.models.protein_mpnn_files import write_protein_mpnn
from samestep.models.protein_mpnn_sampling import decoding_order
from samestep.recipes.dpo import sampling
from samestep.recipes.dpo.designs import choose_design
from samestep.recipes.dpo.protein_data import design_row
from samestep.recipes.dpo.structures import read_structure
from toys import default_dtype

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network for proteins, one for texts, and structures of several lengths, all of them in one list."""
    folder = tmp_path_factory.mktemp("sampled")
    with default_dtype(torch.float32):  # a run in float64 in this process leaves its type, and so other weights
        network = tiny_network()
    with torch.no_grad():
        network.W_out.weight.mul_(4.0)  # so that letters differ in their odds
        network.W_out.bias[UNKNOWN] = 30.0  # X would be taken everywhere, if it were allowed
    write_protein_mpnn(folder / "tiny.pt", network.config, network.state_dict(), 0.2)
    for name, letters in {"one": "AGSKLVAGSK", "two": "KLVAGSKLVAGS", "three": "GSKLVAG"}.items():
        (folder / f"{name}.pdb").write_text(chain(letters, "A") + chain(letters[:6], "B", first=len(letters) + 5))
    # Position 2 is not resolved, position 4 is none of the 20, and position 5 comes after a gap.
    parts = [residue(NAMES[letter], "A", number) for number, letter in ((1, "A"), (2, "G"), (4, "V"))]
    parts.insert(2, residue("SER", "A", 3, atoms=("N", "CA")))
    (folder / "odd.pdb").write_text("".join(parts) + residue("UNK", "A", 5) + residue("LEU", "A", 9) + "TER\n")
    (folder / "list.txt").write_text("one.pdb\ntwo.pdb\n\nthree.pdb\none.pdb\n")
    train(folder, "verify-text", "max_steps=1", name="texts")
    return folder


def sample(folder: Path, *args: str, model: str = "tiny.pt", code: int = 0) -> Path:
    """Sample in this process; the folder of the designs."""
    out = folder / "sampled"
    options = [f"--output_dir={out}"] if model == "tiny.pt" else []
    assert main(["sample", str(folder / model), "--device=cpu", *options, *args]) == code
    return out


def designs_of(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())["designs"]
    return found


def test_the_same_designs_on_any_number_of_ranks(folder: Path, tmp_path: Path) -> None:
    """In batches of 3 of 20 sequences, which hold sequences of two structures each, and leave some ranks idle."""
    args = [f"--pdb_list={folder / 'list.txt'}", "--samples=5", "--temperature=1", "--batch_size=3", "--seed=4"]
    outs = {ranks: tmp_path / str(ranks) for ranks in (1, 2, 3)}
    command = ["sample", str(folder / "tiny.pt"), "--device=cpu", *args]
    started = [
        local.start(main, ranks, [*command, f"--output_dir={out}"], logs=tmp_path / f"out_{ranks}")
        for ranks, out in outs.items()
    ]
    for workers in started:
        assert not any(workers.wait(60)), workers.output(0)
    alone, two, three = ({file.name: file.read_text() for file in out.iterdir()} for out in outs.values())
    assert alone == two == three
    names = {f"{name}.{kind}" for name in ("one", "two", "three", "one_2") for kind in ("json", "fa")}
    assert alone.keys() == names
    first = json.loads(alone["one.json"])
    assert first["designs"] == json.loads(alone["one_2.json"])["designs"], "of the same structure"
    assert [design["sample"] for design in first["designs"]] == [1, 2, 3, 4, 5]
    assert len({design["decoding_seed"] for design in first["designs"]}) == 5
    assert len({design["sequence"] for design in first["designs"]}) == 5, "each has noise of its own"
    for name in ("one", "two", "three"):
        letters = [line for line in alone[f"{name}.fa"].splitlines() if not line.startswith(">")]
        written = json.loads(alone[f"{name}.json"])
        assert letters == [one["sequence"] for one in (written["native"], *written["designs"])]
        assert not set("".join(letters)) & {"X"}, "X is never sampled"


def test_a_design_does_not_depend_on_other_structures(folder: Path) -> None:
    args, scores = ["--samples=3", "--temperature=1"], ("score", "global_score")
    zero = dict.fromkeys(scores, 0)
    together = designs_of(sample(folder, f"--pdb_list={folder / 'list.txt'}", *args) / "two.json")
    alone = designs_of(sample(folder, f"--pdb_file={folder / 'two.pdb'}", *args) / "two.json")
    for one, other in zip(together, alone, strict=True):
        assert [one[name] for name in scores] == pytest.approx([other[name] for name in scores], abs=1e-5)
        assert {**one, **zero} == {**other, **zero}
    other_seed = designs_of(sample(folder, f"--pdb_file={folder / 'two.pdb'}", *args, "--seed=1") / "two.json")
    assert other_seed[0]["sequence"] != alone[0]["sequence"]


def test_scores_are_those_of_the_forward_pass_in_the_order_of_the_seed(folder: Path) -> None:
    chosen = {"design_chains": "B,A", "mutable_ranges": "2-9", "mutable_positions": "12"}
    options = [f"--{name}={value}" for name, value in chosen.items()]
    out = sample(folder, f"--pdb_file={folder / 'one.pdb'}", "--samples=2", "--temperature=0.5", *options)
    network = load(str(folder / "tiny.pt")).network
    assert isinstance(network, ProteinMPNN)
    design = choose_design(read_structure(folder / "one.pdb", None), chosen)
    row = {name: value[None] for name, value in design_row(design).items()}
    found = json.loads((out / "one.json").read_text())
    assert found["native"]["sequence"] == "AGSKLV/AGSKLVAGSK"
    assert found["designed_positions"] == [*range(2, 10), 12]
    for one in (found["native"], *found["designs"]):
        assert one["chains"] == dict(zip("BA", one["sequence"].split("/"), strict=True))
        letters = one["sequence"].replace("/", "")
        bits = sampling.noise.bits(sampling._ORDER, torch.tensor([[one["decoding_seed"]]]), torch.arange(16))
        order = decoding_order(row["fixed"], row["resolved"], bits)
        sequence = torch.tensor([[LETTERS.index(letter) for letter in letters]])
        names = ("resolved", "residue_index", "chain")
        log_probs = network(row["coordinates"], sequence, *(row[name] for name in names), order)
        taken = log_probs.gather(2, sequence[..., None])[0, :, 0]
        assert one["score"] == pytest.approx(-taken[found["designed_positions"]].mean().item(), abs=1e-4)
        assert one["global_score"] == pytest.approx(-taken.mean().item(), abs=1e-4)
        kept = [place for place in range(16) if place not in found["designed_positions"]]
        assert [letters[place] for place in kept] == [design.native[place] for place in kept]
        equal = sum(letters[place] == design.native[place] for place in found["designed_positions"])
        assert one.get("seq_recovery", 1) == pytest.approx(equal / 9, abs=1e-6)


def test_unresolved_positions_are_x_and_unknown_ones_are_designed(folder: Path) -> None:
    out = sample(folder, f"--pdb_file={folder / 'odd.pdb'}", "--samples=4")
    found = json.loads((out / "odd.json").read_text())
    assert found["native"]["sequence"] == "AGSVXL"
    assert found["designed_positions"] == [0, 1, 3, 4, 5]
    for one in found["designs"]:
        assert one["sequence"][2] == "X"
        assert "X" not in one["sequence"][:2] + one["sequence"][3:]
        equal = sum(a == b for a, b in zip(one["sequence"], "AG-V-L", strict=True))
        assert one["seq_recovery"] == equal / 5, "an unknown letter is not recovered, as in the published program"
    out = sample(folder, f"--pdb_file={folder / 'odd.pdb'}", "--mutable_positions=4")
    (one,) = designs_of(out / "odd.json")
    assert one["seq_recovery"] == 0
    assert one["sequence"][:4] + one["sequence"][5:] == "AGSVL", "what may not change keeps its letter"


def test_temperature_0_takes_the_likeliest(folder: Path) -> None:
    """The only position: of several samples, all are the same, and their score is the least that there is."""
    name = [f"--pdb_file={folder / 'one.pdb'}", "--mutable_positions=3", "--design_chains=A", "--fixed_chains=B"]
    likeliest = designs_of(sample(folder, *name, "--temperature=0", "--samples=4") / "one.json")
    assert len({one["sequence"] for one in likeliest}) == 1
    drawn = designs_of(sample(folder, *name, "--temperature=9", "--samples=12") / "one.json")
    scores = {one["sequence"]: one["score"] for one in drawn}
    assert len(scores) > 1
    assert min(scores.values()) >= likeliest[0]["score"] - 1e-5


def test_memory_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sequence at a time, if two are too many, gives the same letters."""
    args = [f"--pdb_list={folder / 'list.txt'}", "--samples=2", "--temperature=1"]
    whole = designs_of(sample(folder, *args) / "three.json")
    sizes = []
    call = sampling._Sampler.__call__

    def counted(self: Any, requests: Any) -> Any:
        sizes.append(len(requests))
        return call(self, requests)

    monkeypatch.setattr(sampling._Sampler, "__call__", counted)
    monkeypatch.setattr(sampling, "RESIDUES", 20)
    parts = designs_of(sample(folder, *args) / "three.json")
    assert sizes == [1] * 12
    assert [one["sequence"] for one in parts] == [one["sequence"] for one in whole]


def test_a_run_and_the_files_that_it_writes_are_the_same_model(folder: Path, tmp_path: Path) -> None:
    train(tmp_path, "verify", "max_steps=2")
    args = [f"--pdb_file={folder / 'one.pdb'}", "--temperature=1", "--device=cpu"]
    found = []
    for model, more in (("run", ["--which=last"]), ("run/latest_model.pt", [])):
        out = tmp_path / model.replace("/", "_")
        assert main(["sample", str(tmp_path / model), *args, *more, f"--output_dir={out}"]) == 0
        found.append(designs_of(out / "one.json"))
    assert found[0] == found[1]


def test_a_list_with_mistakes_is_refused_or_used_without_them(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.txt").write_text("one.pdb\nmissing.pdb\nodd.pdb\n")
    args = [f"--pdb_list={folder / 'bad.txt'}", "--design_chains=B"]
    sample(folder, *args, code=2)
    said = " ".join(capfd.readouterr().err.split())
    assert "Fix 2 of 3 records" in said
    assert "missing.pdb cannot: No such file or directory" in said
    assert "odd.pdb: the structure has no chain 'B'; it has 'A'" in said
    sample(folder, *args, "--skip_invalid")
    said = " ".join(capfd.readouterr().err.split())
    assert "1 of 3 records" in said and "1 because of chains, 1 because of file" in said


@pytest.mark.parametrize(
    ("model", "args", "sentence"),
    [
        ("tiny.pt", [], "Name a structure with --pdb_file, or a file with the paths of several with --pdb_list."),
        ("tiny.pt", ["--pdb_file=one.pdb", "--pdb_list=list.txt"], "Give --pdb_file or --pdb_list, not both."),
        ("tiny.pt", ["--pdb_file=none.pdb"], "none.pdb cannot: No such file or directory."),
        ("tiny.pt", ["--pdb_list=none.txt"], "none.txt cannot be read."),
        ("tiny.pt", ["--pdb_list=empty.txt"], "Put at least one path into empty.txt; it is empty."),
        (
            "tiny.pt",
            ["--pdb_file=one.pdb", "--design_chains=C"],
            "one.pdb does not fit: the structure has no chain",
        ),
        ("tiny.pt", ["--pdb_file=one.pdb", "--fixed_chains=A,B"], "every chain is fixed"),
        (
            "tiny.pt",
            ["--pdb_file=one.pdb", "--mutable_positions=16"],
            "mutable position 16 is not in the design",
        ),
        ("tiny.pt", ["--pdb_file=one.pdb", "--mutable_ranges=3"], "mutable_ranges must be a list such as"),
        ("tiny.pt", ["--pdb_file=odd.pdb", "--mutable_positions=2"], "no position is left to design"),
        ("tiny.pt", ["--pdb_file=one.pdb", "--max_length=9"], "more than max_length=9"),
        (
            "tiny.pt",
            ["--pdb_file=one.pdb", "--temperature=-1"],
            "temperature must be a number of at least 0",
        ),
        ("tiny.pt", ["--pdb_file=one.pdb", "--samples=0"], "samples must be a whole number of at least 1"),
        ("tiny.pt", ["--pdb_file=one.pdb", "--prompt=Hi"], "Leave out --prompt: this model designs proteins."),
        ("tiny.pt", ["--pdb_file=one.pdb", "--output_dir=list.txt"], "list.txt cannot be one: File exists."),
        ("texts", [], "Give a text with --prompt"),
        ("texts", ["--prompt=a", "--pdb_file=one.pdb"], "Leave out --pdb_file: this model writes texts."),
        ("texts", ["--prompt=a", "--prompts=list.txt"], "Give --prompt or --prompts, not both."),
        ("texts", ["--prompt=a", "--max_new_tokens=255"], "Set --max_new_tokens to 254 or less, or shorten the prompt"),
        ("texts", ["--prompt=a", "--chat"], "the built-in network knows no chats"),
        ("other.pt", ["--pdb_file=one.pdb"], "no recipe knows the model in other.pt"),
    ],
)
def test_mistakes(
    model: str,
    args: list[str],
    sentence: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    Path("empty.txt").write_text("\n")
    torch.save({"weight": torch.zeros(2)}, "other.pt")
    assert main(["sample", model, "--device=cpu", *args]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert said.startswith("samestep: ") and sentence in said
    assert not Path("designs").is_dir(), "nothing is written to the folder of default"


def test_the_same_texts_on_any_number_of_ranks(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Tell\nWhy is it so\nAnd now\n")
    args = [f"--prompts={tmp_path / 'prompts.txt'}", "--samples=2", "--max_new_tokens=9", "--batch_size=4"]
    files = {ranks: tmp_path / f"{ranks}.jsonl" for ranks in (1, 2, 3)}
    command = ["sample", str(folder / "texts"), "--device=cpu", *args]
    started = [
        local.start(main, ranks, [*command, f"--out={file}"], logs=tmp_path / f"out_{ranks}")
        for ranks, file in files.items()
    ]
    for workers in started:
        assert not any(workers.wait(60)), workers.output(0)
    alone, two, three = (file.read_text() for file in files.values())
    assert alone == two == three
    rows = [json.loads(line) for line in alone.splitlines()]
    assert [(row["prompt"], row["sample"]) for row in rows[1:3]] == [("Tell", 1), ("Why is it so", 0)]
    assert len({row["text"] for row in rows}) == 6, "each has noise of its own"


def test_adapters_of_a_chat_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The likeliest tokens are those of the trained network, which are not those of its base."""
    llama = player_folder(tmp_path / "llama", template=CHATML)
    data = write_records(tmp_path / "pairs.jsonl", list(text_records(6)))
    settings = [f"base_model_name={llama}", f"train_data={data}", "data.limit=null", "reference=live", "max_steps=3"]
    train(tmp_path, "verify-text", *settings, "lora_rank=4", "learning_rate=0.5")
    capfd.readouterr()
    args = ["--prompt=say 3", "--chat", "--max_new_tokens=6", "--samples=2", "--temperature=0"]
    assert main(["sample", str(tmp_path / "run"), "--which=last", "--device=cpu", *args]) == 0
    shown = capfd.readouterr().out

    def greedy(network: Any) -> str:
        tokens = base.encode_chat([{"role": "user", "content": "say 3"}])
        start = len(tokens)
        for _ in range(6):
            logits = network(input_ids=torch.tensor([tokens])).logits[0, -1]
            logits[base.unused] = -torch.inf
            tokens = [*tokens, int(logits.argmax())]
        return base.decode(tokens[start:])

    base = open_causal_lm(llama)
    wanted = greedy(load(str(tmp_path / "run"), "last").network)
    assert shown == f"--- 1 of 2 ---\n{wanted}\n--- 2 of 2 ---\n{wanted}\n"
    assert wanted != greedy(base.network().eval())


def test_design_in_python_gives_what_the_command_writes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = {"samples": 2, "temperature": 1, "mutable_ranges": "2-7"}
    written = designs_of(
        sample(folder, f"--pdb_file={folder / 'one.pdb'}", *[f"--{k}={v}" for k, v in args.items()]) / "one.json"
    )
    model = load(str(folder / "tiny.pt"))
    found = model.design(folder / "one.pdb", **args)
    assert [one["sequence"] for one in found] == [one["sequence"] for one in written]
    assert [one["score"] for one in found] == [one["score"] for one in written]
    assert not list(tmp_path.iterdir()) and "files" not in found[0]
    with pytest.raises(UserError, match="this model designs proteins"):
        model.generate("a text")
    with pytest.raises(UserError, match="this model writes texts"):
        load(str(folder / "texts"), "last").design(folder / "one.pdb")
