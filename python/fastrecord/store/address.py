"""`Url`: where a folder or a file lies in a store. URLs are taken apart and put together here, nowhere else.

In `s3`, `gs` and `az` what follows the bucket is the key, character by character, as the stores' own tools
have it. `http(s)` and `file` are URLs: with percent signs, and on the web perhaps with a user and a query.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import quote, unquote_to_bytes

from fastrecord.errors import Code
from fastrecord.names import as_key, as_name
from fastrecord.store import AZURE, BUCKETS

# As AWS and Google name buckets and Azure containers, and in Azure perhaps the account's host.
_BUCKET = r"[a-zA-Z0-9$][\w.-]*"
_CONTAINER = rf"{_BUCKET}(@[a-zA-Z0-9.-]+)?"
_WEB_URL = re.compile(r"(https?://)(?:[^\s/?#]*@)?([^\s?]*)(\?\S*)?")
_USER = re.compile(r"://[^\s/@]*:[^\s/@]*@")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def without_secrets(text: str) -> str:
    """Return a text that names URLs, without users and queries in them."""
    return _USER.sub("://", _WEB_URL.sub(r"\1\2", text))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _is_utf8(text: str) -> bool:
    return text == text.encode(errors="ignore").decode()


def _in_utf8(text: str) -> str:
    """Return a text in which surrogate escapes that are UTF-8 are characters, as a C locale makes them."""
    try:
        return _bytes(text).decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair
        return text


class Url(str):
    """A URL as it may be shown: without a user, a query, and a slash at its end.

    Anything else, such as a path, is kept as it is.

    Attributes:
        user, query: What is secret in it; empty without one.
        options: Options of the store, as in `Store`, that come with it from the command line.
    """

    __slots__ = ("options", "query", "user")
    user: str
    query: str
    options: Mapping[str, Any]

    def __new__(cls, url: str, options: Mapping[str, Any] | None = None) -> Self:
        """Take a URL apart; `refuse_wrong` says whether it is a good one."""
        if isinstance(url, cls):
            return url
        scheme, found, rest = url.partition("://")
        if not found:
            return cls._made(url)
        rest = _in_utf8(rest)
        rest, _, query = (rest, "", "") if scheme in (*BUCKETS, "file") else rest.partition("?")
        host, slash, path = rest.partition("/")
        user, _, server = host.rpartition("@")
        if scheme in AZURE and ":" not in user:
            user, server = "", host  # CONTAINER@ACCOUNT
        shown = f"{scheme}://{server}{slash}{path}".removesuffix("/" if slash else "")
        return cls._made(shown, user, query, options or {})

    @classmethod
    def _made(cls, shown: str, *hidden: Any) -> Self:
        made = super().__new__(cls, shown)
        made.user, made.query, made.options = hidden or ("", "", {})
        return made

    @property
    def _hidden(self) -> tuple[str, str, Mapping[str, Any]]:
        return self.user, self.query, self.options

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._made, (str(self), *self._hidden)

    def __eq__(self, other: object) -> bool:
        """Compare what is hidden too, so that another signature is another URL."""
        return str.__eq__(self, other) is True and (not isinstance(other, Url) or self._hidden == other._hidden)

    __hash__ = str.__hash__

    def given(self, options: Mapping[str, Any]) -> Url:
        """Return it with options of the store, if it is a URL."""
        return self._made(str(self), self.user, self.query, options) if "://" in self else self

    @property
    def scheme(self) -> str:
        """What precedes `://`."""
        return self.partition("://")[0]

    @property
    def _is_encoded(self) -> bool:
        """Whether %XX stands for a character."""
        return self.is_local or self.is_web

    @property
    def is_local(self) -> bool:
        """Whether it names a folder or file of this machine."""
        return self.scheme == "file"

    @property
    def is_web(self) -> bool:
        """Whether it is one of a web server, which only reads."""
        return self.scheme in ("http", "https")

    @property
    def root(self) -> Url:
        """The bucket, or the server."""
        return self._made("/".join(self.split("/")[:3]), *self._hidden)

    @property
    def key(self) -> str:
        """What follows the bucket, without a slash at both ends."""
        return "/".join(self.split("/")[3:])

    @property
    def path(self) -> str:
        """The path of one that is local."""
        return os.fsdecode(unquote_to_bytes(_bytes(f"/{self.key}")))

    @property
    def name(self) -> str:
        """The last part of the key, as a file's name; empty if there is none."""
        last = self.key.rpartition("/")[2]
        return os.fsdecode(unquote_to_bytes(_bytes(last))) if self._is_encoded else as_name(last)

    @property
    def is_file(self) -> bool:
        """Whether it names a .frec file."""
        return self.name.endswith(".frec")

    @property
    def folder(self) -> Url:
        """The folder that it is in."""
        return self._made(self.rpartition("/")[0], *self._hidden) if self.key else self

    def at(self, name: str) -> str:
        """Return the URL, as it may be shown, of what has a name in this folder."""
        return f"{self}/{quote(_bytes(as_key(name))) if self._is_encoded else as_key(name)}"

    def file(self, name: str) -> Url:
        """Return the URL of a file in this folder, with what is hidden in the folder's."""
        return self._made(self.at(name), *self._hidden)

    def refuse_wrong(self) -> Self:
        """Return it, if it leads to what it names.

        Raises:
            FastRecordError: it does not: the store's client would change it.
        """
        host = "/".join(self.split("/")[2:3])
        if self.user and not self.is_web:
            raise self._wrong("it names a user: credentials come from elsewhere (docs/stores.md)")
        if self.scheme in BUCKETS:
            if not re.fullmatch(_CONTAINER if self.scheme in AZURE else _BUCKET, host, re.ASCII):
                raise self._wrong(f"{host!r} is no bucket" if host else "it names no bucket")
            for part in self.split("/")[3:]:
                self._refuse_part(part)
        elif _CONTROL.search(self):
            raise self._wrong("it has a control character: write it as %0A and the like")
        elif "#" in self:
            raise self._wrong("# begins a fragment, which no store gets to see: write %23 for the character")
        elif self.is_local and "?" in self:
            raise self._wrong("? begins a query, which a file has not: write %3F for the character")
        elif self.is_local and host not in ("", "localhost"):
            raise self._wrong(f"it names the machine {host!r}: a file of this one is file:///{host}/{self.key}")
        return self

    def object(self, name: str) -> str:
        """Return how the store's client calls an object of this folder.

        Raises:
            FastRecordError: it would call it something else.
        """
        name = as_key(name)
        if not self.is_local or not _is_utf8(name):
            self._refuse_part(name)
        inside = "" if self.scheme not in BUCKETS or not self.key else f"{self.key}/"
        return f"{inside}{name}"

    def _refuse_part(self, part: str) -> None:
        if not part:
            raise self._wrong("it has an empty part, beside a slash")
        if part in (".", "..") or _CONTROL.search(part) or not _is_utf8(part):
            raise self._wrong(
                f"the part {part!r} cannot be a part of a key: the store's client would change or refuse it"
            )

    def _wrong(self, what: str) -> Exception:
        return Code.STORE.error(f"{self}: {what}")
