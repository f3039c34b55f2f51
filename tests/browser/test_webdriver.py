"""The browser of the tests starts whatever ports others have."""

from pathlib import Path

import pytest

from tests.browser.webdriver import started_driver

UNLUCKY = """#!/bin/sh
if mkdir "$0.tried" 2>/dev/null; then
    echo "[SEVERE]: bind() failed: Address already in use (98)"
    echo "IPv4 port not available. Exiting..."
    exit 1
fi
echo "ChromeDriver was started successfully on port 4711."
exec sleep 600
"""


def program(folder: Path, text: str) -> str:
    path = folder / "driver"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_driver_whose_port_somebody_has_is_started_again(tmp_path: Path) -> None:
    process, port = started_driver(program(tmp_path, UNLUCKY))
    process.kill()
    process.wait()
    assert port == 4711
    assert (tmp_path / "driver.tried").is_dir()


def test_a_driver_that_cannot_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no chromium here"):
        started_driver(program(tmp_path, "#!/bin/sh\necho no chromium here\n"))
