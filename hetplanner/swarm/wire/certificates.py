"""Certificates of a swarm: one authority of its own, whose key signs; who shows a certificate by it takes part.

There are no names of hosts in them, as peers come and go: all answer to one name, and what counts is the authority.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hetplanner.atomic_files import write_whole
from hetplanner.errors import InvalidInput
from hetplanner.schema import read_text

SWARM_NAME = "hetplanner-swarm"
AUTHORITY_FILE, AUTHORITY_KEY_FILE = "authority.pem", "authority.key"
MEMBER_FILE, MEMBER_KEY_FILE = "member.pem", "member.key"
RUN_FOLDER = "certificates"
"""Of a local run, in its own folder."""
MAX_PEM_BYTES = 2**20


@dataclass(frozen=True)
class Credentials:
    """What a process of a swarm needs: the authority's certificate, its own, and its own key (PEM)."""

    authority: bytes
    certificate: bytes
    key: bytes


def load_credentials(folder: Path) -> Credentials:
    """Reads a folder made by `make_certificates`; the authority's key is not needed. Raises InvalidInput."""
    names = (AUTHORITY_FILE, MEMBER_FILE, MEMBER_KEY_FILE)
    return Credentials(*(read_text(folder / name, MAX_PEM_BYTES) for name in names))


def authority_name(credentials: Credentials) -> str:
    """The first 16 digits of the SHA-256 of an authority's certificate: all authorities bear one name else."""
    return x509.load_pem_x509_certificate(credentials.authority).fingerprint(hashes.SHA256()).hex()[:16]


def make_certificates(folder: Path, days: int = 365, *, can_sign: bool = True) -> list[Path]:
    """Makes an authority and a member's certificate, which all members may share.

    Args:
        folder: made (0700) if missing; must not hold an authority already.
        days: of validity.
        can_sign: the authority's key is written too, so that it can sign more.

    Returns:
        The files; keys are readable by their owner alone.

    Raises:
        InvalidInput: there is an authority already, or the folder cannot be written.
    """
    if (folder / AUTHORITY_KEY_FILE).exists():
        raise InvalidInput(f"{folder}: holds an authority already; give another folder")
    authority_key, member_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _authority(authority_key, days)
    member = _member(member_key, authority, authority_key, days)
    pem = serialization.Encoding.PEM
    contents = {AUTHORITY_FILE: authority.public_bytes(pem), MEMBER_FILE: member.public_bytes(pem)}
    contents |= {AUTHORITY_KEY_FILE: _pem_of(authority_key)} if can_sign else {}
    contents |= {MEMBER_KEY_FILE: _pem_of(member_key)}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in contents.items():
            write_whole(folder / name, content, mode=0o600 if name.endswith(".key") else 0o644)
    except OSError as error:
        raise InvalidInput(f"{folder}: cannot be written: {error.strerror}") from None
    return [folder / name for name in contents]


def run_certificates(run_dir: Path) -> Path:
    """The folder of certificates of one local run, made when the run first starts. Raises InvalidInput.

    The key that signed them is not kept: a later process can enter only with a copy of them.
    """
    folder = run_dir / RUN_FOLDER
    if not (folder / MEMBER_KEY_FILE).exists():  # which is written last
        make_certificates(folder, can_sign=False)
    return folder


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks of hosts differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _authority(key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    subject = f"{SWARM_NAME} authority"
    return (
        _builder(subject, _name(subject), key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )


def _member(
    key: ec.EllipticCurvePrivateKey, authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey, days: int
) -> x509.Certificate:
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _builder(SWARM_NAME, authority.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SWARM_NAME)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
