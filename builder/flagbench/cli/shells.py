"""`--install-completion [SHELL]` and `--show-completion [SHELL]`: install or print the completion for a shell.

For bash it is our own script, since Typer's cannot complete the colon of CASE:STACK. For other shells it is Typer's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from typer._completion_shared import _get_shell_name, get_completion_script, install

from flagbench.errors import FlagbenchError

_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
_COMPLETE_VARIABLE = "_FLAGBENCH_COMPLETE"

_BASH = """\
_flagbench_completion() {
    # Bash splits words at the colon of CASE:STACK, so they are split here, and it gets back what follows the colon.
    local -a words
    read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
    [[ ${COMP_LINE:0:COMP_POINT} == *' ' ]] && words+=("")
    local last=$((${#words[@]} - 1)) IFS=$'\\n'
    local before=${words[last]%"${words[last]##*:}"}
    COMPREPLY=( $( IFS=' '; env COMP_WORDS="${words[*]}" COMP_CWORD=$last _FLAGBENCH_COMPLETE=complete_bash "$1" ) )
    [[ $COMP_WORDBREAKS == *:* ]] && COMPREPLY=( "${COMPREPLY[@]#"$before"}" )
    return 0
}

complete -o default -F _flagbench_completion flagbench
"""


def set_up(arguments: Sequence[str]) -> None:
    """Install or print the completion for the named shell, or else for the shell that started this command.

    Raises FlagbenchError (USAGE) for an unsupported shell.
    """
    option, _, first_word = arguments[0].partition("=")
    shell = " ".join([first_word, *arguments[1:]]).strip() or _get_shell_name() or ""
    if shell not in _SHELLS:
        problem = "the shell could not be detected"
        if shell:
            problem = f"there is no completion for the shell {shell!r}"
        raise FlagbenchError(problem, remedy=f"name one of: {', '.join(_SHELLS)}; for example {option} bash")
    if option == "--show-completion":
        script = _BASH.rstrip()
        if shell != "bash":
            script = get_completion_script(prog_name="flagbench", complete_var=_COMPLETE_VARIABLE, shell=shell)
        print(script)
        return
    try:
        _, path = install(shell=shell, prog_name="flagbench", complete_var=_COMPLETE_VARIABLE)
        if shell == "bash":
            path.write_text(_BASH)
    except (OSError, UnicodeDecodeError, RuntimeError, subprocess.SubprocessError) as error:
        # Such as a start-up file that is not UTF-8, a missing home folder, or a PowerShell that refuses scripts.
        cause = getattr(error, "strerror", None) or error
        raise FlagbenchError(
            f"the completion of {shell} cannot be installed: {cause}",
            remedy=f"print it with --show-completion {shell} and put it where your shell reads it",
        ) from error
    print(f"completion of {shell} installed in {path}; start a new shell to use it")
