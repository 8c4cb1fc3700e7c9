"""Credentials are taken out of text, and nothing else is."""

from __future__ import annotations

import time

import pytest

from windowmill.windowing.redaction import holds_credentials, redacted


@pytest.mark.parametrize(
    "text",
    [
        *("s3a://AKIAEXAMPLE:CANARY@bucket/flights", "s3a://AKIAEXAMPLE:CAN/ARY+CANARY@bucket/flights"),
        *("hdfs://user:CANARY@namenode:8020/flights", "https://CANARY@host/flights"),
        *("https://account.blob.core.windows.net/c/flights?sv=1&sig=CANARY&se=2",),
        *("https://bucket.s3.amazonaws.com/f?X-Amz-Credential=CANARY&X-Amz-Signature=CANARY&X-Amz-Security-Token=CANARY",),
        *("jdbc:postgresql://db/x;user=a;password=CANARY", "AccountKey=CANARY;EndpointSuffix=core.windows.net"),
        *("fs.s3a.secret.key=CANARY", 'storage options {"aws_secret_access_key": "CANARY", "region": "eu"}', "{'token': 'CANARY'}"),
        *("token='CANARY'", "Authorization: Bearer CANARYCANARY"),
        *("source s3://u:CANARY@b/x: there is no Delta table; see https://u:CANARY@b/y",),
    ],
)
def test_a_credential_goes(text):
    assert "CANARY" not in redacted(text)
    assert redacted(redacted(text)) == redacted(text)
    assert holds_credentials(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "/data/flights", "/data/day=2013-01-01/key=3", "file:///data/flights", "hdfs://namenode:8020/flights/a@b"),
        *("abfss://container@account.dfs.core.windows.net/flights", "s3://bucket/flights?versionId=2"),
        *("p.yaml:3: source.options.token: got 'x'; expected another", "design=2", "a: b@c", "source.path: missing"),
    ],
)
def test_all_else_stays(text):
    assert redacted(text) == text
    assert not holds_credentials(text)


def test_long_text_takes_no_time():
    began = time.monotonic()
    for text in (
        "a://" * 50_000,
        "x:" * 100_000 + "@",
        "token" * 40_000,
        "a.-" * 60_000 + "=",
        "://a:b" * 30_000,
        "'" * 90_000,
        "Bearer " * 30_000,
    ):
        redacted(text)
    assert time.monotonic() - began < 2
