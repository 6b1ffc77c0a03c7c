"""Rate strings: what they mean, and that whatever is none is refused in one line."""

import math

import pytest
from hypothesis import example, given, strategies as st

from jaxtern.training.recipe.optimizer import SCHEDULES, OptimizerSection
from jaxtern.training.recipe.rates import Span, parse_rates

NUMBERS = st.floats(1e-6, 1e6)


def test_rates_of_moxing_are_read():
    assert parse_rates("5:0.001->0.4,30:0.4, 60:4e-2 ,90:4.e-4=>.0001") == (
        Span(5, 0.001, 0.4, False),
        Span(30, 0.4, 0.4, False),
        Span(60, 0.04, 0.04, False),
        Span(90, 0.0004, 0.0001, True),
    )


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.booleans()), min_size=1, max_size=5, unique_by=lambda x: x[0]))
def test_rates_that_are_written_are_read_back(values: list[tuple[float, float, float, bool]]):
    spans = tuple(Span(*value) for value in sorted(values))
    text = ",".join(f"{s.end!r}:{s.first!r}{'=>' if s.exponential else '->'}{s.last!r}" for s in spans)
    assert parse_rates(text) == spans


@given(st.one_of(st.text(), st.text("0123456789.:->=,eE+ \n", max_size=30)))
@example("1:0.1\n")
@example("\u2028:1")
@example("1:" + "9" * 400)
@example("1:1e999999999999")
@example("1..:2")
@example("٣:1")
def test_rates_are_read_or_refused_in_one_line(text: str):
    spans, refusal = (), ""
    try:
        spans = parse_rates(text)
    except ValueError as error:
        refusal = str(error)
    if not spans:
        assert refusal.startswith(f"optimizer.schedule={text!r}: ")
        assert len(refusal.splitlines()) == 1
    assert all(math.isfinite(number) for span in spans for number in span)
    assert [0, *(span.end for span in spans)] == sorted({0, *(span.end for span in spans)})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5:", "'5:' is neither EPOCH:RATE"),
        ("5:0.1,", "'' is neither EPOCH:RATE"),
        ("5:0.1,x:2", "'x:2' is neither EPOCH:RATE"),
        ("5:-0.1", "'5:-0.1' is neither EPOCH:RATE"),
        ("5:0.1>0.2", "'5:0.1>0.2' is neither EPOCH:RATE"),
        ("5:nan", "'5:nan' is neither EPOCH:RATE"),
        ("5:1e400", "'5:1e400' is neither EPOCH:RATE"),
        ("0:0.1", "its epochs must rise, from above 0"),
        ("5:0.1,5:0.2", "its epochs must rise, from above 0"),
        ("5:0.1,4:0.2", "its epochs must rise, from above 0"),
        ("5:0=>0.2", "rates that change exponentially must be above 0"),
        ("5:0.2=>0", "rates that change exponentially must be above 0"),
    ],
)
def test_rates_that_make_no_sense_are_refused_by_the_recipe(text: str, words: str):
    with pytest.raises(ValueError, match="schedule=") as caught:
        OptimizerSection(schedule=text)
    assert str(caught.value).startswith(f"optimizer.schedule={text!r}: {words}")


def test_rates_are_no_name_of_a_schedule():
    assert not any(":" in name for name in SCHEDULES)
