"""The trainer over a store that only `--store` leads to."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fastrecord.train.__main__ import main
from tests.support.machines.stores import Server
from tests.support.training import MODEL, losses

SECRET = b"planted7secret"
RUN = ("--model", MODEL, "--batch-size", "8", "--image-size", "32", "--augment", "none", "--device", "cpu", "-j", "1")


@pytest.fixture
def store(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The options that lead to the server; the environment names nothing."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "ENDPOINT_URL", "REGION", "PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = {**server.options, "secret_access_key": SECRET.decode()}
    return [word for name, value in options.items() for word in ("--store", f"{name}={value}")]


@pytest.fixture
def url(colours: Path, server: Server) -> str:
    return f"{server.put_folder('colours', colours.parent)}/{colours.name}"


def trained(*options: str | Path) -> None:
    done = CliRunner().invoke(main, [*RUN, *map(str, options)])
    assert done.exit_code == 0, done.output
    assert SECRET.decode() not in done.output


@pytest.mark.usefixtures("one_thread")
def test_a_run_trains_evaluates_and_continues_and_keeps_no_option(
    store: list[str], url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "run"
    settings = tmp_path / "run.toml"
    settings.write_text(f'train = "{url}"\nepochs = 1\n')
    trained("--config", settings, "--max-steps", "2", "--out", out, *store)
    # Worker processes get the options with the data set.
    trained(url, "--val", url, "--epochs", "1", "--resume", "auto", "--loader", "torch", "--out", out, *store)
    assert list(losses(out)) == [2, 10]
    assert SECRET.decode() not in caplog.text
    kept = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    assert not [content for content in kept if SECRET in content]
