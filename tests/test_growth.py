"""The measure by which other tests refuse quadratic time."""

import pytest

from growth import assert_near_linear


def test_linear_time_passes_and_quadratic_time_does_not():
    assert_near_linear(lambda size: sum(range(size)), 2_000_000)
    with pytest.raises(AssertionError, match="8 times the input takes"):
        assert_near_linear(lambda size: sum(row * column for row in range(size) for column in range(size)), 4_000)
