"""What a few lines of rules, or a few bytes of a file, may ask for: refused in one line, at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.recorded import FAMILIES
from txport.checkpoints.checkpoint import load_checkpoint, random_checkpoint, save_checkpoint
from txport.checkpoints.folder import files_of
from txport.checkpoints.importing.draft import write_draft
from txport.checkpoints.importing.fit import import_checkpoint, require_apart
from txport.checkpoints.sources.pickles import read_pickle
from txport.checkpoints.weights.plan import plan
from txport.errors import CheckpointError, ConfigError, OutputError
from txport.models.names import RULES, WEIGHTS
from txport.models.rules import Concat, Rename, Rule, Settle, Shift, Split, Unstack
from txport.text.sentencepiece import read_pieces


@pytest.mark.parametrize(
    "rules",
    [
        [Shift("x", 1.0)] * 400,
        [Split("x", ("x", "x"))] * 18,
        [Rename("x", "xx")] * 24,
        [Unstack("x", "x{}")],
    ],
)
def test_rules_that_make_too_much_are_refused(rules: list[Rule]) -> None:
    model = random_checkpoint("gpt2-tiny").model
    with pytest.raises(CheckpointError, match=r"the rules make|would be unstacked"):
        plan([*rules, Settle()], {"x": (10**6, 0)}, model)


def test_a_draft_takes_any_name_and_any_place(tmp_path: Path) -> None:
    """Numbers that are no layers', and a link that leads to itself."""
    names = (f"net.{number}.weight" for number in ("00", "9" * 5_000, "\u0663"))
    save_file({name: torch.ones(2, 2) for name in names}, tmp_path / WEIGHTS)
    with pytest.raises(ConfigError, match="may be of several architectures"):
        write_draft(tmp_path, tmp_path / RULES)
    (tmp_path / RULES).symlink_to(RULES)
    with pytest.raises(OutputError, match="links"):
        write_draft(tmp_path, tmp_path / RULES)


def test_a_pickled_tensor_that_sees_a_number_many_times_is_refused_where_it_is_used(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1, 4).expand(1 << 40, 4), "b": torch.ones(3)}, tmp_path / "m.pt")
    found = read_pickle(tmp_path / "m.pt")
    assert found["b"].tolist() == [1, 1, 1]
    with pytest.raises(CheckpointError, match="'a', which repeats few numbers many times"):
        found["a"]


def test_a_tensor_is_not_joined_with_itself() -> None:
    found = plan([Concat(("x", "x"), "y")] * 30, {"x": (2, 2)}, random_checkpoint("gpt2-tiny").model)
    assert found.unexpected == ("x",)


@pytest.mark.parametrize(
    "content", [b"\x0a\x02\x18\x02", b"\x0a\x04\x08\x05\x18\x02", b"\x1a\x06\x10\xff\xff\xff\xff\x0f"]
)
def test_fields_of_other_kinds_are_no_model_of_sentencepiece(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "spiece.model").write_bytes(b"\x0a\x05\x0a\x01a\x18\x02" * (content[0] == 0x1A) + content)
    with pytest.raises(CheckpointError, match="is not a model of SentencePiece"):
        read_pieces(tmp_path / "spiece.model")


def test_all_that_decides_what_a_checkpoint_of_others_is_makes_it(tmp_path: Path) -> None:
    fairseq = tmp_path / "fairseq"
    marian = tmp_path / "marian"
    for folder, names in (
        (fairseq, ("checkpoint_best.pt", "dict.en.txt", "dict.de.txt", "train.en-de.en.bin")),
        (marian, ("model.npz", "vocab.yaml", "model.npz.decoder.yml", "joint.yml", "corpus.en.json")),
    ):
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(b"")
    assert {path.name for path in files_of(fairseq)} >= {"checkpoint_best.pt", "dict.en.txt", "dict.de.txt"}
    assert {path.name for path in files_of(marian)} >= {"model.npz", "vocab.yaml", "joint.yml", "corpus.en.json"}


def test_an_import_keeps_how_sentences_are_pooled(tmp_path: Path) -> None:
    folder = FAMILIES / "sentences-first"
    import_checkpoint(str(folder), tmp_path / "out")
    own = load_checkpoint(str(folder)).generation
    assert own
    assert load_checkpoint(str(tmp_path / "out")).generation == own
    import_checkpoint("preset:gpt2-tiny", tmp_path / "out")
    assert not (tmp_path / "out" / "generation_config.json").exists()


@pytest.mark.parametrize("name", ["txport.toml", "model.bin", "model.npz"])
def test_what_would_be_read_before_an_import_stands_in_its_way(tmp_path: Path, name: str) -> None:
    save_checkpoint(tmp_path, random_checkpoint("gpt2-tiny").model)
    (tmp_path / name).write_text("")
    with pytest.raises(OutputError, match=f"holds {name}, which is read before"):
        require_apart("preset:gpt2-tiny", tmp_path, force=True)


def test_tensors_beside_a_dict_of_tensors_are_asked_for(tmp_path: Path) -> None:
    torch.save({"model": {"a": torch.ones(2)}, "state": torch.ones(3)}, tmp_path / "model.pt")
    with pytest.raises(
        CheckpointError, match=r"say which: at = 'model' in txport\.toml, `txport import --at` for a draft"
    ):
        read_pickle(tmp_path / "model.pt")
    assert list(read_pickle(tmp_path / "model.pt", "model").shapes) == ["a"]
