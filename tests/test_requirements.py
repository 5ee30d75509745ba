"""What an installation must come with, as its metadata says it."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version

SAFE = Version("0.1.24")  # the first xgrammar without the denial of service GHSA-9q5r-wfvf-rr7f


def test_no_xgrammar_with_a_known_denial_of_service_can_be_installed_beside_us() -> None:
    """B5.18."""
    (required,) = (
        one
        for one in map(Requirement, metadata.requires("structgen") or [])
        if one.name == "xgrammar"
    )
    assert not required.specifier.contains("0.1.23", prereleases=True)
    assert not required.specifier.contains(f"{SAFE}rc1", prereleases=True)
    assert Version(metadata.version("xgrammar")) >= SAFE
