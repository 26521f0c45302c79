"""Options as text: what is spelled reads back, what is wrong is refused with a way out."""

import dataclasses
import types
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from fedsieve.core import options
from fedsieve.core.errors import ConfigError
from fedsieve.data.partitions.schemes import PARTITIONS
from fedsieve.data.sources.registry import SOURCES
from fedsieve.models.zoo.registry import MODELS
from fedsieve.optim.optimisers import SGD, Adam, Optimiser
from fedsieve.optim.schedules import Schedule


@dataclass(frozen=True)
class Small:
    rate: float
    count: int = 3


@dataclass(frozen=True)
class Everything:
    needed: float
    whole: int = 1
    flag: bool = False
    text: str = "abc"
    sizes: tuple[int, ...] = (1, 2)
    mode: Literal["fast", "slow"] = "fast"
    limit: float | None = None
    part: Small | None = None
    optimiser: Optimiser = SGD()


FAMILIES = {
    "partition": PARTITIONS,
    "model": MODELS,
    "data set": SOURCES,
    "optimiser": get_args(Optimiser),
    "schedule": get_args(Schedule),
    "test": (Small, Everything),
}
CLASSES = [(what, cls) for what, family in FAMILIES.items() for cls in family]


def _values(hint):
    """Values of a type hint that are small enough for every option there is."""
    if get_origin(hint) in {Union, types.UnionType}:
        return st.one_of(*map(_values, get_args(hint)))
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is tuple:
        return st.lists(_values(get_args(hint)[0]), min_size=1, max_size=3).map(tuple)
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        inside = {f.name: _values(hints[f.name]) for f in dataclasses.fields(hint) if f.init}
        return st.fixed_dictionaries(inside).map(lambda fields: _built(hint, fields))
    plain: dict[Any, Any] = {
        float: st.floats(1e-6, 0.9),
        int: st.integers(2, 40),
        bool: st.booleans(),
        str: st.text(max_size=5).filter(lambda text: text != "none"),
        type(None): st.none(),
    }
    return plain[hint]


def _built(cls, fields):
    try:
        return cls(**fields)
    except ConfigError:  # fields that do not go together
        reject()


@pytest.mark.parametrize(("what", "cls"), CLASSES, ids=lambda x: getattr(x, "__name__", x))
def test_what_is_spelled_reads_back_for_every_option_there_is(what, cls):
    @settings(max_examples=20, database=None)
    @given(_values(cls))
    def check(value):
        text = options.spell(value)
        assert options.read(text, FAMILIES[what], what) == value
        assert options.coerce(text, Union[FAMILIES[what]], what) == value  # noqa: UP007

    check()


def test_names_are_snake_case_and_distinct_within_a_family():
    for family in FAMILIES.values():
        names = [options.name_of(cls) for cls in family]
        assert len(set(names)) == len(names)
        assert all(name.isidentifier() and name == name.lower() for name in names)
    assert options.name_of(Small) == "small"


def test_arguments_may_be_given_by_place_or_by_name():
    expected = Small(0.5, 7)
    for text in ("small(0.5, 7)", "small(0.5, count=7)", " small(count=7, rate=0.5) "):
        assert options.read(text, [Small], "test") == expected
    assert options.read("sgd", get_args(Optimiser), "optimiser") == SGD()


def test_nested_options_lists_none_and_words_are_read():
    text = "everything(1, optimiser=adam(amsgrad=true), part=small(2), sizes=[3, 4], flag='True')"
    value = options.read(text, [Everything], "test")
    assert value == Everything(
        1.0, flag=True, sizes=(3, 4), part=Small(2.0), optimiser=Adam(amsgrad=True)
    )
    for none in ("none", "None", "'none'"):
        assert options.read(f"everything(1, part={none})", [Everything], "test").part is None


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ("1e3", int, 1000),
        (3.0, int, 3),
        (2, float, 2.0),
        ("-0.5", float, -0.5),
        ("true", bool, True),
        ("False", bool, False),
        ("1, 2,3", tuple[int, ...], (1, 2, 3)),
        ("[1, 2]", tuple[int, ...], (1, 2)),
        ("""["fc1", 'fc2', fc3]""", tuple[str, ...], ("fc1", "fc2", "fc3")),
        ([], tuple[int, ...], ()),
        (5, tuple[int, ...], (5,)),
        ("none", float | None, None),
        (None, int | None, None),
        ("slow", Literal["fast", "slow"], "slow"),
        (SGD(0.5), Optimiser, SGD(0.5)),
        ("sgd(0.5)", Optimiser, SGD(0.5)),
    ],
)
def test_values_are_taken_as_their_type(value, hint, expected):
    found = options.coerce(value, hint, "x")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ("abc", float, "a number"),
        (1.5, int, "a whole number"),
        (True, int, "a whole number"),
        (True, float, "a number"),
        (1, bool, "true or false"),
        ("1e999", float, "a number"),
        (float("nan"), float, "a number"),
        (float("inf"), int, "a whole number"),
        (10**400, float, "a number"),
        (3, str, "text"),
        ("medium", Literal["fast", "slow"], "'fast' | 'slow'"),
        (None, float, "a number"),
        ("x", float | None, "a number or none"),
        ("1, x", tuple[int, ...], "a whole number"),
        ({}, tuple[int, ...], "a list of a whole number"),
        (3, Small, "small(rate, count)"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_what_was_expected(value, hint, expected):
    with pytest.raises(ConfigError) as caught:
        options.coerce(value, hint, "place")
    assert str(caught.value).startswith("place=")
    assert f"expected {expected}." in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("smal(1)", "Did you mean 'small'?"),
        ("zzz", "Known: everything, small."),
        ("small(1, cuont=2)", "Did you mean 'count'?"),
        ("small", "needs a value for rate"),
        ("small(1, 2, 3)", "takes at most 2 arguments (rate, count)"),
        ("small(1, rate=2)", "rate is given twice"),
        ("small(rate=1, rate=2)", "rate is given twice"),
        ("small(rate=none)", "rate='none': expected a number"),
        ("small(rate=[1])", "expected a number"),
        ("small(**{'rate': 1})", "unknown option ''"),
        ("", "write it as name or name(value, key=value)"),
        ("small(", "write it as name or name(value, key=value)"),
        ("everything(1, part=smol(1))", "Did you mean 'small'?"),
    ],
)
def test_a_mistake_is_met_with_a_way_out(text, message):
    with pytest.raises(ConfigError) as caught:
        options.read(text, FAMILIES["test"], "test")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "__import__('os')",
        "(lambda: small)()",
        "lambda: 1",
        "small.__class__",
        "small(1).rate",
        "small(__import__('os'))",
        "small(rate=os.environ)",
        "small(rate=(lambda: 1)())",
        "small(rate=[x for x in (1,)])",
        "small(*[1])",
        "small(1) if 1 else small(2)",
        "small(f'{1}')",
        "small(rate:=1)",
        "everything(1, part=__import__('os'))",
        "small(rate=" + "-" * 5000 + "1)",
        "small(rate={[]: 1})",
        "small(rate=0x" + "f" * 400 + ")",
        "small(1)\0",
        "\ud800",
        "(" * 1000,
    ],
)
def test_nothing_but_names_and_literals_is_ever_evaluated(text):
    with pytest.raises(ConfigError):
        options.read(text, FAMILIES["test"], "test")


@pytest.mark.parametrize("text", ["{[]: 1}", "-" * 5000 + "1", "0x" + "f" * 400, "os", "1+'a'"])
def test_odd_text_is_no_number(text):
    for hint in (int, float):
        with pytest.raises(ConfigError):
            options.coerce(text, hint, "x")


texts = st.one_of(
    st.text(max_size=40),
    st.text("smaleverything(1,)=[]'.-_{}:*0x \n", max_size=40),
    st.text("(1,)=[]'.-{}: ", max_size=20).map(lambda inside: f"everything({inside})"),
    st.text("(1,)=[]'.-{}:e ", max_size=20).map(lambda inside: f"everything(1, part={inside})"),
)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # Python's own, about text such as `1or`
@settings(max_examples=400)
@given(texts)
@example("small(\n1)")
@example("small(1 # )")
def test_random_text_is_refused_with_config_error_or_means_what_it_spells(text):
    for hint in (*get_type_hints(Everything).values(), Small | Everything, Optimiser | Schedule):
        try:
            value = options.coerce(text, hint, "x")
        except ConfigError:
            continue
        assert options.coerce(options.spell(value), hint, "x") == value


@pytest.mark.parametrize(
    ("value", "bounds", "flags", "message"),
    [
        (-1, (0,), {}, "x=-1: must be >= 0."),
        (0, (0,), {"above": True}, "x=0: must be > 0."),
        (2, (0, 1), {}, "x=2: must be >= 0 and <= 1."),
        (1, (0, 1), {"below": True}, "x=1: must be >= 0 and < 1."),
        (float("nan"), (0,), {}, "x=nan: must be >= 0."),
        (0, (0, 0.5), {"above": True}, "x=0: must be > 0 and <= 0.5."),
        (float("inf"), (0,), {"below": True}, "x=inf: must be >= 0 and finite."),
    ],
)
def test_in_range_says_value_and_rule(value, bounds, flags, message):
    with pytest.raises(ConfigError) as caught:
        options.in_range("x", value, *bounds, **flags)
    assert str(caught.value) == message


def test_in_range_takes_its_closed_ends():
    options.in_range("x", 0, 0, 1)
    options.in_range("x", 1, 0, 1)
    options.in_range("x", 1e300, 0)
    options.in_range("x", 0.999, 0, 1, below=True)
