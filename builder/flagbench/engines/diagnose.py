"""From what a failing build printed to its cause and its remedy; pure, one rule for each known cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

GENERIC_REMEDY = "read the step's last lines; the Dockerfile that `flagbench render` writes shows what it ran"


class Diagnosis(NamedTuple):
    """Why a build failed, in words that follow `cannot build: `, and what to do."""

    cause: str
    remedy: str


class Rule(NamedTuple):
    """A cause, known by a pattern in the error or in the lines; `{}` fields are the pattern's groups, and `base`."""

    pattern: str
    cause: str
    remedy: str


_NAME_OR_TAG = "name another with --base, or load the vendor's archive with `docker load` and name that image"
_INDEX = "name a package index that is reachable with --pip-source, or packages fetched elsewhere with --wheelhouse"

# In each list the first rule that matches counts: a symptom that several causes share comes after all of them.
_ANYWHERE = (
    Rule(
        r"(?i)no space left on device|not enough free space|disk quota exceeded",
        "the disk of the engine is full",
        "free some space: `docker system df` shows what takes it, `docker builder prune` drops unused build cache",
    ),
)
_BASE = (
    Rule(
        r"//localhost/v2/flagbench/",
        "the engine has no image {base}, which this one is built on",
        "build it first: `flagbench build` builds both, by hand it is the directory `stack`",
    ),
    Rule(
        r"(?i)unauthorized|authentication required|access denied|access forbidden|no basic auth|insufficient_scope"
        r"|authorization failed|status(?: code)?:? 40[13]|toomanyrequests|too many requests|rate limit",
        "the registry does not let you pull the base {base}: it is private, does not exist, or you pulled too much",
        "log in with `docker login` and build again, or " + _NAME_OR_TAG,
    ),
    Rule(
        r"(?i)x509|certificate|tls: ",
        "the engine does not trust the certificate of the registry of the base {base}",
        "give the engine that certificate (/etc/docker/certs.d/HOST/ca.crt), or " + _NAME_OR_TAG,
    ),
    Rule(
        r"(?i)manifest(?: for \S+)? (?:unknown|not found)|name unknown|: not found|status(?: code)?:? 404"
        r"|no match for platform|does not match the specified platform|no matching manifest",
        "the registry has no base {base} for the platform asked for; vendors delete old tags",
        _NAME_OR_TAG,
    ),
    Rule(
        r"(?i)no such host|dial tcp|connection re(?:fused|set)|timeout|unreachable|misbehaving|EOF|proxyconnect",
        "the registry of the base {base} cannot be reached from the engine",
        "give the engine a network or a proxy, or " + _NAME_OR_TAG,
    ),
)
# A command in the image. What flagbench's own checks in the image say is meant for a person already.
_COMMAND = (
    Rule(
        r"^flagbench: (?P<package>\S+) of the base was (?P<old>\S+) and is (?P<new>\S+) now",
        "{package} of the base was {old}, and an install made it {new}",
        "name {package} under from_base in the stack's manifest and lock the stack again",
    ),
    Rule(
        r"^flagbench: (?P<what>.+)$",
        "{what}",
        "check that --base is the stack's base, and what the stack's manifest expects",
    ),
    Rule(
        r"exit code: 137\b|signal: killed|fatal error: Killed|Killed signal terminated program",
        "a process was killed, as the kernel does when memory runs out",
        "give the engine more memory, or compile with fewer jobs at once: MAX_JOBS in the stack's manifest",
    ),
    Rule(
        r"exec format error",
        "the base is for another processor than the engine's",
        "name a base of the engine's platform with --base, or add a stack for it: docs/add-a-stack.md",
    ),
    Rule(
        r"(?i)CERTIFICATE_VERIFY_FAILED|certificate verif(?:y|ication) failed|unknown authority|SSL certificate prob",
        "a server's certificate is not trusted inside the image, so packages could not be fetched",
        "name the certificates of your network with --ca-bundle, on Debian /etc/ssl/certs/ca-certificates.crt",
    ),
    Rule(
        r"THESE PACKAGES DO NOT MATCH THE HASHES[^\n]*\n\s*(?P<package>\S+)",
        "{package} is not the file that the stack's lock names: its hash differs",
        "take it from the index it was locked from, or look into the change and lock the stack with `flagbench lock`",
    ),
    Rule(
        r"(?P<what>(?:Temporary failure resolving|Could not resolve) '[^']+')|^E: (?P<said>[^\n]+)",
        "apt failed: {what}{said}",
        "name a mirror that is reachable and complete with --apt-source, or set HTTP_PROXY; check that --base is of "
        "the distribution the stack expects",
    ),
    Rule(
        # pip tries again, so a broken connection alone says nothing: it also has to have given up.
        r"(?:NewConnectionError|ConnectTimeoutError|ReadTimeoutError|Failed to resolve|ProxyError|RemoteDisconnected)"
        r"[\s\S]*(?:No matching distribution found|Could not install packages|Max retries exceeded)",
        "pip could not reach the package index",
        _INDEX + ", or set HTTPS_PROXY",
    ),
    Rule(
        r"HTTP error 40[13]|40[13] Client Error|User for \S+:",
        "the package index refuses access",
        "give credentials in the URL of --pip-source: they are not kept in the image",
    ),
    Rule(
        r"Looking in links: (?P<folder>\S+)[\s\S]*No matching distribution found for (?P<package>\S+)",
        "the wheelhouse has no file of {package} for the image's Python and platform",
        "fill it with `pip download` (docs/locks.md), or build without --wheelhouse",
    ),
    Rule(
        r"No matching distribution found for (?P<package>\S+)",
        "the package index has no file of {package} for the image's Python and platform",
        _INDEX,
    ),
)
_DOCKERFILE = (
    Rule(
        r'failed to (?:compute cache key|calculate checksum)[^\n]*?"(?P<path>[^"]+)"[^\n]*not found',
        "the build context has no {path}",
        "add it to the context, or correct the COPY in the template",
    ),
    Rule(
        r"(?P<what>dockerfile parse error[^\n]*)",
        "{what}",
        "correct the template; `flagbench render` writes the Dockerfile",
    ),
)
_PUSH = (
    Rule(
        r"(?i)no basic auth credentials|unauthorized|authentication required",
        "the registry {host} wants an account",
        "log in with `docker login {host}` and push again",
    ),
    Rule(
        r"(?i)denied|forbidden|insufficient_scope|status(?: code)?:? 403",
        "the registry {host} does not let this account push there",
        "log in with an account that may (`docker login {host}`), or name another path",
    ),
    Rule(
        r"(?i)x509|certificate|server gave HTTP response|tls: ",
        "the engine has no trusted connection to the registry {host}",
        "give the engine its certificate (/etc/docker/certs.d/{host}/ca.crt), or list it under insecure-registries",
    ),
    Rule(
        r"(?i)no such host|dial tcp|connection re(?:fused|set)|timeout|unreachable|misbehaving|EOF|proxyconnect",
        "the registry {host} cannot be reached from the engine",
        "check its name and the engine's network and proxy",
    ),
)

# What the engine writes before the reason it gives.
_PREFIX = re.compile(
    r"^(?:ERROR: |Error response from daemon: |failed to solve(?: with frontend \S+)?: "
    r"|failed to create LLB definition: )+"
)
_BASE_STEP = re.compile(r"(?:\[[^\]]*\] )?(?:load metadata for|FROM|pull) (?P<base>\S+)")
_EXIT = re.compile(r"exit code: (\d+)")


def diagnose(step: str | None, error: str, lines: Sequence[str] = ()) -> Diagnosis:
    """The cause and the remedy of a failed build.

    Args:
        step: the failing step as the engine words it, such as `[2/4] RUN ...`; None where none failed.
        error: the engine's reason.
        lines: what the step printed last.
    """
    base = _BASE_STEP.match(step or "")
    # The engine's reason contains the command: what a rule looks for must be printed, not be part of a command.
    reason = _EXIT.search(error)
    text = "\n".join([reason[0] if reason else error, *lines])
    rules = (*_ANYWHERE, *(_BASE if base else _COMMAND), *_DOCKERFILE)
    found = match_rule(rules, text, base=base["base"] if base else "")
    return found or Diagnosis(_generic(step, error), GENERIC_REMEDY)


def diagnose_push(reference: str, error: str) -> Diagnosis:
    """The cause and the remedy of a failed `docker push`; `error` is the last line that it printed."""
    found = match_rule(_PUSH, error, host=reference.partition("/")[0])
    return found or Diagnosis(_generic(None, error), "look at the registry's answer, then push again")


def match_rule(rules: Iterable[Rule], text: str, **words: str) -> Diagnosis | None:
    """What the first rule says whose pattern is in the text; its groups and `words` fill the `{}` fields."""
    for rule in rules:
        if found := re.search(rule.pattern, text, re.MULTILINE):
            words |= {name: value or "" for name, value in found.groupdict().items()}
            return Diagnosis(rule.cause.format(**words), rule.remedy.format(**words))
    return None


def _generic(step: str | None, error: str) -> str:
    if step is not None and (code := _EXIT.search(error)):
        return f"a command ended with exit code {code[1]}"
    return _PREFIX.sub("", error.strip()) or "the engine gives no reason"
