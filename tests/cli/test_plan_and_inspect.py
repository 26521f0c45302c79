"""`fedsieve plan` predicts what a run costs; `fedsieve inspect` says what its bytes are."""

import json

import pytest

import fedsieve
from fedsieve.wire.inspect import inspect, read_frame

SMALL = ("--clients=8", "--cohort=4", "--model=mlp(hidden=[32])", "--rounds=12")


@pytest.fixture
def kept(cli, tmp_path):
    """A run folder with the messages of rounds 1 and 3."""
    code, _, err = cli(
        "run", *SMALL, "--method=fediter_ht", "--save-messages=1,3", "--out", tmp_path / "run", "-q"
    )
    assert code == 0, err
    return tmp_path / "run"


@pytest.mark.parametrize(
    "method",
    [["fedavg"], ["fediter_ht", "--set=ramp=0"], ["fediter_ht"]],
    ids=["dense", "sparse", "pruning"],
)
@pytest.mark.parametrize("wire", ["fp32", "bf16", "int8"])
def test_the_predicted_bytes_are_within_five_percent_of_the_run(cli, method, wire):
    settings = (*SMALL, "--method", *method, f"--wire={wire}")
    _, planned, _ = cli("plan", *settings, "--json")
    _, rows, _ = cli("run", *settings, "--json")
    summary = json.loads(rows.splitlines()[-1])
    forecast = json.loads(planned)
    true = summary["up_bytes"] + summary["down_bytes"]
    assert forecast["total_bytes"] == pytest.approx(true, rel=0.05)
    paper = summary["up_paper_bytes"] + summary["down_paper_bytes"]
    assert forecast["total_paper_bytes"] == paper
    assert forecast["total_macs"] == pytest.approx(summary["macs_dense"], rel=0.3)  # cohorts vary


@pytest.mark.parametrize("ramp", [{}, {"ramp": 30}], ids=["of the run", "given"])
def test_bytes_of_a_longer_run_follow_density_as_it_falls(ramp):
    """After five rounds density is 0.69 or 0.64, at the end 0.15."""
    settings = {"model": "mlp(hidden=[32])", "clients": 4, "cohort": 2, "rounds": 40, "steps": 2}
    settings |= {"method": "fediter_ht", "eval_every": 40, **ramp}
    planned, summary = fedsieve.plan(**settings), fedsieve.run(**settings).summary
    true = summary.up_bytes + summary.down_bytes
    assert planned.total_bytes == pytest.approx(true, rel=0.1)
    assert planned.density == summary.density < 0.15


def test_a_short_ramp_of_a_long_run_can_be_planned():
    planned = fedsieve.plan(
        method="vardrop", rounds=100, warmup=1, ramp=1, steps=1, clients=2, model="mlp(hidden=[4])"
    )
    assert planned.total_bytes > 0


def test_a_plan_is_shown_as_tables(cli):
    code, out, _ = cli("plan", *SMALL)
    assert code == 0
    for words in ("true / limit", "in all", "server memory", "client memory", "time"):
        assert words in out
    assert "Time and memory are those of the first 5 rounds" in out
    assert "first 5" not in cli("plan", *SMALL, "--rounds=5")[1]  # all were played


def test_a_plan_for_bad_settings_is_refused(cli):
    code, _, err = cli("plan", "--rounds=0")
    assert code == 2
    assert "rounds=0" in err


def test_messages_of_chosen_rounds_are_kept_and_add_up(kept):
    frames = sorted((kept / "messages").glob("*.frame"))
    assert {f.name.split("-")[0] for f in frames} == {"0000001", "0000003"}
    assert len(frames) == 2 * 4 * 2
    messages = [json.loads(line) for line in (kept / "messages.jsonl").open()]
    for path in frames:
        frame = read_frame(path)
        found = inspect(frame)
        (line,) = [
            m
            for m in messages
            if (m["round"], m["client"], m["direction"])
            == (frame.round, frame.client, frame.direction)
        ]
        assert found.total_bytes == line["total_bytes"] == len(frame.data)
        assert found.header_bytes + found.mask_bytes + found.value_bytes == found.total_bytes
        assert sum(x.mask_bytes for x in found.lines) == pytest.approx(found.mask_bytes)
        assert sum(x.value_bytes for x in found.lines) == pytest.approx(found.value_bytes)


def test_a_message_is_taken_apart_on_the_screen(cli, kept):
    frame = min((kept / "messages").glob("*.frame"))
    code, out, _ = cli("inspect", frame)
    assert code == 0
    for words in ("round 1, client", "announced schema", "masks", "fc1.weight", "limit"):
        assert words in out


def test_a_run_is_summed_by_round_and_way(cli, kept):
    code, out, _ = cli("inspect", kept)
    assert code == 0
    result = json.loads((kept / "result.json").read_text())
    assert f"{result['up_bytes']:,}" in out
    assert f"{result['down_bytes']:,}" in out
    assert "16 messages kept" in out


def test_what_is_no_message_is_refused(cli, tmp_path):
    (tmp_path / "x.frame").write_bytes(b"nothing")
    assert cli("inspect", tmp_path / "x.frame")[0] == 2
    assert cli("inspect", tmp_path)[0] == 2
    code, _, err = cli("inspect", tmp_path / "absent")
    assert code == 2
    assert "there is no such message, and no run folder" in " ".join(err.split())


def test_inspect_shows_the_matching_of_a_run_and_its_pieces(cli, tmp_path):
    run, model = tmp_path / "run", "mlp(hidden=[6, 5])"
    fedsieve.run(method="gpi_fnm", model=model, clients=3, cohort=3, rounds=2, out=run, gamma0=5.0)
    code, out, _ = cli("inspect", run, "--svg", tmp_path / "pictures")
    assert code == 0
    assert "matching after round 2, 3 clients" in out
    sizes = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith("    ")}
    for number, width in (("1", 6), ("2", 5)):
        _, neurons, atoms, _, *users = sizes[number]
        assert int(neurons) == width
        counts = [int(x) for pair in users for x in pair.split(":")]
        assert sum(counts[1::2]) == int(atoms)
        assert sum(n * c for n, c in zip(counts[::2], counts[1::2], strict=True)) == 3 * width
        picture = (tmp_path / "pictures" / f"layer{number}.svg").read_text()
        assert picture.count("<rect") == 3 * width
    accuracy = json.loads((run / "result.json").read_text())["global_accuracy"]
    assert f"the global network has {accuracy:.3f}" in out
    assert out.splitlines()[-1].split()[0] == "mean"
