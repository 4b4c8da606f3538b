"""The environment of the peers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benches.peers import install


@pytest.mark.timeout(120)
def test_an_interrupted_installation_does_not_look_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __iter__(self) -> Iterator[list[str]]:
            raise KeyboardInterrupt

    monkeypatch.setattr(install, "FOLDER", tmp_path / "peers")
    monkeypatch.setattr(install, "PEERS", {"a peer": Interrupted()})
    with pytest.raises(KeyboardInterrupt):
        install.main()
    assert not (tmp_path / "peers").exists()
    monkeypatch.setattr(install, "PEERS", {})
    assert install.main() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["peers"]
    subprocess.run([tmp_path / "peers" / "bin" / "python", "-c", "import numpy"], check=True)
