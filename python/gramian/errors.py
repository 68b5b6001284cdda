"""The one exception of the package."""


class GramianError(RuntimeError, ValueError):
    """What went wrong, where, and what the user can do.

    kind: "invalid_argument", "unsupported", "corrupt_data", "io", "numerical", "interrupted", "unsound" or "internal".
    subject: the file, tensor, module or option (may be empty). remedy: what to do (may be empty).
    """

    def __init__(self, message: str, *, kind: str = "invalid_argument", subject: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.kind, self.subject, self.remedy = kind, subject, remedy


def refuse(subject: str, what: str, remedy: str = "", kind: str = "invalid_argument") -> "GramianError":
    """An error in the engine's words: "subject: what; remedy"."""
    text = f"{subject}: {what}" if subject else what
    return GramianError(f"{text}; {remedy}" if remedy else text, kind=kind, subject=subject, remedy=remedy)
