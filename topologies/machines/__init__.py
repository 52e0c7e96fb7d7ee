"""The text forms of machines that come with the package."""

from pathlib import Path

_FOLDER = Path(__file__).parent


def machines() -> list[str]:
    """Return the names of the machines that come with the package, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def machine_file(name: str) -> Path:
    """Return the path of the text form of a machine of the package; whether there is such a machine is not checked."""
    return _FOLDER / f"{name}.toml"
