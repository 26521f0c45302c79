"""A run followed from its files: what is read, what is waited for, and when it ends."""

import os
import sys
import threading
import time
from typing import get_type_hints

import msgspec
import pytest

from fedsieve.jobs.result import Result
from fedsieve.metrics.rows import Row, Summary
from fedsieve.report.frames import frame
from fedsieve.report.watch import Follower, sparkline


def row(number, **fields):
    zeros = dict.fromkeys(
        (name for name in Row.__struct_fields__ if name.startswith(("macs_", "up_", "down_"))), 0
    )
    plain = zeros | {"round": number, "seconds": 2.0, "clients": 3, "failed": 0, "density": 0.5}
    return Row(**plain | {"up_bytes": 1_000_000, "loss": 1 / number} | fields)


def text(*rows):
    return b"".join(msgspec.json.encode(r) + b"\n" for r in rows)


def finish(folder, rounds, status="finished"):
    kinds = {str: "x", int: 0, float: 0.0, dict[str, str]: {}, dict[str, float]: {}}
    fields = {name: kinds.get(hint) for name, hint in get_type_hints(Summary).items()}
    summary = Summary(**fields | {"rounds": rounds, "status": status})
    (folder / "result.json").write_bytes(msgspec.json.encode(summary))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.toml").write_text('method = "fedavg"\nrounds = 5\n')
    return tmp_path


@pytest.fixture
def watch(cli):
    """Call `fedsieve watch`; returns (exit code, stdout, stderr)."""
    return lambda *arguments: cli("watch", *arguments)


def test_a_sparkline_goes_from_the_lowest_to_the_highest_block():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 80) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 0], 80) == "█▁"


def test_a_sparkline_shows_means_where_there_are_more_values_than_characters():
    assert sparkline([0, 0, 3, 4, 7, 7], 3) == "▁▅█"  # 3.5 of 7 lies halfway, rounded to even: 4


def test_a_sparkline_is_flat_for_equal_values_and_skips_missing_ones():
    assert sparkline([2.0, None, 2.0, float("nan")], 80) == "▄▄"
    assert not sparkline([None], 80)
    assert not sparkline([1.0], 0)


def test_a_half_written_line_is_left_for_later(folder):
    whole = text(row(1), row(2))
    path, follower = folder / "rounds.jsonl", Follower(folder)
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        seen = follower.look()
        assert seen.done == whole[:size].count(b"\n")
        assert not seen.note


def test_a_line_that_is_no_row_is_named_and_read_once_it_is_one(folder):
    path, follower = folder / "rounds.jsonl", Follower(folder)
    path.write_bytes(text(row(1)) + b"\0" * 8 + b"\n")
    seen = follower.look()
    assert seen.done == 1
    assert "line 2" in seen.note
    path.write_bytes(text(row(1), row(2)))
    assert follower.look().done == 2


@pytest.mark.parametrize("is_replaced", [True, False])
@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("grown", [0, 1, 9])
def test_rows_cut_by_a_resumed_run_are_dropped(folder, is_replaced, kept, grown):
    path, follower = folder / "rounds.jsonl", Follower(folder)
    path.write_bytes(text(*(row(n) for n in range(1, 5))))
    assert follower.look().done == 4
    after = [row(n) for n in range(1, kept + 1)]
    after += [row(n, loss=0.25) for n in range(kept + 1, kept + grown + 1)]
    if is_replaced:
        fresh = folder / "fresh"
        fresh.write_bytes(text(*after))
        fresh.replace(path)
    else:
        path.write_bytes(text(*after[:kept]))
        follower.look()
        path.write_bytes(text(*after))
    assert follower.look().rows == after


def test_time_left_is_the_recent_pace_times_the_rounds_to_go(folder):
    (folder / "rounds.jsonl").write_bytes(text(row(1, seconds=1.0), row(2, seconds=3.0)))
    seen = Follower(folder).look()
    assert seen.seconds_per_round == 2.0
    assert seen.seconds_left == 6.0  # rounds 3, 4 and 5


def test_a_result_older_than_the_rows_is_one_that_a_resumed_run_left(folder):
    path = folder / "rounds.jsonl"
    path.write_bytes(text(row(1), row(2)))
    finish(folder, 2, "after round 2 of 5")
    os.utime(folder / "result.json", (10, 10))
    os.utime(path, (20, 20))
    assert Follower(folder).look().summary is None
    os.utime(folder / "result.json", (30, 30))
    assert Follower(folder).look().summary.rounds == 2


def test_a_run_with_all_its_rounds_is_over_whatever_a_copy_did_to_times(folder):
    finish(folder, 5)
    os.utime(folder / "result.json", (10, 10))
    (folder / "rounds.jsonl").write_bytes(text(*(row(n) for n in range(1, 6))))
    assert Follower(folder).look().summary is not None


def test_watch_waits_follows_a_growing_file_and_ends_with_the_run(tmp_path, watch):
    folder = tmp_path / "later"

    def play():
        time.sleep(0.2)
        folder.mkdir()
        (folder / "config.toml").write_text('method = "fedavg"\nrounds = 3\n')
        with (folder / "rounds.jsonl").open("ab", buffering=0) as file:
            for number in (1, 2, 3):
                line = text(row(number, global_accuracy=number / 10))
                file.write(line[:30])
                time.sleep(0.12)
                file.write(line[30:])
                time.sleep(0.12)
        finish(folder, 3)

    player = threading.Thread(target=play)
    player.start()
    code, out, _ = watch(folder, "--every", 0.05)
    player.join()
    assert code == 0
    assert "does not exist yet; waiting" in out
    lines = [line for line in out.splitlines() if line.startswith("round")]
    assert [line.split()[1] for line in lines[:3]] == ["1/3", "2/3", "3/3"]
    assert "global 0.2000  up 2.00 MB down 0 B  density 0.500  2.0 s a round" in lines[1]
    assert lines[1].endswith("2.0 s left")
    assert "\x1b" not in out


def test_watch_says_when_a_run_was_resumed(folder, watch, monkeypatch):
    path = folder / "rounds.jsonl"
    path.write_bytes(text(*(row(n) for n in range(1, 5))))
    steps = iter(
        [
            lambda: path.write_bytes(text(row(1))),
            lambda: path.write_bytes(text(row(1), row(2))),
            lambda: finish(folder, 2),
        ]
    )
    monkeypatch.setattr(time, "sleep", lambda _: next(steps)())
    code, out, _ = watch(folder)
    assert code == 0
    shown = [line.split("  ")[0] for line in out.splitlines()]
    assert shown[1:4] == ["round 4/5", "resumed after round 1", "round 2/5"]


def test_ctrl_c_ends_watching_with_exit_code_0(folder, watch, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    (folder / "rounds.jsonl").write_bytes(text(row(1)))
    code, out, _ = watch(folder)
    assert code == 0
    assert "round 1/5" in out


def test_on_a_terminal_the_picture_is_drawn_in_place_until_the_run_ends(folder, watch, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    (folder / "rounds.jsonl").write_bytes(text(row(1), row(2)))
    monkeypatch.setattr(time, "sleep", lambda _: finish(folder, 2))
    code, out, _ = watch(folder)
    assert code == 0
    assert "█▁" in out
    assert "\x1b" in out


def test_once_prints_one_picture_and_changes_nothing(folder, watch):
    (folder / "rounds.jsonl").write_bytes(text(row(1), row(2), row(3, local_accuracy=0.5)))
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    code, out, _ = watch(folder, "--once")
    assert code == 0
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    lines = out.splitlines()
    assert lines[1].startswith("round 3/5  up 3.00 MB down 0 B  2.0 s a round  4.0 s left")
    drawn = {line[:17].strip(): line[17:].split() for line in lines[2:]}
    assert list(drawn) == ["local score", "test loss", "density", "sent up, MB", "sent down, MB"]
    assert drawn["test loss"] == ["0.3333", "█▃▁", "0.3333", "to", "1"]  # 1/4 of 7 steps up: 1.75
    assert max(map(len, lines)) <= 100


def test_once_without_a_run_is_an_explained_error(tmp_path, watch):
    code, _, err = watch(tmp_path / "nothing", "--once")
    assert code == 2
    assert "does not exist yet" in err


def test_a_frame_has_the_rows_with_values_flattened():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    rows = [row(1, values={"drift": 0.5}), row(2, loss=None, values={"gap": 2.0})]
    table = Result(None, rows, None, None).frame()
    pandas.testing.assert_frame_equal(table, frame(rows))
    fields = [name for name in Row.__struct_fields__ if name != "values"]
    assert list(table.columns) == [*fields, "values.drift", "values.gap"]
    back = [
        {name: None if pandas.isna(value) else value for name, value in record.items()}
        for record in table.to_dict("records")
    ]
    for record, one in zip(back, rows, strict=True):
        assert {name: record[name] for name in fields} == {n: getattr(one, n) for n in fields}
        assert (record["values.drift"], record["values.gap"]) == (
            one.values.get("drift"),
            one.values.get("gap"),
        )
    assert table["up_bytes"].dtype == "int64"


def test_a_frame_without_pandas_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match="pip install pandas"):
        frame([])
