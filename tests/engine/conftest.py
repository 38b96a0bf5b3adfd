"""Where the host tool itself is needed, Python 3.10 is: the image side's tests run on 3.8 without it."""

import sys

collect_ignore = (
    [
        *("test_run_command.py", "test_run_terminal.py", "test_docs_add_a_case.py", "test_prepare_command.py"),
        *("test_resume_split_model.py", "test_reproduce.py", "test_explain_runs.py"),
    ]
    if sys.version_info < (3, 10)
    else []
)
