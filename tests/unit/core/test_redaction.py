"""Credentials are found wherever they stand, and nothing else is."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flagbench_core.environment import GIVEN, secret_values, variables_for_record
from flagbench_core.redaction import REDACTED, has_userinfo, is_secret, is_secret_name, redact, url_secrets

WORD = st.text(string.ascii_letters + string.digits, min_size=20, max_size=40).filter(lambda word: not word.isdigit())
CONTEXTS = (
    "https://user:{}@host.example/path",
    "https://{}@host.example",
    "GET /simple?X-Amz-Signature={}&x=1",
    "https://host.example/a?sv=1&sig={}",
    "https://host.example/a?access-key={}#part",
    "https://host.example/a?X-Amz-Security-Token={}",
    "Authorization: Bearer {}",
    "{{'Authorization': 'Basic {}'}}",
    "proxy-authorization: {}",
    "told Bearer {}, refused",
    "HF_TOKEN={}",
    "export AWS_SECRET_ACCESS_KEY='{}'",
    "AWS_SESSION_TOKEN={}",
    "--mount type=x,password={},other=1",
    "user=me;password={}",
    '{{"auth": "{}"}}',
    "hf_{}",
    "ghp_{}",
    "glpat-{}",
    "AKIA{}",
    "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n{}",
    "user:{}@host.example/x:1",
    "https://user:a/{}@host.example/x",
    "https://user:a#{}@host.example",
    "https://user:a?{}@host.example",
    "HF_TOKEN: {}",
    "HF_TOKEN = {}",
    "{{'password': '{}'}}",
    "environ[\"TOKEN\"] = '{}'",
    "SecretAccessKey: {}",
    "<SecretAccessKey>{}</SecretAccessKey>",
    "aws_secret_access_key = {}",
    "AccountKey={}",
    "DB_PASS={}",
    "GITHUB_PAT={}",
    "--password {}",
    "--token {}",
    "-u user:{}",
    "docker login -u x -p {}",
    "Cookie: session={}",
    "PRIVATE-TOKEN: {}",
    "X-Registry-Auth: {}",
    "Authorization=Bearer {}",
    "Authorization: ApiKey {}",
    "Authorization: AWS4-HMAC-SHA256 Credential=A/s3/aws4_request, SignedHeaders=host, Signature={}",
    "npm_{}",
    "pypi-Ag{}",
    "dckr_pat_{}",
    "AIza{}AAAAAAAAAA",
    "hvs.{}",
    "nvapi-{}",
)
HARMLESS = (
    "image a/b@sha256:0 of https://x.example/@scope",
    "max_tokens=512, pad=1",
    "TOKENIZERS_PARALLELISM=false",
    "https://store.example.com/complete?max_tokens=512",
    "hf_transfer and sk-learn-nightly and a basic introduction",
    "error: invalid token: unexpected end of file",
    "-----BEGIN CERTIFICATE-----",
    "MAX_TOKENS=512 num_key_value_heads=8 tokens: 4017 tokens_per_second: 3.4",
    "sort_key=name --key=value key=value cache_key=linux-x public_key=abc pad_token=[PAD]",
    "git@host:path/x.git me@example.com node-0:29400 --master HOST:PORT",
    "r.io:5000/a/b:1.0@sha256:" + "a" * 64,
    "https://host:8080/@scope and https://host/a@b:c",
    "docker run -u 1000:0 image, --user 1000:1000",
    "Authorization: required",
    "PASS: test_x, google-auth==2.3, org/token-server:latest, std::token::x",
    "give --token to the command; keep it in a Secret, and name that with --store-secret NAME",
    "token = tokens[0]",
    "hf_hub_download and npm_config_registry",
)


@settings(max_examples=20)
@given(secret=WORD, before=st.sampled_from(["", "error: ", "a=b "]), after=st.sampled_from(["", " then", "\n"]))
def test_a_credential_is_hidden_and_found(secret: str, before: str, after: str) -> None:
    for context in CONTEXTS:
        text = before + context.format(secret) + after
        shown = redact(text)
        assert (secret in shown, REDACTED in shown, shown.startswith(before)) == (False, True, True), context
        assert is_secret("A", text), context


@given(st.lists(st.sampled_from(CONTEXTS), max_size=4), WORD, st.text())
def test_hiding_twice_changes_nothing(contexts: list[str], secret: str, other: str) -> None:
    shown = redact(" ".join(context.format(secret) for context in contexts))
    assert secret not in shown
    assert redact(shown) == shown
    assert redact(redact(other)) == redact(other)


def test_what_is_not_a_credential_stays() -> None:
    assert [text for text in HARMLESS if redact(text) != text or is_secret("A", text)] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@index.example/simple", "https://***@index.example/simple"),
        ("http://me:p@ss@proxy:3128, then", "http://***@proxy:3128, then"),
        ("A=1 DB_PASSWORD=x B=2", "A=1 DB_PASSWORD=*** B=2"),
        ("curl -u me:ghp_0123456789abcdefghij x", "curl -u me:*** x"),
        ("https://h.example/?a=1&token=x&b=2", "https://h.example/?a=1&token=***&b=2"),
    ],
)
def test_the_rest_of_a_text_stays(text: str, shown: str) -> None:
    assert redact(text) == shown


@given(WORD, st.text(max_size=20), st.text(max_size=20))
def test_a_known_secret_is_hidden_without_any_form(secret: str, before: str, after: str) -> None:
    assert secret not in redact(before + secret + after, [secret[:10], secret])


def test_a_name_says_what_a_variable_holds() -> None:
    assert all(map(is_secret_name, ("AWS_ACCESS_KEY_ID", "WANDB_API_KEY", "HF_TOKEN", "db.password")))
    assert not any(map(is_secret_name, ("TOKENIZERS_PARALLELISM", "KEYBOARD", "PATH")))


def test_a_count_is_not_a_secret_and_a_password_may_be_a_number() -> None:
    assert not is_secret("MAX_TOKENS", "512")
    assert is_secret("TOKEN", "12345")
    assert is_secret("PASSWORD", "1234")


def test_the_secrets_of_a_url_in_every_spelling() -> None:
    assert url_secrets("https://user:p%40ss@a.example/") == {"user:p%40ss", "user:p@ss", "p%40ss", "p@ss"}
    assert url_secrets("https://token@b.example/") == {"token"}
    assert url_secrets("https://user:a/b'c@b.example/") == {"user:a/b'c", "a/b'c"}
    assert url_secrets("https://b.example/@scope") == set()
    assert url_secrets("https://b.example:8080/@scope") == set()
    assert url_secrets("https://:@b.example/") == set()
    assert redact("abc", [""]) == "abc"
    assert has_userinfo("https://token@b.example/")
    assert not has_userinfo("https://b.example/@scope")


def test_the_environment_of_a_record() -> None:
    known = {"HF_TOKEN": "hunter2hunter2", "HOME": "/h", "LD_LIBRARY_PATH": "/h/lib", "X": "hunter2hunter2", "Y": "1"}
    measured = {"NVTE_FLASH_ATTN": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert variables_for_record({**known, **measured, GIVEN: "X,Y,HF_TOKEN"}) == {
        "HF_TOKEN": "***",
        "X": "***",
        "Y": "1",
        **measured,
    }
    assert variables_for_record({**known, **measured}) == measured


def test_the_secrets_of_an_environment() -> None:
    short = {"API_KEY": "short", "X": "http://u:p@h", "TOKEN": ""}
    assert secret_values(short) == []  # they would be found in the middle of words
    assert secret_values({**short, "HF_TOKEN": "abcdefgh", "Y": "http://user:longer1@h"}) == [
        "abcdefgh",
        "longer1",
        "user:longer1",
    ]


REPEATED = (
    *("://a:", "//a:", ",a:", "a:b@", "authorization: a=b,", "--token ", "-u a:", "key=", "a=", "://", "://a@"),
    *("x-", "-----BEGIN ", "Bearer ", '"token":"', "sk-", "a"),
)


@pytest.mark.parametrize("unit", REPEATED)
def test_a_long_hostile_text_is_read_in_linear_time(unit: str) -> None:
    start = time.process_time()
    redact(unit * (2**17 // len(unit)))
    assert time.process_time() - start < 3, "it takes 0.2 s; in quadratic time minutes"


def test_an_unclosed_quote_with_many_backslashes_is_read_in_one_way() -> None:
    """Each pair of a backslash and a letter that could be read in two ways would double the time."""
    assert redact('token = "' + r"\x" * 10_000) == "token = ***"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r'token="a\"b" c', "token=*** c"),
        (r'token="a b\" c', "token=*** c"),  # the only closing quote is escaped
        (r'token="a b\" c\" d', "token=*** d"),
        (r"{\"token\": \"a b\", x", r"{\"token\": ***, x"),
    ],
)
def test_a_quoted_value_ends_at_its_quote(text: str, shown: str) -> None:
    assert redact(text) == shown
