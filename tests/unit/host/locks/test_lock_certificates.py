"""A bundle of certificates: read as it is, or refused before anything is asked with it."""

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.certificates import certificates
from flagbench.locks.sources import Sources


def test_a_bundle_is_read_as_it_is(ca_bundle):
    assert certificates(ca_bundle) == ca_bundle.read_bytes()


def test_what_stands_between_certificates_may_be_in_any_language(ca_bundle):
    text = f"# Főtanúsítvány\n{ca_bundle.read_text()}"
    ca_bundle.write_text(text, encoding="utf-8")
    assert certificates(ca_bundle) == text.encode()


@pytest.mark.parametrize("content", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nMIIB", b"\xff"])
def test_a_bundle_without_certificates_is_refused(content, tmp_path):
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(content)
    with pytest.raises(FlagbenchError) as caught:
        Sources(ca_bundle=bundle)
    assert "--ca-bundle" in str(caught.value)
    assert caught.value.code is ExitCode.USAGE


def test_a_bundle_with_a_private_key_is_refused(ca_bundle):
    ca_bundle.write_text(ca_bundle.read_text() + "-----BEGIN PRIVATE KEY-----\nx\n")
    with pytest.raises(FlagbenchError) as caught:
        certificates(ca_bundle)
    assert "--ca-bundle" in str(caught.value)


def test_a_bundle_that_is_not_there(tmp_path):
    with pytest.raises(FlagbenchError) as caught:
        certificates(tmp_path / "none.crt")
    assert "none.crt" in str(caught.value)
    assert "PEM" in caught.value.remedy
