"""A bundle of certificates: read as it is, or refused before anything is asked with it."""

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.sources import Sources, certificates


def test_a_bundle_is_read_as_it_is(ca_bundle):
    """What stands between certificates may be in any language."""
    text = f"# Főtanúsítvány\n{ca_bundle.read_text()}"
    ca_bundle.write_text(text, encoding="utf-8")
    assert certificates(ca_bundle) == text.encode()


KEY = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "content", [None, b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nMIIB", b"\xff", KEY, b"{bundle}" + KEY]
)
def test_another_file_is_refused(content, ca_bundle, tmp_path):
    """One that is not there, without certificates, or with a private key."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content.replace(b"{bundle}", ca_bundle.read_bytes()))
    with pytest.raises(FlagbenchError) as caught:
        Sources(ca_bundle=path)
    assert f"--ca-bundle {path}" in caught.value.message
    assert "PEM" in caught.value.remedy
    assert caught.value.code is ExitCode.USAGE
