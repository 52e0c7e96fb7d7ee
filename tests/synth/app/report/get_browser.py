"""Fetch a headless Chromium for the tests of the report's pages.

    python -m tests.synth.app.report.get_browser FOLDER

The npm package @sparticuz/chromium holds a Chromium with the libraries that it needs and that small machines lack. One
version is fetched, and refused unless its digest is the one below. `tests/synth/app/report/browser.py` uses it unless
SYNTH_BROWSER names another browser or one is on the PATH.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import platform
import shutil
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

import brotli

URL = "https://registry.npmjs.org/@sparticuz/chromium/-/chromium-147.0.0.tgz"
SHA512 = (
    # Base64, as npm states it.
    "4ZKeAQQa8up2mt675qSitztLdbQrlf8BKdC5naeap+5Mv1OV1OlJdPoU+EJC/p5sQUJUQmN4r+q5+EhaaOUHpQ=="
)
WAIT_S = 60.0  # Longest wait for the registry to send more.
START = """\
#!/bin/sh
folder=$(dirname "$0")
exec env LD_LIBRARY_PATH="$folder/lib" "$folder/headless_shell" "$@"
"""


def unpack(package: bytes, folder: Path) -> None:
    """Write the browser, its libraries and a script `browser` that starts it into a folder.

    Raises:
        ValueError: The digest of the package is not SHA512.
    """
    if base64.b64encode(hashlib.sha512(package).digest()).decode() != SHA512:
        raise ValueError(f"{URL} is not the package that was reviewed: its SHA-512 differs")
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        for name in ("al2023.tar.br", "swiftshader.tar.br", "chromium.br"):
            member = archive.extractfile(f"package/bin/{name}")
            assert member is not None
            content = brotli.decompress(member.read())
            if name.endswith(".tar.br"):
                with tarfile.open(fileobj=io.BytesIO(content)) as inner:
                    # Debian 12's Python 3.11.2 has no filters; the package's digest is checked above.
                    inner.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            else:
                (folder / "headless_shell").write_bytes(content)
    (folder / "browser").write_text(START, encoding="utf-8")
    for program in ("headless_shell", "browser"):
        (folder / program).chmod(0o755)


def main(folder: Path) -> None:
    """Fetch and unpack the browser, unless it is there."""
    if (folder / "browser").exists():
        return
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SystemExit("a browser is fetched on Linux with x86_64 only; name one in SYNTH_BROWSER")
    try:
        with urllib.request.urlopen(URL, timeout=WAIT_S) as response:
            package = response.read()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            unpack(package, Path(name, "unpacked"))
            os.replace(Path(name, "unpacked"), folder)
    except (OSError, ValueError, tarfile.TarError, brotli.error) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise SystemExit(f"no browser was fetched: {error}") from error


if __name__ == "__main__":
    main(Path(sys.argv[1]))
