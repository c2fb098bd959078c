"""The examples in the documentation of the native module, which pytest does not collect itself."""

from __future__ import annotations

import doctest

import pytest

from tensoropt import _native

OBJECTS = {name: getattr(_native, name) for name in _native.__all__}
EXAMPLES = {name: value.__doc__ for name, value in OBJECTS.items() if ">>>" in value.__doc__}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str) -> None:
    example = doctest.DocTestParser().get_doctest(EXAMPLES[name], {}, name, None, None)
    report: list[str] = []
    outcome = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert outcome.attempted > 0
    assert outcome.failed == 0, "".join(report)


def test_the_main_entry_points_have_examples() -> None:
    assert {"CostGraph", "solve", "contract"} <= set(EXAMPLES)
