"""Waiting: what work returns or raises, unless it is void before."""

import threading

import pytest

from fedsieve.deploy.waiting import GivenUpError, wait_for


def test_results_and_errors_are_those_of_the_work():
    assert wait_for(lambda: 7, lambda: True) == 7
    for error in (KeyError("k"), TimeoutError("of the work")):

        def fail(error=error):
            raise error

        with pytest.raises(type(error)) as found:
            wait_for(fail, lambda: False, every=0.01)
        assert found.value is error


def test_work_that_is_not_void_is_waited_for():
    go, asked = threading.Event(), []

    def is_void():
        asked.append(1)
        go.set()
        return False

    assert wait_for(go.wait, is_void, every=0.01)
    assert asked


def test_void_work_is_given_up_though_it_never_ends():
    never = threading.Event()
    with pytest.raises(GivenUpError):
        wait_for(never.wait, lambda: True, every=0.01)
