"""flagbench's own rules for Dockerfiles: mistakes in a template of one's own that hadolint does not know.

The parts: images.py finds every image that a Dockerfile takes from outside, secrets.py what nobody may read, shell.py
every command that it runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from posixpath import basename
from textwrap import shorten

from flagbench.redaction import has_userinfo
from flagbench.render.dockerfile import Dockerfile, Instruction
from flagbench.render.images import OUR_IMAGES, pinned_image
from flagbench.render.permissions import modes, too_open
from flagbench.render.secrets import no_secret_variable
from flagbench.render.shell import SHELLS, TALKS, Call, expand

Found = Iterator[tuple[int, str]]
Rule = Callable[[Dockerfile], Found]

INSTALLER = "/media/install.sh"
_DOWNLOADS = frozenset({"curl", "wget"})
_INTERPRETER = re.compile(r"(?:python|perl|ruby|node)[\d.]*")
_PIP = re.compile(r"pip[\d.]*")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*|\$\{?\w+\}?")
_MODULE = re.compile(r"-[bBdEIOPqsSuvx]*m(.*)")
_VERBS = {
    "apt apt-get aptitude": "install",
    "dpkg": "-i --install",
    "apk": "add",
    "dnf microdnf yum": "install localinstall groupinstall reinstall update upgrade",
    "zypper": "install in",
    "rpm": "-i -U -ivh -Uvh --install --upgrade",
    "conda mamba micromamba": "install create update",
    "uv": "add sync tool run",
    "poetry pdm": "install add sync",
    "pipenv": "install sync update",
    "pipx": "install run",
    "setup.py": "install develop",
}
_OTHERS = {name: set(verbs.split()) for names, verbs in _VERBS.items() for name in names.split()}
# They install whatever they are told.
_INSTALLERS = frozenset({"easy_install", "ensurepip", "uvx"})
_QUESTIONS = frozenset({"--help", "-h", "--version", "-V"})
_KEPT_FILE = re.compile(r"/etc/pip\.conf|/etc/apt/sources")
_KEPT_VARIABLE = re.compile(
    r"PIP_(?:EXTRA_)?INDEX_URL|UV_(?:DEFAULT_|EXTRA_)?INDEX(?:_URL)?|PIP_CERT|PIP_CONFIG_FILE|\w+_proxy|\w+_CA_BUNDLE"
    r"|SSL_CERT_FILE",
    re.IGNORECASE,
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
    """Every finding of every rule, by line; `path` is what a finding calls the file.

    Raises FlagbenchError (usage) for what is not a Dockerfile.
    """
    found = {
        Finding(path, line, rule.__name__.replace("_", "-"), text)
        for rule in RULES
        for line, text in rule(dockerfile)
    }
    return sorted(found, key=lambda finding: (finding.line, finding.rule, finding.text))


def no_root(dockerfile: Dockerfile) -> Found:
    """What breaks out of a container as root is root on the host. hadolint finds `USER 0` (DL3002)."""
    users = [i for i in dockerfile.lineage if i.name == "USER" and not i.onbuild]
    if users:
        if not " ".join(users[-1].words).partition(":")[0].strip("\"'").isdigit():
            yield users[-1].line, "USER by name: Kubernetes' runAsNonRoot can only check a number"
    elif not any(i.name == "FROM" and i.image.startswith(OUR_IMAGES) for i in dockerfile.lineage):
        yield 1, "no USER: the image runs as the user that the base names, mostly root"


def tini_first(dockerfile: Dockerfile) -> Found:
    """As process 1, a shell or Python ignores SIGTERM: `docker stop` waits ten seconds and kills, and the record is
    lost. tini -g forwards it to every process of the run."""
    for instruction in dockerfile.named("ENTRYPOINT"):
        if instruction.words[:3] != ("/usr/bin/tini", "-g", "--"):
            yield instruction.line, 'an ENTRYPOINT that does not begin with ["/usr/bin/tini", "-g", "--", ...]'


def no_pipe_to_shell(dockerfile: Dockerfile) -> Found:
    """A script that is downloaded and run is not checked, and differs tomorrow."""
    for instruction, call in dockerfile.calls():
        runs = call.name in SHELLS | {"eval", "source", "."} or _INTERPRETER.fullmatch(call.name)
        inside = any(re.search(r"[$<]\(\s*(?:curl|wget)\b|`\s*(?:curl|wget)\b", word) for word in call.words)
        if runs and (inside or _DOWNLOADS & set(call.reads)):
            yield instruction.line, f"a download that {call.name} runs"


def no_account_in_url(dockerfile: Dockerfile) -> Found:
    """An instruction stays readable in the image's history, whatever a later one removes."""
    for instruction in dockerfile.instructions:
        if has_userinfo(instruction.text):
            yield instruction.line, "an address with an account in it"


def code_last(dockerfile: Dockerfile) -> Found:
    """What is installed after the code is copied is installed again whenever the code changes."""
    copied = next((i.line for i in dockerfile.named("COPY", "ADD") if i.flag("from") is None), None)
    for instruction, call in dockerfile.calls():
        if copied is not None and instruction.line > copied and _is_install(call):
            yield instruction.line, f"an installation after the COPY of line {copied}"


def through_installer(dockerfile: Dockerfile) -> Found:
    """Only install.sh uses the certificates, mirrors and wheels that a build is given, and leaves none behind."""
    given = {"type": "bind", "source": "inputs", "target": "/mnt"}
    for instruction, call in dockerfile.calls():
        if INSTALLER in call.words:
            if given not in instruction.mounts():
                yield instruction.line, f"{INSTALLER} without --mount=type=bind,source=inputs,target=/mnt"
        elif _is_install(call):
            yield instruction.line, f"an installation without {INSTALLER}"


def with_hashes(dockerfile: Dockerfile) -> Found:
    """A requirement without a hash is whatever the index says today; with dependencies, it may replace torch."""
    for instruction, call in dockerfile.calls():
        words = _pip_install(call)
        if words and "--no-deps" not in words:
            yield instruction.line, "pip without --no-deps"
        if words and not {"--require-hashes", "--no-index", "/media/requirements.unlocked"} & set(words):
            yield instruction.line, "pip without --require-hashes"


def nothing_kept(dockerfile: Dockerfile) -> Found:
    """A mirror, a proxy or a certificate of the place of building breaks the image everywhere else."""
    for instruction in dockerfile.named("RUN"):
        if kept := _KEPT_FILE.search(instruction.text):
            yield instruction.line, f"{kept[0]} stays in the image"
    for instruction, call in dockerfile.calls():
        if call.name == "git" and "config" in call.words and {"--global", "--system"} & set(call.words):
            yield instruction.line, "git config stays in the image"
        if {"config", "set"} <= set(call.words) and _pip_words(call) is not None:
            yield instruction.line, "pip config set stays in the image"
    for instruction, name in dockerfile.variables():
        if _KEPT_VARIABLE.fullmatch(name):
            yield instruction.line, f"{name} stays in the image"


def no_unchecked_add(dockerfile: Dockerfile) -> Found:
    """ADD of an address fetches whatever is there today; a package comes from a lock."""
    for instruction in dockerfile.named("ADD"):
        remote = any(re.match(r"(?:https?|ftp|git|ssh)://|git@", word) for word in instruction.words)
        if remote and instruction.flag("checksum") is None:
            yield instruction.line, "ADD of an address without --checksum"


def narrow_permissions(dockerfile: Dockerfile) -> Found:
    """What everybody may write, anybody in the container may replace before root runs it; a setuid program makes its
    caller root. A folder for everybody has the sticky bit: 1777."""
    for instruction, call in dockerfile.calls():
        for mode in filter(too_open, modes(call)):
            yield instruction.line, f"mode {mode}: writable by everybody, or setuid"
    for instruction in dockerfile.instructions:
        if too_open(mode := expand(instruction.flag("chmod") or "", instruction.variables)):
            yield instruction.line, f"--chmod={mode}: writable by everybody, or setuid"


def keeps_bytecode(dockerfile: Dockerfile) -> Found:
    """Without .pyc files every start of every rank compiles torch's thousands of modules again."""
    for instruction, name in dockerfile.variables():
        if name == "PYTHONDONTWRITEBYTECODE":
            yield instruction.line, name


def required_block(dockerfile: Dockerfile) -> Found:
    """What an image promises (its checks, user, environment and entry point) is made by blocks that a template may
    add to with {{ super() }}, but not leave out."""
    built = dockerfile.lineage
    lines = {instruction.text: instruction.line for instruction in built if not instruction.onbuild}
    kept = [("env", instruction, 0) for instruction in _read(dockerfile.inherited)]
    for block, text in dockerfile.required.items():
        for instruction in _read(text):
            if instruction.text in lines:
                kept.append((block, instruction, lines[instruction.text]))
            else:
                yield 1, f"the block {block} lacks `{shorten(instruction.text, 60, placeholder='...')}`"
    ours = {instruction.text for _, instruction, _ in kept}
    for block, instruction, line in kept:
        for later in built:
            if later.line > line and later.text not in ours:
                for what in _replaced(instruction, later):
                    yield later.line, f"what the block {block} sets is replaced: {what}"


@lru_cache(maxsize=64)
def _read(text: str) -> tuple[Instruction, ...]:
    return Dockerfile(text).instructions if text.strip() else ()


def _replaced(instruction: Instruction, later: Instruction) -> Iterator[str]:
    """What of an instruction a later one replaces. A variable may be added to: `ENV PATH=/more:$PATH`."""
    if instruction.name != later.name:
        return
    if instruction.name in ("ENTRYPOINT", "WORKDIR"):
        yield instruction.name
    if instruction.name == "ENV":
        values = dict(instruction.assigned)
        for name, value in later.assigned:
            if name in values and value != values[name] and not re.search(rf"\$(?:{name}\b|{{{name}}})", value or ""):
                yield name


RULES: tuple[Rule, ...] = (
    pinned_image,
    no_root,
    tini_first,
    no_pipe_to_shell,
    no_account_in_url,
    code_last,
    through_installer,
    with_hashes,
    no_secret_variable,
    nothing_kept,
    no_unchecked_add,
    narrow_permissions,
    keeps_bytecode,
    required_block,
)


def _programs(call: Call) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a command runs, with its arguments: itself, `python -m MODULE`, a script, and pip wherever it is named."""
    if call.name in TALKS:
        return
    yield call.name, call.words[1:]
    for at, word in enumerate(call.words):
        rest = iter(call.words[at + 1 :] if _PYTHON.fullmatch(basename(word)) else ())
        for argument in rest:
            if module := _MODULE.fullmatch(argument):
                yield (module[1] or next(rest, "")).partition(".")[0], tuple(rest)
            elif not argument.startswith("-"):
                yield basename(argument), tuple(rest)
            elif argument in ("-W", "-X"):
                next(rest, None)
    for at, word in enumerate(call.words):
        if _PIP.fullmatch(basename(word)) and not word.startswith("-"):
            yield "pip", call.words[at + 1 :]


def _pip_words(call: Call) -> tuple[str, ...] | None:
    """The arguments of the pip that a command runs, by whatever name or module; None if it runs none."""
    return next((words for name, words in _programs(call) if _PIP.fullmatch(name)), None)


def _pip_install(call: Call) -> tuple[str, ...] | None:
    """The arguments of pip where it installs or builds wheels."""
    words = _pip_words(call)
    return words if words and {"install", "wheel", "download"} & set(words) else None


def _is_install(call: Call) -> bool:
    if INSTALLER in call.words:
        return call.words[call.words.index(INSTALLER) + 1 :][:1] in (("pip",), ("apt",))
    return _pip_install(call) is not None or any(
        (name in _INSTALLERS and not _QUESTIONS & set(words)) or _OTHERS.get(name, set()) & set(words)
        for name, words in _programs(call)
    )
