"""`with_credentials`: options of a store, with the credentials that the tools of AWS would use.

obstore itself knows keys in the environment and what machines in a cloud are given; boto3 knows
profiles, `~/.aws`, SSO and roles, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fastrecord.errors import Code
from fastrecord.store import AZURE
from fastrecord.store.address import Url, without_secrets

_KEYS = {"access_key_id", "secret_access_key", "token", "session_token", "skip_signature", "credential_provider"}
_ENDPOINTS = {"endpoint", "endpoint_url", "endpoint_url_s3"}
_WAYS = {
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to a key file, or run `gcloud auth application-default login`; for a "
    "public bucket set GOOGLE_SKIP_SIGNATURE=true",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY, or `az login` and "
    "set AZURE_USE_AZURE_CLI=true; for a public container set AZURE_SKIP_SIGNATURE=true",
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or install boto3 and set AWS_PROFILE; for a public bucket "
    "set AWS_SKIP_SIGNATURE=true",
}


def way_to_credentials(where: str) -> str:
    """Return how to get credentials for a URL."""
    scheme = Url(where).scheme
    return _WAYS["az" if scheme in AZURE else "gs" if scheme == "gs" else "s3"]


def with_credentials(url: Url, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for obstore: without `profile`, and with boto3's credentials if there are no keys.

    Args:
        url: A bucket's URL.
        options: Options of the store. `profile` is one of `~/.aws`, which counts more than keys in the environment.

    Raises:
        FastRecordError: there is no such profile, its login has expired, or boto3 is not installed for it.
    """
    made = dict(options)
    profile = made.pop("profile", None)
    given = {name.lower().removeprefix("aws_") for name in made}
    is_known = bool(given & _KEYS) or bool(os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_SKIP_SIGNATURE"))
    if not url.scheme.startswith("s3") or (profile is None and is_known):
        return made
    try:
        import boto3
        import botocore.session
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as err:
        if profile is None:
            return made
        raise Code.NO_LIBRARY.error(f"{url}: a profile needs the package boto3: {err}: `pip install boto3`") from err
    try:
        session = botocore.session.Session(profile=profile)
        config = session.get_scoped_config()
        provider = Boto3CredentialProvider(boto3.Session(botocore_session=session))
        provider()
    except ValueError:
        return made  # there are none: the machine may be given some
    except BotoCoreError as err:
        raise Code.STORE.error(f"{url}: no credentials: {without_secrets(str(err))}") from None
    endpoint = config.get("endpoint_url")
    if endpoint and not given & _ENDPOINTS and not any(f"AWS_{name.upper()}" in os.environ for name in _ENDPOINTS):
        made["endpoint"] = endpoint
    if "region" in given or "AWS_REGION" in os.environ:
        provider.config.pop("region", None)
    return made | {"credential_provider": provider}
