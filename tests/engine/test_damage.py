"""Damaged run folders: found, told, and where a checkpoint is whole made good."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import fedsieve
from fedsieve.cli.app import application
from fedsieve.core.errors import DataError, FedsieveError, ResumeError
from fedsieve.engine import manifest
from fedsieve.engine.checkpoint import checkpoints_of
from fedsieve.engine.manifest import Checksum, checksum_of, has_valid_hash, with_hash
from fedsieve.engine.verify import verify
from fedsieve.export import export_run
from fedsieve.jobs.config import read_toml
from fedsieve.jobs.library import find, find_or_run, load, run_hash
from fuzz import damage
from small import steady

NEWEST, OLDER = "checkpoints/0000004", "checkpoints/0000002"


@pytest.fixture(scope="module", params=["fedavg", "spafl"])
def folders(request, tmp_path_factory):
    torch.set_num_threads(1)
    return damage.make_folders(request.param, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def stopped(folders, tmp_path):
    """As a kill in round 5 leaves it: checkpoints of rounds 2 and 4, and a row after them."""
    return shutil.copytree(folders.stopped, tmp_path / "stopped")


@pytest.fixture
def finished(folders, tmp_path):
    return shutil.copytree(folders.finished, tmp_path / "finished")


def flip(path, place=-1):
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def resumed(folder):
    return fedsieve.run(out=folder, resume=True, progress=False)


def check_same(found, expected):
    assert found.summary.model_hash == expected.summary.model_hash
    assert steady(found.rows) == steady(expected.rows)


def test_a_sample_of_all_damages_ends_as_it_should_or_in_an_error(folders, tmp_path):
    every = damage.tasks(folders, 3)
    some = random.Random(folders.finished.name).sample(every, 20)
    found = damage.run_tasks(some, folders.result, tmp_path / "scratch")
    outcomes = [outcome for _, _, outcome in found]
    assert set(outcomes) == {"same", "error"}


@pytest.mark.parametrize("file", ["server.safetensors", "position.msgpack", "manifest"])
@pytest.mark.parametrize("harm", [flip, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_is_left_out_for_the_one_before(stopped, folders, file, harm, caplog):
    harm(stopped / NEWEST / file)
    assert verify(stopped).resumes_from == 2
    check_same(resumed(stopped), folders.result)
    assert f"{NEWEST} is left out: {NEWEST}/{file} " in caplog.text
    assert verify(stopped).is_whole


def test_if_no_checkpoint_is_whole_the_error_names_the_files_and_nothing_is_changed(stopped):
    flip(stopped / NEWEST / "server.safetensors")
    (stopped / OLDER / "position.msgpack").write_bytes(b"")
    before = {p: p.read_bytes() for p in stopped.rglob("*") if p.is_file()}
    with pytest.raises(ResumeError, match=f"{NEWEST}/server.safetensors is damaged.*{OLDER}/posi"):
        resumed(stopped)
    assert {p: p.read_bytes() for p in stopped.rglob("*") if p.is_file()} == before
    assert verify(stopped).resumes_from is None


@pytest.mark.parametrize("name", ["rounds.jsonl", "messages.jsonl", "evaluations.jsonl"])
def test_rows_are_part_of_what_a_checkpoint_stands_on(stopped, folders, name):
    older = checkpoints_of(stopped)[0].checksums()[name].size
    flip(stopped / name, older + 5)
    check_same(resumed(stopped), folders.result)  # from round 2
    flip(stopped / name, 5)
    with pytest.raises(ResumeError, match=f"{name} is damaged"):
        resumed(stopped)


@pytest.mark.parametrize("harm", ["empty", "cut", "rounds", "seed", "proof"])
@pytest.mark.parametrize("is_early", [False, True])
def test_a_changed_configuration_does_not_give_another_run(stopped, harm, is_early):
    path = stopped / "config.toml"
    text = path.read_text()
    changed = {
        "empty": "",
        "cut": text[: len(text) // 2],
        "rounds": text.replace("rounds = 6", "rounds = 7"),
        "seed": text.replace("seed = 3", "seed = 4"),
        "proof": text.replace("# fedsieve wrote", "# Fedsieve wrote"),
    }[harm]
    path.write_text(changed)
    if is_early:  # killed before its first checkpoint
        shutil.rmtree(stopped / "checkpoints")
        (stopped / "checkpoints").mkdir()
    with pytest.raises(ResumeError, match=r"config\.toml is damaged or was changed"):
        resumed(stopped)
    assert verify(stopped).resumes_from is None


def test_the_configuration_of_another_run_is_refused(stopped, tmp_path):
    text = (stopped / "config.toml").read_text().rpartition("# fedsieve wrote")[0]
    (stopped / "config.toml").write_bytes(with_hash(text.replace("seed = 3", "seed = 4")))
    with pytest.raises(ResumeError, match="has seed = 4, the checkpoint was made with 3"):
        resumed(stopped)


def test_what_may_change_on_resume_still_may(stopped, folders):
    fedsieve.run(out=stopped, resume=True, rounds=7, workers=2, progress=False)
    longer = resumed(stopped)
    assert len(longer.rows) == 7
    assert steady(longer.rows[:6]) == steady(folders.result.rows)


def as_older_version(folder):
    for path in folder.rglob("manifest"):
        path.unlink()
    text = (folder / "config.toml").read_text().rpartition("# fedsieve wrote")[0]
    (folder / "config.toml").write_text(text)
    rows = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text(
        re.sub('"macs_(dense|ideal|realisable)"', r'"flops_\1"', rows)
    )


def test_a_run_of_an_older_version_goes_on_with_a_word_and_proves_itself_from_then_on(
    stopped, folders, caplog
):
    as_older_version(stopped)
    verdict = verify(stopped)
    assert (verdict.is_whole, verdict.resumes_from) == (False, 4)
    assert {file.state for file in verdict.files} == {"unproved"}
    check_same(resumed(stopped), folders.result)
    assert "begun by an older version: nothing proves that its files are whole" in caplog.text
    assert checkpoints_of(stopped)[-1].has_manifest
    assert has_valid_hash((stopped / "config.toml").read_bytes())
    (stopped / "checkpoints/0000006/manifest").unlink()
    flip(stopped / NEWEST / "server.safetensors")
    with pytest.raises(ResumeError, match="no checkpoint is whole"):
        resumed(stopped)


def test_a_finished_run_is_held_against_its_manifest_where_it_is_read(finished, folders, tmp_path):
    names = ["result.json", "rounds.jsonl", "evaluations.jsonl", "messages.jsonl", "config.toml"]
    for name in names + (["model.safetensors"] if folders.result.model else []):
        data = (finished / name).read_bytes()
        flip(finished / name, 40)
        with pytest.raises(DataError, match=f"{name} is damaged.*fedsieve verify"):
            load(finished)
        (finished / name).write_bytes(data)
    check_same(load(finished), folders.result)


def test_an_exported_model_is_the_one_the_run_ended_with(finished, folders, tmp_path):
    """Also where nothing but the hash in result.json can say so."""
    as_older_version(finished)
    if folders.result.model is None:
        path = max((finished / "clients" / "states").glob("0000000-*"))
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(FedsieveError, match="does not hold what was kept there"):
            export_run(finished, tmp_path / "export", client=0)
        return
    model = load_file(finished / "model.safetensors")
    name = next(iter(model))
    save_file(model | {name: model[name] + 1e-3}, finished / "model.safetensors")
    with pytest.raises(DataError, match=r"is not the model whose hash result\.json has"):
        export_run(finished, tmp_path / "export")


def test_resuming_makes_a_damaged_result_again(finished, folders):
    for name in ("result.json", "model.safetensors", "manifest"):
        if (finished / name).exists():
            (finished / name).write_bytes(b"{")
    check_same(resumed(finished), folders.result)
    check_same(load(finished), folders.result)
    assert verify(finished).is_whole


def test_a_library_makes_a_damaged_run_again(finished, folders, tmp_path, caplog):
    settings = read_toml(finished / "config.toml")
    place = tmp_path / "library" / run_hash(settings)
    shutil.copytree(finished, place)
    assert find(settings, place.parent) is not None
    flip(place / "result.json")
    assert find(settings, place.parent) is None
    assert (
        find_or_run(settings, place.parent).summary.model_hash == folders.result.summary.model_hash
    )


def test_verify_says_file_by_file_what_is_whole(finished):
    app, runner = application(), CliRunner()
    whole = runner.invoke(app, ["verify", str(finished), "--json"])
    assert whole.exit_code == 0
    verdict = json.loads(whole.output)
    assert (verdict["is_whole"], verdict["is_finished"], verdict["resumes_from"]) == (True, True, 6)
    listed = {file["name"] for file in verdict["files"]}
    present = {str(p.relative_to(finished)) for p in finished.rglob("*") if p.is_file()}
    assert present - listed <= {"lock"}
    flip(finished / "checkpoints/0000006/server.safetensors")
    (finished / "result.json").unlink()
    found = runner.invoke(app, ["verify", str(finished)])
    assert found.exit_code == 2
    assert "goes on after round 4" in found.output
    assert "checkpoint of round 6: damaged" in found.output
    faults = [file.name for file in verify(finished).files if file.state == "damaged"]
    assert faults == ["checkpoints/0000006/server.safetensors", "result.json"]
    with pytest.raises(DataError, match="not a run folder"):
        verify(finished / "clients")


def test_verify_waits_for_nobody(stopped):
    lock = fedsieve.engine.run_folder.FileLock(stopped / "lock")
    with lock, pytest.raises(ResumeError, match="a process is at work"):
        verify(stopped)


def test_every_flipped_bit_of_a_manifest_and_of_a_configuration_is_found():
    checksums = {"a b.txt": checksum_of(b"abc"), "c": Checksum(0, "0")}
    packed, config = manifest.pack(checksums), with_hash("rounds = 6\n")
    assert manifest.unpack(packed) == checksums
    assert has_valid_hash(config)
    for data, is_whole in ((packed, _is_manifest), (config, has_valid_hash)):
        for place in range(8 * len(data)):
            changed = bytearray(data)
            changed[place // 8] ^= 1 << place % 8
            assert not is_whole(bytes(changed)), place
        assert not any(is_whole(data[:size]) for size in range(len(data)))


def _is_manifest(data):
    try:
        manifest.unpack(data)
    except ValueError:
        return False
    return True
