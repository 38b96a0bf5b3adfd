#!/bin/sh
# Installs packages during an image's build, from what the person who builds gave it.
#
#   install.sh apt PACKAGE...               Debian packages, without recommended ones; PACKAGE@LIBRARY only where the
#                                           base lacks that shared library, such as libibverbs1@libibverbs.so.1
#   install.sh pip INTERPRETER ARGUMENT...  `INTERPRETER -m pip ARGUMENT...`
#   install.sh take KEY FOLDER              into FOLDER the wheel that an earlier build kept; fails where there is none
#   install.sh keep KEY FOLDER              keeps what FOLDER holds for another build on the same base
#
# What was given lies under /mnt while an instruction runs, and nothing of it stays in the image:
#   /mnt/ca.crt            certificates to trust, PEM
#   /mnt/pip.conf          pip's configuration; its extra-index-url, if it has one, replaces the stack's
#   /mnt/wheels/           packages to install from, instead of any index
#   /mnt/apt/sources.list  where Debian packages come from, instead of the base's sources
#   /mnt/apt/url           the same as one address of a mirror, for whichever distribution the base is
#
# Wheels are kept in a cache of the engine, mounted at /srv, by BASE_DIGEST and KEY; without BASE_DIGEST none is.
set -eu

given=${FLAGBENCH_INPUTS:-/mnt}
cache=${FLAGBENCH_WHEELS:-/srv}

die() {
    printf 'flagbench: %s\n' "$1" >&2
    exit 1
}

distribution() {
    # shellcheck source=/dev/null
    (. /etc/os-release && printf '%s' "${PRETTY_NAME:-$ID}")
}

# The sources of a mirror for this distribution and release.
mirror_sources() {
    # shellcheck source=/dev/null
    . /etc/os-release
    case $ID in
    debian) components='main' pockets='-updates' ;;
    ubuntu) components='main universe' pockets='-updates -security' ;;
    *) die "no sources are known for $(distribution): give a sources.list instead of an address" ;;
    esac
    for pocket in '' $pockets; do
        printf 'deb %s %s%s %s\n' "$1" "$VERSION_CODENAME" "$pocket" "$components"
    done
}

# The distribution's own sources: a vendor's list with an expired key must not fail a build that takes nothing of it.
own_sources() {
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources; do
        if grep -Eqs '^(deb |Types:)' "$list"; then
            printf '%s' "$list"
            return
        fi
    done
}

# What apt-get and apt-cache are told for this build alone, as the text of a configuration file.
apt_configuration() {
    printf 'Acquire::Retries "3";\nAPT::Update::Error-Mode "any";\n'
    if [ -n "$1" ]; then
        printf 'Dir::Etc::sourcelist "%s";\nDir::Etc::sourceparts "-";\n' "$1"
    fi
    if [ -f "$given/ca.crt" ]; then
        printf 'Acquire::https::CAInfo "%s";\n' "$given/ca.crt"
    fi
}

# The packages to install, one per line.
lacking() {
    for package in "$@"; do
        case $package in
        *@*) ldconfig -p | grep -Fq "${package#*@} " || printf '%s\n' "${package%@*}" ;;
        *) printf '%s\n' "$package" ;;
        esac
    done
}

install_apt() {
    # shellcheck disable=SC2046 # names of packages have no spaces
    set -- $(lacking "$@")
    command -v apt-get >/dev/null || die "$(distribution) has no apt-get: the base has to be a Debian or an Ubuntu"
    scratch=$(mktemp -d)
    # apt reads its sources as a user of its own.
    chmod 755 "$scratch"
    if [ -f "$given/apt/sources.list" ]; then
        sources=$given/apt/sources.list
    elif [ -f "$given/apt/url" ]; then
        sources=$scratch/mirror.list
        mirror_sources "$(cat "$given/apt/url")" >"$sources"
    else
        sources=$(own_sources)
    fi
    apt_configuration "$sources" >"$scratch/apt.conf"
    export APT_CONFIG="$scratch/apt.conf" DEBIAN_FRONTEND=noninteractive
    apt-get -q update
    for package in "$@"; do
        apt-cache show "$package" >/dev/null 2>&1 ||
            die "$(distribution) has no package $package: is this the base that the stack expects?"
    done
    # What a vendor's base brings stays as it is.
    apt-get -q install -y --no-install-recommends --no-upgrade -- "$@"
    apt-get clean
    # Lists are dead weight; the rest differs from one build to the next.
    rm -rf "$scratch" /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old \
        /var/cache/ldconfig/aux-cache /var/lib/dpkg/*-old /var/log/apt /var/log/dpkg.log /var/log/alternatives.log
}

install_pip() {
    interpreter=$1
    shift
    # A base's own constraints would contradict the lock; that the base's packages stay as they are is checked after.
    unset PIP_CONSTRAINT
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1
    export PIP_BREAK_SYSTEM_PACKAGES=1
    if [ -f "$given/ca.crt" ]; then
        export PIP_CERT="$given/ca.crt" SSL_CERT_FILE="$given/ca.crt"
        export REQUESTS_CA_BUNDLE="$given/ca.crt" CURL_CA_BUNDLE="$given/ca.crt"
    fi
    if [ -f "$given/pip.conf" ]; then
        export PIP_CONFIG_FILE="$given/pip.conf"
        if grep -Eq '^[[:space:]]*extra-index-url' "$given/pip.conf"; then
            unset PIP_EXTRA_INDEX_URL
        fi
    fi
    if [ -d "$given/wheels" ]; then
        unset PIP_EXTRA_INDEX_URL
        export PIP_NO_INDEX=1 PIP_FIND_LINKS="$given/wheels"
    fi
    exec "$interpreter" -m pip "$@"
}

# Where the wheel of a key is kept; nothing where none is kept.
kept() {
    [ -z "${BASE_DIGEST:-}" ] || printf '%s/%s/%s' "$cache" "$BASE_DIGEST" "$1"
}

take_wheel() {
    folder=$(kept "$1")
    [ -n "$folder" ] && [ -d "$folder" ] || return 1
    mkdir -p "$2"
    cp "$folder"/*.whl "$2"
    printf 'flagbench: taken from an earlier build: %s\n' "$1"
}

# Complete or not at all: another build may look for it meanwhile, or have kept the same.
keep_wheel() {
    folder=$(kept "$1")
    [ -n "$folder" ] || return 0
    mkdir -p "$(dirname "$folder")"
    scratch=$(mktemp -d "$cache/new.XXXXXX")
    cp "$2"/*.whl "$scratch"
    mv -T "$scratch" "$folder" || rm -rf "$scratch"
}

what=${1:-}
[ $# -eq 0 ] || shift
case $what in
apt) install_apt "$@" ;;
pip) install_pip "$@" ;;
take) take_wheel "$@" ;;
keep) keep_wheel "$@" ;;
*) die "install.sh knows apt, pip, take and keep, not '$what'" ;;
esac
