"""The lock file of development names what pyproject.toml asks for, within its bounds, and every file by its hash."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT

LOCK = ROOT / ".ci" / "requirements-dev.lock"
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
# The oldest Python that pyproject.toml allows, and one that takes other releases of some packages.
ENVIRONMENTS = [
    {"python_version": version, "python_full_version": f"{version}.1", "sys_platform": "linux", "os_name": "posix"}
    for version in ("3.11", "3.13")
]


@dataclass(frozen=True)
class Pin:
    """An entry of a lock file: one release of a package, and how many hashes its files have.

    Attributes:
        requirement: The package, its release as `==`, and a marker where only some systems take it.
        hashes: Number of the release's files that may be installed.
    """

    requirement: Requirement
    hashes: int

    @property
    def version(self) -> str:
        """Return the release. Raises ValueError where the entry allows several."""
        (specifier,) = self.requirement.specifier
        if specifier.operator != "==" or "*" in specifier.version:
            raise ValueError(f"{self.requirement}: allows several releases; it must be one")
        return specifier.version


def read_lock(text: str) -> list[Pin]:
    """Return the entries of a lock file: each a requirement, whose hashes follow on continued lines."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    entries = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [Pin(Requirement(entry.split("--hash")[0]), len(HASH.findall(entry))) for entry in entries if entry.strip()]


def direct_dependencies() -> list[Requirement]:
    """Return what pyproject.toml asks for itself: to run, to develop and to build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    stated = project["project"]
    return [
        Requirement(text)
        for text in (
            *stated["dependencies"],
            *stated["optional-dependencies"]["dev"],
            *project["build-system"]["requires"],
        )
    ]


def problems(pins: Iterable[Pin], required: Iterable[Requirement]) -> list[str]:
    """Return what is wrong with a lock file, a line each; nothing for one that serves every environment."""
    pins = list(pins)
    wrong = [f"{pin.requirement.name}: no hash" for pin in pins if not pin.hashes]
    for environment in ENVIRONMENTS:
        where_text = f"on Python {environment['python_version']}"
        versions: dict[str, list[str]] = {}
        for pin in pins:
            if pin.requirement.marker is None or pin.requirement.marker.evaluate(environment):
                versions.setdefault(canonicalize_name(pin.requirement.name), []).append(pin.version)
        wrong += [
            f"{name}: {len(releases)} releases {where_text}" for name, releases in versions.items() if len(releases) > 1
        ]
        for requirement in required:
            releases = versions.get(canonicalize_name(requirement.name), [])
            if not releases:
                wrong.append(f"{requirement.name}: missing {where_text}")
            elif not requirement.specifier.contains(releases[0], prereleases=True):
                wrong.append(
                    f"{requirement.name}: {releases[0]} {where_text}, pyproject.toml asks for {requirement.specifier}"
                )
    return wrong


def test_every_direct_dependency_is_locked_within_its_bounds_with_hashes() -> None:
    assert problems(read_lock(LOCK.read_text()), direct_dependencies()) == []


def test_the_lock_names_no_index_and_no_place_on_a_machine() -> None:
    text = LOCK.read_text()
    assert not re.search(r"://|file:|--(extra-)?index|--find-links|--trusted-host|@ ", text)


LOCKED = """\
# a comment
click==8.2.0 \\
    --hash=sha256:{hash} \\
    --hash=sha256:{hash}
    # via a package
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:{hash}
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:{hash}
""".format(hash="0a" * 32)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("", "", []),
        ("click==8.2.0", "other==8.2.0", ["Click: missing on Python 3.11", "Click: missing on Python 3.13"]),
        ("numpy==2.5.5", "other==2.5.5", ["numpy: missing on Python 3.13"]),
        ("numpy==2.4.6", "numpy==1.26.0", ["numpy: 1.26.0 on Python 3.11, pyproject.toml asks for >=2.0"]),
        (" ; python_full_version < '3.12'", "", ["numpy: 2 releases on Python 3.13"]),
        (f" \\\n    --hash=sha256:{'0a' * 32}\nnumpy==2.5.5", "\nnumpy==2.5.5", ["numpy: no hash"]),
        (f"{'0a' * 32}\nnumpy==2.5.5", "0a\nnumpy==2.5.5", ["numpy: no hash"]),
    ],
    ids=["right", "no package", "none for one Python", "out of bounds", "two releases", "no hash", "short hash"],
)
def test_a_planted_fault_of_the_lock_is_seen(old: str, new: str, problem: list[str]) -> None:
    assert old in LOCKED
    faulty = LOCKED.replace(old, new, 1) if old else LOCKED
    assert problems(read_lock(faulty), [Requirement("Click>=8.2"), Requirement("numpy>=2.0")]) == problem
