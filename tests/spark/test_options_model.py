"""Which options of a flow go together, for every combination of them, against the rules in words."""

from __future__ import annotations

from itertools import product

import pytest

from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.options import FlowOptions, SinkOptions, SourceOptions
from oncegate.stores.errors import StoreCode

CHOICES = {
    "endpoints": ("", "http://a", "http://a, http://b,"),
    "consumer": ("", "x"),
    "fence": ("", "0", "7", "-1", str(2**63)),
    "archive": ("", "file:///a"),
    "cluster": ("", "c" * 32),
}


def _is_refused(given: dict[str, str]) -> bool:
    """An archive alone needs no gateway, but only a gateway has cursors; a fence is a consumer's, 0 is one."""
    is_alone = bool(given["archive"] and given["cluster"])
    return (
        given["fence"] in ("-1", str(2**63))
        or (not given["endpoints"] and (not is_alone or bool(given["consumer"])))
        or (bool(given["fence"]) and not given["consumer"])
    )


@pytest.mark.parametrize("chosen", list(product(*CHOICES.values())))
def test_options_that_do_not_go_together_are_refused_and_all_others_are_as_given(chosen: tuple[str, ...]) -> None:
    given = {"flow": "f", "store": "sqlite://s", **dict(zip(CHOICES, chosen, strict=True))}
    if _is_refused(given):
        with pytest.raises(SinkError) as refused:
            FlowOptions.parse(given)
        assert refused.value.code is StoreCode.BAD_OPTION
        return
    parsed = FlowOptions.parse(given)
    assert parsed.endpoints == tuple(part.strip() for part in given["endpoints"].split(",") if part.strip())
    assert (parsed.consumer, parsed.archive, parsed.cluster) == (given["consumer"] or None, *chosen[3:])
    assert parsed.fence == (int(given["fence"]) if given["fence"] else None)
    assert SourceOptions.parse(given).start == ("cursor" if given["consumer"] else "earliest")
    if given["consumer"] and not given["fence"]:
        with pytest.raises(SinkError, match="fence"):
            SinkOptions.parse(given)
    else:
        assert SinkOptions.parse(given).job == given["consumer"]
