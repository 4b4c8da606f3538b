"""Amounts with units: what they mean, and which are refused."""

from __future__ import annotations

import pytest

from fastrecord.inspect import units


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4GB/s", 4e9),
        ("100Gb/s", 12.5e9),
        ("100 Gbit/s", 12.5e9),
        ("10Gbps", 1.25e9),
        ("1.5GiB/s", 1.5 * 2**30),
        ("500 MB/s", 5e8),
        (3e9, 3e9),
    ],
)
def test_a_rate_is_in_bytes_or_bits(text: str | float, value: float) -> None:
    assert units.bytes_per_second("storage", text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("256GiB", 2**38), ("116kB", 116_000), ("116000", 116_000), (5, 5)])
def test_a_size_is_in_bytes(text: str | float, value: float) -> None:
    assert units.size("ram", text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1281167", 1_281_167), ("1,281,167 images", 1_281_167), ("1.28M", 1_280_000), ("850 images/s", 850)],
)
def test_a_count_may_name_what_it_counts(text: str, value: float) -> None:
    assert units.count("images", text) == value


# A unit without case would be wrong by a factor of eight.
@pytest.mark.parametrize("text", ["4", "4GB", "4gb/s", "fast", "-4GB/s", "GB/s", "4 GB/h", ""])
def test_a_rate_without_a_clear_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"storage is a rate such as 4GB/s \(bytes\) or 100Gb/s \(bits\), not"):
        units.bytes_per_second("storage", text)


@pytest.mark.parametrize("value", ["0GB/s", 0, -1.0, float("nan"), float("inf")])
def test_a_rate_is_above_zero(value: str | float) -> None:
    with pytest.raises(ValueError, match="storage is a finite number above zero"):
        units.bytes_per_second("storage", value)


@pytest.mark.parametrize(("value", "size"), [("1e-300B/s", "small"), ("1e300B/s", "large"), (10**400, "large")])
def test_a_rate_whose_plan_would_not_be_finite_is_refused(value: str | float, size: str) -> None:
    with pytest.raises(ValueError, match=f"storage is too {size}: it is from 1e-12 to 1e\\+18"):
        units.bytes_per_second("storage", value)


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="ram is a number or text with a unit, not list"):
        units.size("ram", [1])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0181, "18.1 ms"),
        (42.34, "42.3 s"),
        (125, "2 min 05 s"),
        (74211.11, "20 h 36 min 51 s"),
        (1e9, "11,574 days 1 h"),
    ],
)
def test_times_are_for_people(seconds: float, text: str) -> None:
    assert units.time_text(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(116_000, "116 kB"), (999.6, "1 kB"), (1.16e17, "116 PB"), (4e18, "4 EB"), (1e36, f"{10**18:,} EB")],
)
def test_sizes_are_for_people(nbytes: float, text: str) -> None:
    assert units.size_text(nbytes) == text
