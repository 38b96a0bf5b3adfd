#!/bin/sh
# Fails at once where a base is not the one that a stack is written for, before anything is installed on it.
#
#   check_base.sh PYTHON [INTERPRETER]
#
# PYTHON is the stack's minor version, like 3.8; INTERPRETER is the base's own, where the stack uses that.
set -eu

python=$1
interpreter=${2:-}

die() {
    printf 'flagbench: %s\n' "$1" >&2
    exit 1
}

[ -r /etc/os-release ] || die 'the base has no /etc/os-release: it has to be a Debian or an Ubuntu'
# shellcheck source=/dev/null
base=$(. /etc/os-release && printf '%s' "${PRETTY_NAME:-$ID}")
command -v apt-get >/dev/null || die "the base is $base, without apt-get: it has to be a Debian or an Ubuntu"
[ -n "$interpreter" ] || exit 0
[ -x "$interpreter" ] || die "the base ($base) has no $interpreter: is it the one that the stack expects?"
found=$("$interpreter" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$found" = "$python" ] ||
    die "the base's $interpreter is Python $found, the stack is for $python: is it the right base?"
