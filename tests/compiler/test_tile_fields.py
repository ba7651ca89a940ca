"""The fields of a tile: compiled code numbers them as Python names them."""

from __future__ import annotations

import pytest

from autobatch.compiler.tiles import fields_of, name_fields


@pytest.mark.parametrize("n_domains", [1, 2, 4])
def test_numbers_are_those_of_names(n_domains: int) -> None:
    names, numbers = name_fields(n_domains, 2), fields_of.python(n_domains)
    named = {"start": "start", "shift": "shift", "outputs": "output_0"}
    assert [names[number] for number in numbers] == [named.get(name, f"{name}_n") for name in numbers._fields]
    assert names[numbers.outputs :] == ("output_0", "output_1", "strip")
    assert len({*names}) == len(names)
