"""Trackers: the right calls with fake libraries, and the real ones where they are installed."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import fedsieve
from fedsieve.cli.app import main
from fedsieve.core.errors import ConfigError
from fedsieve.jobs.api import Watcher
from fedsieve.jobs.config import make
from fedsieve.jobs.trackers import MLflow, Several, TensorBoard, numbers, params, totals, tracker
from fedsieve.metrics.rows import Row

CONFIG = make({"method": "fedprox", "rounds": 3, "proximal": 0.5})
QUICK = {"rounds": 2, "clients": 3, "model": "mlp(hidden=[4])"}


def row(number, **fields):
    names = [n for n in Row.__struct_fields__ if n.startswith(("macs_", "up_", "down_"))]
    plain = dict.fromkeys(names, 10) | {"seconds": 2.0, "clients": 3, "failed": 1, "density": 0.5}
    return Row(round=number, **plain | fields)


class Calls:
    """Remembers every method called on it, by name."""

    def __init__(self, *arguments, **options):
        self.log = [("made", arguments, options)]

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: self.log.append((name, arguments, options))

    def named(self, name):
        return [(arguments, options) for found, arguments, options in self.log if found == name]


class FakeClient(Calls):
    broken = False

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        self.log.append(("create_experiment", (name,), {}))
        return "7"

    def create_run(self, place, run_name):
        self.log.append(("create_run", (place,), {"run_name": run_name}))
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def log_batch(self, run_id, metrics=(), params=()):
        if self.broken:
            raise ConnectionError("no route")
        self.log.append(("log_batch", (run_id,), {"metrics": metrics, "params": params}))


@pytest.fixture
def boards(monkeypatch):
    """A fake tensorboardX; the writers it made."""
    made = []

    def writer(*arguments, **options):
        made.append(Calls(*arguments, **options))
        return made[-1]

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=writer))
    return made


@pytest.fixture
def fake_mlflow(monkeypatch):
    library = ModuleType("mlflow")
    library.MlflowClient = FakeClient
    entities = ModuleType("mlflow.entities")
    entities.Metric = lambda name, value, timestamp, step: (name, value, step)
    entities.Param = lambda name, value: (name, value)
    exceptions = ModuleType("mlflow.exceptions")
    exceptions.MlflowException = type("MlflowException", (Exception,), {})
    for module in (library, entities, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_every_number_of_a_row_has_its_name_and_missing_ones_are_left_out():
    given = row(4, loss=0.5, lost=[2], values={"drift": 2.0, "gone": float("nan")})
    found = numbers(given)
    fields = {n: getattr(given, n) for n in Row.__struct_fields__ if n not in {"round", "values"}}
    expected = {n for n, value in fields.items() if value is not None and value not in ([], [2])}
    assert set(found) == expected | {"values/drift"}
    assert (found["loss"], found["values/drift"], found["density"]) == (0.5, 2.0, 0.5)


def test_parameters_are_settings_and_options_as_plain_values():
    found = params(CONFIG)
    assert (found["method"], found["rounds"], found["proximal"]) == ("fedprox", 3, 0.5)
    assert found["clients"] == "none"
    assert found["save_messages"] == "[]"


def test_totals_are_those_of_the_run_s_own_summary():
    result = fedsieve.run(**QUICK)
    found = totals(result.rows)
    assert found == pytest.approx({name: getattr(result.summary, name) for name in found})
    assert {"up_bytes", "macs_ideal", "best_global_accuracy", "loss", "seconds"} <= set(found)


def test_tensorboard_gets_rows_by_round_and_a_summary_at_the_end(boards, tmp_path):
    with TensorBoard(tmp_path / "b") as watcher:
        watcher.started(CONFIG, [row(1)])
        for number in (2, 3):
            watcher.finished_round(row(number, loss=1 / number, values={"drift": 0.5}))
    (writer,) = boards
    assert writer.log[0] == ("made", (str(tmp_path / "b"),), {"purge_step": 0})
    scalars = [arguments for arguments, _ in writer.named("add_scalar")]
    assert ("up_bytes", 10, 1) in scalars
    assert ("loss", 1 / 3, 3) in scalars
    assert ("values/drift", 0.5, 2) in scalars
    assert 'method = "fedprox"' in writer.named("add_text")[0][0][1]
    ((given, figures), _), *others = writer.named("add_hparams")
    assert not others
    assert given == params(CONFIG)
    assert figures["summary/up_bytes"] == 30
    assert len(writer.named("close")) == 1


def test_a_run_stopped_early_has_its_summary_when_the_with_ends(boards, tmp_path):
    with TensorBoard(tmp_path) as watcher:
        watcher.started(CONFIG, [])
        watcher.finished_round(row(1))
        assert not boards[0].named("close")
    assert boards[0].named("add_hparams")[0][0][1]["summary/rounds"] == 1
    assert boards[0].named("close")


@pytest.mark.usefixtures("fake_mlflow")
@pytest.mark.parametrize(("rounds", "status"), [(3, "FINISHED"), (2, "KILLED")])
def test_mlflow_gets_parameters_metrics_by_step_and_how_it_ended(rounds, status):
    with MLflow("http://host:5000", "trial") as watcher:
        watcher.started(CONFIG, [])
        for number in range(1, rounds + 1):
            watcher.finished_round(row(number, values={"drift": 0.5}))
    client = watcher._client
    assert client.log[0] == ("made", (), {"tracking_uri": "http://host:5000"})
    assert client.named("create_experiment") == [(("trial",), {})]
    assert client.named("create_run") == [(("7",), {"run_name": "fedprox on digits"})]
    batches = [options for _, options in client.named("log_batch")]
    assert ("proximal", "0.5") in [p for batch in batches for p in batch["params"]]
    metrics = [m for batch in batches for m in batch["metrics"]]
    assert ("density", 0.5, 2) in metrics
    assert ("values/drift", 0.5, 1) in metrics
    assert ("summary/up_bytes", 10 * rounds, rounds) in metrics
    assert client.named("set_terminated") == [(("r",), {"status": status})]


@pytest.mark.usefixtures("fake_mlflow")
def test_mlflow_takes_a_long_past_in_batches_it_accepts():
    watcher = MLflow("x")
    watcher.started(CONFIG, [row(n) for n in range(1, 301)])
    sizes = [len(options["metrics"]) for _, options in watcher._client.named("log_batch")]
    assert max(sizes) == 1000
    assert sum(sizes) == 300 * len(numbers(row(1)))


@pytest.mark.usefixtures("fake_mlflow")
def test_a_tracker_that_fails_in_a_run_is_left_off_with_a_warning(monkeypatch, caplog):
    with MLflow("http://host") as watcher:
        watcher.started(CONFIG, [])
        monkeypatch.setattr(FakeClient, "broken", True)
        watcher.finished_round(row(1))
        watcher.finished_round(row(2))
    (record,) = caplog.records
    assert record.getMessage() == "mlflow:http://host is left off after round 1: no route"


@pytest.mark.usefixtures("fake_mlflow")
def test_a_tracker_that_cannot_start_is_refused(monkeypatch):
    monkeypatch.setattr(FakeClient, "broken", True)
    with pytest.raises(ConfigError, match=r"mlflow:http://host cannot be written: no route\."):
        MLflow("http://host").started(CONFIG, [])


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "tensorboardX"), ("mlflow", "mlflow")]
)
def test_a_missing_library_is_an_error_that_names_the_extra(monkeypatch, tmp_path, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install 'fedsieve\[{name}\]'"):
        tracker(f"{name}:{tmp_path}")


def test_trackers_are_named_by_kind_and_place(boards, fake_mlflow, tmp_path):
    assert tracker(f"tensorboard:{tmp_path}").folder == tmp_path
    assert tracker("mlflow:http://host:5000").uri == "http://host:5000"
    with pytest.raises(ConfigError, match="Did you mean 'tensorboard'"):
        tracker("tensorbord:x")
    with pytest.raises(ConfigError, match="say where"):
        tracker("mlflow")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        tracker(f"tensorboard:{tmp_path / 'file'}")


def test_several_tell_all_and_leave_all_also_when_one_cannot_enter():
    class Noted(Watcher):
        def __init__(self, name, *, fails=False):
            self.name, self.fails = name, fails

        def __enter__(self):
            if self.fails:
                raise OSError
            notes.append(f"enter {self.name}")
            return self

        def __exit__(self, *exit_):
            notes.append(f"exit {self.name}")

        def finished_round(self, row):
            notes.append(f"round {row.round} {self.name}")

    notes = []
    with Several(Noted("a"), Noted("b")) as both:
        both.started(CONFIG, [])
        both.replied(1, 2)
        both.finished_round(row(1))
    assert notes == ["enter a", "enter b", "round 1 a", "round 1 b", "exit b", "exit a"]
    notes.clear()
    with pytest.raises(OSError), Several(Noted("a"), Noted("b", fails=True)):
        pass
    assert notes == ["enter a", "exit a"]


def test_track_on_the_command_line_follows_the_run(boards, monkeypatch, tmp_path):
    arguments = ["--rounds=2", "--clients=3", "--model=mlp(hidden=[4])", "-q"]
    where = f"--track=tensorboard:{tmp_path / 'b'}"
    monkeypatch.setattr(sys, "argv", ["fedsieve", "run", *arguments, where])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    steps = {arguments[2] for arguments, _ in boards[0].named("add_scalar")}
    assert steps == {1, 2}
    assert boards[0].named("close")


def test_the_real_tensorboardx_writes_event_files(tmp_path):
    reason = "the extra tensorboard is not installed"
    pytest.importorskip("tensorboardX", reason=reason)
    events = pytest.importorskip("tensorboardX.proto.event_pb2", reason=reason)
    with TensorBoard(tmp_path) as watcher:
        result = fedsieve.run(**QUICK, watcher=watcher)
    (path,) = tmp_path.glob("events*")
    found = {
        (value.tag, event.step): value.simple_value
        for event in map(events.Event.FromString, _records(path))
        for value in event.summary.value
    }
    for one in result.rows:
        for name, value in numbers(one).items():
            assert found[name, one.round] == pytest.approx(value, rel=1e-6)
    assert list((tmp_path / "summary").glob("events*"))


def test_the_real_mlflow_keeps_a_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with MLflow(tmp_path.as_uri(), "trial") as watcher:
        result = fedsieve.run(**QUICK, watcher=watcher)
    client = mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["model"] == "mlp(hidden=[4])"
    history = client.get_metric_history(run.info.run_id, "values/train_loss")
    assert {(m.step, m.value) for m in history} == {
        (one.round, one.values["train_loss"]) for one in result.rows
    }
    assert run.data.metrics["summary/up_bytes"] == result.summary.up_bytes


def _records(path: Path) -> list[bytes]:
    """The payloads of an event file: length (8 bytes), its check (4), payload, its check (4)."""
    data, found, start = path.read_bytes(), [], 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 8], "little")
        found.append(data[start + 12 : start + 12 + size])
        start += 16 + size
    return found
