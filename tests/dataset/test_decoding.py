"""`Decoding` refuses values that are not allowed, and says which are."""

from __future__ import annotations

from typing import Any

import pytest

import fastrecord as fr


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"decoder": "pil"}, r'^decoder is "auto" or "native", not \'pil\'$'),
        ({"truncated": True}, r'^truncated is "reject" or "accept", not a bool: write truncated="accept"$'),
        ({"sixteen_bit": "max"}, r'^sixteen_bit is "reject", "scale" or "clip", not \'max\'$'),
        ({"exif_orientation": 1}, r"^exif_orientation is True or False, not 1$"),
        ({"max_pixels": 0}, r"^max_pixels is from 1 to \d+, not 0$"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        fr.Decoding(**options)
