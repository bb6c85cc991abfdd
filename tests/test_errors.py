"""Errors read as plain sentences, keep their parts and survive pickling."""

import copy
import inspect
import pickle

import pytest

from anabranch import errors
from anabranch.errors import AnabranchError, DuplicateAddress, UnnamedSite

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, AnabranchError)]


def test_message_names_site_place_and_remedy():
    error = DuplicateAddress(
        "the address was used before at model.py:10",
        site="mu",
        where="model.py:12",
        remedy="Give each site of one execution its own name, or leave the name out.",
    )
    assert str(error) == (
        "site 'mu' (model.py:12): the address was used before at model.py:10. "
        "Give each site of one execution its own name, or leave the name out."
    )


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "it failed."),
        ({"site": "mu"}, "site 'mu': it failed."),
        ({"where": "model.py:3"}, "model.py:3: it failed."),
        ({"remedy": "Do this"}, "it failed. Do this."),
    ],
)
def test_message_leaves_out_what_is_unknown(parts, message):
    assert str(AnabranchError("it failed", **parts)) == message


def test_message_keeps_the_punctuation_it_was_given():
    assert str(AnabranchError("did it fail?", remedy="Look.")) == "did it fail? Look."


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("duplicate", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_pickling_and_copying_keep_every_part(kind, duplicate):
    error = kind("it failed", site="mu", where="model.py:3", remedy="Do this.")
    twin = duplicate(error)
    assert type(twin) is kind
    assert (twin.what, twin.site, twin.where, twin.remedy) == ("it failed", "mu", "model.py:3", "Do this.")
    assert str(twin) == str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_documented_in_its_own_words(kind):
    opening = "Base of" if kind is AnabranchError else "Raised "
    assert kind.__doc__.startswith(opening)


def test_an_unnamed_site_is_a_failed_lookup():
    assert issubclass(UnnamedSite, LookupError)
