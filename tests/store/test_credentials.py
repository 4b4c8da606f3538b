"""Credentials as the tools of AWS find them, and options of stores on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastrecord as fr
from tests.store.conftest import Data, payload
from tests.support.commands import failed, good
from tests.support.machines.stores import Server

_NAMES = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "ENDPOINT_URL", "REGION", "PROFILE", "SKIP_SIGNATURE")


@pytest.fixture
def profile(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A profile of `~/.aws` that leads to the server; the environment names nothing."""
    for name in _NAMES:
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    options = server.options
    keys = {"aws_access_key_id": options["access_key_id"], "aws_secret_access_key": options["secret_access_key"]}
    about = keys | {"region": options["region"], "endpoint_url": options["endpoint"]}
    config = tmp_path / "config"
    config.write_text("[profile own]\n" + "".join(f"{name} = {value}\n" for name, value in about.items()))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return "own"


def test_a_profile_names_keys_region_and_endpoint(
    profile: str, stored: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"profile": profile}
    assert fr.FastRecordDataset(stored.url, fields=("data",), store=fr.Store(options))[3]["data"] == payload(3)
    for command in ("info", "ls", "head", "stats", "verify"):
        assert good(command, "--store", f"profile={profile}", stored.url)
    assert good("manifest", stored.url, "--check", "--store", f"profile={profile}")
    assert good("copy", stored.url, tmp_path / "copy", "--store", f"profile={profile}")
    monkeypatch.setenv("AWS_PROFILE", profile)
    assert fr.FastRecordDataset(stored.url, fields=("data",))[4]["data"] == payload(4)


@pytest.mark.usefixtures("profile")
def test_options_on_the_command_line_lead_to_a_store(server: Server, stored: Data) -> None:
    given = [word for name, value in server.options.items() for word in ("--store", f"{name}={value}")]
    assert "of 40 records each" in good("info", *given, stored.url)
    assert "is NAME=VALUE" in (told := failed("info", "--store", "planted7secret", stored.url, status=2))
    assert "planted7secret" not in told


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("retry_seconds=planted7secret", "retry_seconds is a number of seconds above 0"),
        ("silence_seconds=nan", "silence_seconds is a number of seconds above 0"),
        ("retry_config=planted7secret", "retry_config: retry_seconds says"),
        ("client_options=planted7secret", "client_options is a dict"),
        ("endpoint=planted7secret", "endpoint begins with http:// or https://"),
        ("region=a\nplanted7secret", "region has a control character"),
        ("allow_http=planted7secret", "a value of an option is wrong"),
        ("planted7option=x", "'planted7option' is not valid"),
    ],
)
def test_an_option_that_no_store_can_have_is_one_line(stored: Data, option: str, why: str) -> None:
    told = failed("info", "--store", option, stored.url)
    assert told.startswith(f"error: {stored.url}: ")
    assert why in told
    assert "FR211" in told
    assert "\n" not in told.strip()
    assert "planted7secret" not in told


def test_options_of_the_client_stand_beside_those_of_the_store(server: Server, stored: Data) -> None:
    options = {**server.options, "allow_http": "true", "user_agent": "reader"}
    assert fr.FastRecordDataset(stored.url, fields=("data",), store=fr.Store(options))[4]["data"] == payload(4)


@pytest.mark.usefixtures("profile")
def test_a_profile_that_is_not_there_is_named() -> None:
    with pytest.raises(fr.FastRecordError, match=r"no credentials: .*\(other\).*FR211"):
        fr.FastRecordDataset("s3://bucket/train", store=fr.Store({"profile": "other"}))


@pytest.mark.parametrize(
    ("scheme", "way"),
    [("gs", "GOOGLE_APPLICATION_CREDENTIALS"), ("az", "AZURE_STORAGE_ACCOUNT_KEY"), ("abfss", "az login")],
)
def test_who_has_no_credentials_hears_what_this_kind_of_store_calls_them(scheme: str, way: str) -> None:
    from fastrecord.store.credentials import way_to_credentials

    text = way_to_credentials(f"{scheme}://bucket/train")
    assert way in text
    assert "AWS" not in text
    assert "AWS_PROFILE" in way_to_credentials("s3://bucket/train")
