"""Histories of Jepsen."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.proof.lincheck import MODELS, HistoryError, check, operations
from oncegate.proof.lincheck.edn import jepsen_events, jepsen_log, read_edn

CAS = """
{:process 0, :type :invoke, :f :write, :value 1, :index 0, :time 10}
{:process :nemesis, :type :info, :f :start, :value "cut off n1"}
#jepsen.history.Op{:index 1, :time 20, :type :ok, :process 0, :f :write, :value 1}
{:process 1 :type :invoke :f :cas :value [1 2] :time 30} ; a comment
{:process 1 :type :fail :f :cas :value [1 2] :time 40 :error [:precondition "no"]}
{:process 2, :type :invoke, :f :read, :value nil, :time 50}
{:process 2, :type :ok, :f :read, :value %s, :time 60}
"""


def test_a_history_of_jepsen_is_read_and_checked() -> None:
    events = list(jepsen_events(CAS % "1"))
    assert len(events) == 6
    assert events[3].error == "['precondition', 'no']"
    assert check(operations(events), MODELS["cas-register"]).verdict == "valid"
    assert check(operations(jepsen_events(CAS % "2")), MODELS["cas-register"]).verdict == "invalid"


def test_one_vector_of_operations_is_the_same() -> None:
    assert list(jepsen_events(f"[{CAS % 1}]")) == list(jepsen_events(CAS % 1))


def test_independent_keys_are_taken_out_of_the_value() -> None:
    text = "{:process 0 :type :invoke :f :read :value [3 nil]} {:process 0 :type :ok :f :read :value [3 5]}"
    first, second = jepsen_events(text, keyed=True)
    assert (first.key, first.value, second.key, second.value) == (3, None, 3, 5)


def test_a_key_beside_the_value_is_the_key() -> None:
    (found,) = jepsen_events('{:process 0 :type :invoke :f :append :key "7" :value "x"}')
    assert (found.key, found.value) == ("7", "x")


def test_operations_of_a_log_are_those_of_its_history() -> None:
    lines = [
        "INFO  jepsen.core - a line of another logger",
        "INFO  jepsen.util - 0\t:invoke\t:write\t1",
        'INFO  jepsen.util - :nemesis\t:info\t:start\t"cut off n1"',
        "INFO  jepsen.util - 0\t:ok\t:write\t1",
        "INFO [2026-01-02 10:11:12,345] jepsen worker 1 - jepsen.util 1\t:invoke\t:cas\t[1 2]",
        'INFO [2026-01-02 10:11:12,346] jepsen worker 1 - jepsen.util 1\t:fail\t:cas\t[1 2]\t[:precondition "no"]',
        "INFO  jepsen.util - 2\t:invoke\t:read\tnil",
        "INFO  jepsen.util - 2\t:ok\t:read\t1",
    ]
    history = [msgspec.structs.replace(event, time=0) for event in jepsen_events(CAS % "1")]
    assert list(jepsen_log(lines)) == history
    assert check(operations(jepsen_log(lines)), MODELS["cas-register"]).verdict == "valid"
    lines[-1] = "INFO  jepsen.util - 2\t:ok\t:read\t2"
    assert check(operations(jepsen_log(lines)), MODELS["cas-register"]).verdict == "invalid"


@pytest.mark.parametrize(
    "line", ["jepsen.util - 0 :invoke", "jepsen.util - 0 :done :read nil", "jepsen.util 0 :ok :f ["]
)
def test_a_line_of_the_log_that_is_no_operation_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(HistoryError) as refusal:
        list(jepsen_log(["INFO jepsen.core - begun", line]))
    assert refusal.value.line == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("nil true false", [None, True, False]),
        ("-5 +5 5N 2.5 1e3 1.5M", [-5, 5, 5, 2.5, 1000.0, 1.5]),
        (r'"a\n\"b\" é"', ['a\n"b" é']),
        (r"\a \newline \u0041", ["a", "\n", "A"]),
        ('[1 (2 #{3}) {:a 1, "b" [2]}]', [[1, [2, [3]], {"a": 1, "b": [2]}]]),
        ("1 #_ 2 3 #_ #_ 4 5 6", [1, 3, 6]),
        ('#inst "2020" ; no more', ["2020"]),
        ("symbol ns/name :k/w", ["symbol", "ns/name", "k/w"]),
    ],
)
def test_values_are_read(text: str, value: list[object]) -> None:
    assert list(read_edn(text)) == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n[1", 2),
        ("]", 1),
        ("[1)", 1),
        ("{:a}", 1),
        ("[" * 1000, 1),
        ('\n\n"open', 3),
        ("##NaN", 1),
        ('{"process": 1}', 1),
        ("[#_]", 1),
    ],
)
def test_what_is_not_edn_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(HistoryError) as refusal:
        list(read_edn(text))
    assert refusal.value.line == line


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "{:type :invoke :f :read}",
        "{:process 1 :type :done :f :read}",
        "{:process 1 :type :ok :f :read :time -1}",
        "{:process 1 :type :ok :f [1]}",
    ],
)
def test_what_is_no_operation_of_jepsen_is_refused(text: str) -> None:
    with pytest.raises(HistoryError):
        list(jepsen_events(text))


@given(st.text(alphabet='[](){}#_:"\\;ab01.-+eN \n', max_size=40) | st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        list(jepsen_events(text))
        list(jepsen_events(text, keyed=True))
    except HistoryError:
        return
