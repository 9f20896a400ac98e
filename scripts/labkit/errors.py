"""What can go wrong with a lab, and the exit code each case gives."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_UP = 3
EXIT_PREREQUISITE = 4


class LabError(Exception):
    """Something failed; the message says what, where and how to mend it."""

    exit_code = EXIT_FAILED


class UsageError(LabError):
    """The command line asks for something that does not exist."""

    exit_code = EXIT_USAGE


class NotUpError(LabError):
    """The lab, or one host of it, is not running."""

    exit_code = EXIT_NOT_UP


class PrerequisiteError(LabError):
    """The machine lacks a package, a kernel feature or root."""

    exit_code = EXIT_PREREQUISITE
