"""flagbench's own rules for Dockerfiles: what hadolint does not know and what a mistake here would cost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from flagbench.images import LOCAL
from flagbench.redaction import has_userinfo, is_secret_name
from flagbench.render.dockerfile import Dockerfile, Instruction

Found = Iterator[tuple[int, str]]
Rule = Callable[[Dockerfile], Found]

INSTALLER = "/media/install.sh"
_OUR_IMAGES = f"{LOCAL}/"
_DIRECTIVE = re.compile(r"(syntax|escape|check)\s*=", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_TO_A_SHELL = re.compile(r"\b(curl|wget)\b[^|;&]*\|\s*(sudo\s+)?(/\S*/)?(ba|da|z)?sh\b")
_URL = re.compile(r"\b(?:https?|ftp|git)://[^\s\"'|;&)]+")
_BRACES = re.compile(r"(?<!\$)\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}")
_HEREDOC = re.compile(r"<<-?\s*(?:''|\w)")
_NEW_FLAGS = re.compile(r"(?:^|\s)(--(?:link|parents|exclude|checksum|keep-git-dir|network|security|device))\b")
_PIP = re.compile(r"\bpip3?\s+(?:\S+\s+)*?(?:install|wheel)\b")
_OTHER_INSTALLS = re.compile(
    r"\b(?:uv|conda|mamba)\s+(?:\S+\s+)*?install\b|\b(?:apt|apt-get|dpkg)\s+(?:\S+\s+)*?(?:-i\b|install\b)"
)
_INPUTS = "--mount=type=bind,source=inputs,target=/mnt"
_KEPT = re.compile(r"\bpip3?\s+config\s+set\b|/etc/pip\.conf|/etc/apt/sources|\bgit\s+config\s+--(?:global|system)\b")
_KEPT_VARIABLE = re.compile(
    r"PIP_(?:EXTRA_)?INDEX_URL|PIP_CERT|PIP_CONFIG_FILE|\w+_proxy|\w+_CA_BUNDLE|SSL_CERT_FILE", re.IGNORECASE
)


@dataclass(frozen=True)
class Finding:
    """One place where a Dockerfile breaks a rule."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def check(path: str, dockerfile: Dockerfile) -> list[Finding]:
    """Every finding of every rule, by line; `path` is what a finding calls the file."""
    found = [
        Finding(path, line, rule.__name__.replace("_", "-"), text)
        for rule in RULES
        for line, text in rule(dockerfile)
    ]
    return sorted(found, key=lambda finding: (finding.line, finding.rule))


def no_directive(dockerfile: Dockerfile) -> Found:
    """A `# syntax` directive makes the build fetch its frontend from a public registry: it fails offline, and is one
    more input to trust. Below the first line a directive does nothing at all, and says nothing either."""
    for comment in dockerfile.named("COMMENT"):
        if _DIRECTIVE.match(comment.value):
            yield comment.line, f"a parser directive: {comment.value}"


def pinned_base(dockerfile: Dockerfile) -> Found:
    """A tag moves, and the image with it. A base has its digest, is built here, or says that it is unresolved."""
    first = next(dockerfile.named("FROM"), None)
    limit = first.line if first else 0
    early = [instruction for instruction in dockerfile.named("ARG") if instruction.line < limit]
    defaults = {name: value.strip("\"'") for name, equals, value in (a.value.partition("=") for a in early) if equals}
    told = any(comment.value.startswith("unresolved:") for comment in dockerfile.named("COMMENT"))
    given = {instruction.value for instruction in early if "=" not in instruction.value}
    for instruction in dockerfile.named("FROM"):
        image = next((word for word in instruction.value.split() if not word.startswith("--")), None)
        if image is None:
            yield instruction.line, "FROM names no image"
            continue
        if variable := _VARIABLE.fullmatch(image):
            if variable[1] in given:
                continue
            image = defaults.get(variable[1], image)
        if image in {"scratch", *dockerfile.stages} or image.startswith(_OUR_IMAGES) or "@sha256:" in image:
            continue
        if not told:
            yield instruction.line, f"{image} has no digest"


def no_root(dockerfile: Dockerfile) -> Found:
    """What breaks out of a container as root is root on the host. Devices that demand it say so in their stack."""
    users = list(dockerfile.named("USER"))
    if not users:
        first = next(dockerfile.named("ARG"), None)
        if first is None or f"={_OUR_IMAGES}" not in first.value:
            yield 1, "no USER: the image runs as the user that the base names, mostly root"
    elif users[-1].value.partition(":")[0] in {"0", "root"} and not dockerfile.root:
        yield users[-1].line, "the last USER is root"
    elif not users[-1].value.partition(":")[0].isdigit():
        yield users[-1].line, "USER by name: Kubernetes' runAsNonRoot can only check a number"


def tini_first(dockerfile: Dockerfile) -> Found:
    """As process 1, a shell or Python ignores SIGTERM: `docker stop` waits ten seconds and kills, and the record is
    lost. tini -g forwards it to every process of the run."""
    for instruction in dockerfile.named("ENTRYPOINT"):
        words = _exec_form(instruction)
        if words is None:
            yield instruction.line, "a shell-form ENTRYPOINT"
        elif words[:3] != ["/usr/bin/tini", "-g", "--"]:
            yield instruction.line, "an ENTRYPOINT that does not begin with /usr/bin/tini -g --"


def no_pipe_to_shell(dockerfile: Dockerfile) -> Found:
    """A script that is downloaded and run is checked by nobody, and differs tomorrow."""
    for instruction in dockerfile.named("RUN"):
        if _TO_A_SHELL.search(instruction.value):
            yield instruction.line, "a download piped into a shell"


def no_account_in_url(dockerfile: Dockerfile) -> Found:
    """An instruction stays readable in the image's history, whatever a later one removes."""
    for instruction in dockerfile.instructions:
        if has_userinfo(instruction.value):
            yield instruction.line, "an address with an account in it"


def no_foreign_host(dockerfile: Dockerfile) -> Found:
    """Somebody's mirror works for somebody. Public hosts stand in manifests; a mirror is given when building."""
    for instruction in dockerfile.instructions:
        if instruction.name == "COMMENT":
            continue
        for url in _URL.findall(instruction.value):
            host = _host(url)
            if host not in dockerfile.hosts:
                yield instruction.line, f"{host} is not the host of an index in a manifest"


def code_last(dockerfile: Dockerfile) -> Found:
    """What is installed after the code is copied is installed again whenever the code changes."""
    copied = next((i.line for i in dockerfile.named("COPY", "ADD") if "--from=" not in i.value), None)
    for instruction in dockerfile.named("RUN"):
        if copied is not None and instruction.line > copied and _is_install(instruction):
            yield instruction.line, f"an installation after the COPY of line {copied}"


def no_brace_expansion(dockerfile: Dockerfile) -> Found:
    """RUN is read by /bin/sh, which takes `{a,b}` as it stands: the command does nothing and succeeds."""
    for instruction in dockerfile.named("RUN", "SHELL"):
        if instruction.name == "SHELL" and "bash" in instruction.value:
            return
        if instruction.name == "RUN" and (braces := _BRACES.search(instruction.unquoted)):
            yield instruction.line, f"{braces[0]} is not expanded by sh"


def old_frontend(dockerfile: Dockerfile) -> Found:
    """The frontend built into Docker 20.10 knows Dockerfile 1.2: no heredocs, and none of the later flags."""
    for instruction in dockerfile.named("RUN", "COPY", "ADD"):
        if _HEREDOC.search(instruction.unquoted):
            yield instruction.line, "a heredoc"
        if flag := _NEW_FLAGS.search(_flags(instruction)):
            yield instruction.line, f"{instruction.name} {flag[1]}"


def through_installer(dockerfile: Dockerfile) -> Found:
    """Only install.sh knows the certificates, mirrors and wheels that a person gave, and leaves nothing of them."""
    for instruction in dockerfile.named("RUN"):
        if not _is_install(instruction):
            continue
        if INSTALLER not in instruction.value:
            yield instruction.line, f"an installation without {INSTALLER}"
        elif _INPUTS not in instruction.value:
            yield instruction.line, f"{INSTALLER} without {_INPUTS}"


def with_hashes(dockerfile: Dockerfile) -> Found:
    """A requirement without a hash is whatever the index says today; with dependencies, it may replace torch."""
    for instruction in dockerfile.named("RUN"):
        for command in re.split(r"&&|;", instruction.value):
            if not _PIP.search(command):
                continue
            if "--no-deps" not in command:
                yield instruction.line, "pip without --no-deps"
            if not any(word in command for word in ("--require-hashes", "requirements.unlocked", "--no-index")):
                yield instruction.line, "pip without --require-hashes"


def no_secret_variable(dockerfile: Dockerfile) -> Found:
    """The value of an ENV is in the image and that of an ARG in its history, for everyone who pulls it."""
    for instruction in dockerfile.named("ARG", "ENV"):
        for name in instruction.variables:
            if is_secret_name(name):
                yield instruction.line, f"{name} looks like a secret"


def nothing_kept(dockerfile: Dockerfile) -> Found:
    """A mirror, a proxy or a certificate of the place of building breaks the image everywhere else."""
    for instruction in dockerfile.named("RUN", "ENV", "ARG"):
        if instruction.name == "RUN" and (kept := _KEPT.search(instruction.value)):
            yield instruction.line, f"{kept[0]} stays in the image"
        elif instruction.name != "RUN":
            for name in instruction.variables:
                if _KEPT_VARIABLE.fullmatch(name):
                    yield instruction.line, f"{name} stays in the image"


def no_remote_add(dockerfile: Dockerfile) -> Found:
    """ADD of an address fetches without a sum; a package comes from a lock."""
    for instruction in dockerfile.named("ADD"):
        yield instruction.line, "ADD: COPY says what it does"


def no_health_check(dockerfile: Dockerfile) -> Found:
    """A run is a batch job, and Kubernetes ignores it: a probe in the device's time measures nothing but itself."""
    for instruction in dockerfile.named("HEALTHCHECK"):
        yield instruction.line, "a HEALTHCHECK"


def keeps_bytecode(dockerfile: Dockerfile) -> Found:
    """Without .pyc files every start of every rank compiles torch's thousands of modules again."""
    for instruction in dockerfile.named("ENV", "ARG"):
        if "PYTHONDONTWRITEBYTECODE" in instruction.variables:
            yield instruction.line, "PYTHONDONTWRITEBYTECODE"


def ends_with_newline(dockerfile: Dockerfile) -> Found:
    """A last line without its end is joined to whatever is appended, by a tool or by a person's template."""
    if not dockerfile.text.endswith("\n"):
        yield dockerfile.text.count("\n") + 1, "no newline at the end"


RULES: tuple[Rule, ...] = (
    no_directive,
    pinned_base,
    no_root,
    tini_first,
    no_pipe_to_shell,
    no_account_in_url,
    no_foreign_host,
    code_last,
    no_brace_expansion,
    old_frontend,
    through_installer,
    with_hashes,
    no_secret_variable,
    nothing_kept,
    no_remote_add,
    no_health_check,
    keeps_bytecode,
    ends_with_newline,
)


def _is_install(instruction: Instruction) -> bool:
    return any((INSTALLER in instruction.value, *(p.search(instruction.value) for p in (_PIP, _OTHER_INSTALLS))))


def _host(url: str) -> str:
    """The host of an address; the address itself where it has none that can be read."""
    try:
        return urlsplit(url).hostname or url
    except ValueError:
        return url


def _flags(instruction: Instruction) -> str:
    """The flags that an instruction begins with; those of a command in it are the command's."""
    words = instruction.value.split()
    end = next((index for index, word in enumerate(words) if not word.startswith("--")), len(words))
    return " ".join(words[:end])


def _exec_form(instruction: Instruction) -> list[str] | None:
    try:
        words = json.loads(instruction.value)
    except ValueError:
        return None
    return words if isinstance(words, list) else None
