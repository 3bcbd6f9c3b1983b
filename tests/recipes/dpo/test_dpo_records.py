"""Records of preference pairs: what is read, and one sentence for each thing that can be wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pdb_toys import BACKBONE, atom, chain, place, residue

from samestep.core.errors import UserError
from samestep.data.records.reading import SHOWN, Records
from samestep.recipes.dpo.families import ReadPairs
from samestep.recipes.dpo.protein_data import ProteinPair, read_pairs

TWO_CHAINS = (
    chain("AGSKL", "A")  # 5 residues
    + residue("VAL", "B", 1)
    + residue("VAL", "B", 2, atoms=("N", "CA", "C"))  # not resolved
    + residue("UNK", "B", 5)  # none of the 20, after a gap of two
    + "TER\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with structures, which is not the working directory."""
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data" / "two.pdb").write_text(TWO_CHAINS)
    (tmp_path / "data" / "one.pdb").write_text(chain("AGSKL"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "data"


def write(folder: Path, records: Any, name: str = "pairs.json") -> str:
    text = json.dumps(records) if name.endswith(".json") else "".join(json.dumps(each) + "\n" for each in records)
    (folder / name).write_text(text)
    return str(folder / name)


def read(folder: Path, *records: Any, name: str = "pairs.json", **options: Any) -> ReadPairs[ProteinPair]:
    limit = options.pop("limit", None)
    return read_pairs(Records(write(folder, list(records), name), limit=limit), **{"max_length": 100} | options)


def one(folder: Path, **fields: Any) -> ProteinPair:
    (pair,) = read(folder, record(**fields)).pairs
    return pair


def record(**fields: Any) -> dict[str, Any]:
    return {"pdb_file": "one.pdb", "preferred_seq": "AGSKL", "unpreferred_seq": "VGSKL"} | fields


def two(**fields: Any) -> dict[str, Any]:
    return record(pdb_file="two.pdb", preferred_seq="AGSKLVVX", unpreferred_seq="VGSKLVVX") | fields


def chains(pair: ProteinPair) -> tuple[str, str]:
    """The names of design chains and of fixed chains."""
    design = pair.design
    return "".join(each.id for each in design.design_chains), "".join(each.id for each in design.fixed_chains)


def test_records_of_a_table(folder: Path) -> None:
    header = "pdb_file,preferred_seq,unpreferred_seq,design_chains,fixed_chains,mutable_ranges"
    (folder / "pairs.csv").write_text(f'{header}\ntwo.pdb,AGSKL,VGSKL,"[""A""]",B,"[[0, 2]]"\none.pdb,AGSKL,VGSKL,,,\n')
    first, second = read_pairs(Records(str(folder / "pairs.csv")), 100).pairs
    assert chains(first) == ("A", "B") and np.flatnonzero(first.design.mutable).tolist() == [0, 1, 2]
    assert chains(second) == ("A", "") and second.design.mutable.all()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mutable_position", "mutable_positions"),
        ("design_chain", "design_chains"),
        ("fixed_chain", "fixed_chains"),
        ("unprefered_seq", "unpreferred_seq"),
    ],
)
def test_a_misspelt_field_is_refused(name: str, meant: str, folder: Path) -> None:
    with pytest.raises(UserError, match=f"record 2: the column '{name}' is not known; write '{meant}', or set "):
        read(folder, record(), {key: value for key, value in record().items() if key != meant} | {name: [0]})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"fixed_positions": [1]},
            "'fixed_positions' is not known; name the positions that may change, in 'mutable_pos",
        ),
        ({"fixed_position": [1]}, "'fixed_position' is not known; name the positions that may change, in 'mutable_pos"),
        ({"chain": "A"}, "'chain' is not known; write 'design_chains', or set data.columns.design_chains=chain"),
        ({"chains": ["A"]}, "'chains' is not known; write 'design_chains', or set data.columns.design_chains=chains"),
    ],
)
def test_a_field_of_another_program_is_refused(fields: dict[str, Any], sentence: str, folder: Path) -> None:
    with pytest.raises(UserError, match=f"record 1: the column {sentence}"):
        read(folder, record(**fields))
    assert read(folder, record(mutable_positions=[0], design_chains=["A"], **fields)).pairs, "it says what is meant"


@pytest.mark.parametrize("name", ["pairs.json", "pairs.jsonl"])
def test_records_are_read(name: str, folder: Path) -> None:
    found = read(folder, record(note="ignored"), record(unpreferred_seq="AGSKV"), name=name)
    assert [(pair.number, pair.preferred, pair.unpreferred) for pair in found.pairs] == [
        (1, "AGSKL", "VGSKL"),
        (2, "AGSKL", "AGSKV"),
    ]
    assert found.pairs[0].design.structure is found.pairs[1].design.structure, "a file is read once"
    assert found.origins[0].path == folder / name
    assert found.pairs[0].design.scored.all() and found.pairs[0].design.native == "AGSKL"


def test_a_limit_comes_before_the_checks(folder: Path) -> None:
    found = read(folder, record(), record(), record(pdb_file="gone.pdb"), limit=2)
    assert len(found.pairs) == 2


def test_a_single_record_over_several_lines(folder: Path) -> None:
    (folder / "pairs.json").write_text(json.dumps(record(), indent=2))
    assert len(read_pairs(Records(str(folder / "pairs.json")), 100).pairs) == 1


def test_paths_are_relative_to_the_records_then_to_the_working_directory(folder: Path) -> None:
    assert one(folder).file == folder / "one.pdb"
    Path("one.pdb").write_text(chain("AAAAA"))
    assert one(folder).design.native == "AGSKL", "the folder of the records comes first"
    Path("here.pdb").write_text(chain("AAAAA"))
    assert one(folder, pdb_file="here.pdb").design.native == "AAAAA"
    assert one(folder, pdb_file=str(folder / "one.pdb")).design.native == "AGSKL"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("AB", "")),
        ({"fixed_chains": []}, ("AB", "")),
        ({"design_chains": None, "chain_id": ""}, ("AB", "")),
        ({"design_chains": ["B", "A"], "preferred_seq": "VVXAGSKL", "unpreferred_seq": "AVXAGSKL"}, ("BA", "")),
        ({"chain_id": "A", "preferred_seq": "AGSKL", "unpreferred_seq": "VGSKL"}, ("A", "")),
        ({"chain_id": "A", "design_chains": "A", "preferred_seq": "AGSKL", "unpreferred_seq": "VGSKL"}, ("A", "")),
        ({"fixed_chains": "B", "preferred_seq": "AGSKL", "unpreferred_seq": "VGSKL"}, ("A", "B")),
        ({"design_chains": "A, B"}, ("AB", "")),
        ({"design_chains": "A B "}, ("AB", "")),
        ({"preferred_seq": "AGSKL/VVX", "unpreferred_seq": "VGSKL:VVX"}, ("AB", "")),
    ],
)
def test_chains(fields: dict[str, Any], expected: tuple[str, str], folder: Path) -> None:
    pair = one(folder, **two(**fields))
    assert chains(pair) == expected
    assert len(pair.preferred) == len(pair.unpreferred) == len(pair.design.mutable) == pair.design.size


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"mutable_positions": [0, 3]}, [0, 3]),
        ({"mutable_positions": "0, 3 4"}, [0, 3, 4]),
        ({"mutable_ranges": [[0, 2]]}, [0, 1, 2]),
        ({"mutable_ranges": "0-1,4-4"}, [0, 1, 4]),
        ({"mutable_ranges": ["0-1", "3-4"]}, [0, 1, 3, 4]),
        ({"mutable_ranges": [[0, 1]], "mutable_positions": [1, 4]}, [0, 1, 4]),
        ({"mutable_positions": ["A1", "A4"]}, [0, 3]),
        ({"mutable_positions": ["A1", 3]}, [0, 3]),
        ({"mutable_positions": "A1,3 A5"}, [0, 3, 4]),
        ({"mutable_ranges": "0-1,A4-A5"}, [0, 1, 3, 4]),
        ({"mutable_ranges": [["A1", "A3"]]}, [0, 1, 2]),
    ],
)
def test_mutable_positions(fields: dict[str, Any], expected: list[int], folder: Path) -> None:
    design = one(folder, **fields).design
    assert np.flatnonzero(design.mutable).tolist() == expected == np.flatnonzero(design.scored).tolist()


def test_positions_count_over_the_design_chains_in_their_order(folder: Path) -> None:
    fields = {"design_chains": "B,A", "preferred_seq": "VVXAGSKL", "unpreferred_seq": "VVXVGSKL"}
    assert np.flatnonzero(one(folder, **two(mutable_positions=[3], **fields)).design.scored).tolist() == [3]


def test_positions_by_the_numbers_of_the_file(folder: Path) -> None:
    """Numbers below 0, insertion codes, gaps, and two chains that both have a residue 7."""
    numbers = [(-1, " "), (0, " "), (5, " "), (5, "A"), (5, "B"), (7, " ")]
    first = "".join(residue("ALA", "A", number, code=code) for number, code in numbers)
    (folder / "numbered.pdb").write_text(first + "TER\n" + chain("GGG", "B", first=6))
    texts = {"preferred_seq": "AAAAAAGGG", "unpreferred_seq": "VVVVVVVVV"}

    def mutable(**fields: Any) -> list[int]:
        usual = {**texts, "design_chains": "A,B", "unpreferred_seq": "AAAAAAGGG"}
        usual["preferred_seq"] = "AAAVVAGVG"
        design = one(folder, pdb_file="numbered.pdb", **(usual | fields)).design
        return np.flatnonzero(design.mutable).tolist()

    assert mutable(mutable_positions=["A5", "A5A", "A5B", "B7"]) == [2, 3, 4, 7]
    assert mutable(mutable_ranges="A-1-A0,A5A-B7") == [0, 1, 3, 4, 5, 6, 7]
    assert mutable(mutable_ranges="A5-A7", mutable_positions="B7") == [2, 3, 4, 5, 7]
    turned = {"design_chains": "B,A", "preferred_seq": "GGGAAAVAA", "unpreferred_seq": "GGGAAAAAA"}
    assert mutable(mutable_positions="A5A", **turned) == [6]


def test_only_resolved_and_known_residues_are_scored(folder: Path) -> None:
    pair = one(folder, **two(preferred_seq="AGSKLVXX"))  # X also where a residue is not resolved
    assert pair.design.scored.tolist() == [True] * 6 + [False, False]
    assert one(folder, preferred_seq="AGSKX", unpreferred_seq="VGSKX", mutable_positions=[0]).preferred == "AGSKX"


NAN_FILE = chain("AGSKL").replace(line := atom("CA", "GLY", "A", 2, place(2, "CA")), line[:30] + "     nan" + line[38:])

BAD_FILES = {
    "empty.pdb": "",
    "nan.pdb": NAN_FILE,
    "long.pdb": chain("A" * 3000),
    "unresolved.pdb": "".join(residue("ALA", "A", number, atoms=BACKBONE[:3]) for number in range(5)),
}


@pytest.mark.parametrize(
    ("bad", "about", "problem"),
    [
        ({"pdb_file": "no.pdb"}, "file", "there is no file no.pdb in "),
        ({"pdb_file": None}, "file", "pdb_file is missing; name a structure file"),
        ({"pdb_file": "x" * 5000}, "file", "there is no file xxx"),
        ({"pdb_file": "~nobody_at_all/1.pdb"}, "file", "there is no file ~nobody_at_all/1.pdb in "),
        ({"pdb_file": "empty.pdb"}, "structure", "empty.pdb is empty"),
        ({"pdb_file": "nan.pdb"}, "structure", "in chain 'A', residue 2, a coordinate of CA is no finite number"),
        ({"chain_id": "C"}, "chains", "the structure has no chain 'C'; it has 'A'"),
        ({"chain_id": "A,B"}, "chains", "chain_id names 2 chains; name several in design_chains"),
        ({"chain_id": 1}, "chains", "chain_id must be a list of chains"),
        ({"design_chains": ["A", 3]}, "chains", "design_chains must be a list of chains"),
        ({"design_chains": ["A", "A"]}, "chains", "chain 'A' is named twice"),
        ({"design_chains": "A", "fixed_chains": "A"}, "chains", "chain 'A' is named twice"),
        ({"design_chains": "A", "chain_id": "B"}, "chains", "chain_id and design_chains name different chains"),
        ({"fixed_chains": ["A"]}, "chains", "every chain is fixed; name at least one in design_chains"),
        ({"fixed_chains": ["Z"]}, "chains", "the structure has no chain 'Z'; it has 'A'"),
        ({"preferred_seq": ""}, "letters", "preferred_seq is empty"),
        ({"unpreferred_seq": " /"}, "letters", "unpreferred_seq is empty"),
        ({"unpreferred_seq": None}, "letters", "unpreferred_seq is missing"),
        ({"preferred_seq": ["A"]}, "letters", "preferred_seq is no text"),
        ({"preferred_seq": "AGUKL"}, "letters", "preferred_seq has 'U' at position 2; use only the 20 letters"),
        ({"preferred_seq": "ZGZBL"}, "letters", "has 'Z' at position 0 and 1 more, 'B' at position 3; use only"),
        ({"preferred_seq": "AgSKL"}, "letters", "has 'g' at position 1; use only"),
        ({"preferred_seq": "AG-K*"}, "letters", "has '-' at position 2, '*' at position 4; use only"),
        ({"preferred_seq": "AGSKX"}, "letters", "has 'X' at position 4, where residues are scored"),
        ({"preferred_seq": "AGSK"}, "length", "preferred_seq has 4 letters for 5 residues (5 in chain 'A')"),
        ({"unpreferred_seq": "AGSKLL"}, "length", "unpreferred_seq has 6 letters for 5 residues (5 in chain 'A')"),
        (
            {"mutable_positions": [0, 5]},
            "positions",
            "mutable position 5 is not in the design chains, whose 5 ",
        ),
        ({"mutable_positions": [-1]}, "positions", "mutable position -1 is not in the design chains"),
        ({"mutable_positions": 3}, "positions", "mutable_positions must be a list such as [0, 5], or with"),
        ({"mutable_positions": [True]}, "positions", "mutable_positions must be a list such as [0, 5], or with"),
        ({"mutable_positions": [1.5]}, "positions", "mutable_positions must be a list such as [0, 5], or with"),
        ({"mutable_positions": "9" * 5000}, "positions", "mutable_positions must be a list such as [0, 5], or with"),
        ({"mutable_positions": "A7"}, "positions", "the design chains have no residue A7; they have A1 to A5"),
        ({"mutable_positions": "B1"}, "positions", "the design chains have no residue B1; they have A1 to A5"),
        ({"mutable_positions": "A"}, "positions", "mutable_positions must be a list such as"),
        ({"mutable_positions": [0, 7]}, "positions", "number in the file is written with its chain, such as A1"),
        ({"mutable_ranges": "A2-4"}, "positions", "the range A2-4 of mutable_ranges counts one end from 0 and names"),
        ({"mutable_ranges": "A4-A2"}, "positions", "the range A4-A2 of mutable_ranges ends before it begins"),
        ({"mutable_positions": []}, "positions", "no position is mutable; name some in mutable_positions"),
        ({"mutable_ranges": [[3, 10**12]]}, "positions", f"mutable position {10**12} is not in the design chains"),
        ({"mutable_ranges": [[-(10**12), 1]]}, "positions", f"mutable position -{10**12} is not in the design chains"),
        ({"mutable_ranges": f"3-{'9' * 5000}"}, "positions", "mutable_ranges must be a list such as"),
        ({"mutable_ranges": [[3, 1]]}, "positions", "the range 3-1 of mutable_ranges ends before it begins"),
        ({"mutable_ranges": [3, 4]}, "positions", "mutable_ranges must be a list such as"),
        ({"mutable_ranges": "3 to 9"}, "positions", "mutable_ranges must be a list such as"),
        ({"mutable_ranges": {"3": 9}}, "positions", "mutable_ranges must be a list such as"),
        ({"mutable_positions": [1, 2]}, "fixed positions", "differ at position 0, which is not mutable"),
        ({"unpreferred_seq": "AGSKL"}, "equal sequences", "are equal at every scored position"),
        ({"pdb_file": "long.pdb"}, "max_length", "its chains have 3000 residues, more than max_length=100; raise"),
        ({"pdb_file": "unresolved.pdb"}, "positions", "none of the 5 mutable positions has all of N, CA, C and O"),
    ],
)
def test_bad_records(bad: dict[str, Any], about: str, problem: str, folder: Path) -> None:
    for name in BAD_FILES.keys() & {bad.get("pdb_file")}:
        (folder / name).write_text(BAD_FILES[name])
    with pytest.raises(UserError) as caught:
        read(folder, record(), record(**bad))
    first, *lines = str(caught.value).split("\n")
    assert first == f"Fix 1 of 2 records of {folder / 'pairs.json'}, or leave them out with data.skip_invalid=true:"
    assert lines[0].startswith("  record 2: ") and problem in "\n".join(lines)
    records = Records(str(folder / "pairs.json"))
    assert [pair.number for pair in read_pairs(records, 100, skip_invalid=True).pairs] == [1]
    assert (
        records.check(skip_invalid=True) == f"1 of 2 records of {folder / 'pairs.json'}; left out: 1 because of {about}"
    )


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"preferred_seq": "AGSK/LVVX"}, "has 4 + 4 letters for 8 residues (5 in chain 'A', 3 in chain 'B')"),
        ({"preferred_seq": "AGSKL/VVX/"}, "has 5 + 3 + 0 letters for 8 residues"),
        ({"preferred_seq": "AGSKLVVXXX"}, "10 letters for 8 residues (5 in chain 'A', 3 in chain 'B'); leave out the "),
        ({"preferred_seq": "AGSKLV"}, "6 letters for 8 residues (5 in chain 'A', 3 in chain 'B'); write one letter "),
        ({"unpreferred_seq": "AGSKLVAX"}, "are equal at every scored position"),
    ],
)
def test_bad_records_of_two_chains(fields: dict[str, Any], problem: str, folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(folder, two(**fields))
    assert problem in str(caught.value)


def test_all_problems_are_listed_at_once(folder: Path) -> None:
    bad = record(pdb_file="no.pdb", preferred_seq="B", unpreferred_seq="")
    with pytest.raises(UserError) as caught:
        read(folder, record(), bad, record(preferred_seq="AG", unpreferred_seq="A"), "text", name="pairs.jsonl")
    lines = str(caught.value).split("\n")
    assert lines[0].startswith("Fix 3 of 4 records of ")
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "line 2",
        "line 2",
        "line 2",
        "line 3",
        "line 3",
        "line 4",
    ]


def test_many_problems_are_counted(folder: Path) -> None:
    missing = [record(pdb_file=f"no{n}.pdb") for n in range(SHOWN + 3)]
    with pytest.raises(UserError) as caught:
        read(folder, *missing, record(preferred_seq="A"), record(chain_id="Q"))
    lines = str(caught.value).split("\n")
    assert len(lines) == 1 + SHOWN + 1
    assert lines[-1] == "  and 5 more problems: 1 about chains, 3 about file, 1 about length"


def test_a_record_that_is_left_out_counts_once(folder: Path) -> None:
    bad = record(pdb_file="no.pdb", preferred_seq="B")
    records = Records(write(folder, [bad, bad, record()]))
    assert len(read_pairs(records, 100, skip_invalid=True).pairs) == 1
    assert (
        records.check(skip_invalid=True) == f"1 of 3 records of {folder / 'pairs.json'}; left out: 2 because of letters"
    )


def test_lines_that_are_no_json(folder: Path) -> None:
    (folder / "a.jsonl").write_text(f"{json.dumps(record())}\n\n{{broken\n[1]\n{'[' * 99999}\n")
    with pytest.raises(UserError) as caught:
        read_pairs(Records(str(folder / "a.jsonl")), 100)
    lines = str(caught.value).split("\n")
    assert "line 3: it is not JSON: " in lines[1]
    assert "line 4: it is no JSON object" in lines[2]
    assert "line 5: it cannot be read as JSON: it nests too deeply" in lines[3]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "pairs.json is empty"),
        (b"[]", "pairs.json has none"),
        (b'[{"pdb_file": ', "which is no JSON list: "),
        (b"[1, 2]", "record 2: it is no JSON object"),
        (b"\xff\xff", "line 1: it is not UTF-8"),
        (b"\xff\xfe", "it is text in UTF-16"),
    ],
)
def test_files_without_records(content: bytes, problem: str, folder: Path) -> None:
    (folder / "pairs.json").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_pairs(Records(str(folder / "pairs.json")), 100)
    assert problem in str(caught.value)


def test_a_missing_file_of_records(folder: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json does not exist"):
        read_pairs(Records(str(folder / "none.json")), 100)


def test_no_record_is_left(folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(folder, record(pdb_file="no.pdb"), record(preferred_seq="B"), skip_invalid=True)
    assert str(caught.value).startswith("Give records that can be used; none of the 2 of ")


def test_the_cache_holds_each_structure_once(folder: Path, tmp_path: Path) -> None:
    (folder / "copy.pdb").write_bytes((folder / "one.pdb").read_bytes())
    found = read(folder, record(), record(pdb_file="copy.pdb"), two(), cache=tmp_path / "cache")
    assert len(found.pairs) == 3 and len(list((tmp_path / "cache").iterdir())) == 2


def test_chains_in_another_order_are_read_in_that_order(folder: Path) -> None:
    """Though the structure is the same."""
    first, second = chain("AGSKL", "A"), chain("VVV", "B")
    (folder / "ab.pdb").write_text(first + second)
    (folder / "ba.pdb").write_text(second + first)
    other = record(pdb_file="ba.pdb", preferred_seq="VVVAGSKL", unpreferred_seq="VVVVGSKL")
    found = read(folder, record(pdb_file="ab.pdb", preferred_seq="AGSKLVVV", unpreferred_seq="VGSKLVVV"), other).pairs
    assert [chains(pair) for pair in found] == [("AB", ""), ("BA", "")]
    assert found[0].design.structure.content == found[1].design.structure.content


def test_identity_is_what_a_record_says(folder: Path) -> None:
    (folder / "copy.pdb").write_bytes((folder / "one.pdb").read_bytes())
    same = [record(), record(pdb_file="copy.pdb", note=1), record(chain_id="A", mutable_ranges=[[0, 4]])]
    other = [
        record(preferred_seq="VGSKL", unpreferred_seq="AGSKL"),
        record(mutable_positions=[0]),
        two(chain_id="A", preferred_seq="AGSKL", unpreferred_seq="VGSKL"),
        two(chain_id="A", fixed_chains="B", preferred_seq="AGSKL", unpreferred_seq="VGSKL"),
    ]
    pairs = read(folder, *same, *other).pairs
    assert len({pair.identity() for pair in pairs[:3]}) == 1
    assert len({pair.identity() for pair in pairs}) == 1 + len(other)
