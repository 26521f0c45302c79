"""The report page: the figures of the files, nothing from elsewhere, and it works in a browser."""

import json
import re
import shutil

import numpy as np
import pytest
import tomli_w
import torch
from markupsafe import escape

import fedsieve
from fedsieve.core.errors import ConfigError, DataError
from fedsieve.drawing import svg
from fedsieve.drawing.units import large, size
from fedsieve.engine.run_folder import RunFolder
from fedsieve.jobs.config import make, read_toml
from fedsieve.jobs.job import split_data
from fedsieve.report import figures, page
from fedsieve.report.checks import warnings
from report import browser
from report.browser import Elements
from small import SETTINGS

in_browser = pytest.mark.skipif(
    browser.found() is None, reason="no chromium or google-chrome on this machine"
)
HOSTILE = "<script>document.title='taken'</script>\"'><img src=x onerror=alert(1)>&amp;"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    fedsieve.run(**SETTINGS, method="fedavg", out=root / "dense")
    sparse = SETTINGS | {"method": "fediter_ht", "lr": 0.01, "save_messages": (1, 4)}
    fedsieve.run(**sparse, out=root / "sparse")
    return [root / "dense", root / "sparse"]


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory):
    return page.write(runs, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def elements(written):
    return Elements(written.read_text())


def changed(run, target, **fields):
    """A copy of a run whose result.json says something else, and which proves nothing."""
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("manifest"))
    text = (target / "config.toml").read_text().rpartition("# fedsieve wrote")[0]
    (target / "config.toml").write_text(text)
    result = json.loads((run / "result.json").read_text())
    (target / "result.json").write_text(json.dumps(result | fields))
    return target


def test_the_page_stands_alone_and_is_small(written, elements):
    assert written.stat().st_size < 400_000
    assert not re.search(r"https?:|//\w|url\(|@import", written.read_text())
    links = [
        a.get("href") or a.get("src") for a in elements.having("href") + elements.having("src")
    ]
    ids = {a["id"] for a in elements.having("id")}
    assert links
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    assert [p.name for p in written.parent.iterdir()] == ["report.html"]  # no temporary left


def test_the_page_begins_with_the_answer_and_every_run_is_in_its_curve(runs, tmp_path):
    personal = SETTINGS | {"method": "spafl", "rounds": 2}
    fedsieve.run(**personal, out=tmp_path / "personal")
    silent = SETTINGS | {"method": "local_only", "rounds": 2}
    fedsieve.run(**silent, out=tmp_path / "silent")
    folders = [*runs, tmp_path / "personal", tmp_path / "silent"]
    text = page.write(folders, tmp_path / "report.html").read_text()
    top = text[text.index('id="answer"') : text.index("</section>")]
    results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    sent = [r["up_bytes"] + r["down_bytes"] for r in results]
    for number, share in enumerate(sent):
        assert f'data-value="{share}"' in top
        assert f'data-value="{share / sent[0]}"' in top  # totals against FedAvg's total
        assert f'data-run="{number}"' in top
    assert "which sends nothing" in top
    assert top.count("<sup") == 2
    assert top.count("<table") == 1
    assert 0 < top.index('class="answer"') < top.index("<svg") < top.index("<table")


def test_only_shared_settings_are_side_by_side(runs, written):
    text = written.read_text()
    settings = text[text.index('id="settings"') : text.index('id="density"')]
    shared, *own = settings.split("<caption>")[1:]
    assert shared.startswith("Settings that differ")
    assert ">lr</th>" in shared  # 0.1 and 0.01
    assert "target_density" not in shared
    assert [o.split(":")[0] for o in own if "target_density" in o] == ["fediter_ht"]


def test_the_summary_equals_result_json(runs, elements):
    shown = {
        (int(a["data-run"]), a["data-field"]): json.loads(a["data-value"])
        for a in elements.having("data-field")
    }
    versions = {
        (int(a["data-run"]), a["data-version"]): json.loads(a["data-value"])
        for a in elements.having("data-version")
    }
    for number, run in enumerate(runs):
        result = json.loads((run / "result.json").read_text())
        assert {n: v for (i, n), v in versions.items() if i == number} == result.pop("versions")
        result["sent_bytes"] = result["up_bytes"] + result["down_bytes"]
        result["paper_bytes"] = result["up_paper_bytes"] + result["down_paper_bytes"]
        assert {n: v for (i, n), v in shown.items() if i == number} == result


def test_curves_and_details_equal_the_files(runs, written, elements):
    rows = [json.loads(line) for line in (runs[1] / "rounds.jsonl").read_text().splitlines()]
    first = re.search(r'aria-label="Global accuracy over rounds".*?</svg>', written.read_text())
    drawn = first[0].split('data-run="1"')[1]
    points = re.findall(r'data-x="(.*?)" data-y="(.*?)"', drawn)
    assert [(int(x), float(y)) for x, y in points] == [
        (r["round"], r["global_accuracy"]) for r in rows
    ]
    last = json.loads((runs[1] / "evaluations.jsonl").read_text().splitlines()[-1])
    layers = {
        a["data-layer"]: json.loads(a["data-value"])
        for a in elements.having("data-layer")
        if a["data-run"] == "1"
    }
    assert layers == last["layer_density"]
    quantiles = {
        float(a["data-quantile"]): json.loads(a["data-value"])
        for a in elements.having("data-quantile")
        if a["data-run"] == "1"
    }
    assert quantiles[0.5] == pytest.approx(np.median(last["client_accuracy"]))
    assert quantiles[0.0] == min(last["client_accuracy"])


def test_byte_parts_add_up_to_the_result(runs, elements):
    parts = {
        (int(a["data-run"]), a["data-direction"], a["data-part"]): json.loads(a["data-value"])
        for a in elements.having("data-part")
    }
    for number, run in enumerate(runs):
        result = json.loads((run / "result.json").read_text())
        for way in ("up", "down"):
            whole = parts[number, way, "total"]
            assert whole == result[f"{way}_bytes"]
            assert whole == sum(parts[number, way, p] for p in ("header", "mask", "value"))
            assert parts[number, way, "paper"] == result[f"{way}_paper_bytes"]


def test_tensor_bytes_are_those_of_the_kept_messages(runs):
    count, tensors = figures.tensor_bytes(runs[1])
    assert count == 12  # 2 rounds, 3 clients, both ways
    lines = [json.loads(x) for x in (runs[1] / "messages.jsonl").read_text().splitlines()]
    kept = [x for x in lines if x["round"] in {1, 4} and x["direction"] == "up"]
    spent = sum(t.mask_bytes + t.value_bytes for t in tensors if t.direction == "up")
    assert spent == pytest.approx(np.mean([x["mask_bytes"] + x["value_bytes"] for x in kept]))
    assert figures.tensor_bytes(runs[0]) == (0, [])


def test_overlap_is_intersection_over_union(runs, elements):
    rounds, matrix = figures.overlap(runs[1])
    assert rounds == [1, 2, 3, 4]
    supports = []
    for path in sorted((runs[1] / "supports").iterdir()):
        bits = np.unpackbits(np.frombuffer(path.read_bytes(), np.uint8))
        supports.append(set(np.flatnonzero(bits).tolist()))
    direct = [[len(a & b) / len(a | b) for b in supports] for a in supports]
    assert matrix == direct
    assert direct[0][1] < 1
    shown = [a for a in elements.having("data-words") if "overlap" in a["data-words"]]
    assert [json.loads(a["data-values"]) for a in shown] == [direct]


def test_overlap_of_gates_is_the_soft_iou(tmp_path):
    gates = [torch.tensor([0.2, 1.0, 0.0]), torch.tensor([0.6, 0.4, 0.0])]
    folder = RunFolder(tmp_path)
    for number, gate in enumerate(gates, 1):
        folder.records.keep_support(number, {"a": gate[:2], "b": gate[2:]})
    rounds, matrix = figures.overlap(tmp_path)
    assert rounds == [1, 2]
    assert matrix[0][0] == matrix[1][1] == 1
    assert matrix[0][1] == pytest.approx((0.2 + 0.4) / (0.6 + 1.0))  # all are whole 255ths


def test_the_partition_is_drawn_once_for_equal_splits(elements):
    drawn = [a for a in elements.having("data-words") if '"client"' in a["data-words"]]
    assert len(drawn) == 1
    data, _, parts = split_data(make(SETTINGS))
    direct = [np.bincount(data.y[mine], minlength=10).tolist() for mine in parts.train]
    assert json.loads(drawn[0]["data-values"]) == direct
    assert np.sum(direct) == len(data.y)


def test_what_files_hold_stays_text(runs, tmp_path):
    evil = changed(runs[1], tmp_path / "evil<b>", model=HOSTILE, partition=HOSTILE)
    config = read_toml(evil / "config.toml") | {"data_root": HOSTILE}
    (evil / "config.toml").write_text(tomli_w.dumps(config))
    text = (evil / "evaluations.jsonl").read_text()
    (evil / "evaluations.jsonl").write_text(text.replace("fc1.weight", json.dumps(HOSTILE)[1:-1]))
    result = page.write([evil, runs[1]], tmp_path / "report.html").read_text()
    found = Elements(result).found
    assert [name for name, _ in found].count("script") == 1
    assert not [name for name, _ in found if name in {"img", "b"}]
    assert not [a for _, a in found if "onerror" in a]
    assert escape(HOSTILE) in result


def test_pages_without_data_say_so(runs, tmp_path):
    lost = changed(runs[0], tmp_path / "lost", partition_fingerprint="0" * 16)
    assert "not the same data" in page.write([lost], tmp_path / "a.html").read_text()
    out = page.write([lost], tmp_path / "b.html", with_partition=False)
    assert "Left out on request" in out.read_text()


def test_a_run_without_rounds_has_a_page(runs, tmp_path):
    empty = changed(runs[0], tmp_path / "empty", rounds=0, status="after round 0 of 4")
    for name in ("rounds", "evaluations", "messages"):
        (empty / f"{name}.jsonl").write_text("")
    assert "No round was finished" in page.write([empty], tmp_path / "a.html").read_text()
    (empty / "messages.jsonl").write_text("{")
    with pytest.raises(DataError, match=r"messages\.jsonl: not a readable list"):
        page.write([empty], tmp_path / "a.html")


def test_warnings_name_what_is_wrong(runs, tmp_path):
    assert "replies failed" not in "".join(warnings(figures.read_runs(runs)))
    bad = changed(
        runs[1], tmp_path / "bad", failed=2, status="after round 4 of 9", density=1.0,
        partition_fingerprint="0" * 16, up_bytes=1, best_global_accuracy=1.0,
    )  # fmt: skip
    lines = (bad / "rounds.jsonl").read_text().splitlines()
    row = {k: v for k, v in json.loads(lines[2]).items() if k != "loss"}
    (bad / "rounds.jsonl").write_text("\n".join([*lines[:2], json.dumps(row), lines[3]]) + "\n")
    told = "\n".join(warnings(figures.read_runs([runs[0], bad])))
    for words in ("2 of 14 replies failed", "did not finish: after round 4 of 9", "density 1",
                  "different partitions", "adds up to", "below its best",
                  "not finite in 1 rounds, first in round 3"):  # fmt: skip
        assert words in told


def test_equal_methods_are_told_apart_by_their_settings(runs, tmp_path):
    copy = changed(runs[0], tmp_path / "copy")
    text = (copy / "config.toml").read_text()
    assert [r.label for r in figures.read_runs([runs[0], copy])] == [
        "fedavg (dense)", "fedavg (copy)"
    ]  # fmt: skip
    (copy / "config.toml").write_text(text.replace("seed = 7", "seed = 8"))
    assert [r.label for r in figures.read_runs([runs[0], copy])] == [
        "fedavg seed=7",
        "fedavg seed=8",
    ]


def test_many_long_runs_still_fit(runs, tmp_path):
    long = changed(runs[1], tmp_path / "long")
    for name in ("rounds", "evaluations"):
        path = long / f"{name}.jsonl"
        line = json.loads(path.read_text().splitlines()[-1])
        path.write_text("".join(json.dumps(line | {"round": i}) + "\n" for i in range(1, 3001)))
    out = page.write([long] * 8, tmp_path / "report.html", with_partition=False)
    assert out.stat().st_size < 2_000_000


def test_thinning_keeps_ends_and_peaks():
    heights = [0.0] * 1000
    heights[537] = 1.0
    kept = figures.thinned(range(1000), heights, 100)
    assert len(kept) <= 102
    assert {0, 537, 999} <= set(kept)


def test_ticks_are_round():
    assert svg.ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert svg.ticks(0.98, 3.02, is_whole=True) == [1, 2, 3]
    assert svg.log_ticks(0.9, 11) == [1, 2, 5, 10]
    assert (size(332090), large(5119692480), large(999.9e6)) == ("332.1 kB", "5.12 G", "1000 M")
    assert svg.tag("a", "<", href='"') == '<a href="&#34;">&lt;</a>'


def test_wrong_arguments_are_explained(runs, tmp_path):
    with pytest.raises(ConfigError, match="1 to 24"):
        page.write([], tmp_path / "x.html")
    with pytest.raises(ConfigError, match="existing folder"):
        page.write(runs, tmp_path / "missing" / "x.html")
    with pytest.raises(DataError, match=r"result\.json"):
        page.write([tmp_path], tmp_path / "x.html")


def test_the_command_writes_the_page_and_says_where(cli, runs, tmp_path):
    path = tmp_path / "cli.html"
    code, out, err = cli("report", *runs, "-o", path)
    assert code == 0, err
    assert str(path) in out
    assert path.read_text().startswith("<!DOCTYPE html>")


@in_browser
def test_the_script_runs_under_the_policy_of_the_page(written, tmp_path):
    dom, said = browser.visit(written, tmp_path)
    assert said == []
    assert re.search(r'<html[^>]*class="js"', dom)
    assert "<title>" not in dom.split("<body>")[1]  # words were moved to the points


@in_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_it_works_in_a_browser(width, written, tmp_path):
    seen = browser.probe(written, browser.WALK, width, tmp_path)
    assert seen["errors"] == []
    assert seen["width"] == width
    assert seen["scroll"] <= width
    assert seen["columns"] == (5 if width == 1280 else 4)
    assert seen["fits"]
    assert (seen["closed"], seen["opened"]) == (0, 11)
    assert re.fullmatch(r"fedavg, round 2: \d+\.\d % at \d+\.\d kB", seen["hover"])
    assert seen["inside"]
    assert re.fullmatch(r"fedavg, round 3: \d+\.\d % at \d+\.\d kB", seen["next"])
    assert not seen["gone"]
    assert re.fullmatch(r"round 1, round 2: overlap 0\.\d{3}", seen["cell"])
    assert (seen["before"], seen["after"]) == ([False, True], [True, False])
    assert seen["off"] == 10  # the answer's curve, 6 of scores, density, loss, clients
    assert seen["light"] != seen["dark"]
